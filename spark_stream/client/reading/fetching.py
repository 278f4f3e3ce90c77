"""Bounded reads of one partition: fetch after fetch, from the next offset that the last one named.

Each fetch goes to the leader that the partition has then. A reader's place is an offset and its
lineage (:mod:`spark_stream.consistency.lineage`): a leader that lacks records below it says so.

Each fetch has a size limit and a deadline, so a stopped broker is noticed; a reader that is itself
slow between two batches may outlive the deadline, and then simply asks again from where it was.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from spark_stream.batches import decode_one, decode_run
from spark_stream.client.connecting.link import left
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.reading.columns import Spans, View, offsets_of
from spark_stream.client.reading.mapping import (
    LEADERS,
    CannotMap,
    MappedFile,
    OtherBytes,
    mapped_batches,
    placed,
)
from spark_stream.client.reading.range_core import PauseUntil, RangeCore
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.lineage import NOTHING_KNOWN, Lineage
from spark_stream.errors import IsologError
from spark_stream.transport.failures import TRANSPORT_ERRORS, failure_of
from spark_stream.transport.streams import BlockingStream
from spark_stream.wire.fetch_messages import (
    ChunkFacts,
    EndFacts,
    FailureFacts,
    Fetch,
    FetchAnswer,
    FetchRange,
    PlacesFacts,
    fetch_answer,
)
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from spark_stream.wire.methods import FETCH
from spark_stream.wire.schemas import OFFSET, empty_batch

CREDIT: Final = 8 << 20
"""How many bytes a broker may send on a fetch before they are read."""
FETCH_ERRORS: Final = (*TRANSPORT_ERRORS, pa.ArrowException, OSError)
"""What ends a fetch; :func:`failure_of` makes one of our errors of it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows with the view's columns; the first has offset ``base``; read on at ``next``.

    ``spans``, where offsets are missing in between: (first, count) of each run of rows. Of filtered
    rows ``scattered`` has the offset of each instead, if they were asked for.
    ``lineage``: that of ``next``.
    ``partitions`` and ``bounds``, at the end of a fetch: how many partitions the topic has now, and
    the bounds of this one, if the leader knows them.
    """

    partition: int
    base: int
    next: int
    batch: pa.RecordBatch
    spans: Spans | None = None
    partitions: int | None = None
    lineage: Lineage = NOTHING_KNOWN
    scattered: npt.NDArray[np.int64] | None = None
    bounds: Bounds | None = None

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of each row."""
        if self.scattered is not None:
            return self.scattered
        return offsets_of(self.batch.num_rows, self.base, self.spans)


