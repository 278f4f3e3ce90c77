"""Sources, fetched batches, and the decoding of answers: sent rows or mapped files.

A reader's position is an offset and its lineage
(:mod:`spark_stream.consistency.replication.epochs`), by which a leader detects that it lacks
records below the offset.

**Local reads.** A reader on the machine of a replica maps its files. The leader's answer has the
places of the records (``StoredFacts``), and only these are read. If the files are a follower's, the
leader names entries, and the follower returns their places. A file is identified by its device and
inode, and by the topic and partition in its header, never by its path alone: in another container
another file may have that path. All bytes are compared with the leader's checksum on each read,
because a disk may return other bytes than were written, even after a correct read. If they differ,
the follower that has the file gets a report.

Mapped data stays valid. A published file never shrinks in place, and a removed or replaced file
stays readable while it is mapped. If a file was removed or cannot be opened, the records are
requested from the leader instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct, structs

from spark_stream.batches import (
    conformed,
    conforms,
    crc_of_parts,
    decode_each,
    decode_one,
    decode_run,
    facts_of,
    header_length,
)
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.reading.columns import Spans, View, offsets_of, runs_of
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.environment import SystemMachine
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes
from spark_stream.schema.schemas import OFFSET, TIMESTAMP, empty_batch
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.stream_messages import (
    ChunkFacts,
    EndFacts,
    EntryRuns,
    FetchRange,
    FilePlace,
    LocateEntries,
    PlacesFacts,
    StoredFacts,
)

logger = logger_of(__name__)

CREDIT: Final = 8 << 20
"""The bytes that a broker may send on a fetch before they are read."""
_AVOIDED_S: Final = 60.0
_PATIENCE_S: Final = 1.0  # for a follower, because the leader has the records too


class Fetched(Struct, frozen=True):
    """Rows with the view's columns, from offset ``base`` on. ``next`` is the offset after them.

    ``spans``: (first, count) of each run of rows, if offsets are missing in between. For filtered
    rows ``scattered`` has the offset of each instead, if they were requested. ``lineage``: that of
    ``next``. ``partitions`` and ``bounds``, at the end of a fetch: the topic's present number of
    partitions, and the bounds of this one, if the leader sent them.
    """

    partition: int
    base: int
    next: int
    batch: pa.RecordBatch
    spans: Spans | None = None
    partitions: int | None = None
    lineage: Lineage = NO_LINEAGE
    scattered: npt.NDArray[np.int64] | None = None
    bounds: Bounds | None = None

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the offset of each row."""
        if self.scattered is not None:
            return self.scattered
        return offsets_of(self.batch.num_rows, self.base, self.spans)


