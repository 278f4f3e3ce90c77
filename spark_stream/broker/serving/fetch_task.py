"""A fetch that uses no thread while it waits for records or for its reader.

A task runs on a pool until it must wait. The end of the wait submits it again: an append that moves
the bound beyond its position, credit on its stream, its deadline, or the end of its stream. A small
append runs the few tasks that it wakes on its own thread. Each wait has a number, so that only the
first of these events has an effect. Before it sends a frame, the task pauses for the time that its
principal's quota requires. Only a timer ends that pause.

======================  ==========================================  ==========================
state                   event                                       next state
======================  ==========================================  ==========================
queued or running       it must wait, or is done                    waiting, or ended
waiting for records     append, deadline, end of the stream         queued or running
waiting for credit      credit, end of the stream                   queued
pausing for its quota   timer, twice a second                       queued
======================  ==========================================  ==========================
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import pyarrow as pa

from spark_stream.broker.access.quotas import LOOK_S, Throttle
from spark_stream.broker.serving.fetching import Answer, Answers, AwaitRecords
from spark_stream.broker.serving.memory import memory_errors
from spark_stream.broker.serving.pool import Pool
from spark_stream.consistency.isolation import upper_bound
from spark_stream.counting import NamedCounts
from spark_stream.environment import Clock
from spark_stream.errors import InternalError, IsologError
from spark_stream.loggers import logger_of
from spark_stream.protocol import Body, Credited, Received, StreamOver, nbytes_of
from spark_stream.storage.format.codec import uncompressed
from spark_stream.transport.channel import SocketChannel
from spark_stream.transport.loop import Loop, Timer
from spark_stream.transport.streams import Stream, StreamEvent, error_bytes

logger = logger_of(__name__)

WAITING_MAX: Final = 10_000
"""The waiting fetches of a broker. One more receives an empty answer, and its reader retries."""
_APART_BYTES_MIN: Final = 256 << 10
"""Batches of at least this size are sent directly from their columns' buffers, without a copy."""
_CHECK_S: Final = 1.0
_TURN_BYTES: Final = 8 << 20
"""The bytes that a fetch sends in a row, before other fetches use the thread."""
_HELD_BYTES_MAX: Final = 64 << 10
"""Small frames are gathered up to this size, because each write costs more than they do."""


def _body(records: pa.RecordBatch | tuple[memoryview, ...]) -> Body:
    if isinstance(records, tuple):
        return records
    return uncompressed(records, _APART_BYTES_MIN).parts if records.num_rows else b""


def blocking_answers(answers: Answers, clock: Clock, check: Callable[[], None]) -> Iterator[Answer]:
    """Yield the answers of a fetch. The caller's thread sleeps during waits.

    ``check`` is called regularly during waits. If it raises, the fetch ends with its error.
    """
    reply: bool | None = None
    while True:
        try:
            step = next(answers) if reply is None else answers.send(reply)
        except StopIteration:
            return
        reply = None
        if isinstance(step, AwaitRecords):
            reply = _wait_for_records(step, clock, check)
        else:
            yield step


def _wait_for_records(wait: AwaitRecords, clock: Clock, check: Callable[[], None]) -> bool:
    while True:
        woken = threading.Event()
        place = wait.begin(woken.set)
        if place is None:
            return True
        try:
            # Also after the wait began: a change before it wakes no read.
            while not wait.is_outdated() and not woken.wait(
                min(_CHECK_S, max(0.0, wait.deadline - clock.monotonic()))
            ):
                check()
                if clock.monotonic() >= wait.deadline:
                    return False
        finally:
            wait.partition.stop_waiting(place)
        if upper_bound(wait.partition.bounds(wait.isolation), wait.isolation) > wait.offset:
            return True
        if wait.is_outdated():
            return False


