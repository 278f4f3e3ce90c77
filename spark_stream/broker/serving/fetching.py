"""The answers of a fetch: the visible records of each range, then the next offset to read from.

This module decides and reads the log. It neither sends nor blocks: it yields answers and
instructions to wait, which :mod:`spark_stream.broker.serving.fetch_task` carries out. Even a range
of a few records costs its reader a call, so one call may request many ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.actions.mapped import Holder, holder_for, in_groups, places
from spark_stream.broker.host.host import Host
from spark_stream.broker.host.hosted_topic import HostedTopic
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.waiters import WakeUp
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import (
    DROPS_ABORTED,
    Evicted,
    Isolation,
    OutOfRange,
    VisibleRange,
    upper_bound,
    visible_range,
)
from spark_stream.consistency.replication.epochs import Lineage, lost_above
from spark_stream.counting import Histogram
from spark_stream.environment import Clock
from spark_stream.errors import (
    DamagedSegment,
    DataLoss,
    EntriesGone,
    InvalidFilter,
    InvalidRequest,
    IsologError,
    OffsetEvicted,
    OffsetOutOfRange,
    SchemaMismatch,
    StorageFailure,
)
from spark_stream.schema.schemas import LEADER_COLUMNS, empty_batch
from spark_stream.sql.filters import row_filter
from spark_stream.storage.format.log_format import UNLIMITED
from spark_stream.storage.format.stored import Chunk
from spark_stream.storage.segment.filtering import RecordFilter
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.stream_messages import ChunkFacts, EndFacts, FailureFacts, Fetch, FetchRange

FOLLOW_S: Final = 60.0
"""The longest wait of a following fetch for its next record, in seconds."""


Answer = tuple[pa.RecordBatch | tuple[memoryview, ...], bytes]
"""Records, or their stored IPC messages in parts, with their facts."""


class AwaitRecords(Struct, frozen=True):
    """An instruction of a fetch: wait until the isolation's bound is above ``offset``.

    The reply is True then. It is False after ``deadline``, if too many fetches wait, or if
    ``is_outdated`` is true. With ``near``, a follower answers too.
    """

    partition: Partition
    offset: Offset
    isolation: Isolation
    deadline: float
    near: bool = False
    is_outdated: Callable[[], bool] = bool  # which returns False

    def begin(self, wake: WakeUp) -> int | None:
        """Begin to wait, as ``Partition.wait_beyond``."""
        return self.partition.wait_beyond(self.offset, self.isolation, wake, near=self.near)


Answers = Generator[Answer | AwaitRecords, bool, None]


class Projection(Struct, frozen=True):
    """The columns of an answer: stored ones, and those that the leader computes (``_offset`` …)."""

    schema: pa.Schema
    stored: tuple[str, ...] | None

    def applied(self, chunk: Chunk) -> pa.RecordBatch:
        """Return the chunk's rows with exactly these columns."""
        if self.stored is None:
            return chunk.batch
        arrays = [chunk.column(field.name) for field in self.schema]
        if not arrays:
            return chunk.batch
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def projection_of(
    hosted: HostedTopic, columns: list[str] | None, *, encoded: bool = False
) -> Projection:
    """Return the projection on these columns (None: all).

    ``encoded``: if all columns of the topic are requested, they are in the topic's order.

    Raises:
        SchemaMismatch: the topic does not have a column.
        InvalidRequest: a column occurs twice.
    """
    schema = hosted.topic.schema.remove_metadata()
    if columns is None:
        return Projection(schema, None)
    fields = []
    own = {field.name: field for field in schema}
    for name in columns:
        if name in own:
            fields.append(own[name])
        elif name in LEADER_COLUMNS:
            fields.append(LEADER_COLUMNS[name])
        else:
            raise SchemaMismatch(
                f"topic {hosted.topic.name!r} has no column {name!r}; it has"
                f" {', '.join(schema.names)}",
                column=name,
            )
    if len({field.name for field in fields}) != len(fields):
        raise InvalidRequest("duplicate column in the projection")
    stored = tuple(field.name for field in fields if field.name in own)
    if encoded and len(fields) == len(stored) == len(schema):
        return Projection(schema, None)
    return Projection(pa.schema(fields), stored)


def row_filter_of(hosted: HostedTopic, request: FetchRange) -> RecordFilter | None:
    """Bind the request's filter to the topic's schema.

    Raises:
        InvalidFilter: the text is not a filter, or does not fit the topic's columns.
    """
    if request.filter is None:
        return None
    topic = hosted.topic
    return row_filter(request.filter, topic.name, topic.schema, request.partition)