class Source(Struct, frozen=True):
    """A partition to read, under an isolation level, with the columns of a view.

    ``lineage``: that of the ends of ranges, if there is one. ``maps``: records may be read from the
    log's files, if these are on this machine. ``tables``: records below the log start may be there.
    """

    router: Router
    view: View
    topic_id: str
    partition: int
    isolation: Isolation
    lineage: Lineage = NO_LINEAGE
    maps: bool = True
    tables: LakeTables | None = None

    def route(self) -> Route:
        """Return the route to the leader. Raise the errors of :meth:`Router.route`."""
        return self.router.route(self.view.topic, self.topic_id, self.partition)

    def fetch(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> FetchRange:
        """Return the request to the leader."""
        return FetchRange.of(
            topic=self.view.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            start=start,
            end=end,
            isolation=self.isolation,
            columns=self.view.requested,
            filter=self.view.filter,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            end_lineage=self.lineage,
        )


def decoded_rows(schema: pa.Schema, body: Bytes, facts: ChunkFacts) -> pa.RecordBatch:
    """Decode the rows of a chunk, in place."""
    if facts.messages > 1:
        return decode_run([memoryview(body)], schema, None)
    return decode_one(pa.py_buffer(body), schema, None)


def mapped_rows(
    source: Source, fetch: FetchRange, facts: PlacesFacts, timeout_s: float
) -> Iterator[Fetched]:
    """Yield the rows at these places in files.

    Raises:
        CannotMap: The rows cannot be read there. Those up to the last ``next`` were yielded.
    """
    router, file = source.router, None
    columns = pa.schema([source.view.field(name) for name in source.view.requested])
    for run in runs_with_files(router, fetch, facts, timeout_s):
        if file is None or not file.covers(run.file):
            file = MappedFile(run.file, source.topic_id, source.partition)
        try:
            for batch, sent in mapped_batches(run, file, columns):
                yield fetched_chunk(source, batch, sent)
        except ChecksumMismatch:
            doubt = structs.replace(facts, stored=[run.facts])
            runs_with_files(router, fetch, doubt, timeout_s, doubted=True)
            raise


def fetched_chunk(source: Source, data: pa.RecordBatch, facts: ChunkFacts) -> Fetched:
    """Return a chunk with the columns of the view. ``facts``: those sent with it."""
    return Fetched(
        source.partition,
        facts.base,
        facts.next,
        source.view.of_chunk(data, source.partition, facts.base, facts.spans),
        facts.spans,
        lineage=facts.lineage,
        scattered=_offsets_sent(data) if source.view.filter is not None else None,
    )


def fetched_end(source: Source, facts: EndFacts) -> Fetched:
    """Return the facts at the end of a fetch, without rows."""
    return Fetched(
        source.partition,
        facts.next,
        facts.next,
        empty_batch(source.view.schema),
        partitions=facts.partitions,
        lineage=facts.lineage,
        bounds=facts.bounds,
    )


def fetched_move(source: Source, offset: int) -> Fetched:
    """Return a move to the offset, where the next rows begin, without rows."""
    return Fetched(source.partition, offset, offset, empty_batch(source.view.schema))


def fetched_from_table(source: Source, start: int, end: int) -> Iterator[Fetched] | None:
    """Return the rows of ``[start, end)`` from a table of the topic. None if no table has them.

    The last ``next`` is below ``end`` if the table ends before it.

    Raises:
        LakeUnavailable, LakeIncomplete, LakeStopped: The table cannot be read.
    """
    view = source.view
    if source.tables is None:
        return None
    rows = source.tables.read(
        view.topic, source.topic_id, source.partition, start, end, view.requested, view.filter
    )
    return None if rows is None else _fetched_rows(source, rows, start)


def _fetched_rows(
    source: Source, rows: Iterator[tuple[int, pa.RecordBatch]], start: int
) -> Iterator[Fetched]:
    view = source.view
    for following, batch in rows:
        offsets = _offsets_sent(batch)
        assert offsets is not None
        base = int(offsets[0]) if len(offsets) else following
        spans = runs_of(offsets) if len(offsets) else None
        sent = batch.select(view.requested)
        yield Fetched(
            source.partition,
            base,
            following,
            view.of_chunk(sent, source.partition, base, spans),
            spans,
            scattered=None if view.filter is None else offsets,
        )


def _offsets_sent(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Return the offsets that the leader sent. None if they were not requested."""
    if OFFSET.name not in batch.schema.names:
        return None
    column = batch.column(OFFSET.name)
    # Not to_numpy: it imports pandas.
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


@cache
def this_machine() -> str | None:
    """Return the boot id of this machine, which brokers on it share. None if there is none."""
    return SystemMachine().boot_id()


def runs_with_files(
    router: Router,
    fetch: FetchRange,
    facts: PlacesFacts,
    timeout_s: float,
    *,
    doubted: bool = False,
) -> list[Run]:
    """Return the runs that the leader has named, each with its file.

    ``doubted``: report wrong bytes, so that the follower checks them. The leader needs no report,
    because it gets the next fetch.

    Raises:
        CannotMap: The follower does not return their places.
    """
    runs, replica = facts.stored, facts.replica
    if replica is None:
        return [Run(run, run.file) for run in runs if run.file is not None]
    request = LocateEntries.of(
        topic=fetch.topic,
        topic_id=fetch.topic_id,
        partition=fetch.partition,
        runs=[EntryRuns.of(indexes=run.indexes, epoch=run.epoch) for run in runs],
        doubted=doubted,
    )
    where = f"{fetch.topic}/{fetch.partition}: broker {replica.id}"
    try:
        link = router.link_to(replica.id, replica.address)
        found = link.call(request, min(timeout_s, _PATIENCE_S))
    except IsologError as error:
        message = f"{where} does not return the places of its entries: {error}"
        raise CannotMap(message, lasting=True) from None
    if len(found.places) != len(runs) or None in found.places:
        raise CannotMap(f"{where} does not have all of the entries in one file")
    return [
        Run(run, place) for run, place in zip(runs, found.places, strict=True) if place is not None
    ]


class Run(Struct, frozen=True):
    """Consecutive records of a range in one file, with their place there."""

    facts: StoredFacts
    file: FilePlace


class CannotMap(Exception):
    """The error for a file that is missing, is another one, or may not be read.

    The log itself is intact. ``lasting``: other files of the same leader will fail too.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class ChecksumMismatch(CannotMap):
    """The error for bytes that do not have the leader's checksum."""


class MappingLeaders:
    """The leaders whose files may be mapped: all but those where mapping failed recently."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = new_lock()
        self._avoided_until: dict[str, float] = {}

    def machine(self, address: str) -> str | None:
        """Return this machine's id for a mapped fetch. None if mapping failed recently."""
        with self._lock:
            until = self._avoided_until.get(address)
            if until is not None and self._monotonic() < until:
                return None
        return this_machine()

    def on_failed(self, address: str, error: CannotMap) -> None:
        """Record that a file of this leader cannot be mapped."""
        logger.debug("cannot map a file; fetching its records instead: %s", error)
        if error.lasting:
            with self._lock:
                self._avoided_until[address] = self._monotonic() + _AVOIDED_S


LEADERS: Final = MappingLeaders()


class Piece(Struct, frozen=True):
    """Some records of a run: its rows from ``start`` to before ``end``."""

    batch: pa.RecordBatch
    start: int
    end: int


class MappedFile:
    """A segment file, mapped up to its size when it was opened."""

    def __init__(self, place: FilePlace, topic_id: str, partition: int) -> None:
        """Open the file of a run, and check that it belongs to this partition.

        Raises:
            CannotMap: The file is missing, or another one.
        """
        self.path = place.path
        self.inode = (place.device, place.inode)
        self._data = self._mapped()
        length = header_length(self._data)
        if length is None:
            raise CannotMap(f"{self.path} is not a segment file")
        header = self._data.slice(0, length)
        facts = facts_of(header) or {}
        named = (facts.get("isolog.topic_id"), facts.get("isolog.partition"))
        if named != (topic_id, str(partition)):
            raise CannotMap(f"{self.path} belongs to another partition")
        self.schema = pa.ipc.read_schema(header).remove_metadata()
        logger.debug("reading records from the file %s", self.path)

    def _mapped(self) -> pa.Buffer:
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            # A segment that was just removed leaves its folder behind.
            here = os.path.isdir(os.path.dirname(self.path))
            lasting = not (here and isinstance(error, FileNotFoundError))
            raise CannotMap(f"{self.path}: {error.strerror}", lasting=lasting) from None
        try:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) != self.inode:
                raise CannotMap(f"{self.path} is not the file that the leader has", lasting=True)
            if not found.st_size:
                raise CannotMap(f"{self.path} is empty")
            # Not by mmap.mmap, which keeps a descriptor open while any of its records is in use.
            with pa.memory_map(f"/dev/fd/{descriptor}") as file:
                return file.read_buffer()
        except (OSError, pa.ArrowException) as error:
            raise CannotMap(f"{self.path}: {error}") from None
        finally:
            os.close(descriptor)

    def covers(self, place: FilePlace) -> bool:
        """Return whether this is the file of the place, and is mapped up to the place's end."""
        if (place.device, place.inode) != self.inode or place.path != self.path:
            return False
        start, length = place.parts[-2:]
        return bool(start + length <= self._data.size)

    def pieces(self, run: Run, wanted: pa.Schema) -> Iterator[Piece]:
        """Yield the run's records, in their order, with these stored columns.

        The file has the schema that the topic had when its batches were appended.

        Raises:
            ChecksumMismatch: The bytes there are not those of the leader.
            CannotMap: The file ends before them.
            SchemaMismatch: A value does not fit the reader's schema.
        """
        stored = set(self.schema.names)
        columns = [name for name in wanted.names if name in stored]
        alike = all(conforms(self.schema.field(name), wanted.field(name)) for name in columns)
        alike = alike and len(columns) == len(wanted)
        facts, parts = run.facts, run.file.parts
        if not self.covers(run.file):
            raise CannotMap(f"{self.path} ends before byte {parts[-2] + parts[-1]}")
        places = list(zip(parts[::2], parts[1::2], strict=True))
        if crc_of_parts(self._data, places) != facts.crc:
            raise ChecksumMismatch(f"checksum mismatch in {self.path} from byte {parts[0]} on")
        view = memoryview(self._data)
        messages = [view[at : at + size] for at, size in places]
        low, high = facts.lead, facts.lead + facts.rows
        row = 0
        try:
            for batch in self._decoded(run, messages, columns):
                start, end = max(row, low), min(row + batch.num_rows, high)
                if start < end:
                    part = batch.slice(start - row, end - start)
                    yield Piece(part if alike else conformed(part, wanted), start - low, end - low)
                row += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CannotMap(f"{self.path}: {error}") from None

    def _decoded(
        self, run: Run, messages: list[memoryview], columns: list[str]
    ) -> Iterator[pa.RecordBatch]:
        if run.file.compressed:
            return decode_each(messages, self.schema, columns)
        if run.facts.entries == 1:
            return iter([decode_one(messages[0], self.schema, columns)])
        return iter([decode_run(messages, self.schema, columns)])


def mapped_batches(
    run: Run, file: MappedFile, columns: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, ChunkFacts]]:
    """Yield a run's records as batches with their facts, as if the leader had sent them.

    Raises:
        CannotMap: The file ends before the bytes, they cannot be decoded, or they are not those of
            the leader.
        SchemaMismatch: A value does not fit these columns.
    """
    stored = pa.schema([field for field in columns if field.name != TIMESTAMP.name])
    facts = run.facts
    for piece in file.pieces(run, stored):
        batch = piece.batch
        if len(stored) < len(columns):
            batch = batch.append_column(TIMESTAMP, _timestamps(facts)[piece.start : piece.end])
        base, following, spans = facts.base, facts.next, facts.spans
        if piece.end - piece.start != facts.rows:
            offsets = offsets_of(facts.rows, base, spans)[piece.start : piece.end]
            base, spans = int(offsets[0]), runs_of(offsets)
            if piece.end != facts.rows:
                following = int(offsets[-1]) + 1
        yield batch, ChunkFacts(base=base, next=following, lineage=facts.lineage, spans=spans)


def _timestamps(facts: StoredFacts) -> pa.Array:
    """Return the column ``_timestamp`` of a run's records."""
    values = np.repeat(np.array(facts.timestamps, np.int64), facts.counts or ())
    return pa.Array.from_buffers(TIMESTAMP.type, len(values), [None, pa.py_buffer(values)])