class FetchTasks:
    """The shared context of a broker's fetches."""

    def __init__(
        self,
        pool: Pool,
        woken: Pool,
        loop: Loop,
        clock: Clock,
        memory_bytes: int,
        turn_bytes: int = _TURN_BYTES,
        refused: NamedCounts | None = None,
    ) -> None:
        """``woken`` is the pool for fetches that records have woken, perhaps hundreds together.

        It does not get those that the appending thread runs itself.

        ``turn_bytes``: the bytes that a fetch sends in a row. ``refused`` counts the errors that
        end a fetch.
        """
        self.turn_bytes = turn_bytes
        self.refused = refused or NamedCounts()
        self.pool = pool
        self.woken = woken
        self.loop = loop
        self.clock = clock
        self.memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """The number of fetches that wait for records."""
        return self._waiting

    def enter(self) -> bool:
        """Count one more waiting fetch. Return False if there are too many."""
        with self._lock:
            if self._waiting >= WAITING_MAX:
                return False
            self._waiting += 1
            return True

    def leave(self) -> None:
        """Count one waiting fetch fewer."""
        with self._lock:
            self._waiting -= 1


class ReaderWakeUp:
    """Ends the wait of a fetch for records. ``wait``: the number of that wait.

    ``channel``: the connection of the reader.
    """

    __slots__ = ("_task", "_wait", "channel")

    def __init__(self, task: FetchTask, wait: int, channel: SocketChannel) -> None:
        self._task = task
        self._wait = wait
        self.channel = channel

    def __call__(self) -> None:
        self._task.wake(self._wait)


