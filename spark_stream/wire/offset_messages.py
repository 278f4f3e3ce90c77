"""The calls about offsets: what a place in a topic means, and cuts that split no transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final, Self

from msgspec import Meta, structs

from spark_stream.access.rules import described, to_read_topics
from spark_stream.consistency.entries import RecordRun
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import IsologError
from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField
from spark_stream.wire.messages import EARLIEST, LATEST, Call, LineageField, Message
from spark_stream.wire.topic_messages import LeaderFacts

STATES_MAX: Final = 10_000
OPEN_MAX: Final = 100


class AskedTopic(Message):
    """A topic whose offsets are looked up, under an isolation level.

    ``partitions``: by default all. ``timestamp``, in microseconds since the epoch: find the first
    offset at or after it, or the isolation's bound. Without it ``at``: -2 earliest, -1 latest.

    The other fields have a value for each partition. ``lineages``: find the offset up to which
    each lineage survives. ``ranges``, ``[start, end]``: check for uncommitted records. ``sizes``,
    ``[start, end]``: count the stored bytes. ``budgets``, ``[start, end, bytes]``: find the offset
    that a reader reaches with so many stored bytes. ``states``, ``[start, end]``: return the states
    of these records (10,000 at most). ``facts``: return :class:`PartitionFacts` too.
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

    ``lower``: by partition the smallest offset (the reader's), by default the log start. ``upper``:
    by partition the greatest, by default the last stable offset.
    """

    topic: Name
    topic_id: str | None = None
    lower: dict[PartitionField, OffsetField] = {}
    upper: dict[PartitionField, OffsetField] = {}


class Cut(Message):
    """The cut: by topic, its id and its offsets by partition."""

    offsets: dict[str, dict[int, int]]


class AtomicCut(Call[Cut], name="atomic-cut", needs=to_read_topics):
    """Find an offset for each partition, so that the offsets divide no transaction.

    Read each partition up to its offset (exclusive).
    """

    topics: list[CutTopic]
