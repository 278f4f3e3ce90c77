"""A load for a cluster: threads that append batches to a topic, and threads that read them.

The records fit a default-schema topic. Their timestamp is the time of the append, from which a
reader in the same process computes the latency. The values of a batch are created once, and only
the timestamps change, by one call of Arrow.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from spark_stream.client.log import Log
from spark_stream.client.values import Written
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.transactional import TransactionalProducer
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import InternalError, IsologError
from spark_stream.schema.schemas import TIMESTAMP_TYPE

_POLL_S: Final = 0.25
_SILENCE_S: Final = 10.0
"""The wait of readers for further acknowledged records after their last record."""
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
_WIDTH: Final = 1.01
_LEAST_US: Final = 1.0
_RANGES: Final = 2600  # the last one starts at 1.01 ** 2599 microseconds, which is two days


class LoadPlan(Struct, frozen=True):
    """A load. It ends after ``records`` or ``seconds``. ``rate``: records per second in total.

    ``transaction_batches``: batches per transaction, 0 for no transactions.
    """

    topic: str
    records: int | None
    seconds: float | None
    record_bytes: int
    batch_rows: int
    producers: int
    consumers: int
    isolation: Isolation
    transaction_batches: int = 0
    rate: float | None = None

    @property
    def acknowledgement(self) -> str:
        """The isolation level of the producers, with or without a wait for the replicas."""
        weak = self.isolation is Isolation.READ_UNCOMMITTED
        return str(Isolation.READ_UNCOMMITTED if weak else Isolation.READ_COMMITTED)


class LoadSchedule:
    """The schedule of the batches that all producers write together."""

    def __init__(self, plan: LoadPlan, now: Callable[[], float] = time.monotonic) -> None:
        self._plan = plan
        self._now = now
        self._began: float | None = None
        self._taken = 0
        self._lock = threading.Lock()

    def take(self) -> tuple[int, float]:
        """Return the rows of the next batch, 0 at the end, and the seconds to wait before it."""
        plan = self._plan
        with self._lock:
            if self._began is None:
                self._began = self._now()
            passed = self._now() - self._began
            if plan.seconds is not None and passed >= plan.seconds:
                return 0, 0.0
            rows = plan.batch_rows
            if plan.records is not None:
                rows = min(rows, plan.records - self._taken)
            due = self._taken / plan.rate if plan.rate else passed
            if plan.seconds is not None and due >= plan.seconds:
                return 0, 0.0
            self._taken += rows
            return rows, max(0.0, due - passed)


class LoadCounts:
    """The results of the threads of a load. ``failure``: the first error, which ends the load."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.written = self.read = self.transactions = 0
        self.failure: IsologError | None = None
        self.acknowledged = Latencies()
        self.committed = Latencies()
        self.seen = Latencies()
        self.first_written = self.last_written = self.last_read = 0.0

    def fail(self, error: IsologError) -> None:
        """Record an error and stop the load."""
        with self.lock:
            self.failure = self.failure or error
        self.stopping.set()


