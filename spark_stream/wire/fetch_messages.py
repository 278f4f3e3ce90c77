"""What a DoGet is asked with, and the app_metadata of what it answers.

See :mod:`spark_stream.wire.messages` for what all messages have in common.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Self

from pydantic import Field, field_validator

from spark_stream.consistency.isolation import Isolation
from spark_stream.wire.limits import WAIT_MS_MAX
from spark_stream.wire.messages import (
    EARLIEST,
    INT64_MAX,
    BrokerAddress,
    LineageField,
    Message,
    Name,
    OffsetField,
    PartitionField,
)

_SEVERAL: Final = re.compile(rb'"fetches"\s*:')


class _Read(Message):
    """What to read, but for the partition.

    It is read from ``start`` up to the isolation's bound, or ``end`` if that is lower.

    ``start_lineage``, ``end_lineage``: what the reader remembers of ``start``, where it is, and of
    ``end`` (:mod:`spark_stream.consistency.lineage`); DATA_LOSS if offsets below them were cut off
    since, and are other records now. ``leader_epoch``: the epoch in which the reader knows the
    leader that it asks. ``machine``: the boot id of the machine that the reader is on; where a
    replica is on the same, the leader may say where records lie, in their place
    (``ChunkFacts.stored``).

    ``filter``: a predicate in Spark's SQL over the columns that the topic shows; only records for
    which it is true are sent. ``max_records`` counts those, ``max_bytes`` what is read for them.
    The offsets of the rows are told only where the column ``_offset`` is asked for.
    """

    topic: Name
    start: Annotated[int, Field(ge=EARLIEST, le=INT64_MAX)] = EARLIEST
    end: OffsetField | None = None
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    columns: list[Name] | None = None
    filter: Annotated[str, Field(min_length=1)] | None = None
    max_records: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    max_bytes: Annotated[int, Field(ge=1, le=INT64_MAX)] | None = None
    wait_ms: Annotated[int, Field(ge=0, le=WAIT_MS_MAX)] = 0
    follow: bool = False
    topic_id: str | None = None
    start_lineage: LineageField = ()
    end_lineage: LineageField = ()
    leader_epoch: OffsetField | None = None
    machine: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class Fetch(_Read):
    """Read a partition."""

    partition: PartitionField


class ReadTopic(_Read):
    """The command of a descriptor: read a partition, or each partition of the topic (None)."""

    partition: PartitionField | None = None

    def fetch(self, partition: int) -> Fetch:
        """Return the same for one partition."""
        return Fetch(**self.model_dump(exclude={"partition"}), partition=partition)


class FetchMany(Message):
    """Several ranges in one answer, one after the other: all led by one broker, of equal columns.

    No fetch of them waits or follows.
    """

    fetches: Annotated[list[Fetch], Field(min_length=1)]

    @classmethod
    def from_ticket(cls, ticket: bytes) -> Self | None:
        """What the ticket says, if it is one for several ranges; None: it is a Fetch.

        Of a JSON object only the name of a field has these bytes: quotes within texts are escaped,
        and behind a value there is no colon.
        """
        return cls.from_bytes(ticket) if _SEVERAL.search(ticket) else None


class BoundsFacts(Message):
    """The bounds of a partition as the leader saw them."""

    log_start_offset: OffsetField
    last_stable_offset: OffsetField
    high_watermark: OffsetField
    log_end_offset: OffsetField


class FilePlace(Message):
    """A file, and some messages in it.

    ``device`` and ``inode`` are the file's. ``parts``: start and length of each run of bytes, one
    after the other. ``compressed``: maybe the messages' bodies are.
    """

    path: str
    device: int
    inode: int
    parts: list[OffsetField]
    compressed: bool


class StoredFacts(Message):
    """Where records lie: in a file that a reader on the same machine can map.

    ``file`` says which, where it is the leader's. Where it is a follower's, ``indexes`` has the
    first and the count of each run of the entries, one after the other, and ``epoch`` the leader
    epoch of the last one: the follower is asked for the file with these (``LocateEntries``).

    ``entries``: how many messages they are. ``crc``: the CRC-32C of all of them, one behind the
    other. Of the first one's rows ``lead`` are not meant; ``rows`` of those that follow are.
    ``base``, ``next``, ``lineage`` and ``spans`` as in ChunkFacts.
    ``timestamps``, of each message, and ``counts``, how many of its rows are meant, are there if
    ``_timestamp`` was asked for.
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
    lineage: LineageField = ()
    spans: list[list[OffsetField]] | None = None
    timestamps: list[int] | None = None
    counts: list[int] | None = None


class ChunkFacts(Message):
    """Rows ``base``, ``base + 1``, … of a partition; the next batch starts at or after ``next``.

    ``lineage``: that of ``next``. ``fetch``: which fetch of a FetchMany this answers.

    Where rows are missing (records of aborted transactions were dropped), ``spans`` has the offsets
    that there are: [first, count] of each run of rows. Of a fetch with a filter there are no spans:
    ``base`` is the first row's offset, and a column has the others.

    ``stored``: the batch has no rows, and this is where they lie; ``replica``: in files of this
    broker, a follower.
    """

    base: OffsetField
    next: OffsetField
    lineage: LineageField = ()
    spans: list[list[OffsetField]] | None = None
    fetch: int | None = None
    stored: list[StoredFacts] | None = None
    replica: BrokerAddress | None = None


class EntryRuns(Message):
    """Entries: the first and the count of each run, one after the other, rising.

    ``epoch``: the leader epoch of the last one.
    """

    indexes: Annotated[list[OffsetField], Field(min_length=2)]
    epoch: OffsetField

    @field_validator("indexes")
    @classmethod
    def _in_pairs(cls, indexes: list[int]) -> list[int]:
        if len(indexes) % 2:
            raise ValueError("indexes come in pairs: the first of a run, and how many")
        return indexes


class LocateEntries(Message):
    """Asks a replica, whatever its part is, where the messages of entries lie in its files.

    ``doubted``: a reader has found other bytes there. The replica looks whether they are damaged.
    """

    topic: Name
    topic_id: str
    partition: PartitionField
    runs: Annotated[list[EntryRuns], Field(min_length=1)]
    doubted: bool = False


class LocatedEntries(Message):
    """One place for each of the runs asked for; None: they are not all here, in one file."""

    places: list[FilePlace | None]


class EndFacts(Message):
    """The last message of a fetch: read on from ``next``, even if nothing was visible.

    ``lineage``: that of ``next``.

    ``partitions``: how many the topic has now, so that a consumer learns when there are more.
    ``leader_epoch``: in which the leader answered. ``bounds``: None where they cannot be told,
    because a new leader does not know yet what the one before has told. ``fetch``: which fetch of a
    FetchMany ends here; ``error``: why it went no further.
    """

    next: OffsetField
    lineage: LineageField = ()
    end: bool = True
    bounds: BoundsFacts | None = None
    partitions: int | None = None
    leader_epoch: int | None = None
    fetch: int | None = None
    error: dict[str, Any] | None = None
