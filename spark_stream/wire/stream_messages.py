"""The messages of the streams of fetches and of appends: openings, headers, acknowledgements.

:mod:`spark_stream.wire.messages` has the base of all messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from spark_stream.access.rules import (
    Need,
    Operation,
    Resource,
    ResourceKind,
    on_topic,
    on_transaction,
)
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.errors import IsologError
from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.limits import WAIT_MS_MAX
from spark_stream.wire.messages import (
    EARLIEST,
    Call,
    LineageField,
    Message,
    TransactionalId,
    decoded,
    decoder,
)


class _Read(Message):
    """A read, without the partition.

    Records are read from ``start`` up to the isolation's bound, or ``end`` if that is lower.

    ``start_lineage``, ``end_lineage``: the reader's lineages of ``start`` and ``end``
    (:mod:`spark_stream.consistency.replication.epochs`). DATA_LOSS if records below these offsets
    were truncated since. ``leader_epoch``: the leader epoch in the reader's cache. ``machine``: the
    boot id of the reader's machine. If a replica is on the same machine, the leader may send the
    places of the records instead of the records (:class:`PlacesFacts`).

    ``near``: an in-sync follower may answer, with the records that it can return. If it returns
    none, or refuses, the reader retries at the leader.

    ``filter``: a predicate in Spark's SQL over the columns that the topic shows. Only records for
    which it is true are sent. ``max_records`` counts those, ``max_bytes`` the bytes that are read
    for them. The offsets of the rows are sent only if the column ``_offset`` is requested.

    ``wait_ms``: the leader's wait if there are no records. ``follow``: the fetch continues until no
    record came for a minute. With both it continues for ``wait_ms`` in all, and ends sooner if more
    than ``max_bytes`` are left, or if the last records read are not sent.
    """

    topic: Name
    start: Annotated[int, Meta(ge=EARLIEST, le=INT64_MAX)] = EARLIEST
    end: OffsetField | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    columns: list[Name] | None = None
    filter: Annotated[str, Meta(min_length=1)] | None = None
    max_records: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    max_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    follow: bool = False
    topic_id: str | None = None
    start_lineage: LineageField = ()
    end_lineage: LineageField = ()
    leader_epoch: OffsetField | None = None
    machine: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    near: bool = False

    def __post_init__(self) -> None:
        if self.near and (self.start < 0 or self.isolation is Isolation.READ_UNCOMMITTED):
            raise ValueError(
                "near needs a start offset, and an isolation level above read_uncommitted"
            )


class FetchRange(_Read):
    """Read a range of a partition."""

    partition: PartitionField


class ReadTopic(_Read):
    """The command of a descriptor: read a partition, or each partition of the topic (None)."""

    partition: PartitionField | None = None

    def fetch(self, partition: int) -> Fetch:
        """Return the fetch that reads one partition like this."""
        fields = msgspec.structs.asdict(self) | {"partition": partition}
        return Fetch(ranges=[FetchRange(**fields)])


class Fetch(Message):
    """A read of ranges in sequence: all of one leader, with equal columns.

    If there are several, none of them waits or follows.
    """

    ranges: Annotated[list[FetchRange], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if len(self.ranges) > 1 and any(each.wait_ms or each.follow for each in self.ranges):
            raise ValueError("one of several ranges neither waits nor follows")

    def needs(self) -> Sequence[Need]:
        """Return the permissions of the caller: to read the topics of all ranges."""
        names = dict.fromkeys(each.topic for each in self.ranges)
        return [(Operation.READ, Resource(ResourceKind.TOPIC, name)) for name in names]


class FilePlace(Message):
    """A file, and some messages in it.

    ``device`` and ``inode`` are the file's. ``parts``: start and length of each run of bytes, in
    sequence. ``compressed``: the messages' bodies may be compressed.
    """

    path: str
    device: int
    inode: int
    parts: list[OffsetField]
    compressed: bool


class StoredFacts(Message):
    """The place of records, in a file that a reader on the same machine can map.

    ``file``: the file, if it is the leader's. If it is a follower's, ``indexes`` has the first and
    the count of each run of entries, in sequence, and ``epoch`` the leader epoch of the last entry:
    with these the reader requests the file from the follower (``LocateEntries``).

    ``entries``: the number of messages. ``crc``: the CRC-32C of all of them, in sequence. ``lead``:
    the number of the first rows to skip. ``rows``: the number of rows to read after them. ``base``,
    ``next``, ``lineage`` and ``spans`` as in ChunkFacts. If ``_timestamp`` was requested,
    ``timestamps`` has that of each message, and ``counts`` the number of its rows to read.
    """

    file: FilePlace | None = None
    indexes: list[OffsetField] | None = None
    epoch: OffsetField | None = None
    entries: int
    crc: int
    lead: int
    rows: int
    base: OffsetField
    next: OffsetField
    lineage: LineageField
    spans: list[tuple[OffsetField, OffsetField]] | None = None
    timestamps: list[int] | None = None
    counts: list[int] | None = None


class ChunkFacts(Message, tag_field="kind", tag="rows"):
    """Rows ``base``, ``base + 1``, … of a partition. The next batch starts at or after ``next``.

    ``lineage``: that of ``next``. ``range``: the index of the range in the Fetch.

    ``messages``: the number of record batch messages in the body, in sequence.

    If rows are missing (records of aborted transactions were dropped), ``spans`` has the offsets of
    the others: [first, count] of each run of rows. A fetch with a filter has no spans: ``base`` is
    the first row's offset, and a column has the other offsets.
    """

    base: OffsetField
    next: OffsetField
    lineage: LineageField
    spans: list[tuple[OffsetField, OffsetField]] | None = None
    messages: int = 1
    range: int = 0


class PlacesFacts(Message, tag_field="kind", tag="places"):
    """The places of the rows from ``base`` to before ``next``. The batch itself has no rows.

    ``replica``: the follower whose files have them, or None for the leader's. The other fields are
    as in :class:`ChunkFacts`.
    """

    base: OffsetField
    next: OffsetField
    lineage: LineageField
    stored: list[StoredFacts]
    replica: BrokerAddress | None = None


class EntryRuns(Message):
    """Entries: the first and the count of each run, in rising order.

    ``epoch``: the leader epoch of the last one.
    """

    indexes: Annotated[list[OffsetField], Meta(min_length=2)]
    epoch: OffsetField

    def __post_init__(self) -> None:
        if len(self.indexes) % 2:
            raise ValueError(
                "indexes are pairs: the first index of a run, and its number of entries"
            )


class LocatedEntries(Message):
    """The place of each requested run, None if the run is not whole in one file."""

    places: list[FilePlace | None]


class LocateEntries(Call[LocatedEntries], name="locate-entries", needs=on_topic(Operation.READ)):
    """Locate the messages of entries in the files of a replica, leader or follower.

    ``runs``: as a leader returned them in a fetch. ``doubted``: a reader has found other bytes
    there. The replica checks whether they are damaged.
    """

    topic: Name
    topic_id: str
    partition: PartitionField
    runs: Annotated[list[EntryRuns], Meta(min_length=1)]
    doubted: bool = False


class EndFacts(Message, tag_field="kind", tag="end"):
    """The last message of a fetch. Continue from ``next``, even if no record was visible.

    ``lineage``: that of ``next``.

    ``partitions``: the topic's present number of partitions, for consumers that read all of them.
    ``leader_epoch``: that of the leader. ``bounds``: None until a new leader has computed them.
    ``range``: the index of the range in the Fetch that ends here.
    """

    next: OffsetField
    partitions: int
    leader_epoch: int
    lineage: LineageField
    bounds: Bounds | None = None
    range: int = 0


class FailureFacts(Message, tag_field="kind", tag="failed"):
    """The error that ended one of several ranges. The others continue."""

    error: IsologError
    range: int = 0


FetchAnswer = ChunkFacts | PlacesFacts | EndFacts | FailureFacts
"""A message of an answer."""


_ANSWERS: Final = decoder(FetchAnswer)


def fetch_answer(data: bytes) -> FetchAnswer:
    """Return the header of a batch, or raise InvalidRequest naming the invalid field."""
    found: FetchAnswer = decoded(data, _ANSWERS, "FetchAnswer")
    return found


class AppendTo(Message):
    """The opening of a stream of appends to one topic.

    Batches in a transaction need its ``transactional_id``.
    """

    topic: Name
    transactional_id: TransactionalId | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    topic_id: str | None = None

    def needs(self) -> Sequence[Need]:
        """Return the permissions of the caller: for the topic, and for the transaction."""
        needs = on_topic(Operation.WRITE)(self)
        if self.transactional_id is None:
            return needs
        return [*needs, *on_transaction(Operation.WRITE)(self)]


class Envelope(Message):
    """The partition and the number of a batch. The acknowledgement has the same ``number``.

    Without a ``stamp`` the batch has no producer, so a retry may store a duplicate.
    ``leader_epoch``: the leader epoch in the writer's cache.
    """

    number: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0
    partition: PartitionField
    stamp: Stamp | None = None
    leader_epoch: OffsetField | None = None


class Acknowledged(Message, tag_field="kind", tag="acknowledged"):
    """A batch is in the log as a whole: its first offset, and the number of its records.

    ``duplicate``: an earlier attempt stored it, at this offset. ``partitions``: the topic's present
    number of partitions. ``leader_epoch``: that of the leader that answered.
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

    The other fields are as in :class:`Acknowledged`, if they are known.
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
"""The answer to a batch."""


_ACKS: Final = decoder(Ack)


def ack_from_bytes(data: bytes) -> Ack:
    """Return the answer to a batch, or raise InvalidRequest as :meth:`Message.from_bytes`."""
    found: Ack = decoded(data, _ACKS, "Ack")
    return found
