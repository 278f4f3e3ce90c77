"""The sender: it gathers records to batches, passes them to the core, and settles them.

:meth:`Producer.send` adds most records to an open batch itself, under the lock of the buffer.

Memory is bounded: unsettled records count against ``buffer_bytes``, and a caller that is faster
than the broker waits (backpressure, in ``buffer``). Records of one partition stay in the order of
the calls.

Threads: a producer has none. Callers send records from their thread if this needs no wait. The
process's loop sends records that have waited for their linger, for an acknowledgement or for
credit, and settles batches. So no caller waits for a broker, except for room, and in ``flush``. A
thread that waits for its own batch may read and settle in place of the loop (``reading_turn``).

Locks, in the order in which they are taken: ``_order`` is held while records are passed to the
core, so that they stay in order. ``_lock`` guards everything else, and is never held for long.
Instructions of the core are carried out (``loop``) without both.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import Written
from spark_stream.client.writing.batches import fitted_to, joining_bytes
from spark_stream.client.writing.buffer import Buffer, Pending, Share
from spark_stream.client.writing.lanes import ProducerIdentity, Settlement, Unacknowledged
from spark_stream.client.writing.loop import ProducerLoop, Settings
from spark_stream.client.writing.promises import (
    CALLBACKS,
    Failures,
    Outcomes,
    Promise,
    RecordPromise,
    SpreadPromise,
)
from spark_stream.errors import (
    InternalError,
    InterpreterEnding,
    InvalidRequest,
    IsologError,
    UnknownOutcome,
)
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import (
    at_end_while_used,
    check_may_wait,
    check_not_inside,
    in_child_while_used,
    new_lock,
    watch_section,
)
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

# A batch counts as at least 1 / _LEAST_PART of the buffer. So a loop that appends tiny batches
# waits for acknowledgements, and does not queue more than can be sent in time.
_LEAST_PART: Final = 512
# At most 1 / _GRAB of the buffer is reserved in advance for later records.
_GRAB: Final = 64
_GRAB_FIRST_BYTES: Final = 4 << 10


Part = tuple[int, pa.RecordBatch, int]
"""A partition, its rows, and the index of its first row in the whole batch."""
_Waiting = tuple[TopicDescription, Pending]


class AppendedPart(Struct, frozen=True):
    """A partition's part of an appended batch, and the room that is released with it."""

    whole: SpreadPromise
    first: int
    share: Share
    buffer: Buffer

    def settle(self, settlement: Settlement) -> None:
        """Settle the part, and release its room even if that fails."""
        try:
            self.whole.settle(self.first, settlement)
        finally:
            self.buffer.release(self.share)


class _RecordsPart(Struct, frozen=True):
    """A partition's part of records that were sent one by one, and the room released with it."""

    outcomes: Outcomes
    number: int
    rows: int
    share: Share
    buffer: Buffer

    def settle(self, settlement: Settlement) -> None:
        """Settle the part and the future of each of its records."""
        try:
            self.outcomes.settle(self.number, self.rows, settlement)
        finally:
            self.buffer.release(self.share)