def bind_request(
    host: Host, request: FetchRange, *, encoded: bool = False
) -> tuple[HostedTopic, Projection, RecordFilter | None]:
    """Return the topic, with the request's columns and filter bound to its schema.

    Raises:
        UnknownTopic: the topic does not exist, or another topic has taken its name.
        SchemaMismatch, InvalidRequest, InvalidFilter: as :func:`projection_of` and
            :func:`row_filter_of`, even after this broker's view was refreshed.
    """
    hosted = host.topic(request.topic, request.topic_id)
    try:
        projection = projection_of(hosted, request.columns, encoded=encoded)
        return hosted, projection, row_filter_of(hosted, request)
    except (SchemaMismatch, InvalidFilter):
        host.refresh()  # another broker may have just altered its schema
        known, hosted = hosted, host.topic(request.topic, request.topic_id)
        if hosted.topic.schema.equals(known.topic.schema):
            raise
    projection = projection_of(hosted, request.columns, encoded=encoded)
    return hosted, projection, row_filter_of(hosted, request)


class RangeStream:
    """The fetch of one range: checked at its construction, then an iterator of answers."""

    def __init__(
        self,
        host: Host,
        request: FetchRange,
        cancelled: Callable[[], bool],
        clock: Clock,
        boot_id: str | None = None,
        number: int | None = None,
        *,
        encoded: bool = False,
    ) -> None:
        """Check a range. ``number`` is its index among several, or None if it is the only one."""
        hosted, self._projection, self._rows = bind_request(host, request, encoded=encoded)
        self._host = host
        self._number = number
        self._encoded = encoded
        self._boot_id = boot_id
        self._topic = hosted.topic
        self._request = request
        self._partition = self._replica(hosted)
        self._cancelled = cancelled
        self._clock = clock
        self._wait_s = request.wait_ms / 1000 or FOLLOW_S
        self._until = clock.monotonic() + self._wait_s
        self._partition.check_leader_epoch(request.leader_epoch)
        self._epoch = int(self._partition.leader_epoch)  # of all facts that the stream sends
        self._derived = self._partition.core.derived
        self._position = self._start()
        self._lineage = self._partition.lineage(self._position)
        self._bound_known = True
        self._given = 0  # records of the last answer
        self._check_lineages()
        self._visible()

    @property
    def schema(self) -> pa.Schema:
        """The schema of all batches of the stream."""
        return self._projection.schema

    def _replica(self, hosted: HostedTopic) -> Partition:
        """Return the replica that answers: the leader, or with ``near`` a follower."""
        found = hosted.replicas.get(self._request.partition) if self._request.near else None
        return found if isinstance(found, Partition) else hosted.partition(self._request.partition)

    def _start(self) -> Offset:
        isolation, start = self._request.isolation, self._request.start
        if start == LATEST and isolation is not Isolation.READ_UNCOMMITTED:
            self._partition.check_hw_known()
        bounds = self._partition.bounds(isolation)
        if start >= 0:
            return Offset(start)
        if start == EARLIEST:
            return bounds.log_start_offset
        return upper_bound(bounds, isolation)

    def _check_lineages(self) -> None:
        """Check that the records before the start and the end have not been truncated.

        Raises:
            DataLoss: Records were truncated. The error's ``left`` is the offset to continue from.
        """
        request = self._request
        for offset, lineage in (
            (request.start, request.start_lineage),
            (request.end, request.end_lineage),
        ):
            if not lineage or offset is None:
                continue
            left = lost_above(offset, lineage, int(self._partition.surviving(lineage)))
            if left is not None:
                raise DataLoss(
                    f"{request.topic}/{request.partition}: offsets {left} to {offset - 1} were"
                    f" truncated after they were seen in leader epoch {lineage[-1][0]}; the current"
                    " leader does not have them",
                    topic=request.topic,
                    partition=request.partition,
                    left=left,
                )

    def _visible(self) -> VisibleRange:
        """Return the range that can be read now, from the current position on.

        Raises:
            OffsetOutOfRange, OffsetEvicted: with the requested offset and the nearest valid one.
        """
        request = self._request
        self._partition.check_answers(near=request.near)
        self._check_unchanged()
        if not self._partition.leads:
            self._host.check_in_sync(self._partition)
        end = None if request.end is None else Offset(request.end)
        self._bound_known = self._partition.core.hw_known  # read before the bounds
        bounds = self._partition.bounds(request.isolation)
        found = visible_range(bounds, request.isolation, self._position, end)
        where = f"{request.topic}/{request.partition}"
        if isinstance(found, OutOfRange):
            raise OffsetOutOfRange(
                f"{where}: offset {found.start} is above the log end offset {found.log_end_offset}",
                topic=request.topic,
                partition=request.partition,
                asked=int(found.start),
                log_end_offset=int(found.log_end_offset),
            )
        if isinstance(found, Evicted):
            raise self._evicted(found.start, found.log_start_offset)
        return found

    def _check_unchanged(self) -> None:
        """Check that the answers so far are still valid.

        Raises:
            LeaderEpochFenced: another leader's epoch has begun.
            EntriesGone: the log of a follower was truncated.
        """
        self._partition.check_leader_epoch(self._epoch)
        if self._partition.core.derived != self._derived:
            raise EntriesGone(
                f"{self._partition.name}: the log was truncated during the fetch",
                topic=self._request.topic,
                partition=self._request.partition,
            )

    def _evicted(self, asked: Offset, log_start: Offset) -> OffsetEvicted:
        topic, partition = self._request.topic, self._request.partition
        return OffsetEvicted(
            f"{topic}/{partition}: offset {asked} was evicted; the log starts at {log_start}",
            topic=topic,
            partition=partition,
            asked=int(asked),
            log_start_offset=int(log_start),
        )

    def answers(self) -> Answers:
        """Yield batches with their facts, and instructions to wait.

        The last answer is empty and has the next offset to read from. If several ranges are
        requested, a range that has reached its end has no last answer.
        """
        request = self._request
        left = request.max_records or UNLIMITED
        begin = sent = self._position
        more = True
        while more:
            found, more = yield from self._awaited()
            for answer in self._records(found, left):
                left -= self._given
                yield answer
                sent = self._position
            more = more and request.follow and not self._at_end() and left > 0
            more = more and not self._cancelled() and not self._is_outdated()
            if request.wait_ms:  # the reader sends another request for more
                more = more and self._position == sent and self._position >= found.end
                more = more and self._clock.monotonic() < self._until
        if self._position == begin:
            self._check_not_short()
        whole = begin < sent and request.end is not None and sent >= request.end
        if not (whole and self._number is not None):
            yield self._last()

    def _check_not_short(self) -> None:
        """Check that an empty range is not empty only because this broker lacks information.

        The range's end may be the bound of another leader: of an earlier one, which this leader has
        not established yet, or of a later one, which has replaced this leader unnoticed. If the
        range ended too early, its reader would miss records.

        Raises:
            LeaderUnavailable: the bound is not known yet.
            NotLeader, LeaderEpochFenced: another leader is on record.
        """
        request = self._request
        if request.end is None or self._at_end() or request.near:
            return  # the reader of a follower reads the rest from the leader
        if request.isolation is not Isolation.READ_UNCOMMITTED and not self._bound_known:
            raise self._partition.hw_unknown()
        self._host.refresh()
        self._visible()

    def _awaited(self) -> Generator[AwaitRecords, bool, tuple[VisibleRange, bool]]:
        """Return the visible range, after a wait if necessary, and whether to continue."""
        request = self._request
        found = self._visible()
        if found.count or self._at_end() or not (request.wait_ms or request.follow):
            return found, True
        if not request.wait_ms:
            self._until = self._clock.monotonic() + self._wait_s
        more = yield AwaitRecords(
            self._partition,
            self._position,
            request.isolation,
            self._until,
            request.near,
            self._is_outdated,
        )
        return (self._visible() if more else found), more

    def _is_outdated(self) -> bool:
        """Return whether the topic was altered: the reader may need its partitions or columns."""
        return self._host.is_altered(self._topic)

    def _at_end(self) -> bool:
        end = self._request.end
        return end is not None and self._position >= end

    def _records(self, found: VisibleRange, max_records: int) -> Iterator[Answer]:
        if found.count == 0:
            return
        holder = holder_for(self._request, self._boot_id, self._partition.log, found, self._host)
        chunks = self._partition.log.read(
            found.start,
            found.end,
            self._projection.stored,
            max_records,
            self._request.max_bytes or UNLIMITED,
            committed=self._request.isolation in DROPS_ABORTED,
            rows=self._rows,
            locating=holder is not None,
            encoded=self._encoded and holder is None,
            schema=self._topic.schema,
        )
        try:
            if holder is not None:
                yield from self._places(chunks, holder)
                return
            for chunk, lineage in self._with_lineages(chunks):
                self._position, self._lineage = chunk.next_offset, lineage
                self._given = chunk.rows
                facts = self._facts(chunk, lineage)
                if chunk.messages:
                    self._count(chunk, sum(map(len, chunk.messages)))
                    yield chunk.messages, facts.to_bytes()
                elif chunk.batch.num_rows:
                    batch = self._projection.applied(chunk)
                    self._count(chunk, batch.nbytes)
                    yield batch, facts.to_bytes()
                elif self._cancelled():  # a filter may read for long and find nothing
                    return
        except DamagedSegment as error:
            self._partition.check_alone(error)
            raise
        except (EntriesGone, StorageFailure):
            # If the segment was evicted, that is the better error. The bounds may not show it yet.
            if self._position < (log_start := self._partition.log.start.offset):
                raise self._evicted(self._position, log_start) from None
            self._visible()
            raise

    def _with_lineages(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Lineage]]:
        """Yield the chunks with their lineages.

        The epoch is checked after each read, so the rows belong to this epoch. Their positions in
        the files are valid as long as the epoch lasts, because only followers truncate files. A
        follower's log must not have been truncated since the check before.
        """
        for chunk in chunks:
            lineage = self._partition.lineage(chunk.next_offset)
            self._check_unchanged()
            yield chunk, lineage

    def _places(self, chunks: Iterator[Chunk], holder: Holder) -> Iterator[Answer]:
        """Yield the positions of the chunks in the files, instead of their records."""
        for group in in_groups(self._with_lineages(chunks)):
            last, self._lineage = group[-1]
            self._position = last.next_offset
            for chunk, _ in group:
                if chunk.stored is not None:
                    self._count(chunk, int(chunk.stored.parts[:, 1].sum()))
            if any(chunk.stored is not None for chunk, _ in group):
                facts = places(group, self._request, holder)
                yield empty_batch(self.schema), facts.to_bytes()

    def _count(self, chunk: Chunk, nbytes: int) -> None:
        self._partition.traffic.fetched.add(len(chunk.counts), chunk.rows, nbytes)

    def _facts(self, chunk: Chunk, lineage: Lineage) -> ChunkFacts:
        spans = chunk.spans.tolist() if len(chunk.spans) > 1 else None
        return ChunkFacts(
            base=chunk.base_offset,
            next=chunk.next_offset,
            lineage=lineage,
            spans=spans,
            messages=len(chunk.counts) if chunk.messages else 1,
            range=self._number or 0,
        )

    def _last(self) -> Answer:
        bounds, known = self._partition.bounds(), self._partition.core.hw_known
        has_bounds = known and self._partition.leader_epoch == self._epoch
        facts = EndFacts(
            next=self._position,
            lineage=self._lineage,
            bounds=bounds if has_bounds else None,
            partitions=self._host.partitions_now(self._topic),
            leader_epoch=self._epoch,
            range=self._number or 0,
        )
        empty = empty_batch(self.schema)
        return empty, facts.to_bytes()


