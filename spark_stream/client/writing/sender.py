"""What a producer has taken: gathered to batches, sent, and settled. The shell of ``core``.

Memory is bounded: what is not settled counts against ``buffer_bytes``, and a caller that is faster
than the broker waits (``buffer``). Records of one partition stay in the order of the calls.

Threads: a producer has none. Callers send from their own thread what can go at once. The loop of
the process sends what has waited for its linger, for an acknowledgement or for credit, and settles.
What has to wait for a broker (to connect, to find leaders, to get an identity) is done by the few
threads of ``connecting.calls``. So no caller waits for a broker but for room, or in ``flush``.

Locks, in the order in which they are taken: ``_order`` from taking records until the core has
them, so that none overtakes another; ``_lock`` guards everything else, and is held only for as long
as nothing takes time. Instructions of the core are carried out without either, by one thread at a
time; who comes meanwhile leaves its own to that thread.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from spark_stream.client.connecting.calls import call_elsewhere
from spark_stream.client.connecting.connection import Connection
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.client.connecting.routes import Route
from spark_stream.client.connecting.shared import SharedChannel
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import Written
from spark_stream.client.writing.appending import AppendStream
from spark_stream.client.writing.batches import fitted_to, joining_bytes
from spark_stream.client.writing.buffer import Buffer, Share
from spark_stream.client.writing.core import (
    AskIdentity,
    AskLeaders,
    BreakStream,
    DoubtRoute,
    EndStream,
    Instruction,
    NoteTopic,
    OpenStream,
    Outcome,
    ProducerCore,
    SendBatch,
    SettleBatch,
    WakeAt,
)
from spark_stream.client.writing.lanes import Identity, Settlement, Unacknowledged
from spark_stream.client.writing.outcomes import Outcomes, RecordPromise
from spark_stream.client.writing.pending import Pending
from spark_stream.client.writing.promises import Failures, Gathering, Promise
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import BrokerUnavailable, InternalError, IsologError
from spark_stream.transport.client import client_loop
from spark_stream.transport.loop import Loop, Timer
from spark_stream.wire.messages import Ack, AppendTo, Envelope, TopicDescription

logger = logging.getLogger(__name__)

_CALL_S: Final = 5.0  # then the next one gets its turn; the core tries again
# A batch counts as this part of the buffer at least: who appends tiny ones in a loop then waits
# for acknowledgements rather than pile up more than can be sent before their time is over.
_LEAST_PART: Final = 512
# How much of the buffer is taken beforehand for records that are still to come: at most one part
# in so many.
_GRAB: Final = 64
_GRAB_FIRST_BYTES: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class Settings:
    """How a producer sends; see :class:`~spark_stream.client.writing.producer.Producer`."""

    isolation: Isolation
    linger_s: float
    batch_bytes: int
    buffer_bytes: int
    timeout_ms: int


Part = tuple[int, pa.RecordBatch, int]
"""A partition, the rows for it, and which row of the whole the first of them was."""
_Waiting = tuple[TopicDescription, Pending]


class Sender:
    """Sends for one producer. ``identified`` gets an identity where none is given."""

    def __init__(
        self,
        connection: Connection,
        topics: TopicsClient,
        settings: Settings,
        identified: Callable[[], Identity],
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._settings = settings
        self._identified = identified
        # Not from 0: many short-lived producers would all write to partition 0.
        self._keyless = itertools.count(random.randrange(1 << 16))
        self.failures = Failures()
        self._has_author = False
        self._begin()
        _senders.add(self)

    def _begin(self) -> None:
        settings = self._settings
        self._order = threading.RLock()
        timeout_s = settings.timeout_ms / 1000
        self.buffer = Buffer(settings.buffer_bytes, timeout_s, self._send_everything)
        self._lock = self.buffer.lock
        self._core = ProducerCore(timeout_s, self._connection.timeout_s)
        self._pending: dict[str, list[_Waiting]] = {}
        self._open: dict[str, Pending] = {}  # those of them that records may join
        self._streams: dict[int, AppendStream] = {}
        self._loop: Loop | None = None
        self._timer: Timer | None = None
        self._carrying_out = False
        self._dropped = False

    def leave_parent(self) -> None:
        """Begin anew in a child that was forked; what was taken before is the parent's to send.

        An identity that was given is the parent's as well.
        """
        self._begin()
        if self._has_author:
            self.buffer.close("the producer writes in the process that made it")

    @property
    def identity(self) -> Identity | None:
        """Who writes; None until that is known."""
        return self._core.identity

    def write_as(self, identity: Identity, transactional_id: str | None) -> None:
        """Write under another identity from now on."""
        self._has_author = True
        with self._lock:
            self._core.write_as(identity, transactional_id)

    # -- taking ---------------------------------------------------------------------------------

    def keyless(self, partitions: int) -> int:
        """Return the partition whose turn it is to take what has no key."""
        return next(self._keyless) % partitions

    def join(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, size: int
    ) -> RecordPromise | None:
        """Take a record of ``size`` bytes that goes with those of its topic that wait.

        Return None, and do not take it, if none wait or there is something to see to first
        (:meth:`send`).
        """
        with self._lock:
            pending = self._open.get(topic)
            if pending is None or size >= pending.left or size > pending.largest:
                return None
            if partition is not None and not 0 <= partition < pending.partitions:
                return None
            pending.left -= size
            return pending.add(key, value, partition)

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
        """Take a record; ``timestamp`` in microseconds, ``size`` in bytes.

        Nagle's rule: with nothing under way a record goes at once, from this very thread; while
        something is, records gather. So a lone record is quick, and a flood makes batches.

        Raises:
            BufferFull, InvalidRequest: no room in time; closed.
        """
        topic, linger_s = known.name, self._settings.linger_s
        with self._lock:
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
        elif first and linger_s:
            self._io.call_later(linger_s, partial(self._send_if_waiting, topic, pending))
        elif first:
            self._io.call_soon(partial(self._send_if_waiting, topic, pending))
        return promise

    def _let_join(self, pending: Pending, topic: str) -> None:
        """Let records join while there is room; the caller holds the lock."""
        most = min(
            self._settings.batch_bytes - pending.size,
            self._settings.buffer_bytes // _GRAB,
            max(pending.size, _GRAB_FIRST_BYTES),  # a few records do not keep others waiting
        )
        if pending.left < most:
            found = self.buffer.spare(most - pending.left)
            pending.room += found
            pending.left += found
        self._open[topic] = pending

    def append(self, known: TopicDescription, parts: Sequence[Part], size: int) -> Promise:
        """Take a batch of ``size`` bytes, split by partition.

        Raises:
            BufferFull, InvalidRequest: no room in time; closed.
        """
        least = self._settings.buffer_bytes // _LEAST_PART
        share = Share(max(size, least * len(parts)), 1, len(parts))
        with self._lock:
            self.buffer.reserve(share.size)
        whole = Gathering(len(parts), self.failures)
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
                    settle = partial(self._settle_part, whole, first, share)
                    self._core.submit(of.id, rows, partition, settle, now, joining)
        self._carry_out()
        return whole.promise

    def settled(self, outcome: Written | IsologError) -> Promise:
        """Return a future for what is never sent: a refused batch, or one without rows."""
        future = Promise(self.failures)
        future.settle(outcome)
        return future

    # -- ending ---------------------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Wait until everything taken before is settled; raise the first untold error among it.

        Raises:
            TimeoutError: not all was settled within ``timeout`` seconds.
        """
        self.buffer.await_settled(timeout)
        self.failures.tell()

    def discard(self, error: IsologError) -> None:
        """Settle everything that is not settled yet with the error; it may be in the log."""
        with self._order:
            with self._lock:
                waiting = [each for listed in self._pending.values() for _, each in listed]
                self._pending.clear()
                self._open.clear()
                for pending in waiting:
                    self._seal(pending)
            for pending in waiting:
                self._drop(pending, error)
            self._event(lambda core, _: core.discard(error))

    def close(self) -> None:
        """Take nothing more; the streams end once everything is settled."""
        self.buffer.close()
        self._event(lambda core, _: core.close())

    def drop(self) -> None:
        """Send what was taken, then close; for a producer that was dropped.

        Garbage is collected on any thread, with any locks held: so the loop does it.
        """
        if self._loop is not None:  # else nothing was taken, or a parent took it
            self._loop.call_soon(self._close_dropped)

    def _close_dropped(self) -> None:
        self._dropped = True
        self._send_everything()
        self.close()

    # -- gathering ------------------------------------------------------------------------------

    def _gathering(self, known: TopicDescription) -> Pending:
        """Return where the topic's next record waits: no batch grows far above ``batch_bytes``."""
        waiting = self._pending.setdefault(known.name, [])
        if waiting:
            of, pending = waiting[-1]
            if of.id == known.id and pending.size < self._settings.batch_bytes:
                return pending
        outcomes = Outcomes(self.failures)
        largest = int(known.config["max.record.bytes"])
        pending = Pending(outcomes, len(known.partitions), largest)
        waiting.append((known, pending))
        return pending

    def _seal(self, pending: Pending) -> None:
        """Nothing joins it any more, and it keeps no more room than it needs; under the lock."""
        self.buffer.settle_up(pending.left, len(pending.values) - pending.counted)
        pending.room, pending.left = pending.size, 0

    def _send_everything(self) -> None:
        for topic in list(self._pending):
            self._send_waiting(topic)

    def _send_waiting(self, topic: str) -> None:
        with self._order:
            self._hand_over(topic)
        self._carry_out()

    def _send_if_waiting(self, topic: str, pending: Pending) -> None:
        """Send a topic's records if this is one of the batches that wait; on the loop's thread."""
        if any(each is pending for _, each in self._pending.get(topic, ())):
            self._send_waiting(topic)

    def _hand_over(self, topic: str) -> None:
        """Give the core the topic's records that wait; the caller holds ``_order``."""
        with self._lock:
            waiting = self._pending.pop(topic, ())
            self._open.pop(topic, None)
            for _, pending in waiting:
                self._seal(pending)
        for known, pending in waiting:
            count = len(known.partitions)
            try:
                parts = pending.parts(count, self.keyless(count))
            except Exception as error:
                failure = error if isinstance(error, IsologError) else InternalError(repr(error))
                self._drop(pending, failure)
                continue
            if len(parts) > 1:
                pending.outcomes.spread([rows for _, _, rows in parts])
            share = Share(pending.size, len(pending.values), len(parts))
            with self._lock:
                now = time.monotonic()
                of = self._core.topic(known, now).id
                for number, (partition, batch, _) in enumerate(parts):
                    settle = partial(
                        self._settle_records, pending.outcomes, number, batch.num_rows, share
                    )
                    self._core.submit(of, batch, partition, settle, now)

    def _drop(self, pending: Pending, error: IsologError) -> None:
        rows = len(pending.values)
        pending.outcomes.settle(0, rows, Unacknowledged(error))
        self.buffer.release(Share(pending.size, rows, 1))

    def _settle_part(
        self, whole: Gathering, first: int, share: Share, settlement: Settlement
    ) -> None:
        whole.settle(first, settlement)
        self.buffer.release(share)

    def _settle_records(
        self, outcomes: Outcomes, number: int, rows: int, share: Share, settlement: Settlement
    ) -> None:
        """Settle records that each have a promise of their own: the part of this number."""
        outcomes.settle(number, rows, settlement)
        self.buffer.release(share)

    # -- the core -------------------------------------------------------------------------------

    @property
    def _io(self) -> Loop:
        found = self._loop
        if found is None:
            found = self._loop = client_loop()
        return found

    def _event(self, tell: Callable[[ProducerCore, float], None]) -> None:
        """Tell the core what happened, and do what it says then."""
        with self._lock:
            tell(self._core, time.monotonic())
            outcomes = list(self._core.outcomes)
            self._core.outcomes.clear()
        for each in outcomes:
            self._note(each)
        self._carry_out()

    def _note(self, outcome: Outcome) -> None:
        match outcome:
            case SettleBatch():
                outcome.batch.settle_all(outcome.settlement)
            case NoteTopic(partitions=None):
                self._topics.forget(outcome.topic.name)
            case NoteTopic(topic=topic, partitions=int() as count):
                self._topics.outgrown(topic, count)
            case _ if self._dropped:
                try:
                    self.failures.tell()
                except IsologError as error:
                    logger.warning(
                        "a producer was dropped without close(), and a write failed: %s", error
                    )

    def _carry_out(self) -> None:
        """Carry out the core's instructions, unless another thread is doing that."""
        core = self._core
        while core.out:
            with self._lock:
                if self._carrying_out or not core.out:
                    return
                self._carrying_out = True
                instruction: Instruction | None = core.out.popleft()
            while instruction is not None:
                try:
                    self._do(instruction)
                except BaseException as error:  # such as: the caller was interrupted
                    with self._lock:
                        self._carrying_out = False
                        if isinstance(instruction, SendBatch):  # then it goes again
                            lost = BrokerUnavailable(f"not sent: {error!r}")
                            core.stream_lost(instruction.stream, lost, time.monotonic())
                    raise
                with self._lock:
                    instruction = core.out.popleft() if core.out else None
                    self._carrying_out = instruction is not None

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case SendBatch():
                stream = self._streams.get(instruction.stream)
                if stream is not None:
                    envelope = Envelope(
                        number=instruction.number,
                        partition=instruction.batch.partition,
                        stamp=instruction.stamp,
                        leader_epoch=instruction.leader_epoch,
                    )
                    stream.send(envelope.to_bytes(), instruction.batch)
            case WakeAt():
                if self._timer is not None:
                    self._timer.cancel()
                delay_s = max(0.0, instruction.at - time.monotonic())
                self._timer = self._io.call_later(delay_s, self._tick)
            case OpenStream():
                self._open_stream(instruction)
            case AskLeaders():
                if not self._tell_leaders(instruction):
                    self._call(partial(self._ask_leaders, instruction))
            case AskIdentity():
                self._call(self._ask_identity)
            case DoubtRoute():
                self._topics.router.failed(instruction.route, instruction.error)
            case EndStream():
                stream = self._streams.pop(instruction.stream, None)
                if stream is not None:
                    stream.end()
            case BreakStream():
                stream = self._streams.pop(instruction.stream, None)
                if stream is not None:
                    stream.break_off()

    def _tick(self) -> None:
        self._event(lambda core, now: core.tick(now))

    # -- streams --------------------------------------------------------------------------------

    def _open_stream(self, asked: OpenStream) -> None:
        try:
            link = self._topics.router.link(asked.route)
            shared = link.present()
        except IsologError as error:
            self._lose(asked.stream, error)
            return
        if shared is not None:
            self._start(asked, shared)
        else:
            call_elsewhere(("connect", link.address), partial(self._connect, asked, link))

    def _connect(self, asked: OpenStream, link: BrokerLink) -> None:
        try:
            shared = link.connect(min(_CALL_S, self._connection.timeout_s))
        except IsologError as error:
            self._lose(asked.stream, error)
        else:
            self._start(asked, shared)

    def _start(self, asked: OpenStream, shared: SharedChannel) -> None:
        number, topic = asked.stream, asked.topic
        request = AppendTo(
            topic=topic.name,
            topic_id=topic.id,
            transactional_id=asked.transactional_id,
            isolation=self._settings.isolation,
            timeout_ms=self._settings.timeout_ms,
        )
        stream = AppendStream(shared, partial(self._answered, number), partial(self._lose, number))
        try:
            stream.start(topic, request)
        except IsologError as error:
            self._lose(number, error)
            return
        with self._lock:
            if self._core.has_stream(number):
                self._streams[number] = stream
                self._core.stream_opened(number, time.monotonic())
        if number not in self._streams:
            stream.break_off()
        self._carry_out()

    def _answered(self, stream: int, ack: Ack) -> None:
        self._event(lambda core, now: core.acknowledged(stream, ack, now))

    def _lose(self, stream: int, error: IsologError) -> None:
        self._streams.pop(stream, None)
        self._event(lambda core, now: core.stream_lost(stream, error, now))

    # -- what may wait for a broker -------------------------------------------------------------

    def _call(self, call: Callable[[], None]) -> None:
        call_elsewhere(("ask", id(self._connection)), call)

    def _routes(self, asked: AskLeaders) -> dict[int, Route | None]:
        known, topic = self._topics.router.known, asked.topic
        return {each: known(topic.name, topic.id, each) for each in asked.partitions}

    def _tell_leaders(self, asked: AskLeaders) -> bool:
        """Tell the core the leaders if all are known; return whether they are."""
        routes = self._routes(asked)
        if None in routes.values():
            return False
        self._event(lambda core, now: core.leaders_found(asked.topic.id, routes, now))
        return True

    def _ask_leaders(self, asked: AskLeaders) -> None:
        topic, timeout_s = asked.topic, min(_CALL_S, self._connection.timeout_s)
        try:
            if self._tell_leaders(asked):  # another producer has asked meanwhile
                return
            self._topics.router.refresh(topic.name, topic.id, timeout_s)
            routes = self._routes(asked)
        except Exception as error:
            failure = _failure(error)
            self._event(lambda core, now: core.leaders_failed(topic.id, failure, now))
        else:
            self._event(lambda core, now: core.leaders_found(topic.id, routes, now))

    def _ask_identity(self) -> None:
        try:
            self._connection.connect()  # quick to fail where nobody answers
            identity = self._identified()
        except Exception as error:
            failure = _failure(error)
            self._event(lambda core, now: core.identity_failed(failure, now))
        else:
            self._event(lambda core, now: core.identified(identity, now))


def _failure(error: Exception) -> IsologError:
    return error if isinstance(error, IsologError) else InternalError(repr(error))


_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _leave_parent() -> None:
    for each in list(_senders):
        each.leave_parent()


os.register_at_fork(after_in_child=_leave_parent)
