"""The control messages about topics and records, and what all control messages have in common.

Each is a JSON object with a fixed set of fields. Nothing is ever unpickled.

Where they travel:

=================  ====================================================================
``Fetch``          the ticket of a DoGet
``FetchMany``      the ticket of a DoGet for several ranges
``ChunkFacts``     app_metadata of every batch that a DoGet answers with
``EndFacts``       app_metadata of its last, empty batch
``AppendTo``       the command descriptor of a DoPut
``Envelope``       app_metadata of every batch that a DoPut carries
``Ack``            the answer to every batch
the rest           bodies and results of DoAction, by the action's name (``wire.actions``)
=================  ====================================================================

The first four are in ``fetch_messages``. Messages of the same kind about transactions and consumers
are in ``transaction_messages``, about sinks in ``sink_messages``, and about steps that one broker
asks of another in ``step_messages``.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.producers import EPOCH_MAX, SEQUENCE_MAX
from spark_stream.errors import InvalidRequest
from spark_stream.wire.limits import CONTROL_BYTES_MAX, TRANSACTION_TIMEOUT_MS_MAX

INT64_MAX: Final = (1 << 63) - 1
OffsetField = Annotated[int, Field(ge=0, le=INT64_MAX)]
LineageField = tuple[tuple[OffsetField, OffsetField], ...]
PartitionField = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
Name = Annotated[str, Field(min_length=1, max_length=255)]
TransactionalId = Annotated[str, Field(min_length=1, max_length=255)]
TimeoutField = Annotated[int, Field(ge=1, le=TRANSACTION_TIMEOUT_MS_MAX)]

EARLIEST: Final = -2
LATEST: Final = -1


class Message(BaseModel):
    """A message: immutable, no field too many, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_bytes(self) -> bytes:
        """The JSON text; fields that are None are left out."""
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The message, or InvalidRequest naming the first field that is wrong."""
        if len(data) > CONTROL_BYTES_MAX:
            raise InvalidRequest(
                f"a {cls.__name__} has at most {CONTROL_BYTES_MAX} bytes, not {len(data)}"
            )
        try:
            return cls.model_validate_json(data or b"{}")
        except ValidationError as error:
            raise cls._refused(error) from None

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """The message of values that a user gave; InvalidRequest as in :meth:`from_bytes`."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise cls._refused(error) from None

    @classmethod
    def _refused(cls, error: ValidationError) -> InvalidRequest:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the message"
        return InvalidRequest(f"{cls.__name__}: {where}: {first['msg']}", field=where)


# -- cuts ------------------------------------------------------------------------------------------


class CutTopic(Message):
    """A topic of a cut: no offset below ``lower`` (where the reader is) or above ``upper``."""

    topic: Name
    topic_id: str | None = None
    lower: dict[PartitionField, OffsetField] = {}
    upper: dict[PartitionField, OffsetField] = {}


class AtomicCut(Message):
    """Asks for offsets, one a partition, such that no transaction lies on both sides of them."""

    topics: list[CutTopic]


class Cut(Message):
    """The cut: by topic, its id and its offsets by partition."""

    offsets: dict[str, dict[int, int]]


# -- writing --------------------------------------------------------------------------------------


class AppendTo(Message):
    """Opens a stream of appends to one topic; batches in a transaction need its owner's id."""

    topic: Name
    transactional_id: TransactionalId | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)] = 30_000
    topic_id: str | None = None


class StampFacts(Message):
    """Who writes a batch, and the batch's place in that producer's order in the partition.

    ``sequence`` counts batches, from 0 in each partition; after 2^31-1 comes 0. ``transaction`` is
    None outside any.
    """

    producer_id: OffsetField
    epoch: Annotated[int, Field(ge=0, le=EPOCH_MAX)]
    sequence: Annotated[int, Field(ge=0, le=SEQUENCE_MAX)]
    transaction: OffsetField | None = None


class Envelope(Message):
    """Which partition a batch is for; ``number`` comes back with its acknowledgement.

    Without a ``stamp`` the batch has no producer: sent twice, it is there twice. ``leader_epoch``:
    the epoch in which the writer knows the partition's leader.
    """

    number: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    partition: PartitionField
    stamp: StampFacts | None = None
    leader_epoch: OffsetField | None = None


class Ack(Message):
    """What became of a batch: first offset and count, or an error.

    With an error, ``count`` tells how many records before a bad one are acknowledged all the same.
    ``duplicate``: the batch was there already; offset and count are those it got then.
    ``partitions``: how many the topic has now, so that a producer learns when there are more.
    ``leader_epoch``: in which the leader answered.
    """

    number: int
    partition: int
    offset: int | None = None
    count: int = 0
    duplicate: bool = False
    partitions: int | None = None
    leader_epoch: int | None = None
    error: dict[str, Any] | None = None


# -- administration -------------------------------------------------------------------------------


class Empty(Message):
    """No arguments."""


class CreateTopic(Message):
    """``schema_ipc``: base64 of the Arrow IPC schema message; None means the default schema.

    ``replication_factor``: None means the cluster's default.
    ``assignment``: the ids of the brokers of each partition, the preferred leader first; None: they
    are spread over the brokers that are alive. It says how many partitions and replicas there are.
    """

    topic: Name
    partitions: int = 1
    replication_factor: int | None = None
    assignment: list[list[str]] | None = None
    schema_ipc: str | None = None
    config: dict[str, str] = {}


class AlterTopic(Message):
    """``partitions``: how many there will be (None: as now). ``config``: the settings to change.

    ``schema_ipc``: the next schema, as a whole (None: as now). ``assignment``: the ids of the
    brokers of each partition that is added; None: they are spread.
    """

    topic: Name
    partitions: int | None = None
    assignment: list[list[str]] | None = None
    config: dict[str, str] = {}
    schema_ipc: str | None = None