class FetchStream:
    """The fetch of one call's ranges. An error in one of several ranges ends only that range.

    ``boot_id`` is this machine's boot id if readers on it may map the files. ``encoded``: answers
    may have stored messages instead of records, and columns in the topic's order.
    """

    def __init__(
        self,
        host: Host,
        request: Fetch,
        cancelled: Callable[[], bool],
        clock: Clock,
        boot_id: str | None = None,
        *,
        encoded: bool = False,
    ) -> None:
        """Check the first range.

        Raises:
            UnknownTopic, SchemaMismatch, InvalidRequest, InvalidFilter: as :func:`bind_request`.
            OffsetOutOfRange, OffsetEvicted, DataLoss, NotLeader, …: the only range cannot be read.
        """
        first, *more = request.ranges
        self._host = host
        self._cancelled = cancelled
        self._clock = clock
        self._boot_id = boot_id
        self._encoded = encoded
        if not more:
            only = self._open(first)
            self.schema = only.schema
            self._answers = only.answers()
        else:
            _, projection, _ = bind_request(host, first, encoded=encoded)
            self.schema = projection.schema
            self._answers = self._of_several(request.ranges)

    def answers(self) -> Answers:
        """Return the answers of all ranges, in order. Call this once."""
        return _timed(self._answers, self._host.counts.fetches)

    def _open(self, asked: FetchRange, number: int | None = None) -> RangeStream:
        return RangeStream(
            self._host,
            asked,
            self._cancelled,
            self._clock,
            self._boot_id,
            number,
            encoded=self._encoded,
        )

    def _of_several(self, ranges: list[FetchRange]) -> Answers:
        for number, asked in enumerate(ranges):
            if self._cancelled():
                return
            try:
                stream = self._open(asked, number)
                if not stream.schema.equals(self.schema):
                    raise InvalidRequest(
                        f"all ranges of a fetch must have the same columns; range {number} has"
                        f" {stream.schema.names}"
                    )
                yield from stream.answers()
            except IsologError as error:
                self._host.counts.refused.add(error.code)
                facts = FailureFacts(range=number, error=error)
                yield empty_batch(self.schema), facts.to_bytes()


def _timed(answers: Answers, histogram: Histogram) -> Answers:
    """Yield the answers, and record the time of their computation, without waits."""
    spent, reply = 0.0, None
    try:
        while True:
            began = perf_counter()
            try:
                step = next(answers) if reply is None else answers.send(reply)
            except StopIteration:
                return
            finally:
                spent += perf_counter() - began
            reply = yield step
    finally:
        answers.close()
        histogram.observe(spent)
