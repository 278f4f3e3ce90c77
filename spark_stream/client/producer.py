"""Writes records: one by one (``send``, batched on the way) or as Arrow batches (``append``).

Memory is bounded: what is not acknowledged counts against ``buffer_bytes``, and a caller that is
faster than the broker waits. Records of one partition stay in the order of the calls.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from spark_stream.client.appending import AppendStream, Settle
from spark_stream.client.batches import (
    as_bytes,
    as_headers,
    check_partition,
    check_size,
    completed,
    one_batch,
)
from spark_stream.client.connection import Connection
from spark_stream.client.partitioner import partitions_of
from spark_stream.client.pending import Pending, split, timestamp_us
from spark_stream.client.promises import Gathering, Promise
from spark_stream.client.topics import TopicsClient, level
from spark_stream.client.values import TopicDescription, Written
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.errors import (
    BufferFull,
    InternalError,
    InvalidOption,
    InvalidRequest,
    IsologError,
    RecordNotAttempted,
    RecordTooLarge,
    SchemaMismatch,
    UnknownTopic,
)
from spark_stream.wire.limits import BATCH_BYTES_MAX
from spark_stream.wire.messages import INT64_MAX, AppendTo
from spark_stream.wire.schemas import fitted, is_default

LINGER_MS: Final = 0.0
LINGER_MS_MAX: Final = 3_600_000
BATCH_BYTES: Final = 1 << 20
BUFFER_BYTES: Final = 64 << 20
TIMEOUT_MS: Final = 30_000
TIMEOUT_MS_MAX: Final = 3_600_000
_TICK_S: Final = 0.25
_RECORD_FIXED_BYTES: Final = 8  # the timestamp


def _check_setting(name: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidOption(f"{name} takes {low} to {high}, not {value!r}", option=name)


class Producer:
    """A producer; from any thread. Use it as a context manager, or call :meth:`close`.

    ``isolation``: ``read_uncommitted`` is acknowledged when the leader has appended,
    ``read_committed`` when the records are below the high watermark. ``linger_ms``: how long a
    record waits for company (with 0, records that come while the sender is busy still go together).
    ``batch_bytes``: a batch of this size goes at once. ``buffer_bytes``: what may wait to be
    acknowledged before a caller has to wait. ``timeout_ms``: how long an acknowledgement may take
    before the outcome counts as unknown, and how long a caller waits for room.

    Raises:
        InvalidOption: one of these has a value that it does not take.
    """

    def __init__(
        self,
        connection: Connection,
        topics: TopicsClient,
        *,
        isolation: str = "read_uncommitted",
        linger_ms: float = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._isolation = level(isolation, PRODUCER_LEVELS)
        _check_setting("linger_ms", linger_ms, 0, LINGER_MS_MAX)
        _check_setting("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX // 2)
        _check_setting("buffer_bytes", buffer_bytes, 1, INT64_MAX)
        _check_setting("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._timeout_ms = timeout_ms
        # Held from taking records to having written them: so nobody overtakes. Taken before _lock.
        self._order = threading.RLock()
        # One lock, two conditions: the sender is not woken by what only waiting callers care for.
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._pending: dict[str, list[Pending]] = {}
        self._streams: dict[str, AppendStream] = {}
        self._streams_lock = threading.Lock()
        self._buffered = 0
        self._outstanding = 0
        self._flushing = 0
        self._crowded = 0
        self._failure: IsologError | None = None
        self._closed = False
        # Not from 0: many short-lived producers would all write to partition 0.
        self._keyless = itertools.count(random.randrange(1 << 16))
        self._ended = threading.Event()
        self._sender = threading.Thread(target=self._send, name="isolog-sender", daemon=True)
        self._sender.start()
        threading.Thread(target=self._expire_streams, name="isolog-deadlines", daemon=True).start()

    # -- writing --------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> Future[Written]:
        """Sends one record to a default-schema topic.

        ``timestamp``: milliseconds since the epoch, or a datetime; now if it is left out. A key
        decides the partition unless ``partition`` does. Text is sent as UTF-8.

        What is wrong with the record is told by the future.

        Raises:
            TypeError: value or key is neither bytes, str nor None.
            BufferFull: no room in the buffer within the timeout.
        """
        key, value = as_bytes("key", key), as_bytes("value", value)
        listed = as_headers(headers)
        size = _RECORD_FIXED_BYTES + len(value or b"") + len(key or b"")
        size += sum(len(name.encode()) + len(data or b"") for name, data in listed or ())
        try:
            moment = timestamp_us(timestamp)
            self._check_record(topic, partition, size)
        except IsologError as error:
            return self._refused(error)
        future = Promise()
        with self._lock:
            # Nagle's rule: with nothing under way a record goes at once, from this very thread;
            # while something is, records gather. So a lone record is quick, and a flood makes
            # batches. Where there is no stream yet the sender connects, and no caller waits for it.
            stream = self._streams.get(topic)
            alone = not (self._outstanding or self._linger_s or stream is None or stream.broken)
            self._reserve(size)
            pending = Pending() if alone else self._gathering(topic)
            first = not pending.futures
            pending.add(key, value, listed, moment, partition, size, future)
            # The sender wakes by itself after the linger; wake it only when that changes its plan.
            if not alone and (first or pending.size >= self._batch_bytes):
                self._work.notify()
        if alone:
            with self._order:
                self._send_pending(topic, pending)
        return future

    def append(
        self, topic: str, batch: pa.RecordBatch | pa.Table, partition: int | None = None
    ) -> Future[Written]:
        """Appends an Arrow batch (or a table, as one batch) with the topic's columns.

        Without ``partition`` the records of a default-schema topic go where their keys say; batches
        without keys, and those of typed topics, go to the partitions in turn, each as a whole.
        In a default-schema topic ``key``, ``headers`` and ``timestamp`` may be left out.

        What is wrong with the batch is told by the future.

        Raises:
            TypeError: ``batch`` is neither a record batch nor a table.
            BufferFull: no room in the buffer within the timeout.
        """
        try:
            batch = one_batch(batch)
            known = self._topics.known(topic)
            default = is_default(known.schema)
            batch = fitted(completed(batch) if default else batch, known.schema)
            check_size(batch)
            if partition is not None:
                partition = check_partition(known, partition)
        except IsologError as error:
            return self._refused(error)
        if batch.num_rows == 0:
            done = Promise()
            done.settle(Written(topic, partition or 0, -1, 0))
            return done
        count = len(known.partitions)
        keyless = next(self._keyless) % count
        if partition is not None or not default:
            parts = [(keyless if partition is None else partition, batch, 0)]
        else:
            places = partitions_of(batch.column("key"), count, keyless)
            parts = [(place, rows, int(at[0])) for place, rows, at in split(batch, places)]
        with self._lock:
            self._reserve(sum(rows.nbytes for _, rows, _ in parts), len(parts))
        whole = Gathering(topic, len(parts))
        with self._order:
            self._send_waiting(topic)
            for place, rows, first in parts:
                self._append_part(known, rows, place, first, whole)
        return whole.promise

    def _check_record(self, topic: str, partition: int | None, size: int) -> None:
        known = self._topics.known(topic)
        if not is_default(known.schema):
            raise SchemaMismatch(
                f"topic {topic!r} is typed: {', '.join(known.schema.names)}",
                hint="Use append() with a batch of these columns.",
                topic=topic,
            )
        if partition is not None:
            check_partition(known, partition)
        limit = int(known.config["max.record.bytes"])
        if size > limit:
            raise RecordTooLarge(
                f"the record has {size} bytes, the topic's max.record.bytes is {limit}",
                topic=topic,
            )

    def _refused(self, error: IsologError) -> Future[Written]:
        """A future for what was never sent."""
        self._note(error)
        future = Promise()
        future.settle(error)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Waits until everything sent before is settled; raises the first error among it.

        Raises:
            TimeoutError: not all was settled within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._flushing += 1
            self._work.notify()
            try:
                while self._outstanding:
                    left = _TICK_S if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"{self._outstanding} records are not acknowledged yet")
                    self._room.wait(min(left, _TICK_S))
            finally:
                self._flushing -= 1
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flushes, then lets go of the streams; raises what :meth:`flush` raises."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            with self._lock:
                self._closed = True
                self._work.notify()
                self._room.notify_all()
            self._sender.join()
            for stream in list(self._streams.values()):
                stream.close()
            self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except IsologError:
            if error is None:  # else the first error is the one to see
                raise

    # -- the sender -----------------------------------------------------------------------------

    def _send(self) -> None:
        """Sends what is due."""
        while True:
            with self._lock:
                while not (due := self._due()):
                    if self._closed:
                        return
                    self._work.wait(self._next_due())
            for topic in due:
                with self._order:
                    self._send_waiting(topic)

    def _due(self) -> list[str]:
        now = time.monotonic()
        return [
            topic
            for topic, waiting in self._pending.items()
            if self._flushing
            or self._crowded
            or self._closed
            or waiting[0].size >= self._batch_bytes
            or now - waiting[0].since >= self._linger_s
        ]

    def _next_due(self) -> float | None:
        """Seconds until something is due; None while nothing waits."""
        if not self._pending:
            return None
        first = min(waiting[0].since for waiting in self._pending.values())
        return max(0.0, first + self._linger_s - time.monotonic())

    def _gathering(self, topic: str) -> Pending:
        """Where the topic's next record waits: no batch grows far above ``batch_bytes``."""
        waiting = self._pending.setdefault(topic, [])
        if not waiting or waiting[-1].size >= self._batch_bytes:
            waiting.append(Pending())
        return waiting[-1]

    def _send_waiting(self, topic: str) -> None:
        """Sends the topic's records that wait; whoever calls holds ``_order``."""
        with self._lock:
            waiting = self._pending.pop(topic, [])
        for pending in waiting:
            self._send_pending(topic, pending)

    def _send_pending(self, topic: str, pending: Pending) -> None:
        try:
            known = self._topics.known(topic)
            batch = pending.batch()
            keyless = next(self._keyless) % len(known.partitions)
            places = pending.places(batch, len(known.partitions), keyless)
            parts = list(split(batch, places))
        except Exception as error:
            failure = error if isinstance(error, IsologError) else InternalError(repr(error))
            self._note(failure)
            for future in pending.futures:
                future.settle(failure)
            self._release(sum(pending.sizes), len(pending.futures))
            return
        sizes = np.array(pending.sizes)
        for place, part, rows in parts:
            futures = [pending.futures[row] for row in rows]
            self._write(known, part, place, futures, int(sizes[rows].sum()))

    # -- streams --------------------------------------------------------------------------------

    def _append_part(
        self,
        known: TopicDescription,
        batch: pa.RecordBatch,
        partition: int,
        first: int,
        whole: Gathering,
    ) -> None:
        size, rows = batch.nbytes, batch.num_rows

        def settle(offset: int, error: IsologError | None) -> None:
            if error is not None:
                self._noted(known, error)
            whole.settle(first, error or Written(known.name, partition, offset, rows))
            self._release(size, 1)

        self._sent(known, batch, partition, settle)

    def _write(
        self,
        known: TopicDescription,
        batch: pa.RecordBatch,
        partition: int,
        promises: list[Promise],
        size: int,
    ) -> None:
        """Sends records that each have a promise of their own."""

        def settle(offset: int, error: IsologError | None) -> None:
            kept = len(promises)
            if error is not None:
                self._noted(known, error)
                kept = error.kept
            for row, promise in enumerate(promises[:kept]):
                promise.settle(Written(known.name, partition, offset + row))
            if error is not None:
                self._refuse(promises[kept:], error)
            self._release(size, len(promises))

        self._sent(known, batch, partition, settle)

    @staticmethod
    def _refuse(promises: list[Promise], error: IsologError) -> None:
        """The first has the error; the others too, unless it is about one record only."""
        about_one = error.details.get("record") is not None
        message = f"not tried, for an earlier one was refused: {error.message}"
        for row, promise in enumerate(promises):
            promise.settle(RecordNotAttempted(message) if row and about_one else error)

    def _sent(
        self, known: TopicDescription, batch: pa.RecordBatch, partition: int, settle: Settle
    ) -> None:
        while True:
            try:
                stream = self._stream(known)
            except IsologError as error:
                settle(-1, error)
                return
            if stream.write(batch, partition, settle):
                return

    def _stream(self, known: TopicDescription) -> AppendStream:
        with self._streams_lock:
            stream = self._streams.get(known.name)
            if stream is None or not stream.takes(known):
                if stream is not None:
                    stream.close()
                request = AppendTo(
                    topic=known.name,
                    topic_id=known.id,
                    isolation=self._isolation,
                    timeout_ms=self._timeout_ms,
                )
                # Opening sends no record, so it may be tried again until the time is over.
                stream = self._connection.retried(
                    lambda client, _: AppendStream(self._connection, client, known, request)
                )
                self._streams[known.name] = stream
            return stream

    def _expire_streams(self) -> None:
        """Looks for batches whose time is over; on a thread of its own: others may be stuck.

        Not under the streams' lock: it is held while a connection is sought, and deadlines must not
        wait for that.
        """
        while not self._ended.wait(_TICK_S):
            for stream in list(self._streams.values()):
                stream.expire()

    # -- bookkeeping ----------------------------------------------------------------------------

    def _reserve(self, size: int, futures: int = 1) -> None:
        """Takes room in the buffer, waiting for it; the caller holds the lock."""
        if self._buffered and self._buffered + size > self._buffer_bytes:
            self._crowded += 1  # no record lingers while somebody waits
            self._work.notify()
            try:
                self._wait_for_room(size)
            finally:
                self._crowded -= 1
        if self._closed:
            raise InvalidRequest("the producer is closed", hint="Make a new one.")
        self._buffered += size
        self._outstanding += futures

    def _wait_for_room(self, size: int) -> None:
        deadline = time.monotonic() + self._timeout_ms / 1000
        while self._buffered and self._buffered + size > self._buffer_bytes and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BufferFull(
                    f"{self._buffered} bytes wait to be acknowledged; buffer_bytes is"
                    f" {self._buffer_bytes}"
                )
            self._room.wait(min(left, _TICK_S))

    def _noted(self, known: TopicDescription, error: IsologError) -> None:
        if isinstance(error, UnknownTopic):
            self._topics.forget(known.name)
        self._note(error)

    def _note(self, error: IsologError) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error

    def _release(self, size: int, records: int) -> None:
        with self._lock:
            self._buffered -= size
            self._outstanding -= records
            self._room.notify_all()
