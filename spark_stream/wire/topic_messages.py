"""The calls about topics: administration, leaders of partitions, offsets, and atomic cuts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Final, Self

import msgspec
import pyarrow as pa
from msgspec import Meta, structs

from spark_stream.access.rules import Operation, described, on_topic, to_read_topics
from spark_stream.consistency.entries import RecordRun
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lakes import TopicLake
from spark_stream.errors import IsologError
from spark_stream.schema.keys import DEFAULT_KEY, PARTITION_BY, split_names
from spark_stream.schema.schemas import is_default
from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.messages import EARLIEST, LATEST, Call, Description, LineageField, Message

CREATE, ALTER = Operation.CREATE, Operation.ALTER
DELETE, DESCRIBE = Operation.DELETE, Operation.DESCRIBE
STATES_MAX: Final = 10_000
OPEN_MAX: Final = 100


class PartitionDescription(Description, kw_only=False):
    """A partition as its leader reports it.

    Offsets, ``size`` and ``open_transactions`` are None if there is an ``error``.

    Attributes:
        partition: The number of the partition.
        leader: The id of the leader, or None if no replica can lead.
        leader_epoch: The epoch of the leader. Each election increments it.
        replicas: The ids of the brokers with a replica, the preferred leader first.
        isr: The ids of the in-sync replicas.
        log_start_offset: The first offset that can be read.
        log_end_offset: The offset of the next record.
        high_watermark: Records below are on all in-sync replicas. None until a new leader has
            computed it.
        last_stable_offset: Records below belong to no open transaction.
        size: The stored bytes.
        open_transactions: The number of open transactions.
        lag: The missing entries of each follower.
        adding: The replicas that a move adds. They are among ``replicas``.
        removing: The replicas that a move removes. A replica is in both if an earlier move was
            adding it.
        error: The reason why the partition cannot be used, or None.
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
    """A topic with its partitions.

    Attributes:
        name: The name.
        id: The id. A topic that is created again under the name has another one.
        schema: The columns, as an Arrow schema.
        config: All settings, with defaults.
        partitions: The partitions, by number.
        replication_factor: The number of replicas of each partition.
        schema_version: The number of alterations of the schema.
        added: The columns that alterations added.
        lakes: The lakes with a table of the topic.
        overrides: The names of the settings that the topic has set. The others are defaults.
        warning: A risk, or None: a single replica on a cluster of several brokers, or a log that
            keeps all records because local retention waits for a lake.
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
    lakes: tuple[TopicLake, ...] = ()
    overrides: tuple[str, ...] = ()

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that place the topic's records, or none if partitions take turns."""
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
    ``dry_run``: only check the request, and return the topic that it would create.
    """

    topic: Name
    partitions: int = 1
    replication_factor: int | None = None
    assignment: list[list[str]] | None = None
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")
    config: dict[str, str] = {}
    token: str = ""
    dry_run: bool = False


class AlterTopic(Call[TopicDescription], name="alter-topic", needs=on_topic(ALTER), once=True):
    """Add partitions to a topic, or change its settings or its schema.

    ``partitions``: the new number, never fewer. ``config``: the settings to change. ``schema_ipc``:
    the next schema, as a whole. ``assignment``: the ids of the brokers of each added partition.
    ``reset``: the settings that get their defaults again. With ``topic_id`` a request that arrives
    late alters no later topic of the name. ``dry_run``: only check the request, and return the
    topic as it is.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"topic_id"})

    topic: Name
    topic_id: str | None = None
    partitions: int | None = None
    assignment: list[list[str]] | None = None
    config: dict[str, str] = {}
    reset: list[str] = []
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")
    dry_run: bool = False


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

    ``leader`` is the broker's id, None without a leader. ``address`` is "" if it is unknown.
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


class AskedTopic(Message):
    """A topic whose offsets are looked up, under an isolation level.

    ``partitions``: by default all. ``timestamp``, in microseconds since the epoch: find the first
    offset at or after it, or the isolation's bound. Without it ``at``: -2 earliest, -1 latest.

    The other fields have a value for each partition. ``lineages``: find the offset up to which
    each lineage survives. ``ranges``, ``[start, end]``: check for uncommitted records. ``sizes``,
    ``[start, end]``: count the stored bytes. ``budgets``, ``[start, end, bytes]``: find the offset
    that a reader reaches with so many stored bytes. ``states``, ``[start, end]``: return the states
    of these records (10,000 at most). ``facts``: return :class:`PartitionFacts` too.
    ``schema_version``: return it too. A broker of an earlier release refuses the request.
    """

    topic: Name
    partitions: list[PartitionField] | None = None
    at: Annotated[int, Meta(ge=EARLIEST, le=LATEST)] = LATEST
    timestamp: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    lineages: dict[PartitionField, list[LineageField]] = {}
    ranges: dict[PartitionField, tuple[OffsetField, OffsetField]] = {}
    sizes: dict[PartitionField, tuple[OffsetField, OffsetField]] = {}
    budgets: dict[PartitionField, tuple[OffsetField, OffsetField, OffsetField]] = {}
    states: dict[PartitionField, tuple[OffsetField, OffsetField]] = {}
    facts: bool = False
    schema_version: bool = False


