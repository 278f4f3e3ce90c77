"""Bounded reads of one partition: fetch after fetch, from the next offset that the last one named.

Each fetch goes to the leader that the partition has then. A reader's place is an offset and its
lineage (:mod:`spark_stream.consistency.lineage`): a leader that lacks records below it says so.

Each fetch has a size limit and a deadline, so a stopped broker is noticed; a reader that is itself
slow between two batches may outlive the deadline, and then simply asks again from where it was.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.flight as fl
from msgspec import structs

from spark_stream.client.connecting.link import BrokerLink, left
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.under_way import UNDER_WAY
from spark_stream.client.reading.columns import Spans, View, offsets_of
from spark_stream.client.reading.mapping import (
    LEADERS,
    CannotMap,
    MappedFile,
    OtherBytes,
    mapped_batches,
    placed,
)
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.lineage import NOTHING_KNOWN, Lineage
from spark_stream.errors import IsologError, RequestTimeout
from spark_stream.wire.fetch_messages import (
    ChunkFacts,
    EndFacts,
    FailureFacts,
    Fetch,
    PlacesFacts,
    fetch_answer,
)
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from spark_stream.wire.schemas import OFFSET, empty_batch

_RETRY_PAUSE_S: Final = 0.1

# Buffers lie wherever gRPC received them. Acero (group_by, sort_by, join) warns of those that their
# type's width does not divide, so they are copied: 30 ms of 400 of CPU for 450 MiB. A pyarrow that
# is too old for the option leaves them.
ALIGNED: Final = (
    pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    if hasattr(pa.ipc, "Alignment")
    else pa.ipc.IpcReadOptions()
)


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

    def fetch(self, start: int, end: int | None, wait_ms: int, max_bytes: int) -> Fetch:
        """What the leader is asked."""
        return Fetch.of(
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
    """Ends the fetches of one reader, from any thread.

    Of a Flight reader's methods ``cancel`` is the one that is safe beside a read of another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: fl.FlightStreamReader | None = None
        self.asked = False

    def cancel(self) -> None:
        """Ends the fetch that is under way, and every later one."""
        with self._lock:
            self.asked = True
            if self._reader is not None:
                self._reader.cancel()

    def leave(self, link: BrokerLink, client: fl.FlightClient) -> None:
        """Ends the fetch that is under way, which its broker does not answer."""
        with self._lock:
            if self._reader is not None:
                self._reader.cancel()
                return
        link.break_off(client)  # not even a reader is there yet

    def begin(self, reader: fl.FlightStreamReader) -> None:
        """A fetch begins; it is cancelled at once if that was asked for."""
        with self._lock:
            self._reader = reader
            if self.asked:
                reader.cancel()

    def end(self) -> None:
        """The fetch is over, read to its end or not."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()  # nobody reads it: the broker need not go on


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
        link = router.link(route)
        client = link.client(left(deadline))
    except IsologError as error:
        router.failed(route, error)
        raise
    machine = LEADERS.machine(route.address) if maps else None
    asked = structs.replace(asked, start_lineage=lineage, leader_epoch=route.epoch, machine=machine)
    timeout = router.timeout_s + wait_ms / 1000
    under_way = cancellation or Cancellation()
    file: MappedFile | None = None
    watched = router.watch(lambda: route, wait_ms / 1000, lambda: under_way.leave(link, client))
    try:
        options = fl.FlightCallOptions(timeout=timeout, read_options=ALIGNED)
        with UNDER_WAY:
            reader = client.do_get(fl.Ticket(asked.to_bytes()), options)
        under_way.begin(reader)
        while True:
            try:
                with UNDER_WAY:
                    chunk = reader.read_chunk()
            except StopIteration:
                return
            facts = fetch_answer(chunk.app_metadata)
            watched.rest()  # while the reader has the batch nothing is asked of the broker
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
                    yield shown(source, chunk.data, facts)
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
            watched.wake()
    except CannotMap as error:
        LEADERS.failed(route.address, error)
        raise
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        if under_way.asked:
            return
        mine = link.translated(error, client)
        router.failed(route, mine)
        raise mine from error
    finally:
        watched.end()
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


def fetch_range(
    source: Source, start: int, end: int, lineage: Lineage = NOTHING_KNOWN
) -> Iterator[Fetched]:
    """All that is visible of ``[start, end)``; returns when the range is done.

    What has no rows tells how far the leader looked: nothing there is visible, or matches a filter.
    A bound below ``end`` (records that are not visible yet) ends it as well: the last ``next``
    tells.
    """
    position = start
    failing_since: float | None = None
    while position < end:
        before = position
        try:
            for fetched in fetch_once(source, position, end, lineage=lineage):
                moved = fetched.next != position
                position, lineage = fetched.next, fetched.lineage
                if fetched.batch.num_rows or moved:
                    yield fetched
        except IsologError as error:
            if not error.retriable:
                raise
            now = time.monotonic()
            if position > before:
                failing_since = None
            elif failing_since is None:
                failing_since = now
            if isinstance(error, RequestTimeout) and position == before:
                raise
            if failing_since is not None and now - failing_since > source.router.timeout_s:
                raise
            time.sleep(_RETRY_PAUSE_S)
            continue
        failing_since = None
        if position == before:
            return


def check_place(source: Source, start: int, end: int, lineage: Lineage = NOTHING_KNOWN) -> None:
    """Asks the leader whether there are, or were, these offsets; fetches nothing.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DataLoss: as :func:`fetch_once`.
    """
    give_up = time.monotonic() + source.router.timeout_s
    while True:
        try:
            deque(fetch_once(source, start, end, lineage=lineage), maxlen=0)
            return
        except IsologError as error:
            if not error.retriable or time.monotonic() > give_up:
                raise
            time.sleep(_RETRY_PAUSE_S)


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
