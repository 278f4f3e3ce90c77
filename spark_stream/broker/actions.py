"""The table of actions: for each name the message it takes, the one it answers with, and who acts.

An action is added here, with its function in ``topic_actions`` or ``transaction_actions``, and to
the table in ``docs/flight.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_stream.broker import topic_actions as topics
from spark_stream.broker import transaction_actions as acts
from spark_stream.broker.here import Here
from spark_stream.errors import InvalidRequest
from spark_stream.wire.messages import (
    AlterTopic,
    AtomicCut,
    BeginTransaction,
    BranchFacts,
    CommitTransaction,
    CreateTopic,
    Cut,
    Empty,
    EndTransaction,
    InitTransactions,
    KillTransaction,
    ListOffsets,
    Message,
    NamedConsumer,
    NamedTopic,
    NamedTransaction,
    Offsets,
    OwnedConsumer,
    Positions,
    ProducerFacts,
    Status,
    TopicFacts,
    TopicNames,
    TransactionFacts,
    TransactionList,
)
from spark_stream.wire.sink_messages import (
    DropBranch,
    OpenBranch,
    RenewBatch,
    SettledBatch,
    StopRun,
)


@dataclass(frozen=True, slots=True)
class Action:
    """What a DoAction of some name does."""

    takes: type[Message]
    answers: type[Message]
    act: Callable[[Here, Any], Message]

    @property
    def description(self) -> str:
        return f"{self.takes.__name__} → {self.answers.__name__}"


ACTIONS: Final[Mapping[str, Action]] = {
    "create-topic": Action(CreateTopic, TopicFacts, topics.create_topic),
    "alter-topic": Action(AlterTopic, TopicFacts, topics.alter_topic),
    "delete-topic": Action(NamedTopic, Empty, topics.delete_topic),
    "describe-topic": Action(NamedTopic, TopicFacts, topics.describe_topic),
    "list-topics": Action(Empty, TopicNames, topics.list_topics),
    "list-offsets": Action(ListOffsets, Offsets, topics.list_offsets),
    "status": Action(Empty, Status, topics.status),
    "new-producer": Action(Empty, ProducerFacts, acts.new_producer),
    "init-transactions": Action(InitTransactions, TransactionFacts, acts.init_transactions),
    "begin-transaction": Action(BeginTransaction, BranchFacts, acts.begin_transaction),
    "open-branch": Action(OpenBranch, BranchFacts, acts.open_branch),
    "renew-batch": Action(RenewBatch, Empty, acts.renew_batch),
    "drop-branch": Action(DropBranch, Empty, acts.drop_branch),
    "settle-batch": Action(OpenBranch, SettledBatch, acts.settle_batch),
    "stop-run": Action(StopRun, Empty, acts.stop_run),
    "renew-transaction": Action(EndTransaction, TransactionFacts, acts.renew_transaction),
    "commit-transaction": Action(CommitTransaction, TransactionFacts, acts.commit_transaction),
    "abort-transaction": Action(EndTransaction, TransactionFacts, acts.abort_transaction),
    "list-transactions": Action(Empty, TransactionList, acts.list_transactions),
    "describe-transaction": Action(NamedTransaction, TransactionFacts, acts.describe_transaction),
    "kill-transaction": Action(KillTransaction, TransactionFacts, acts.kill_transaction),
    "take-consumer": Action(OwnedConsumer, Positions, acts.take_consumer),
    "check-consumer": Action(OwnedConsumer, Empty, acts.check_consumer),
    "consumer-position": Action(NamedConsumer, Positions, acts.consumer_position),
    "commit-position": Action(Positions, Empty, acts.commit_position),
    "atomic-cut": Action(AtomicCut, Cut, acts.atomic_cut),
}


def run_action(here: Here, name: str, body: bytes) -> Message:
    """Runs the action of this name; InvalidRequest if there is none, or its body is wrong."""
    action = ACTIONS.get(name)
    if action is None:
        known = ", ".join(ACTIONS)
        raise InvalidRequest(f"there is no action {name!r}; there are {known}")
    return action.act(here, action.takes.from_bytes(body))