class NamedTopic(Message):
    """The topic an action is about."""

    topic: Name


class PartitionFacts(Message):
    """A partition as its leader sees it. ``error`` says why it cannot be used, if so.

    Brokers are named by their ids. ``leader`` is None while nobody can lead. ``lag``: how many
    entries each follower lacks. A move brings ``adding`` and takes ``removing`` away: both are
    among the ``replicas`` until it ends. In both is what it takes away that a move which it
    replaced has brought. ``high_watermark`` and ``last_stable_offset`` are None while a new leader
    does not know them yet. They, the other offsets, ``size`` and ``open_transactions`` are None
    where there is an error.
    """

    partition: int
    leader: str | None = None
    leader_epoch: int
    replicas: list[str]
    isr: list[str]
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    size: int | None = None
    open_transactions: int | None = None
    lag: dict[str, int] = {}
    adding: list[str] = []
    removing: list[str] = []
    error: dict[str, Any] | None = None


class TopicFacts(Message):
    """A topic with its partitions.

    ``schema_version``: how often its schema was altered; ``added``: the columns that it got so.
    ``warning``: what its maker should know, such as that it has a single replica on a cluster.
    """

    name: str
    id: str
    schema_ipc: str
    config: dict[str, str]
    partitions: list[PartitionFacts]
    replication_factor: int = 1
    schema_version: int = 0
    added: list[str] = []
    warning: str | None = None


class TopicNames(Message):
    """The names of all topics."""

    topics: list[str]


class FindLeaders(Message):
    """Asks any broker who leads the partitions of a topic (of this id, if one is given)."""

    topic: Name
    topic_id: str | None = None


class LeaderFacts(Message):
    """Who leads a partition, as the broker that was asked knows it.

    ``leader`` is the broker's id, None while there is no leader; ``address`` is "" where it is not
    known. ``leader_epoch`` is None where only the leader itself can tell.
    """

    partition: int
    leader: str | None = None
    address: str = ""
    leader_epoch: int | None = None


class Leaders(Message):
    """The leaders of all partitions of a topic."""

    topic_id: str
    partitions: list[LeaderFacts]


class BrokerAddress(Message):
    """A broker that is registered: it may have died since."""

    id: str
    address: str


class BrokerList(Message):
    """The brokers of the cluster."""

    brokers: list[BrokerAddress]


class AskedTopic(Message):
    """For each partition of a topic the offset that a place means, under an isolation level.

    ``timestamp`` in microseconds since the epoch: the first offset at or after it, or the
    isolation's bound where there is none. Without it ``at``: -2 earliest, -1 latest.
    ``partitions``: None is all. ``lineages``: of each partition those of which to tell up to where
    they survive.
    ``ranges``: partition → [start, end), of which to tell whether uncommitted records are in them.
    ``sizes``: partition → [start, end), of which to tell the stored bytes. ``budgets``: partition →
    [start, end, bytes]: how far does a reader at the start come with so many stored bytes?
    """

    topic: Name
    partitions: list[PartitionField] | None = None
    at: Annotated[int, Field(ge=EARLIEST, le=LATEST)] = LATEST
    timestamp: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    lineages: dict[PartitionField, list[LineageField]] = {}
    ranges: dict[PartitionField, tuple[OffsetField, OffsetField]] = {}
    sizes: dict[PartitionField, tuple[OffsetField, OffsetField]] = {}
    budgets: dict[PartitionField, tuple[OffsetField, OffsetField, OffsetField]] = {}


class ListOffsets(Message):
    """Asks about offsets of any topics. ``names``: the names of all topics are wanted too."""

    topics: list[AskedTopic]
    names: bool = False


class Offsets(Message):
    """What was asked about a topic, with what a streaming offset is made of.

    ``epochs``: the leader epoch of each partition. ``lineages``: those of ``offsets``.
    ``surviving``: for each lineage that was asked about, up to which offset the log still has what
    it tells of. ``uncommitted``: partitions with records of aborted or open transactions in their
    ranges. ``elsewhere``: partitions that were asked for and are led by other brokers, which are to
    be asked for them.
    ``sizes``: the stored bytes of a range that was asked about, and those of its first record.
    ``reached``: up to which offset whole records take no more than their budget.
    """

    topic_id: str
    offsets: dict[int, int]
    epochs: dict[int, int]
    log_start_offsets: dict[int, int]
    log_end_offsets: dict[int, int]
    lineages: dict[int, LineageField] = {}
    surviving: dict[int, list[int]] = {}
    uncommitted: list[int] = []
    elsewhere: list[LeaderFacts] = []
    sizes: dict[int, tuple[int, int]] = {}
    reached: dict[int, int] = {}


class ListedOffsets(Message):
    """What ListOffsets found, by topic; ``unknown``: the errors of topics that there are not."""

    topics: dict[str, Offsets]
    unknown: dict[str, dict[str, Any]] = {}
    names: list[str] | None = None


class Status(Message):
    """The broker itself. Memory in bytes: what the process holds that is not a mapped file.

    ``flight``: the address at which it serves Flight; empty if it does not.

    ``checked_ms``: when the last look at all segments ended, in ms since the epoch; None:
    none has. ``damaged``: the first offset that is known to be damaged, of each replica with one.
    """

    version: str
    pid: int
    address: str
    directory: str
    cluster_id: str
    topics: int
    partitions: int
    uptime_s: float
    memory: int
    broker_id: str = ""
    flight: str = ""
    checked_ms: int | None = None
    damaged: dict[str, int] = {}


def json_bytes(value: object) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
