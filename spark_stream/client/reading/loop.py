"""The reader's loop. The core decides, the process's loop receives, the consumer decodes.

A reader has no thread. The loop's thread receives frames, and sends the next fetches of the core.
The consumer's thread decodes. With ``arrived``, a thread that waits for records may receive and
send in place of the loop. Work that may wait for a broker (connecting, finding leaders) runs on
other threads (``dispatch``).

Each fetch has a size limit, after which the core decides again, and a limit for its broker's
silence, so that a stopped broker is detected.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from msgspec import Struct, structs

from spark_stream.client.connecting.link import SharedChannel
from spark_stream.client.connecting.threads import call_elsewhere, weakly
from spark_stream.client.reading.core import (
    AheadLimits,
    FetchCore,
    RangeCore,
    RangeFetch,
    RangeMoved,
    RangeOver,
    continue_at,
)
from spark_stream.client.reading.dispatch import Dispatcher, Sending
from spark_stream.client.reading.fetching import (
    CREDIT,
    LEADERS,
    CannotMap,
    Fetched,
    Source,
    decoded_rows,
    fetched_chunk,
    fetched_end,
    fetched_from_table,
    fetched_move,
    mapped_rows,
)
from spark_stream.client.topics import Key
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.errors import InternalError, InvalidRequest, IsologError, OffsetEvicted
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes, Credited, Received
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.client import CLIENT_LIMITS, client_loop
from spark_stream.transport.lifetime import check_may_wait, check_not_inside, new_lock
from spark_stream.transport.loop import Timer
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    Handle,
    Stream,
    StreamEvent,
    error_of,
    failure_of,
)
from spark_stream.wire.messages import FETCH
from spark_stream.wire.stream_messages import (
    ChunkFacts,
    EndFacts,
    FailureFacts,
    Fetch,
    FetchRange,
    PlacesFacts,
    fetch_answer,
)

logger = logger_of(__name__)

_WAIT_MS_MIN: Final = 2_000
_WAIT_MS_MAX: Final = 15_000
FETCH_BYTES: Final = 4 << 20
WATCH_S: Final = 2.0
_TICK_S: Final = 0.25
TOGETHER: Final = AheadLimits(total=32 << 20, call=4 << 20)
"""The limits of ranges that are read together, without one answer of each call."""


class WantedRange(NamedTuple):
    """A range to read. ``lineage``: that of ``start``. ``end`` is None if it has no end.

    ``checks``: fetch even an empty range, so that the leader checks its offset.
    """

    source: Source
    start: int
    end: int | None
    lineage: Lineage = NO_LINEAGE
    checks: bool = False

    @property
    def key(self) -> Key:
        """The topic and the partition."""
        return self.source.view.topic, self.source.partition


class _FetchCall(Struct):
    """A call that is under way. ``shared`` keeps its connection open."""

    number: int
    sendings: list[Sending]
    ranges: list[FetchRange]
    shared: SharedChannel
    stream: Stream | None = None
    schema: pa.Schema | None = None

    def cancel(self) -> None:
        if self.stream is not None:
            self.stream.cancel()


class _QueuedFrame(Struct, frozen=True):
    """A frame for the consumer, with the position and lineage of its range before it."""

    number: int
    key: int
    call: _FetchCall
    request: FetchRange
    facts: ChunkFacts | EndFacts | PlacesFacts
    body: Bytes
    size: int
    position: int
    lineage: Lineage


_OfRange = _QueuedFrame | RangeMoved[int] | RangeOver[int]
_Item = _OfRange | IsologError | None


class Fetcher:
    """A prefetching read of ranges. When it stops, prefetched records are dropped.

    ``watch`` is called every two seconds. If it raises a final error, the iteration ends. Removed
    records are an error too, unless ``fail_on_loss`` is false. ``wait_ms``: how long a leader waits
    for records if there are none, by default only in ranges without an end. ``patience_s``: the
    seconds for retries, by default the timeout of a call.

    ``together``: send one call for all ranges of a leader, and deliver one range after the other.
    The first range is delivered until :meth:`move_to`. Frames of later ranges are held undecoded,
    and their credit is not returned. :data:`TOGETHER` bounds their size.

    ``arrived``: called on any thread when :meth:`take` has something to return. It must not block.
    A thread that waits for this call may receive from the connection :attr:`channel` itself.

    ``_lock`` guards the core. A thread that holds it makes no blocking call. :meth:`stop`
    takes no lock, because the garbage collector may call it on any thread, by closing a generator.
    """

    def __init__(
        self,
        ranges: Sequence[WantedRange],
        watch: Callable[[], None] | None = None,
        *,
        fail_on_loss: bool = True,
        wait_ms: int | None = None,
        max_bytes: int = FETCH_BYTES,
        together: bool = False,
        patience_s: float | None = None,
        arrived: Callable[[], None] | None = None,
    ) -> None:
        self._arrived = arrived
        self._ranges = ranges
        self._watch = watch
        self._fail_on_loss = fail_on_loss
        self._is_together = together
        self._max_bytes = max_bytes
        self._wait_ms = wait_ms
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._current: Iterator[Fetched] | None = None
        self._current_key = 0
        self._unread = set(range(len(ranges)))
        self._held: dict[int, deque[_OfRange]] = {}  # items of ranges after the first one
        self._deferred: list[tuple[list[Sending], SharedChannel]] = []  # calls without room
        self._stopped = False
        self._lock = new_lock()
        self._calls: dict[int, _FetchCall] = {}
        self._unmapped: set[int] = set()  # ranges whose next fetch must not map files
        self._timer: Timer | None = None
        self._timer_due = 0.0
        if not ranges:
            return
        budget = TOGETHER if together else None
        # A stream starts with the credit of the connection's limits.
        self._credit = CREDIT if budget is None else budget.call - CLIENT_LIMITS.credit
        self._router = router = ranges[0].source.router
        sources = [wanted.source for wanted in ranges]
        self._dispatcher = Dispatcher(self, router, sources, together=together)
        self._core = FetchCore(
            {
                number: RangeCore(
                    wanted.start,
                    wanted.end,
                    wanted.lineage,
                    patience_s=router.timeout_s if patience_s is None else patience_s,
                    checks=wanted.checks or (wanted.end is not None and wanted.start > wanted.end),
                    fail_on_loss=fail_on_loss,
                    may_use_followers=wanted.source.isolation is not Isolation.READ_UNCOMMITTED,
                    has_table=self._has_table(wanted),
                )
                for number, wanted in enumerate(ranges)
            },
            silence_s=router.timeout_s + max(map(self._wait_of, range(len(ranges)))) / 1000,
            ahead_bytes=min(FETCH_BYTES, max_bytes),
            budget=budget,
        )
        self._advance()
        if watch is not None:
            self._watch_later()

    # -- for the consumer -----------------------------------------------------------------------

    @property
    def channel(self) -> SocketChannel | None:
        """The connection of a call that is under way. None without a call."""
        streams = (each.stream for each in tuple(self._calls.values()))
        return next((each.channel for each in streams if each is not None), None)

    @property
    def has_items(self) -> bool:
        """Whether :meth:`take` may return something without a wait, or raise an error."""
        return self._current is not None or bool(self._held) or not self._queue.empty()

    @property
    def running(self) -> bool:
        """Whether more records may be delivered."""
        return bool(self._unread) and not self._stopped

    def is_over(self, number: int) -> bool:
        """Whether this range has ended."""
        return number not in self._unread or self._stopped

    def move_to(self, number: int) -> None:
        """Deliver this range next. Drop the rest of the ranges before it."""
        if self._stopped:
            return
        for passed in sorted(self._unread):
            if passed < number:
                self._give_up(passed)
        with self._lock:
            self._core.first = number
        self._advance()

    def fetched(self, idle_s: Callable[[], float]) -> Iterator[tuple[Key, Fetched]]:
        """Yield batches until all ranges have ended, one fails, or the feed is stopped.

        Also end after ``idle_s()`` seconds without a batch.
        """
        while self.running:
            found = self.take(max(0.0, min(_TICK_S, idle_s())))
            if found is not None:
                yield found
            elif idle_s() <= 0:
                return

    def take(self, wait_s: float = _TICK_S) -> tuple[Key, Fetched] | None:
        """Return the next batch. None if there was none in ``wait_s``, or a range has ended.

        Raises:
            IsologError: A range cannot be read further.
        """
        found = self.take_range(wait_s)
        return None if found is None else (self._ranges[found[0]].key, found[1])

    def take_range(self, wait_s: float = _TICK_S) -> tuple[int, Fetched] | None:
        """Return the result of :meth:`take` with the index of the range instead of its key.

        An error of one range ends that range. An error of the feed ends all ranges.
        """
        while not self._stopped:
            current = self._current  # another thread may clear it
            if current is not None:
                try:
                    fetched = next(current, None)
                except Exception:
                    self._give_up(self._current_key)  # later items would leave a gap
                    raise
                if fetched is not None:
                    return self._current_key, fetched
                self._current = None
                if self._current_key not in self._unread:
                    return None
            if wait_s:
                check_may_wait()
            else:
                check_not_inside(self._lock)
            try:
                item = self._next_item(wait_s)
            except queue.Empty:
                self._router.check_open()  # an open fetch would wait for its broker
                return None
            if isinstance(item, IsologError):
                self.stop()
                raise item
            if item is None or not self._is_current(item):
                continue
            if isinstance(item, RangeOver) and self._is_below_log(item):
                assert isinstance(item.error, OffsetEvicted)
                self._current, self._current_key = self._from_table(item.key, item.error), item.key
                continue
            if isinstance(item, RangeOver):
                self._unread.discard(item.key)
                if item.error is not None:
                    raise item.error
                return None
            self._current, self._current_key = self._decode(item), item.key
        return None

    def stop(self) -> None:
        """Cancel the fetches. Any thread may call this, any number of times."""
        self._stopped = True
        for call in list(self._calls.values()):
            call.cancel()
        # Calls keep their connections, and received frames keep their calls: drop both.
        self._calls.clear()
        self._deferred = []
        self._held = {}
        self._current = None
        waiting, self._queue = self._queue, queue.SimpleQueue()
        waiting.put(None)

    def leave_parent(self) -> None:
        """Stop in a forked child, without cancelling the calls, which are the parent's."""
        self._stopped = True
        self._calls.clear()
        self._deferred = []

    def _next_item(self, wait_s: float) -> _Item:
        """Return the next item. Hold items of later ranges than the first one.

        Raises:
            queue.Empty: No item arrived in time.
        """
        first = self._core.first
        if first is not None and (held := self._held.get(first)):
            return held.popleft()
        while True:
            item = self._queue.get(timeout=wait_s)
            if first is None or item is None or isinstance(item, IsologError) or item.key <= first:
                return item
            self._held.setdefault(item.key, deque()).append(item)

    def _is_current(self, item: _OfRange) -> bool:
        if isinstance(item, RangeOver):
            with self._lock:
                return self._core.is_current(item.key, item.number)
        size = item.size if isinstance(item, _QueuedFrame) else 0
        with self._lock:
            is_current = self._core.is_current(item.key, item.number)
            self._core.on_taken(item.key, item.number, size)
        if isinstance(item, _QueuedFrame) and item.call.stream is not None:
            item.call.stream.grant_credit(size)
        self._advance()
        return is_current

    def _decode(self, item: _QueuedFrame | RangeMoved[int]) -> Iterator[Fetched]:
        """Decode an item for the consumer."""
        source = self._ranges[item.key].source
        if isinstance(item, RangeMoved):
            yield fetched_move(source, item.left)
            return
        _, address = item.call.sendings[0].broker
        position, lineage = item.position, item.lineage
        try:
            match item.facts:
                case EndFacts():
                    yield fetched_end(source, item.facts)
                case ChunkFacts():
                    assert item.call.schema is not None
                    rows = decoded_rows(item.call.schema, item.body, item.facts)
                    yield fetched_chunk(source, rows, item.facts)
                case PlacesFacts():
                    timeout_s = self._router.timeout_s
                    for fetched in mapped_rows(source, item.request, item.facts, timeout_s):
                        position, lineage = fetched.next, fetched.lineage
                        yield fetched
        except CannotMap as error:
            LEADERS.on_failed(address, error)
            self._read_unmapped(item.key, position, lineage)
        except (pa.ArrowException, OSError) as error:
            raise failure_of(error, address) from error

    def _has_table(self, wanted: WantedRange) -> bool:
        # Ranges that are read together end early, and are then read one by one.
        return wanted.source.tables is not None and not self._is_together

    def _is_below_log(self, item: RangeOver[int]) -> bool:
        return isinstance(item.error, OffsetEvicted) and self._has_table(self._ranges[item.key])

    def _from_table(self, key: int, error: OffsetEvicted) -> Iterator[Fetched]:
        """Read a range from its table up to the log start. Then continue it at the leader."""
        source, _, end, *_ = self._ranges[key]
        with self._lock:
            position = self._core.range_position(key)
        log_start = error.details["log_start_offset"]
        last = log_start if end is None else min(log_start, end)
        found = fetched_from_table(source, position, last)
        if found is None:
            position = continue_at(error, fail=self._fail_on_loss)
            yield fetched_move(source, position)
        for fetched in found or ():
            position = fetched.next
            yield fetched
        if end is not None and position >= end:
            self._unread.discard(key)
            return
        with self._lock:
            self._cancel(self._core.go_back(key, position, NO_LINEAGE))
        self._advance()

    def _read_unmapped(self, key: int, position: int, lineage: Lineage) -> None:
        with self._lock:
            self._unmapped.add(key)
            self._cancel(self._core.go_back(key, position, lineage))
        self._advance()

    def _give_up(self, key: int) -> None:
        self._current = None
        self._unread.discard(key)
        with self._lock:
            self._cancel(self._core.give_up(key))
        for item in self._held.pop(key, ()):
            self._is_current(item)  # returns its credit

    def _cancel(self, number: int | None) -> None:
        call = None if number is None else self._calls.pop(number, None)
        if call is not None:
            call.cancel()

    # -- on any thread --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Carry out the core's decisions."""
        if self._stopped:
            return
        with self._lock:
            fetches = self._core.next(time.monotonic())
            self._pass_on()
            self._set_timer()
        if fetches:
            try:
                self._dispatcher.send(fetches)
            except Exception as error:
                self.fail(error)
        self._open_deferred()

    def _pass_on(self) -> None:
        """Queue the core's news for the consumer. The caller holds the lock."""
        for each in self._core.out:
            self._put(each)
        self._core.out.clear()

    def _put(self, item: _Item) -> None:
        self._queue.put(item)
        if self._arrived is not None:
            self._arrived()

    def _set_timer(self) -> None:
        """Set the timer for the core. The caller holds the lock."""
        due = self._core.wake_at()
        if due is None or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = client_loop().call_later(max(0.0, due - time.monotonic()), weakly(self._tick))

    def _tick(self) -> None:
        if self._stopped:
            return
        with self._lock:
            self._timer = None
            silent = self._core.overdue(time.monotonic())
        for number in silent:
            call = self._calls.get(number)
            if call is not None:
                call.cancel()
                self._lose(call, failure_of(TimeoutError(), call.shared.channel.address))
        self._advance()

    def _wait_of(self, key: int, *, at_follower: bool = False) -> int:
        """Return the wait of a broker for records, in milliseconds.

        The leader ends the wait if it may not lead any more. A follower that is cut off cannot, so
        its waits are short.
        """
        if self._wait_ms is not None:
            return self._wait_ms
        if self._ranges[key].end is not None:
            return 0
        if at_follower:
            return _WAIT_MS_MIN
        return min(_WAIT_MS_MAX, max(_WAIT_MS_MIN, int(500 * self._router.timeout_s)))

    def refuse(
        self, fetches: Sequence[RangeFetch[int]], error: IsologError, *, at_followers: bool = False
    ) -> None:
        """Report failed fetches to the core. ``at_followers``: before they reached followers."""
        with self._lock:
            for fetch in fetches:
                self._core.on_failed(
                    fetch.number, error, time.monotonic(), at_follower=at_followers
                )
            self._pass_on()
        self._advance()

    def fail(self, error: Exception) -> None:
        """Raise an unexpected error in the consumer, so that it does not wait forever."""
        logger.debug("unexpected error in a fetch", exc_info=error)
        if not isinstance(error, IsologError):
            error = InternalError(f"unexpected error in a fetch: {error!r}")
        self._put(error)

    # -- calls ----------------------------------------------------------------------------------

    def open(self, group: list[Sending], shared: SharedChannel) -> None:
        """Send these fetches in one call, when there is room for their answers."""
        # The broker answers in this order, so an answer never queues behind one of a later range.
        group = sorted(group, key=lambda each: each.fetch.key)
        with self._lock:
            self._deferred.append((group, shared))
            self._deferred.sort(key=lambda each: each[0][0].fetch.key)
        self._open_deferred()

    def _open_deferred(self) -> None:
        while self._deferred and not self._stopped:
            with self._lock:
                begun = self._begin_call()
            if begun is None:
                return
            self._open(*begun)

    def _begin_call(self) -> tuple[int, list[Sending], SharedChannel] | None:
        """Begin the next call that has room. The caller holds the lock."""
        while True:
            has_room, first = self._core.has_room, self._core.first
            places = (
                place
                for place, (group, _) in enumerate(self._deferred)
                if has_room or any(each.fetch.key == first for each in group)
            )
            place = next(places, None)
            if place is None:
                return None
            group, shared = self._deferred.pop(place)
            if not has_room:
                left = [each for each in group if each.fetch.key != first]
                group = [each for each in group if each.fetch.key == first]
                if left:
                    self._deferred.insert(place, (left, shared))
            numbers = [each.fetch.number for each in group]
            follower_fetches = {each.fetch.number for each in group if each.follower is not None}
            number = self._core.begin(numbers, time.monotonic(), follower_fetches=follower_fetches)
            if number is not None:
                return number, group, shared

    def _open(self, number: int, group: list[Sending], shared: SharedChannel) -> None:
        ranges = [self._range_of(each, is_alone=len(group) == 1) for each in group]
        call = _FetchCall(number, group, ranges, shared)
        self._calls[number] = call

        def begin(stream: Stream) -> Handle:
            call.stream = stream
            stream.handles_anywhere = self._arrived is not None
            return weakly(self._handle, call)

        try:
            shared.channel.open_with(
                begin, FETCH, b"", Fetch(ranges=ranges).to_bytes(), end=True, credit=self._credit
            )
        except TRANSPORT_ERRORS as error:
            self._lose(call, shared.failure_of(error))
            self._advance()
        if self._stopped:
            call.cancel()
            self._calls.clear()

    def _range_of(self, sending: Sending, *, is_alone: bool) -> FetchRange:
        fetch, route, follower = sending
        source, _, end = self._ranges[fetch.key][:3]
        # A follower that lacks the rest of a range should not wait for it: the leader has it.
        is_at_follower = follower is not None
        wait_ms = self._wait_of(fetch.key, at_follower=is_at_follower)
        if is_at_follower and end is not None:
            wait_ms = 0
        request = source.fetch(fetch.start, end, wait_ms, self._max_bytes)
        maps = is_alone and source.maps and fetch.key not in self._unmapped
        self._unmapped.discard(fetch.key)
        return structs.replace(
            request,
            start_lineage=fetch.lineage,
            follow=end is None and is_alone,
            leader_epoch=route.epoch,
            machine=LEADERS.machine(sending.broker[1]) if maps else None,
            near=is_at_follower,
        )

    def _lose(self, call: _FetchCall, error: IsologError) -> None:
        self._calls.pop(call.number, None)
        for _, route, follower in call.sendings:
            self._router.on_failed(route, error, follower)
        with self._lock:
            self._core.on_lost(call.number, error, time.monotonic())
            self._pass_on()

    def _handle(self, call: _FetchCall, event: StreamEvent) -> None:
        """Handle an event of a call, on the loop's thread or one that reads in its place."""
        if isinstance(event, Credited) or self._stopped:
            return
        try:
            if isinstance(event, Received):
                if event.header or event.body:
                    self._receive(call, event)
                if not event.end:
                    return
                self._calls.pop(call.number, None)
                with self._lock:
                    self._core.on_ended(call.number)
            else:
                lost = error_of(event, call.shared.channel.address)
                self._lose(call, call.shared.failure_of(lost))
            self._advance()
        except Exception as error:
            self.fail(error)

    def _receive(self, call: _FetchCall, frame: Received) -> None:
        if call.schema is None:
            view = self._ranges[call.sendings[0].fetch.key].source.view
            call.schema = view.decoding(pa.ipc.read_schema(pa.py_buffer(frame.body)))
            self._consume(call, frame)
            return
        facts = fetch_answer(bytes(frame.header))
        if isinstance(facts, PlacesFacts):
            place = 0
            if call.ranges[0].machine is None:
                raise InvalidRequest("unsolicited file places in the answer to a fetch")
        else:
            place = facts.range
        fetch, route, follower = call.sendings[place]
        if isinstance(facts, FailureFacts):
            self._consume(call, frame)
            self._router.on_failed(route, facts.error, follower)
            self.refuse([fetch], facts.error)
            return
        partitions = None
        if isinstance(facts, EndFacts):
            self._router.on_answer(route, facts.leader_epoch)
            partitions = facts.partitions
        has_rows = isinstance(facts, PlacesFacts) or bool(frame.body)
        with self._lock:
            before = self._core.position(fetch.number)
            now = time.monotonic()
            is_worth_giving = before is not None and self._core.on_received(
                fetch.number,
                facts.next,
                facts.lineage,
                has_rows,
                partitions,
                frame.size,
                now,
                is_last=isinstance(facts, EndFacts),
            )
            if before is not None and is_worth_giving:
                request = call.ranges[place]
                self._put(
                    _QueuedFrame(
                        fetch.number,
                        fetch.key,
                        call,
                        request,
                        facts,
                        frame.body,
                        frame.size,
                        *before,
                    )
                )
        if not is_worth_giving:
            self._consume(call, frame)

    @staticmethod
    def _consume(call: _FetchCall, frame: Received) -> None:
        if call.stream is not None and not frame.end:
            call.stream.grant_credit(frame.size)

    # -- watching -------------------------------------------------------------------------------

    def _watch_later(self) -> None:
        if not self._stopped:
            client_loop().call_later(WATCH_S, weakly(self._begin_watch))

    def _begin_watch(self) -> None:
        if not self._stopped:
            call_elsewhere(("watch", id(self._router)), weakly(self._run_watch))

    def _run_watch(self) -> None:
        assert self._watch is not None
        if self._stopped:
            return
        try:
            self._watch()
        except IsologError as error:
            if not error.retriable:
                self._put(error)
                return
        except Exception as error:
            self.fail(error)
            return
        self._watch_later()
