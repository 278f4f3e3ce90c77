"""The control messages about topics and records, and what all control messages have in common.

Each is a JSON object with a fixed set of fields; a field that has its default is left out. Nothing
is ever unpickled. Tagged messages say what they are in the field ``kind``.

Where they travel:

=================  ====================================================================
``Fetch``          what a fetch asks for, and the ticket of a DoGet
``FetchAnswer``    the header of every batch that answers it, its app_metadata in a DoGet
``AppendTo``       the command descriptor of a DoPut
``Envelope``       app_metadata of every batch that a DoPut carries
``Ack``            the answer to every batch
the rest           bodies and results of DoAction, by the action's name (``wire.actions``)
=================  ====================================================================

The first two are in ``fetch_messages``. Messages of the same kind about transactions and
consumers are in ``transaction_messages``, about sinks in ``sink_messages``.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
import pyarrow as pa
from msgspec import Meta, structs

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.record_states import RecordRun
from spark_stream.errors import InvalidRequest, IsologError, from_wire
from spark_stream.schema.keys import DEFAULT_KEY, PARTITION_BY, split_names
from spark_stream.schema.schemas import is_default, schema_from_text, schema_to_text
from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField, Struct
from spark_stream.wire.limits import CONTROL_BYTES_MAX, TRANSACTION_TIMEOUT_MS_MAX

LineageField = tuple[tuple[OffsetField, OffsetField], ...]
TransactionalId = Annotated[str, Meta(min_length=1, max_length=255)]
TimeoutField = Annotated[int, Meta(ge=1, le=TRANSACTION_TIMEOUT_MS_MAX)]

EARLIEST: Final = -2
LATEST: Final = -1

STATES_MAX: Final = 10_000
OPEN_MAX: Final = 100

_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_FIELD: Final = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*?)`")


class Message(Struct):
    """A message: immutable, without unknown fields and silent conversions."""

    HINTS: ClassVar[frozenset[str]] = frozenset()
    """Fields without which a broker of an earlier release may carry out the request."""

    def without_hint(self, error: IsologError) -> Self | None:
        """Return the request for a broker that does not have one of the hints.

        ``error`` is the broker's answer. The result is None if the error has another reason.
        """
        name = error.details.get("field")
        if name not in self.HINTS or "unknown field" not in error.message:
            return None
        default = next(each.default for each in structs.fields(self) if each.name == name)
        return None if getattr(self, name) == default else structs.replace(self, **{name: default})

    def to_bytes(self) -> bytes:
        """Return the JSON text; fields that have their default are left out."""
        return _ENCODER.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the message, or raise InvalidRequest naming the first field that is wrong."""
        found: Self = decoded(data, decoder(cls), cls.__name__)
        return found

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Make the message of values from a user; raise InvalidRequest as :meth:`from_bytes`."""
        decoder(cls)  # learns the types under the lock, before convert would
        try:
            return msgspec.convert(fields, cls)
        except (msgspec.ValidationError, OverflowError) as error:
            raise _refused(cls.__name__, error) from None


class Description(Message, kw_only=False, omit_defaults=False, forbid_unknown_fields=False):
    """A message that users get as it is: all of its fields are sent, also those with defaults.

    A later broker may send more of them than an earlier client knows.
    """


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_decoders_lock = threading.RLock()
os.register_at_fork(after_in_child=_decoders_lock._at_fork_reinit)  # type: ignore[attr-defined]


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of messages of a kind, which may be a tagged union.

    msgspec learns the types of a struct's fields when it first decodes one, and a second thread
    that meets the struct meanwhile crashes the process. So one thread at a time learns.
    """
    found = _decoders.get(kind)
    if found is None:
        with _decoders_lock:
            found = _decoders[kind] = msgspec.json.Decoder(kind, dec_hook=from_plain)
    return found


def decoded(data: bytes, by: Any, name: str) -> Any:
    """Return the message that the decoder finds; ``name`` is for the error.

    Raises:
        InvalidRequest: naming the first field that is wrong.
    """
    size = memoryview(data).nbytes
    if size > CONTROL_BYTES_MAX:
        raise InvalidRequest(f"a {name} has at most {CONTROL_BYTES_MAX} bytes, not {size}")
    try:
        return by.decode(data if size else b"{}")
    except (ValueError, RecursionError) as error:
        raise _refused(name, error) from None


def _refused(name: str, error: Exception) -> InvalidRequest:
    text = str(error)
    place, field = _PLACE.search(text), _FIELD.search(text)
    parts = [each for each in (place and place["path"], field and field["name"]) if each]
    where = ".".join(parts) or "the message"
    what = text if place is None else text[: place.start()]
    return InvalidRequest(f"{name}: {where}: {what}", field=where)


