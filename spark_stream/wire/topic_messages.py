"""The calls about topics: their administration, and the leaders of their partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pyarrow as pa
from msgspec import Meta

from spark_stream.access.rules import Operation, described, on_topic
from spark_stream.errors import IsologError
from spark_stream.schema.keys import DEFAULT_KEY, PARTITION_BY, split_names
from spark_stream.schema.schemas import is_default
from spark_stream.structs import Name, OffsetField, PartitionField
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.messages import Call, Description, Message

CREATE, ALTER = Operation.CREATE, Operation.ALTER
DELETE, DESCRIBE = Operation.DELETE, Operation.DESCRIBE


class PartitionDescription(Description, kw_only=False):
    """A partition as its leader sees it. ``error`` is None unless the partition cannot be used.

    ``leader``, ``replicas`` and ``isr`` are broker ids. A partition that no replica can lead has no
    leader. ``lag``: how many entries each follower lacks. A move brings ``adding`` and takes
    ``removing`` away: both are among the ``replicas`` until it ends. A replica is in both if an
    earlier move was adding it and this move removes it. ``high_watermark`` and
    ``last_stable_offset`` are None until a new leader has computed them. They, the other offsets,
    ``size`` and ``open_transactions`` are None where there is an error.
    """

    partition: int
    leader: str | None
    leader_epoch: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    size: int | None = 0
    open_transactions: int | None = 0
    lag: dict[str, int] = {}
    adding: tuple[str, ...] = ()
    removing: tuple[str, ...] = ()
    error: IsologError | None = None


class TopicDescription(Description, kw_only=False):
    """A topic with its partitions. ``config`` has every setting, defaults included.

    ``schema_version``: how often its schema was altered. ``added``: the columns that this added.
    ``warning``: a risk, such as a single replica on a cluster of several brokers.
    """

    name: str
    id: str
    schema: pa.Schema = msgspec.field(name="schema_ipc")
    config: dict[str, str]
    partitions: tuple[PartitionDescription, ...]
    replication_factor: int = 1
    schema_version: int = 0
    added: tuple[str, ...] = ()
    warning: str | None = None

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that place the topic's records; none if batches go to partitions in turn."""
        if is_default(self.schema):
            return DEFAULT_KEY
        return split_names(self.config.get(PARTITION_BY, ""))


class CreateTopic(Call[TopicDescription], name="create-topic", needs=on_topic(CREATE), once=True):
    """Create a topic.

    ``schema_ipc``: base64 of an Arrow IPC schema message, by default the default schema.
    ``replication_factor``: without it the cluster's default. ``assignment``: the ids of the brokers
    of each partition, the preferred leader first. It replaces ``partitions`` and
    ``replication_factor``. Without it the replicas are spread over the live brokers. ``token``: a
    text unique to this request. A retry succeeds if an earlier attempt created the topic.
    """

    topic: Name
    partitions: int = 1
    replication_factor: int | None = None
    assignment: list[list[str]] | None = None
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")
    config: dict[str, str] = {}
    token: str = ""


class AlterTopic(Call[TopicDescription], name="alter-topic", needs=on_topic(ALTER), once=True):
    """Add partitions to a topic, or change its settings or its schema.

    ``partitions``: the new number, never fewer. ``config``: the settings to change. ``schema_ipc``:
    the next schema, as a whole. ``assignment``: the ids of the brokers of each added partition.
    """

    topic: Name
    partitions: int | None = None
    assignment: list[list[str]] | None = None
    config: dict[str, str] = {}
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")


class DescribeTopic(Call[TopicDescription], name="describe-topic", needs=on_topic(DESCRIBE)):
    """Describe a topic, each partition as its leader sees it."""

    topic: Name


class DeleteTopic(Call[None], name="delete-topic", needs=on_topic(DELETE), once=True):
    """Delete a topic.

    With ``topic_id`` a retry, or a request that arrives late, deletes no later topic of the name.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"topic_id"})

    topic: Name
    topic_id: str | None = None


class Trimmed(Message):
    """The log start of each partition, once its leader has applied the trim."""

    log_starts: dict[PartitionField, OffsetField]


class TrimTopic(Call[Trimmed], name="trim-topic", needs=on_topic(DELETE), once=True):
    """Move the log start of each of these partitions up to an offset.

    ``before``: an offset for each partition, at most the last stable offset. If one is too high, no
    partition is trimmed. The trim holds at all replicas and all later leaders. ``dry_run``: only
    check the offsets, and return the present log starts.
    """

    topic: Name
    topic_id: str
    before: dict[PartitionField, OffsetField]
    dry_run: bool = False


class TopicNames(Message):
    """The names of all topics."""

    topics: list[str]


class ListTopics(Call[TopicNames], name="list-topics", needs=described):
    """List the topics that the caller may describe, or only the ``readable`` ones."""

    readable: bool = False


class LeaderFacts(Message):
    """The leader of a partition on record at the broker that answers.

    ``leader`` is the broker's id, None without a leader. ``address`` is "" if it is not known.
    ``leader_epoch`` is None if only the leader has it. ``near``: the in-sync follower that is
    nearer to the reader than the leader, if there is one.
    """

    partition: int
    leader: str | None = None
    address: str
    leader_epoch: int | None = None
    near: BrokerAddress | None = None


class Leaders(Message):
    """The leaders of all partitions of a topic."""

    topic_id: str
    partitions: list[LeaderFacts]


class FindLeaders(Call[Leaders], name="find-leaders", needs=on_topic(DESCRIBE)):
    """Find the leaders of a topic's partitions (of this id, if one is given), at any broker.

    ``rack`` and ``machine`` (a boot id): those of a reader that may read from followers too.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"rack", "machine"})

    topic: Name
    topic_id: str | None = None
    rack: Name | None = None
    machine: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