class LoadRun:
    """A running load. ``starts``: the log end of each partition before the load."""

    def __init__(self, log: Log, plan: LoadPlan, starts: Mapping[int, int]) -> None:
        self.plan = plan
        self.tally = LoadCounts()
        self._log = log
        self._starts = dict(starts)
        self._schedule = LoadSchedule(plan)
        self._written = threading.Event()
        # Writes start after all threads have connected, so that latencies include no connection.
        self._ready = threading.Barrier(plan.producers + plan.consumers)
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []

    def start(self) -> None:
        """Start the readers, then the writers."""
        numbers = sorted(self._starts)
        for each in range(self.plan.consumers):
            mine = numbers[each :: self.plan.consumers]
            self._consumers.append(self._thread(self._consume, mine))
        for _ in range(self.plan.producers):
            self._producers.append(self._thread(self._produce))

    def _thread(self, act: Callable[..., None], *given: Any) -> threading.Thread:
        def run() -> None:
            try:
                act(*given)
            except threading.BrokenBarrierError:
                pass  # another thread has failed and reported its error
            except Exception as error:
                failure = error if isinstance(error, IsologError) else InternalError(repr(error))
                self.tally.fail(failure)
                self._ready.abort()

        thread = threading.Thread(target=run, name="isolog-bench")
        thread.start()
        return thread

    @property
    def is_running(self) -> bool:
        """Whether any thread is running."""
        if not any(each.is_alive() for each in self._producers):
            self._written.set()
        return any(each.is_alive() for each in (*self._producers, *self._consumers))

    def stop(self) -> None:
        """Stop the load early. Batches in flight are still acknowledged and read."""
        self.tally.stopping.set()

    # -- writing --------------------------------------------------------------------------------

    def _produce(self) -> None:
        plan = self.plan
        settings: dict[str, Any] = {"isolation": plan.acknowledgement}
        if plan.transaction_batches:
            settings["transactional_id"] = f"isolog-bench-{uuid.uuid4().hex[:12]}"
        with self._log.producer(**settings) as producer:
            make = _batches(plan)
            self._ready.wait()
            if isinstance(producer, TransactionalProducer):
                while self._transact(producer, make):
                    pass
            else:
                while self._append(producer, make):
                    pass

    def _transact(
        self, producer: TransactionalProducer, make: Callable[[int], pa.RecordBatch]
    ) -> bool:
        """Write one transaction. Return whether the load continues."""
        producer.begin_transaction()
        try:
            if not self._append(producer, make):
                producer.abort_transaction()
                return False
            more = True
            for _ in range(self.plan.transaction_batches - 1):
                more = self._append(producer, make)
                if not more:
                    break
            began = time.monotonic()
            producer.commit_transaction()
        except IsologError:
            producer.abort_transaction()
            raise
        with self.tally.lock:
            self.tally.transactions += 1
            self.tally.committed.add(_micros(began))
        return more

    def _append(self, producer: Producer, make: Callable[[int], pa.RecordBatch]) -> bool:
        """Append the next batch. Return False if there is none."""
        rows, wait_s = self._schedule.take()
        if not rows or self.tally.stopping.wait(wait_s):
            return False
        batch = make(rows)
        began = time.monotonic()
        producer.append(self.plan.topic, batch).add_done_callback(
            lambda done: self._on_acknowledged(done, rows, began)
        )
        return True

    def _on_acknowledged(self, done: Future[Written], rows: int, began: float) -> None:
        tally, error = self.tally, done.exception()
        if isinstance(error, IsologError):
            tally.fail(error)
        if error is not None:
            return
        with tally.lock:
            tally.first_written = tally.first_written or began
            tally.last_written = time.monotonic()
            tally.written += rows
            tally.acknowledged.add(_micros(began))

    # -- reading --------------------------------------------------------------------------------

    def _consume(self, numbers: Sequence[int]) -> None:
        plan, tally = self.plan, self.tally
        silent_since = None
        with self._log.consumer(
            plan.topic,
            partitions=numbers,
            isolation=str(plan.isolation),
            start={number: self._starts[number] for number in numbers},
            columns=["value", "timestamp"],
        ) as consumer:
            next(consumer.batches(timeout=0.0), None)  # connects
            self._ready.wait()
            while True:
                for batch in consumer.batches(timeout=_POLL_S):
                    silent_since = None
                    self._on_read(batch)
                    if self._has_everything():
                        return
                if self._has_everything() or tally.failure is not None:
                    return
                if self._written.is_set():
                    silent_since = silent_since or time.monotonic()
                    if time.monotonic() - silent_since > _SILENCE_S:
                        return

    def _on_read(self, batch: pa.RecordBatch) -> None:
        now_us = time.time_ns() // 1000
        column = batch.column("timestamp")
        # Not by to_numpy, which imports pandas and so delays the first records.
        sent = np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
        with self.tally.lock:
            self.tally.read += batch.num_rows
            self.tally.last_read = time.monotonic()
            self.tally.seen.add((now_us - sent).astype(np.float64))

    def _has_everything(self) -> bool:
        return self._written.is_set() and self.tally.read >= self.tally.written


def _micros(began: float) -> np.ndarray:
    return np.array([(time.monotonic() - began) * 1e6])


def _batches(plan: LoadPlan) -> Callable[[int], pa.RecordBatch]:
    """Return a function that creates a batch of this many rows with the current time."""
    size, rows = plan.record_bytes, plan.batch_rows
    offsets = np.arange(0, (rows + 1) * size, size or 1, dtype=np.int32)[: rows + 1]
    if not size:
        offsets = np.zeros(rows + 1, np.int32)
    # Random bytes, so that the topic's compression does not shrink them more than real data.
    noise = pa.py_buffer(secrets.token_bytes(rows * size))
    values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), noise])

    def make(count: int) -> pa.RecordBatch:
        now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(TIMESTAMP_TYPE)
        columns = [values.slice(0, count), pa.repeat(now, count)]
        return pa.RecordBatch.from_arrays(columns, names=["value", "timestamp"])

    return make


class Latencies:
    """Many durations in microseconds in little memory: a count for each of some thousand ranges.

    A range is one percent wide, so a percentile is at most one percent too high. The greatest
    duration is exact. One thread at a time. Source of the idea: Gil Tene, HdrHistogram.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_RANGES, np.int64)
        self._greatest = 0.0

    def add(self, durations: npt.NDArray[np.float64]) -> None:
        """Add durations in microseconds. Negative ones, after a clock step, count as 0."""
        if not len(durations):
            return
        places = np.log(np.maximum(durations, _LEAST_US)) / np.log(_WIDTH)
        places = np.minimum(np.ceil(places).astype(np.int64), _RANGES - 1)
        self._counts += np.bincount(places, minlength=_RANGES)
        self._greatest = max(self._greatest, float(durations.max()))

    def merge(self, other: Latencies) -> None:
        """Add the durations of another collection."""
        self._counts += other._counts
        self._greatest = max(self._greatest, other._greatest)

    @property
    def count(self) -> int:
        """The number of durations."""
        return int(self._counts.sum())

    def percentile(self, part: float) -> float:
        """Return the duration in ms that this share (0 to 1) does not exceed, else 0."""
        if not self.count:
            return 0.0
        upto = np.cumsum(self._counts)
        place = int(np.searchsorted(upto, max(1, int(np.ceil(part * self.count)))))
        return float(min(_WIDTH**place, self._greatest)) / 1000

    def summary(self) -> Mapping[str, float]:
        """Return the percentiles and the maximum, in ms."""
        found = {name: round(self.percentile(part), 3) for name, part in PERCENTILES.items()}
        return found | {"max": round(self._greatest / 1000, 3)}