class Sender:
    """The sender of one producer."""

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        settings: Settings,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._settings = settings
        # Not from 0: many short-lived producers would all write to partition 0.
        self._keyless = itertools.count(random.randrange(1 << 16))
        self._lifetime = connection.lifetime
        self.failures = Failures(self._lifetime)
        self._order = new_lock()
        timeout_s = settings.timeout_ms / 1000
        self.buffer = Buffer(
            settings.buffer_bytes, timeout_s, self._send_everything, self.failures.answers
        )
        self._lock = self.buffer.lock
        self._loop = ProducerLoop(
            self._connection,
            self._topics,
            settings,
            self._lock,
            self._on_finished,
            self.failures.answers,
        )
        self._core = self._loop.core
        self._pending: dict[str, list[_Waiting]] = {}
        self.open_batches: dict[str, Pending] = {}
        """The pending batches that records may join, by topic. The buffer's lock guards them."""
        self._dropped = False
        self._inside: dict[int, FrameType] = {}  # the callers that use `_Whole`, by thread
        self._changing: set[int] = set()  # the threads in `_Change`
        self._put_back: BaseException | None = None
        """The last exception that interrupted a hand-over. Its records are still pending."""
        self._holds_lock = self._lock._is_owned  # type: ignore[attr-defined]
        watch_section(self)
        in_child_while_used(self._leave_parent)
        at_end_while_used(self._end_with_program)

    def _leave_parent(self) -> None:
        """Refuse new records in a forked child. The parent sends the earlier ones."""
        self._pending.clear()
        self.open_batches.clear()
        self.buffer.close(self._lifetime.refusal())

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch. None until they were assigned."""
        return self._core.identity

    def write_as(self, identity: ProducerIdentity, transactional_id: str | None) -> None:
        """Write later batches under another identity."""
        with self._lock:
            self._core.write_as(identity, transactional_id)

    # -- taking ---------------------------------------------------------------------------------

    def keyless(self, partitions: int) -> int:
        """Return the next partition, in turn, for records without a key."""
        return next(self._keyless) % partitions

    def send(
        self,
        known: TopicDescription,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp: int | None,
        partition: int | None,
        size: int,
    ) -> RecordPromise:
        """Take a record. ``timestamp`` is in microseconds, ``size`` in bytes.

        Nagle's rule: if no batch is unsettled, a record is sent immediately, from this thread.
        Otherwise records gather. So a single record is fast, and a flood makes batches.

        Raises:
            BufferFull: There was no room in time.
            InvalidRequest: The producer is closed.
            ReentrantCall: The caller has interrupted this producer.
        """
        self._check_may_take(size)
        with _Whole(self):
            return self._send(known, key, value, headers, timestamp, partition, size)

    def _send(
        self,
        known: TopicDescription,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp: int | None,
        partition: int | None,
        size: int,
    ) -> RecordPromise:
        topic, linger_s = known.name, self._settings.linger_s
        with _Change(self), self._lock:
            self.buffer.reserve(size)
            pending = self._gathering(known)
            first = not pending.values
            promise = pending.add(key, value, partition, headers, timestamp)
            pending.room += size
            pending.counted += 1
            lone = not (linger_s or self._core.unsettled)
            goes = lone or self.buffer.urgent or pending.size >= self._settings.batch_bytes
            if not goes:
                self._let_join(pending, topic)
        if goes:
            self._send_waiting(topic)
        elif first:
            due = partial(self._send_if_waiting, topic, pending)
            if linger_s:
                pending.timer = self._loop.io_loop.call_later(linger_s, due)
            else:
                self._loop.io_loop.call_soon(due)
        return promise

    def _let_join(self, pending: Pending, topic: str) -> None:
        """Open a batch to more records while there is room. The caller holds the lock."""
        most = min(
            self._settings.batch_bytes - pending.size,
            self._settings.buffer_bytes // _GRAB,
            max(pending.size, _GRAB_FIRST_BYTES),  # few records do not take room that others need
        )
        if pending.left < most:
            found = self.buffer.spare(most - pending.left)
            pending.room += found
            pending.left += found
        self.open_batches[topic] = pending

    def append(self, known: TopicDescription, parts: Sequence[Part], size: int) -> Promise:
        """Take a batch of ``size`` bytes, split by partition.

        Raises:
            BufferFull: There was no room in time.
            InvalidRequest: The producer is closed.
            ReentrantCall: The caller has interrupted this producer.
        """
        least = self._settings.buffer_bytes // _LEAST_PART
        room = max(size, least * len(parts))
        self._check_may_take(room)
        with _Whole(self), _Change(self):
            return self._append(known, parts, room)

    def _append(self, known: TopicDescription, parts: Sequence[Part], room: int) -> Promise:
        with self._lock:
            self.buffer.reserve(room)
            share = Share(room, 1, len(parts), self.buffer.take())
        whole = SpreadPromise(len(parts), self.failures)
        with self._order:
            if known.name in self._pending:
                self._hand_over(known.name)
            with self._lock:
                of = self._core.topic(known, time.monotonic())
                waits = [not self._core.goes_at_once(of.id, each) for each, _, _ in parts]
            if known.schema_version < of.schema_version:
                parts = [(each, fitted_to(rows, of), first) for each, rows, first in parts]
            joins = [
                joining_bytes(rows, of) if each else 0
                for (_, rows, _), each in zip(parts, waits, strict=True)
            ]
            with self._lock:
                now = time.monotonic()
                for (partition, rows, first), joining in zip(parts, joins, strict=True):
                    part = AppendedPart(whole, first, share, self.buffer)
                    self._core.submit(of.id, rows, partition, part.settle, now, joining)
        self._loop.carry_out()
        return whole.promise

    def settled(self, outcome: Written | IsologError) -> Promise:
        """Return a settled future for a rejected batch or a batch without rows.

        Raises:
            ForkedClient: The producer belongs to the parent of this process.
        """
        self._lifetime.check()
        future = Promise(self.failures)
        future.settle(outcome)
        return future

    # -- ending ---------------------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Wait until all earlier records are settled. Raise their first unreported error.

        Raises:
            TimeoutError: Records are unsettled after ``timeout`` seconds.
            ForkedClient: The producer belongs to the parent of this process.
        """
        self._lifetime.check()
        self.buffer.await_settled(self._lifetime.seconds_left(timeout))
        self.failures.raise_first()

    def discard(self, error: IsologError) -> None:
        """Settle all unsettled records with the error. They may be in the log."""
        check_not_inside(self)
        with _Whole(self), _Change(self), self._order:
            with self._lock:
                waiting = [each for listed in self._pending.values() for _, each in listed]
                self._pending.clear()
                self.open_batches.clear()
                for pending in waiting:
                    self._seal(pending)
            for pending in waiting:
                self._drop(pending, error)
            self._loop.event(self._core.discard, error)

    def close(self) -> None:
        """Refuse new records. The streams end when all batches are settled."""
        self.buffer.close(InvalidRequest("the producer is closed", hint="Create another producer."))
        with _Whole(self), _Change(self):
            self._loop.event(self._core.close)

    def _end_with_program(self) -> None:
        """Send the pending records in the remaining time, and fail the rest."""
        refusal = InterpreterEnding("the program ended before this was acknowledged")
        if self.buffer.closed is None or self.buffer.outstanding:
            try:
                self.flush(None)
            except (IsologError, TimeoutError) as error:
                logger.warning("program ended without close(); a write failed: %s", error)
        self.buffer.close(refusal)
        self.discard(refusal)
        CALLBACKS.await_idle(self._lifetime.seconds_left())

    def drop(self) -> None:
        """Send the pending records of a producer that was collected, and close it.

        Garbage collection runs on any thread, with any locks held, so the loop does this.
        """
        loop = self._loop.used_io_loop
        if loop is not None and not self._lifetime.is_over:  # else there are no records to send
            loop.call_soon(self._close_dropped)

    def _close_dropped(self) -> None:
        self._dropped = True
        self._send_everything()
        self.close()

    def _on_finished(self) -> None:
        if self._dropped:
            try:
                self.failures.raise_first()
            except IsologError as error:
                logger.warning("producer collected without close(); a write failed: %s", error)

    # -- interrupts -----------------------------------------------------------------------------

    def _check_may_take(self, size: int) -> None:
        """Raise ReentrantCall if the caller interrupted this producer, or may not wait for room."""
        check_not_inside(self)
        if not self.buffer.has_room(size):
            check_may_wait()

    def _is_owned(self) -> bool:
        return self._holds_lock() or self._is_inside()

    def _is_inside(self) -> bool:
        """Return whether the calling thread is in :class:`_Whole`, in a call that has not ended.

        An exception of a signal handler can end the call before the end of the block is recorded.
        """
        ident = get_ident()
        caller = self._inside.get(ident)
        if caller is None:
            return False
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame is not caller:
            frame = frame.f_back
        if frame is None:
            self._inside.pop(ident, None)
        return frame is not None

    def _give_up(self) -> None:
        """Fail all unsettled records, which may be in the log, and refuse new ones."""
        what = "an exception of a signal handler interrupted the producer while it sent"
        self.buffer.close(InvalidRequest(what, hint="Create another producer."))
        self._loop.abandon()
        with self._lock:
            self._pending.clear()
            self.open_batches.clear()
        unsettled = list(self.failures.unsettled)
        self.failures.unsettled.clear()
        for each in unsettled:
            each.give_up(UnknownOutcome(what))
        self.buffer.abandon()

    # -- gathering ------------------------------------------------------------------------------

    def _gathering(self, known: TopicDescription) -> Pending:
        """Return the batch for the topic's next record, which has less than ``batch_bytes``."""
        waiting = self._pending.setdefault(known.name, [])
        if waiting:
            of, pending = waiting[-1]
            if of.id == known.id and pending.size < self._settings.batch_bytes:
                return pending
        outcomes = Outcomes(self.failures)
        largest = int(known.config["max.record.bytes"])
        pending = Pending(outcomes, len(known.partitions), largest, flushes=self.buffer.take())
        waiting.append((known, pending))
        return pending

    def _seal(self, pending: Pending) -> None:
        """Close a batch to more records, and give back unused room. The caller holds the lock."""
        self.buffer.settle_up(pending.left, len(pending.values) - pending.counted)
        pending.room, pending.left, pending.counted = pending.size, 0, len(pending.values)
        if pending.timer is not None:
            pending.timer.cancel()

    def _send_everything(self) -> None:
        for topic in list(self._pending):
            self._send_waiting(topic)

    def _send_waiting(self, topic: str) -> None:
        with _Whole(self), _Change(self, puts_back=True):
            with self._order:
                self._hand_over(topic)
            self._loop.carry_out()

    def _send_if_waiting(self, topic: str, pending: Pending) -> None:
        """Send a topic's records if this batch still waits. Runs on the loop's thread."""
        if any(each is pending for _, each in self._pending.get(topic, ())):
            self._send_waiting(topic)

    def _hand_over(self, topic: str) -> None:
        """Pass the topic's waiting records to the core. The caller holds ``_order``."""
        with self._lock:
            waiting = self._pending.pop(topic, ())
            self.open_batches.pop(topic, None)
            for _, pending in waiting:
                self._seal(pending)
        for place, (known, pending) in enumerate(waiting):
            if not pending.values:  # an exception of a signal handler came before the first one
                self.failures.unsettled.discard(pending.outcomes)
                self.buffer.release(Share(pending.size, 0, 1, pending.flushes))
                continue
            count = len(known.partitions)
            try:
                parts = pending.parts(count, self.keyless(count))
            except Exception as error:
                failure = error if isinstance(error, IsologError) else InternalError(repr(error))
                self._drop(pending, failure)
                continue
            except BaseException as error:  # of a signal handler
                with self._lock:
                    self._pending[topic] = [*waiting[place:], *self._pending.get(topic, ())]
                self._put_back = error
                raise
            if len(parts) > 1:
                pending.outcomes.spread([rows for _, _, rows in parts])
            share = Share(pending.size, len(pending.values), len(parts), pending.flushes)
            with self._lock:
                now = time.monotonic()
                of = self._core.topic(known, now).id
                for number, (partition, batch, _) in enumerate(parts):
                    part = _RecordsPart(
                        pending.outcomes, number, batch.num_rows, share, self.buffer
                    )
                    self._core.submit(of, batch, partition, part.settle, now)

    def _drop(self, pending: Pending, error: IsologError) -> None:
        rows = len(pending.values)
        if rows:
            pending.outcomes.settle(0, rows, Unacknowledged(error))
        self.buffer.release(Share(pending.size, rows, 1, pending.flushes))


