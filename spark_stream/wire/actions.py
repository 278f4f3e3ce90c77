"""The actions of a broker (Flight's DoAction): the request and the answer of each.

This is the one table of them. The broker has a function for each, the client a method, and
``docs/flight.md`` a row; ``tests/wire/test_actions.py`` compares all three with it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from spark_stream.wire.access_messages import (
    Authenticated,
    CheckAccess,
    CreatedToken,
    CreateToken,
    Decision,
    NamedPrincipal,
    NamedToken,
    NamedUser,
    OpenSession,
    PutUser,
    QuotaList,
    RuleList,
    RuleText,
    SetQuota,
    TokenList,
    UserList,
)
from spark_stream.wire.cluster_messages import (
    ClusterDescription,
    Elected,
    ElectPreferred,
    MoveReplicas,
    NamedBroker,
)
from spark_stream.wire.consumer_messages import (
    ConsumerDescriptions,
    GroupAnswer,
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    PinnedStart,
    PinStart,
    ReaderHeartbeat,
    RecordProgress,
    TakenPartitions,
    TakePartitions,
)
from spark_stream.wire.fetch_messages import LocatedEntries, LocateEntries
from spark_stream.wire.messages import (
    AlterTopic,
    AtomicCut,
    BrokerList,
    BrokerStatus,
    CreateTopic,
    Cut,
    DeleteTopic,
    Empty,
    FindLeaders,
    Leaders,
    ListedOffsets,
    ListOffsets,
    ListTopics,
    Message,
    NamedTopic,
    TopicDescription,
    TopicNames,
    Trimmed,
    TrimTopic,
)
from spark_stream.wire.sink_messages import (
    DropBranchRequest,
    OpenBranch,
    RenewBatch,
    SettledBatch,
    SinkList,
    StopRun,
)
from spark_stream.wire.transaction_messages import (
    BeginTransaction,
    Branch,
    CommitTransaction,
    EndTransaction,
    InitTransactions,
    KillTransaction,
    NamedConsumer,
    NamedTransaction,
    OwnedConsumer,
    Positions,
    ProducerFacts,
    TakeConsumer,
    TransactionDescription,
    TransactionList,
)


class Action(Struct, frozen=True):
    """The message that asks for an action, and the one that answers."""

    request: type[Message]
    answer: type[Message]

    def __str__(self) -> str:
        return f"{self.request.__name__} → {self.answer.__name__}"


ACTIONS: Final[dict[str, Action]] = {
    "create-topic": Action(CreateTopic, TopicDescription),
    "alter-topic": Action(AlterTopic, TopicDescription),
    "delete-topic": Action(DeleteTopic, Empty),
    "trim-topic": Action(TrimTopic, Trimmed),
    "describe-topic": Action(NamedTopic, TopicDescription),
    "list-topics": Action(ListTopics, TopicNames),
    "list-offsets": Action(ListOffsets, ListedOffsets),
    "find-leaders": Action(FindLeaders, Leaders),
    "list-brokers": Action(Empty, BrokerList),
    "locate-entries": Action(LocateEntries, LocatedEntries),
    "describe-cluster": Action(Empty, ClusterDescription),
    "move-replicas": Action(MoveReplicas, Empty),
    "cancel-moves": Action(MoveReplicas, Empty),
    "elect-preferred": Action(ElectPreferred, Elected),
    "decommission": Action(NamedBroker, Empty),
    "recommission": Action(NamedBroker, Empty),
    "restore-metadata": Action(Empty, Empty),
    "status": Action(Empty, BrokerStatus),
    "new-producer": Action(Empty, ProducerFacts),
    "init-transactions": Action(InitTransactions, TransactionDescription),
    "begin-transaction": Action(BeginTransaction, Branch),
    "open-branch": Action(OpenBranch, Branch),
    "renew-batch": Action(RenewBatch, Empty),
    "drop-branch": Action(DropBranchRequest, Empty),
    "settle-batch": Action(OpenBranch, SettledBatch),
    "stop-run": Action(StopRun, Empty),
    "list-sinks": Action(Empty, SinkList),
    "delete-sink": Action(NamedTransaction, Empty),
    "renew-transaction": Action(EndTransaction, TransactionDescription),
    "commit-transaction": Action(CommitTransaction, TransactionDescription),
    "abort-transaction": Action(EndTransaction, TransactionDescription),
    "list-transactions": Action(Empty, TransactionList),
    "describe-transaction": Action(NamedTransaction, TransactionDescription),
    "kill-transaction": Action(KillTransaction, TransactionDescription),
    "take-consumer": Action(TakeConsumer, Positions),
    "check-consumer": Action(OwnedConsumer, Empty),
    "consumer-position": Action(NamedConsumer, Positions),
    "commit-position": Action(Positions, Empty),
    "join-group": Action(JoinGroup, GroupAnswer),
    "group-heartbeat": Action(GroupHeartbeat, GroupAnswer),
    "leave-group": Action(LeaveGroup, Empty),
    "take-partitions": Action(TakePartitions, TakenPartitions),
    "pin-start": Action(PinStart, PinnedStart),
    "record-progress": Action(RecordProgress, Empty),
    "reader-heartbeat": Action(ReaderHeartbeat, Empty),
    "list-consumers": Action(Empty, ConsumerDescriptions),
    "delete-consumer": Action(NamedConsumer, Empty),
    "atomic-cut": Action(AtomicCut, Cut),
    "put-user": Action(PutUser, Empty),
    "delete-user": Action(NamedUser, Empty),
    "list-users": Action(Empty, UserList),
    "open-session": Action(OpenSession, Authenticated),
    "create-token": Action(CreateToken, CreatedToken),
    "list-tokens": Action(Empty, TokenList),
    "revoke-token": Action(NamedToken, Empty),
    "add-rule": Action(RuleText, Empty),
    "remove-rule": Action(RuleText, Empty),
    "list-rules": Action(Empty, RuleList),
    "check-access": Action(CheckAccess, Decision),
    "set-quota": Action(SetQuota, Empty),
    "remove-quota": Action(NamedPrincipal, Empty),
    "list-quotas": Action(Empty, QuotaList),
}