class OpenExtent(Message):
    """A transaction that is open in a partition, by its number, and its first offset there."""

    transaction: int
    first_offset: OffsetField


class EpochStart(Message):
    """A leader epoch of a log: its first offset, and when its first entry was appended."""

    epoch: int
    offset: OffsetField
    began_ms: int


class PartitionFacts(Message):
    """The facts of a partition at its leader, beside its offsets.

    ``high_watermark`` and ``last_stable_offset`` are None until a new leader has computed them.
    ``size``: its stored bytes. ``followers``: up to which offset each follower has the log.
    ``epochs``: the last of the log's leader epochs, the oldest first. ``open``: the open
    transactions that have records here, the earliest first, at most :data:`OPEN_MAX`.
    """

    high_watermark: int | None
    last_stable_offset: int | None
    size: int
    followers: dict[str, int]
    epochs: list[EpochStart]
    open: list[OpenExtent]


class PartitionOffset(Message):
    """The answer about a partition, by its leader in ``epoch``.

    ``lineage``: that of ``offset``. ``surviving``: the requested lineages in order, each with the
    end of its records in the log. ``uncommitted``: records of aborted or open transactions are in
    the requested range. ``size``: the stored bytes of a range, and those of its first record.
    ``reached``: the end of the whole records within a budget of bytes. ``states``: the states of
    the records of a range, as runs in order.
    """

    offset: int
    epoch: int
    log_start_offset: int
    log_end_offset: int
    lineage: LineageField = ()
    surviving: tuple[tuple[LineageField, int], ...] = ()
    uncommitted: bool = False
    size: tuple[int, int] | None = None
    reached: int | None = None
    states: tuple[RecordRun, ...] = ()
    facts: PartitionFacts | None = None


class PartitionOffsets(Message):
    """The answers about a topic, by partition.

    ``elsewhere``: requested partitions that this broker does not lead, with their leaders on
    record. A request for ``facts`` also gets those that have no leader or cannot be opened.
    ``schema_version``, if requested: the number of alterations of the schema in the leaders' views.
    No record below the offsets has a later schema.
    """

    topic_id: str
    partitions: dict[int, PartitionOffset]
    elsewhere: list[LeaderFacts] = []
    schema_version: int = 0

    @property
    def offsets(self) -> dict[int, int]:
        return {number: each.offset for number, each in self.partitions.items()}

    @property
    def lineages(self) -> dict[int, LineageField]:
        """The lineages of the offsets."""
        return {number: each.lineage for number, each in self.partitions.items()}

    @property
    def log_start_offsets(self) -> dict[int, int]:
        return {number: each.log_start_offset for number, each in self.partitions.items()}

    @property
    def uncommitted(self) -> bool:
        """Whether a requested range has records of aborted or open transactions."""
        return any(each.uncommitted for each in self.partitions.values())

    def moved(self, offsets: Mapping[int, int]) -> Self:
        """Return the same partitions at other offsets."""
        moved = {
            number: structs.replace(each, offset=offsets[number])
            for number, each in self.partitions.items()
        }
        return structs.replace(self, partitions=moved)

    def only(self, numbers: Collection[int]) -> Self:
        """Return the part about these partitions."""
        kept = {number: each for number, each in self.partitions.items() if number in numbers}
        return structs.replace(self, partitions=kept)


class ListedOffsets(Message):
    """The offsets by topic. ``unknown``: the errors of topics that do not exist."""

    topics: dict[str, PartitionOffsets]
    unknown: dict[str, IsologError]
    names: list[str] | None = None


class ListOffsets(Call[ListedOffsets], name="list-offsets", needs=described):
    """Look up offsets of topics, in the partitions that the broker leads.

    ``names``: return the names of all topics too.
    """

    topics: list[AskedTopic]
    names: bool = False


class CutTopic(Message):
    """A topic of a cut.

    ``lower``: for each partition the offset of the reader. The cut is not below it. Its default is
    the log start. ``upper``: for each partition the greatest offset of the cut. Its default is the
    last stable offset.
    """

    topic: Name
    topic_id: str | None = None
    lower: dict[PartitionField, OffsetField] = {}
    upper: dict[PartitionField, OffsetField] = {}


class Cut(Message):
    """The offsets of the cut by topic and partition, and the names of topics if requested."""

    offsets: dict[str, dict[int, int]]
    names: list[str] | None = None


class AtomicCut(Call[Cut], name="atomic-cut", needs=to_read_topics):
    """Find an offset for each partition, so that the offsets divide no transaction.

    Read each partition up to its offset (exclusive).

    ``names``: return the names of all topics that the caller may read, listed after the ends. So
    they include each present topic of a transaction below the cut, unless all brokers are cut off
    from the metadata store.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"names"})

    topics: list[CutTopic]
    names: bool = False
