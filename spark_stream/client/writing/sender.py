"""What a producer has taken: gathered to batches, sent, and settled.

Memory is bounded: what is not settled counts against ``buffer_bytes``, and a caller that is faster
than the broker waits (``buffer``). Records of one partition stay in the order of the calls.

Threads: callers send what can go at once; ``isolog-sender``, made when something has to wait, sends
what has waited. Neither waits for a broker: whoever needs to find a leader, to get an identity, or
to connect to the only broker is served by a thread made for it; of several brokers each has a
channel with one. ``isolog-deadlines`` settles what took too long.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from spark_stream.client.connecting.connection import Connection
from spark_stream.client.topics import TopicsClient
from spark_stream.client.values import Written
from spark_stream.client.writing.batches import fitted_to, joining_bytes
from spark_stream.client.writing.buffer import Buffer, Share
from spark_stream.client.writing.channel import Author
from spark_stream.client.writing.delivery import Delivery
from spark_stream.client.writing.lanes import Identity, Settlement, Unacknowledged
from spark_stream.client.writing.outcomes import Outcomes, RecordPromise
from spark_stream.client.writing.pending import Pending
from spark_stream.client.writing.promises import Failures, Gathering, Promise
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import (
    InternalError,
    IsologError,
    UnknownTopic,
)
from spark_stream.wire.messages import AppendTo, TopicDescription

_TICK_S: Final = 0.25
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


class Sender:
    """Sends for one producer. ``identified`` gets an identity where ``author`` has none yet."""

    def __init__(
        self,
        connection: Connection,
        topics: TopicsClient,
        settings: Settings,
        author: Author,
        identified: Callable[[], Identity],
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._settings = settings
        self._author = author
        self._identified = identified
        # Held from taking records until they are entered, so that none overtakes another. It is
        # always taken before _lock.
        self._order = threading.RLock()
        self.buffer = Buffer(settings.buffer_bytes, settings.timeout_ms / 1000)
        self.failures = Failures()
        self._lock = self.buffer.lock
        self._pending: dict[str, list[Pending]] = {}
        self._open: dict[str, Pending] = {}  # those of them that records may join
        self._deliveries: dict[str, Delivery] = {}  # by topic id
        self._brokers: set[str] = set()  # where they go
        self._asking: dict[Delivery, None] = {}  # those that want to be served, in their order
        self._serving: dict[Delivery, threading.Thread] = {}  # those that are being served
        self._identifying = threading.Lock()  # one thread at a time asks for an identity
        # Not from 0: many short-lived producers would all write to partition 0.
        self._keyless = itertools.count(random.randrange(1 << 16))
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        threading.Thread(target=self._expire, name="isolog-deadlines", daemon=True).start()

    # -- taking ---------------------------------------------------------------------------------

    def keyless(self, partitions: int) -> int:
        """The partition whose turn it is to take what has no key."""
        return next(self._keyless) % partitions

    def join(
        self, topic: str, key: bytes | None, value: bytes | None, partition: int | None, size: int
    ) -> RecordPromise | None:
        """Takes a record of ``size`` bytes that goes with those of its topic that wait.

        None, and it is not taken: none wait, or there is something to see to first (:meth:`send`).
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
        """Takes a record; ``timestamp`` in microseconds, ``size`` in bytes.

        Raises:
            BufferFull, InvalidRequest: no room in time; closed.
        """
        topic = known.name
        with self._lock:
            # Nagle's rule: with nothing under way a record goes at once, from this very thread;
            # while something is, records gather. So a lone record is quick, and a flood makes
            # batches. Where there is no stream yet the sender connects, and no caller waits for it.
            delivery = self._deliveries.get(known.id)
            live = delivery is not None and delivery.live
            alone = live and not (self.buffer.outstanding or self._settings.linger_s)
            self.buffer.reserve(size)
            pending = self._new_pending(known) if alone else self._gathering(known)
            first = not pending.values
            promise = pending.add(key, value, partition, headers, timestamp)
            pending.room += size
            pending.counted += 1
            if not alone:
                full = pending.size >= self._settings.batch_bytes
                self._go_on_with(pending, topic, full=full)
                # The sender wakes by itself after the linger; wake it only when that changes its
                # plan.
                if first or full:
                    self._wake()
        if alone:
            with self._order:
                self._send_pending(topic, pending)
        return promise

    def _go_on_with(self, pending: Pending, topic: str, *, full: bool) -> None:
        """Records may join it while it has room; the caller holds the lock."""
        if full:
            self._open.pop(topic, None)
            return
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
        """Takes a batch of ``size`` bytes, split by partition.

        Raises:
            BufferFull, InvalidRequest: no room in time; closed.
        """
        least = self._settings.buffer_bytes // _LEAST_PART
        share = Share(max(size, least * len(parts)), 1, len(parts))
        with self._lock:
            self.buffer.reserve(share.size)
        whole = Gathering(len(parts), self.failures)
        with self._order:
            self._send_waiting(known.name)
            delivery = self._delivery(known)
            if known.schema_version > delivery.topic.schema_version:
                delivery.alter(known)
            of = delivery.topic
            for partition, rows, first in parts:
                if known.schema_version < of.schema_version:
                    rows = fitted_to(rows, of)
                self._enter_part(delivery, rows, partition, first, whole, share)
        delivery.pump()
        return whole.promise

    def settled(self, outcome: Written | IsologError) -> Promise:
        """A future for what is never sent: a refused batch, or one without rows."""
        future = Promise(self.failures)
        future.settle(outcome)
        return future

    # -- ending ---------------------------------------------------------------------------------

    def flush(self, timeout: float | None) -> None:
        """Waits until everything taken before is settled; raises the first untold error among it.

        Raises:
            TimeoutError: not all was settled within ``timeout`` seconds.
        """
        self.buffer.await_settled(timeout)
        self.failures.tell()

    def discard(self, error: IsologError) -> None:
        """Settles everything that is not settled yet with the error; it may be in the log."""
        with self._order:
            with self._lock:
                waiting, self._pending = self._pending, {}
                for pending in itertools.chain.from_iterable(waiting.values()):
                    self._seal(pending)
                self._open.clear()
            for pending in itertools.chain.from_iterable(waiting.values()):
                self._drop(pending, error)
            for delivery in list(self._deliveries.values()):
                delivery.clear(error)

    def close(self) -> None:
        """Lets go of threads and streams; takes nothing more."""
        self.buffer.close()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            serving = list(self._serving.values())
        for thread in serving:
            thread.join(self._connection.timeout_s)
        for delivery in list(self._deliveries.values()):
            delivery.close()
        self._ended.set()

    # -- the sender's thread --------------------------------------------------------------------

    def _wake(self) -> None:
        """Has the thread look at what there is; the caller holds the lock.

        There is none before there is something to do: batches that go at once need none.
        """
        if self._thread is None and not self.buffer.closed:
            self._thread = threading.Thread(target=self._run, name="isolog-sender", daemon=True)
            self._thread.start()
        self.buffer.work.notify()

    def _run(self) -> None:
        """Sends what is due, serves who asks."""
        while True:
            with self._lock:
                while not (due := self._due()):
                    self._serve_due()
                    if self.buffer.closed:
                        return
                    self.buffer.work.wait(self._next_due())
                self._serve_due()
            for topic in due:
                with self._order:
                    self._send_waiting(topic)

    def _due(self) -> list[str]:
        now = time.monotonic()
        return [
            topic
            for topic, waiting in self._pending.items()
            if self.buffer.urgent
            or waiting[0].size >= self._settings.batch_bytes
            or now - waiting[0].since >= self._settings.linger_s
        ]

    def _serve_due(self) -> None:
        """Begins to serve those that ask and may be served now; the caller holds the lock."""
        if not self._asking:
            return
        now = time.monotonic()
        for delivery in list(self._asking):
            if delivery.retry_at <= now and delivery not in self._serving:
                del self._asking[delivery]
                self._start_serving(delivery)

    def _next_due(self) -> float | None:
        """Seconds until something is due; None while nothing waits."""
        moments = [waiting[0].since + self._settings.linger_s for waiting in self._pending.values()]
        # One that is being served wakes the sender when that is over.
        moments += [each.retry_at for each in self._asking if each not in self._serving]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _ask(self, delivery: Delivery) -> None:
        with self._lock:
            if self.buffer.closed:
                return
            if delivery in self._serving or delivery.retry_at > time.monotonic():
                self._asking[delivery] = None
                self._wake()
                return
            self._asking.pop(delivery, None)
            self._start_serving(delivery)

    def _start_serving(self, delivery: Delivery) -> None:
        """The caller holds the lock: so no other serves it too, or joins what has not begun."""
        thread = threading.Thread(
            target=self._serve, args=(delivery,), name="isolog-serving", daemon=True
        )
        self._serving[delivery] = thread
        thread.start()

    def _serve(self, delivery: Delivery) -> None:
        try:
            with self._identifying:
                if self._author.identity is None:
                    self._connection.connect()  # quick to fail where nobody answers
                    self._author.identity = self._identified()
            delivery.serve()
        except IsologError as error:
            delivery.postpone(error)
        finally:
            with self._lock:
                del self._serving[delivery]
                if self._asking:
                    self._wake()

    def _expire(self) -> None:
        """Looks for batches whose time is over; on a thread of its own: others may be stuck."""
        while not self._ended.wait(_TICK_S):
            for delivery in list(self._deliveries.values()):
                delivery.expire()

    # -- gathering ------------------------------------------------------------------------------

    def _new_pending(self, known: TopicDescription) -> Pending:
        outcomes = Outcomes(self.failures)
        return Pending(outcomes, len(known.partitions), int(known.config["max.record.bytes"]))

    def _gathering(self, known: TopicDescription) -> Pending:
        """Where the topic's next record waits: no batch grows far above ``batch_bytes``."""
        waiting = self._pending.setdefault(known.name, [])
        if not waiting or waiting[-1].size >= self._settings.batch_bytes:
            waiting.append(self._new_pending(known))
        return waiting[-1]

    def _seal(self, pending: Pending) -> None:
        """Nothing joins it any more, and it keeps no more room than it needs; under the lock."""
        self.buffer.settle_up(pending.left, len(pending.values) - pending.counted)
        pending.room, pending.left = pending.size, 0

    def _send_waiting(self, topic: str) -> None:
        """Sends the topic's records that wait; whoever calls holds ``_order``."""
        with self._lock:
            waiting = self._pending.pop(topic, [])
            self._open.pop(topic, None)
            for pending in waiting:
                self._seal(pending)
        for pending in waiting:
            self._send_pending(topic, pending)

    def _send_pending(self, topic: str, pending: Pending) -> None:
        try:
            known = self._topics.known(topic)
            count = len(known.partitions)
            parts = pending.parts(count, self.keyless(count))
        except Exception as error:
            failure = error if isinstance(error, IsologError) else InternalError(repr(error))
            self._drop(pending, failure)
            return
        delivery = self._delivery(known)
        share = Share(pending.size, len(pending.values), len(parts))
        if len(parts) > 1:
            pending.outcomes.spread([rows for _, _, rows in parts])
        for number, (partition, batch, _) in enumerate(parts):
            self._enter_records(delivery, batch, partition, pending.outcomes, number, share)
        delivery.pump()

    def _drop(self, pending: Pending, error: IsologError) -> None:
        rows = len(pending.values)
        pending.outcomes.settle(0, rows, Unacknowledged(error))
        self.buffer.release(pending.size, rows)

    # -- handing over ---------------------------------------------------------------------------

    def _delivery(self, known: TopicDescription) -> Delivery:
        with self._lock:
            found = self._deliveries.get(known.id)
            if found is None:
                request = AppendTo(
                    topic=known.name,
                    topic_id=known.id,
                    isolation=self._settings.isolation,
                    timeout_ms=self._settings.timeout_ms,
                )
                found = Delivery(
                    self._topics.router, known, self._author, request, self._brokers, self._ask
                )
                self._deliveries[known.id] = found
            return found

    def _enter_part(
        self,
        delivery: Delivery,
        batch: pa.RecordBatch,
        partition: int,
        first: int,
        whole: Gathering,
        share: Share,
    ) -> None:

        def settle(settlement: Settlement) -> None:
            self._learn(delivery, settlement)
            whole.settle(first, settlement)
            self.buffer.release_part(share)

        delivery.enter(batch, partition, settle, joining_bytes(batch, delivery.topic))

    def _enter_records(
        self,
        delivery: Delivery,
        batch: pa.RecordBatch,
        partition: int,
        outcomes: Outcomes,
        number: int,
        share: Share,
    ) -> None:
        """Enters records that each have a promise of their own: the part of this number."""
        rows = batch.num_rows

        def settle(settlement: Settlement) -> None:
            self._learn(delivery, settlement)
            outcomes.settle(number, rows, settlement)
            self.buffer.release_part(share)

        delivery.enter(batch, partition, settle)

    def _learn(self, delivery: Delivery, settlement: Settlement) -> None:
        """Take from a settlement what it tells about the topic."""
        if delivery.outgrown:
            self._topics.outgrown(delivery.topic, delivery.partitions)
        if isinstance(settlement, Unacknowledged) and isinstance(settlement.error, UnknownTopic):
            self._topics.forget(delivery.topic.name)