@dataclass(frozen=True, slots=True)
class Source:
    """What is read: one partition of a topic (of this id), under an isolation, through a view.

    ``lineage``: that of the ends of ranges, where it is known. ``maps``: records may be read from
    the log's own files, where these are on this machine.
    """

    router: Router
    view: View
    topic_id: str
    partition: int
    isolation: Isolation
    lineage: Lineage = NOTHING_KNOWN
    maps: bool = True

    def route(self) -> Route:
        """The way to the leader; raises as :meth:`Router.route`."""
        return self.router.route(self.view.topic, self.topic_id, self.partition)

    def fetch(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> FetchRange:
        """What the leader is asked."""
        return FetchRange.of(
            topic=self.view.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            start=start,
            end=end,
            isolation=self.isolation,
            columns=self.view.asked,
            filter=self.view.filter,
            max_bytes=max_bytes,
            wait_ms=wait_ms,
            end_lineage=self.lineage,
        )


class Cancellation:
    """Ends the fetches of one reader, from any thread. It takes no lock: garbage may call it."""

    def __init__(self) -> None:
        self._stream: BlockingStream | None = None
        self.asked = False

    def cancel(self) -> None:
        """Ends the fetch that is under way, and every later one."""
        self.asked = True
        self.end()

    def begin(self, stream: BlockingStream) -> None:
        """A fetch begins; it is cancelled at once if that was asked for."""
        self._stream = stream
        if self.asked:
            stream.cancel()

    def end(self) -> None:
        """The fetch is over, read to its end or not: the broker need not go on."""
        stream = self._stream
        if stream is not None:
            stream.cancel()


def received(
    stream: BlockingStream, deadline: float
) -> Iterator[tuple[pa.RecordBatch | None, FetchAnswer]]:
    """Yield what a broker sends on a fetch: the rows, None if there are none, and their facts.

    The rows lie where they were received. Ends early if the stream is cancelled.

    Raises:
        FETCH_ERRORS
    """
    schema: pa.Schema | None = None
    while (frame := stream.receive(left(deadline))) is not None:
        if schema is None:
            schema = pa.ipc.read_schema(pa.py_buffer(frame.body))
            continue
        facts = fetch_answer(bytes(frame.header))
        rows = None
        if isinstance(facts, ChunkFacts) and facts.messages > 1:
            rows = decode_run([memoryview(frame.body)], schema, None)
        elif frame.body:
            rows = decode_one(pa.py_buffer(frame.body), schema, None)
        yield rows, facts


def fetch_once(
    source: Source,
    start: int,
    end: int | None,
    wait_ms: int = 0,
    max_bytes: int = FETCH_BYTES_DEFAULT,
    cancellation: Cancellation | None = None,
    lineage: Lineage = NOTHING_KNOWN,
) -> Iterator[Fetched]:
    """One fetch. The last item has no rows; its ``next`` is where to read on.

    ``lineage``: that of ``start``. A fetch that is cancelled just ends.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DamagedSegment, UnknownTopic: as the leader says.
        DataLoss: records below ``start``, or ``end``, were cut off; ``left`` is where to go on.
        BrokerUnavailable, RequestTimeout, NotLeader, LeaderUnavailable, …: retriable, from the
            last ``next``.
    """
    position, maps = start, source.maps
    while True:
        try:
            for fetched in _fetch(
                source, position, end, wait_ms, max_bytes, cancellation, lineage, maps=maps
            ):
                position, lineage = fetched.next, fetched.lineage
                yield fetched
        except CannotMap:  # never without mapping
            maps = False
        else:
            return


def _fetch(
    source: Source,
    start: int,
    end: int | None,
    wait_ms: int,
    max_bytes: int,
    cancellation: Cancellation | None,
    lineage: Lineage,
    *,
    maps: bool,
) -> Iterator[Fetched]:
    """As :func:`fetch_once`; with ``maps`` the leader may say where records lie, which are mapped.

    Raises:
        CannotMap: they cannot; those up to the last ``next`` were given.
    """
    router = source.router
    deadline = time.monotonic() + router.timeout_s
    asked = source.fetch(start, end, wait_ms, max_bytes)
    route = source.route()
    try:
        shared = router.link(route).connect(left(deadline))
    except IsologError as error:
        router.failed(route, error)
        raise
    machine = LEADERS.machine(route.address) if maps else None
    asked = structs.replace(asked, start_lineage=lineage, leader_epoch=route.epoch, machine=machine)
    until = time.monotonic() + router.timeout_s + wait_ms / 1000
    under_way = cancellation or Cancellation()
    file: MappedFile | None = None
    try:
        stream = shared.channel.open(
            FETCH,
            b"",
            Fetch(ranges=[asked]).to_bytes(),
            end=True,
            credit=CREDIT,
            timeout_s=left(until),
        )
        under_way.begin(stream)
        for rows, facts in received(stream, until):
            match facts:
                case EndFacts():
                    router.answered(route, facts.leader_epoch)
                    yield Fetched(
                        source.partition,
                        facts.next,
                        facts.next,
                        _empty(source.view),
                        partitions=facts.partitions,
                        lineage=facts.lineage,
                        bounds=facts.bounds,
                    )
                    continue
                case ChunkFacts():
                    if rows is not None:
                        yield shown(source, rows, facts)
                case PlacesFacts():
                    columns = pa.schema([source.view.field(name) for name in source.view.asked])
                    for run in placed(router, asked, facts, left(deadline)):
                        if file is None or not file.covers(run.file):
                            file = MappedFile(run.file, source.topic_id, source.partition)
                        try:
                            for batch, told in mapped_batches(run, file, columns):
                                yield shown(source, batch, told)
                        except OtherBytes:
                            doubt = structs.replace(facts, stored=[run.facts])
                            placed(router, asked, doubt, left(deadline), doubted=True)
                            raise
                case FailureFacts():
                    raise facts.error
    except CannotMap as error:
        LEADERS.failed(route.address, error)
        raise
    except FETCH_ERRORS as error:
        if under_way.asked:
            return
        mine = failure_of(error, route.address)
        router.failed(route, mine)
        raise mine from error
    finally:
        under_way.end()


def shown(source: Source, data: pa.RecordBatch, facts: ChunkFacts) -> Fetched:
    """Return a chunk as the reader sees it; ``facts``: what came with it."""
    return Fetched(
        source.partition,
        facts.base,
        facts.next,
        source.view.of_chunk(data, source.partition, facts.base, facts.spans),
        facts.spans,
        lineage=facts.lineage,
        scattered=_offsets_sent(data) if source.view.filter is not None else None,
    )


def read_range(
    source: Source,
    core: RangeCore,
    wait_ms: int = 0,
    max_bytes: int = FETCH_BYTES_DEFAULT,
    cancellation: Cancellation | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[Fetched]:
    """Read what the core decides; end when its range is over, or the reading is cancelled.

    What has no rows tells how far the leader looked, how many partitions there are, or where
    records are gone.
    """
    while not (cancellation is not None and cancellation.asked):
        step = core.next(time.monotonic())
        if step is None:
            return
        if isinstance(step, PauseUntil):
            pause(step.moment - time.monotonic())
            continue
        try:
            for found in fetch_once(
                source, step.start, core.end, wait_ms, max_bytes, cancellation, step.lineage
            ):
                now, rows = time.monotonic(), found.batch.num_rows
                if core.received(found.next, found.lineage, rows, found.partitions, now):
                    yield found
        except IsologError as error:
            left_at = core.failed(error, time.monotonic())
            if left_at is not None:
                yield moved_to(source, left_at)
        else:
            core.ended()


def fetch_range(
    source: Source, start: int, end: int, lineage: Lineage = NOTHING_KNOWN
) -> Iterator[Fetched]:
    """All that is visible of ``[start, end)``; returns when the range is done.

    What has no rows tells how far the leader looked: nothing there is visible, or matches a filter.
    A bound below ``end`` (records that are not visible yet) ends it as well: the last ``next``
    tells.
    """
    return read_range(source, RangeCore(start, end, lineage, patience_s=source.router.timeout_s))


def check_place(source: Source, start: int, end: int, lineage: Lineage = NOTHING_KNOWN) -> None:
    """Ask the leader whether there are, or were, these offsets; ``start`` is not below ``end``.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DataLoss: as :func:`fetch_once`.
    """
    core = RangeCore(start, end, lineage, patience_s=source.router.timeout_s, checks=True)
    deque(read_range(source, core), maxlen=0)


def moved_to(source: Source, offset: int) -> Fetched:
    """No rows: the next ones begin at the offset."""
    return Fetched(source.partition, offset, offset, _empty(source.view))


def _offsets_sent(batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """Those that the leader was asked for; None: it was not."""
    if OFFSET.name not in batch.schema.names:
        return None
    column = batch.column(OFFSET.name)
    # Not to_numpy: that imports pandas.
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def _empty(view: View) -> pa.RecordBatch:
    return empty_batch(view.schema)