def to_plain(value: Any) -> Any:
    """Return what is sent for a value that is no struct: an encoder's hook."""
    if isinstance(value, IsologError):
        return value.to_wire()
    if isinstance(value, pa.Schema):
        return schema_to_text(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def from_plain(kind: type, value: Any) -> Any:
    """Return what :func:`to_plain` was given: a decoder's hook."""
    if kind is IsologError:
        try:
            return from_wire(value)
        except (AttributeError, TypeError):
            raise ValueError("Expected the object of an error") from None
    if kind is pa.Schema:
        try:
            return schema_from_text(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
    raise NotImplementedError(f"{kind.__name__} cannot be sent")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=to_plain)


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
    timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    topic_id: str | None = None


class Envelope(Message):
    """Which partition a batch is for; ``number`` comes back with its acknowledgement.

    Without a ``stamp`` the batch has no producer: sent twice, it is in the log twice.
    ``leader_epoch``: the epoch in which the writer knows the partition's leader.
    """

    number: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    partition: PartitionField
    stamp: Stamp | None = None
    leader_epoch: OffsetField | None = None


class Acknowledged(Message, tag_field="kind", tag="acknowledged"):
    """A batch is in the log as a whole: its first offset, and how many records it has.

    ``duplicate``: it was there already; offset and count are those it got then.
    ``partitions``: how many the topic has now, so that a producer learns when there are more.
    ``leader_epoch``: in which the leader answered.
    """

    number: int
    partition: int
    offset: OffsetField
    count: OffsetField
    partitions: int
    leader_epoch: int
    duplicate: bool


class BatchRefused(Message, tag_field="kind", tag="refused"):
    """A batch is not in the log, or only its first ``count`` records, from ``offset`` on.

    The other fields are as in :class:`Acknowledged`, where they are known.
    """

    number: int
    partition: int
    error: IsologError
    count: OffsetField
    offset: OffsetField | None = None
    partitions: int | None = None
    leader_epoch: int | None = None
    duplicate: bool = False


Ack = Acknowledged | BatchRefused
"""What became of a batch."""


_ACKS: Final = decoder(Ack)


def ack_from_bytes(data: bytes) -> Ack:
    """Return the answer to a batch, or raise InvalidRequest as :meth:`Message.from_bytes`."""
    found: Ack = decoded(data, _ACKS, "Ack")
    return found


# -- administration -------------------------------------------------------------------------------


class Empty(Message):
    """No arguments."""


class CreateTopic(Message):
    """``schema`` travels as base64 of the Arrow IPC schema message; None means the default schema.

    ``replication_factor``: None means the cluster's default. ``assignment``: the ids of the brokers
    of each partition, the preferred leader first; with None they are spread over the brokers that
    are alive. It sets how many partitions and replicas there are. ``token``: a text that no other
    request has: a repeated request succeeds if it made the topic before.
    """

    topic: Name
    partitions: int = 1
    replication_factor: int | None = None
    assignment: list[list[str]] | None = None
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")
    config: dict[str, str] = {}
    token: str = ""


class AlterTopic(Message):
    """``partitions``: how many there will be (None for as now). ``config``: the settings to change.

    ``schema``: the next schema, as a whole (None for as now). ``assignment``: the ids of the
    brokers of each partition that is added; with None they are spread.
    """

    topic: Name
    partitions: int | None = None
    assignment: list[list[str]] | None = None
    config: dict[str, str] = {}
    schema: pa.Schema | None = msgspec.field(default=None, name="schema_ipc")


class NamedTopic(Message):
    """The topic an action is about."""

    topic: Name


class DeleteTopic(Message):
    """Deletes a topic; with ``topic_id`` only the one of this id, and no later one of its name."""

    HINTS: ClassVar[frozenset[str]] = frozenset({"topic_id"})

    topic: Name
    topic_id: str | None = None


class TrimTopic(Message):
    """Moves the log start of each of these partitions up to an offset.

    ``dry_run``: only check the offsets, and return the present log starts.
    """

    topic: Name
    topic_id: str
    before: dict[PartitionField, OffsetField]
    dry_run: bool = False


class Trimmed(Message):
    """The log start of each of the partitions after the trim."""

    log_starts: dict[PartitionField, OffsetField]


class PartitionDescription(Description, kw_only=False):
    """A partition as its leader sees it. ``error`` is None unless the partition cannot be used.

    ``leader``, ``replicas`` and ``isr`` are broker ids; there is no leader while nobody can lead.
    ``lag``: how many entries each follower lacks. A move brings ``adding`` and takes ``removing``
    away: both are among the ``replicas`` until it ends. A replica is in both if an earlier move
    was adding it and this move removes it. ``high_watermark`` and ``last_stable_offset`` are None
    while a new leader does not know them yet. They, the other offsets, ``size`` and
    ``open_transactions`` are None where there is an error.
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
    """A topic with its partitions; ``config`` has every setting, defaults included.

    ``schema_version``: how often its schema was altered. ``added``: the columns that this added.
    ``warning``: what its maker should know, such as that it has one replica on a cluster.
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


class ListTopics(Message):
    """Asks for the names of the topics that the caller may describe, or ``readable`` ones only."""

    readable: bool = False


class TopicNames(Message):
    """The names of all topics."""

    topics: list[str]


class FindLeaders(Message):
    """Asks any broker who leads the partitions of a topic (of this id, if one is given).

    ``rack`` and ``machine`` (a boot id): those of a reader that may ask followers too.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"rack", "machine"})

    topic: Name
    topic_id: str | None = None
    rack: Name | None = None
    machine: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


class BrokerAddress(Message):
    """A broker that is registered: it may have died since."""

    id: str
    address: str


class LeaderFacts(Message):
    """Who leads a partition, as the broker that was asked knows it.

    ``leader`` is the broker's id, None while there is no leader; ``address`` is "" if it is not
    known. ``leader_epoch`` is None if only the leader itself knows it. ``near``: the in-sync
    follower that is nearer to the reader than the leader, if there is one.
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


class BrokerList(Message):
    """The brokers of the cluster."""

    brokers: list[BrokerAddress]


class AskedTopic(Message):
    """Asks which offset a place means in each partition of a topic, under an isolation level.

    ``timestamp`` in microseconds since the epoch: the first offset at or after it, or the
    isolation's bound where there is none. Without it ``at``: -2 earliest, -1 latest.
    ``partitions``: None is all. ``lineages``: partition → lineages: up to which offset does each
    survive?
    ``ranges``: partition → [start, end): are there uncommitted records in this range?
    ``sizes``: partition → [start, end): how many stored bytes does it have?
    ``budgets``: partition → [start, end, bytes]: how far does a reader at the start come with so
    many stored bytes?
    ``states``: partition → [start, end): what became of these records (:data:`STATES_MAX` at most)?
    ``facts``: what the leaders know of the partitions is wanted too, as :class:`PartitionFacts`.
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


class ListOffsets(Message):
    """Asks about offsets of any topics. ``names``: the names of all topics are wanted too."""

    topics: list[AskedTopic]
    names: bool = False


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
    """What a partition's leader knows of it beside its offsets.

    ``high_watermark`` and ``last_stable_offset`` are None while a new leader does not know them.
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

    ``lineage``: that of ``offset``. ``surviving``: each lineage that was asked about, in their
    order, and up to which offset the log still has its records. ``uncommitted``: records of aborted
    or open transactions are in the range that was asked about. ``size``: the stored bytes of a
    range, and those of its first record. ``reached``: up to which offset whole records take no more
    than a budget of bytes. ``states``: what became of the records of a range, as runs in order.
    """

    offset: int
    epoch: int
    log_start_offset: int
    log_end_offset: int
    lineage: LineageField = ()
    surviving: list[tuple[LineageField, int]] = []
    uncommitted: bool = False
    size: tuple[int, int] | None = None
    reached: int | None = None
    states: list[RecordRun] = []
    facts: PartitionFacts | None = None


class PartitionOffsets(Message):
    """The answers about a topic, by partition.

    ``elsewhere``: requested partitions that this broker does not lead, with their leaders on
    record. A request for ``facts`` also gets those that have no leader or cannot be opened.
    """

    topic_id: str
    partitions: dict[int, PartitionOffset]
    elsewhere: list[LeaderFacts] = []

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
        """Whether a range that was asked about has records of aborted or open transactions."""
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
    """What ListOffsets found, by topic; ``unknown``: the errors of topics that do not exist."""

    topics: dict[str, PartitionOffsets]
    unknown: dict[str, IsologError]
    names: list[str] | None = None


class PrincipalUse(Description):
    """What a principal uses of a broker, and for how long its quota has delayed it."""

    connections: int
    write_delayed_s: float
    read_delayed_s: float


class RolledBack(Description, kw_only=False):
    """Records that a broker's replica removed, because its new leader did not have them.

    Those are the offsets ``start`` to ``end - 1``. ``leader_epoch``: that of the leader.
    ``were_committed``: some were below the high watermark; only an unclean election loses those.
    """

    topic: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    at_ms: int
    were_committed: bool = False


class BrokerStatus(Description, kw_only=False):
    """The status that a broker reports; ``memory`` in bytes, without mapped files.

    ``flight``: the address at which it serves Flight; empty if it does not.

    ``checked_ms``: when the last check of all segments ended, in ms since the epoch; None: none
    has. Of its replicas, by ``"topic/partition"``: ``damaged``, the first offset that is known to
    be damaged; ``refused``, the code of the last error of those whose logs take no writes, such as
    DISK_FULL. ``principal``: that of the caller; what a caller may not know of the cluster is
    empty. ``principals``: those that are connected, or that a quota has delayed since the broker
    started. ``log_bytes``: the stored bytes of its replicas; ``disk_free`` and ``disk_total``:
    bytes of the disk with its directory. ``rolled_back``: what its replicas removed after failovers
    since it started, the latest of each.
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
    refused: dict[str, str] = {}
    principal: str = ""
    principals: dict[str, PrincipalUse] = {}
    log_bytes: int = 0
    disk_free: int = 0
    disk_total: int = 0
    rolled_back: tuple[RolledBack, ...] = ()


def json_bytes(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