class FetchTask:
    """The sending of one fetch's answers on its stream. ``call`` is held until its end.

    ``throttle`` is the quota to which its bytes are charged. None: no quota.
    """

    def __init__(
        self,
        tasks: FetchTasks,
        stream: Stream,
        schema: pa.Schema,
        answers: Answers,
        call: AbstractContextManager[object],
        throttle: Throttle | None = None,
    ) -> None:
        self._tasks = tasks
        self._stream = stream
        self._answers = answers
        self._call = call
        self._throttle = throttle
        self._mark = 0 if throttle is None else throttle.charge(0)  # earlier charges
        self._lock = threading.Lock()
        self._wait = 0  # the number of the current wait
        self._is_waiting = False
        self._is_woken = False
        self._has_credit = False
        self._reply: bool | None = None  # for the generator's next step
        self._records: tuple[AwaitRecords, int] | None = None
        self._timer: tuple[float, Timer] | None = None  # of the current wait's deadline
        self._unsent: tuple[bytes, Body] | None = (
            b"",
            memoryview(schema.serialize()),
        )
        self._held = 0  # bytes of gathered answers

    def begin(self) -> None:
        """Start to answer, on the caller's thread."""
        self._call.__enter__()
        self._stream.handle = self._handle
        self._run()

    # -- ends of waits --------------------------------------------------------------------------

    def _handle(self, event: StreamEvent) -> None:
        """Handle an event of the stream, on the loop's thread."""
        if isinstance(event, Received):
            return
        with self._lock:
            self._has_credit = True
            is_for_it = self._records is None or not isinstance(event, Credited)
            if not (self._is_waiting and is_for_it):
                return
            self._is_waiting = False
        self._submit()

    def wake(self, wait: int) -> None:
        """End the wait for records of this number, unless it has ended."""
        with self._lock:
            if self._wait != wait:
                return
            self._is_woken = True
            if not self._is_waiting:
                return
            self._is_waiting = False
        self._tasks.woken.submit_after(self._run)

    def _expire(self) -> None:
        """End the current wait at its deadline, on the loop's thread."""
        self._timer = None
        self.wake(self._wait)

    def _cancel_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer[1].cancel()

    # -- on a thread of the pool ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            with memory_errors(self._tasks.memory_bytes):
                if not self._advance():
                    return
            self._stream.send(b"", end=True)
        except StreamOver:
            pass
        except IsologError as error:
            self._tasks.refused.add(error.code)
            self._stream.fail(error_bytes(error))
        except Exception as error:
            logger.exception("a fetch failed")
            text = f"the fetch failed: {type(error).__name__}: {error}"
            self._tasks.refused.add(InternalError.code)
            self._stream.fail(error_bytes(InternalError(text)))
        self._end()

    def _end(self) -> None:
        self._cancel_timer()
        self._answers.close()
        self._call.__exit__(None, None, None)

    def _advance(self) -> bool:
        """Run until the task must wait. Return True at the end of the fetch."""
        if self._records is not None:
            wait = self._records[0]
            if not self._is_satisfied() and not self._await(wait):
                return False
        left = self._tasks.turn_bytes
        while self._stream.over is None:
            if self._unsent is not None:
                if self._is_pausing() or not self._send(*self._unsent):
                    return False
                nbytes = nbytes_of(self._unsent[1])
                if self._throttle is not None:
                    self._mark = self._throttle.charge(nbytes)
                left -= nbytes
                self._unsent = None
                if left <= 0:
                    self._submit()
                    return False
            try:
                reply, self._reply = self._reply, None
                step = next(self._answers) if reply is None else self._answers.send(reply)
            except StopIteration:
                return True
            if isinstance(step, AwaitRecords):
                self._flush()
                if not self._await(step):
                    return False
            else:
                batch, facts = step
                self._unsent = facts, _body(batch)
        return True

    def _is_pausing(self) -> bool:
        """Pause if the quota requires it. Return whether the task pauses."""
        left_s = 0.0 if self._throttle is None else self._throttle.seconds_left(self._mark)
        if left_s <= 0:
            return False
        self._flush()
        self._tasks.loop.call_later(min(left_s, LOOK_S), self._submit)
        return True

    def _submit(self) -> None:
        self._tasks.pool.submit(self._run)

    def _send(self, header: bytes, body: Body) -> bool:
        """Send a frame. Return False if the task now waits for credit."""
        held = self._held + len(header) + nbytes_of(body)
        more = held <= _HELD_BYTES_MAX
        while True:
            with self._lock:
                self._has_credit = False
            if self._stream.send(header, body, more=more):
                self._held = held if more and header else 0  # the schema alone need not be flushed
                return True
            self._flush()
            with self._lock:
                if not self._has_credit:
                    self._is_waiting = True
                    return False

    def _flush(self) -> None:
        """Send the gathered frames, if an answer is among them."""
        if self._held:
            self._held = 0
            self._stream.flush()

    def _await(self, wait: AwaitRecords) -> bool:
        """Start to wait for records. Return False if the task now waits, else set the reply."""
        while True:
            left = wait.deadline - self._tasks.clock.monotonic()
            if left <= 0 or not self._tasks.enter():
                self._reply = False
                return True
            with self._lock:
                self._wait += 1
                self._is_woken = False
                wake = ReaderWakeUp(self, self._wait, self._stream.channel)
            try:
                place = wait.begin(wake)
            except BaseException:
                self._tasks.leave()
                raise
            if place is None:
                self._tasks.leave()
                self._reply = True
                return True
            timer = self._timer  # the loop may clear it at any time
            if timer is None or timer[0] != wait.deadline:
                self._cancel_timer()
                self._timer = wait.deadline, self._tasks.loop.call_later(left, self._expire)
            with self._lock:
                self._records = wait, place
                # The wait may have ended before this point, or a change of the topic before it.
                has_ended = self._is_woken or self._stream.over is not None or wait.is_outdated()
                self._is_waiting = not has_ended
                if self._is_waiting:
                    return False
            if self._is_satisfied():
                return True

    def _is_satisfied(self) -> bool:
        """End the current wait and set the reply. Return False if another wait is needed."""
        assert self._records is not None
        (wait, place), self._records = self._records, None
        wait.partition.stop_waiting(place)
        self._tasks.leave()
        is_over = self._stream.over is not None
        now = self._tasks.clock.monotonic()
        bound = upper_bound(wait.partition.bounds(wait.isolation), wait.isolation)
        self._reply = not is_over and bound > wait.offset
        return self._reply or is_over or now >= wait.deadline or wait.is_outdated()