# Plain classes, because a producer enters them for each batch. A generator costs three calls more.


class _Whole:
    """A block that continues on the loop if an exception of a signal handler interrupts it.

    If it leaves a change incomplete, the producer fails all its records.
    """

    __slots__ = ("_ident", "_is_outermost", "_sender")

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def __enter__(self) -> None:
        self._ident = get_ident()
        self._is_outermost = not self._sender._is_inside()
        if self._is_outermost:
            self._sender._inside[self._ident] = sys._getframe(1)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        sender = self._sender
        try:
            if error is not None and not isinstance(error, IsologError):
                is_incomplete = self._ident in sender._changing
                act = sender._give_up if is_incomplete else sender._send_everything
                sender._loop.io_loop.call_soon(act)  # where no handler interrupts it
        finally:
            if self._is_outermost:
                sender._inside.pop(self._ident, None)


class _Change:
    """A block that an exception of a signal handler leaves incomplete.

    ``puts_back``: an interrupted hand-over returns its records, and so is not incomplete.
    """

    __slots__ = ("_ident", "_is_outermost", "_puts_back", "_sender")

    def __init__(self, sender: Sender, *, puts_back: bool = False) -> None:
        self._sender = sender
        self._puts_back = puts_back

    def __enter__(self) -> None:
        self._ident = get_ident()
        self._is_outermost = self._ident not in self._sender._changing
        self._sender._changing.add(self._ident)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._is_outermost and (error is None or self._is_whole_after(error)):
            self._sender._changing.discard(self._ident)

    def _is_whole_after(self, error: BaseException) -> bool:
        sender = self._sender
        if isinstance(error, IsologError) or error is sender._loop.recovered:
            return True
        if error is sender.buffer.interrupted:
            return True
        return self._puts_back and error is sender._put_back
