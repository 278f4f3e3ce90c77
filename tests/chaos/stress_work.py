"""The threads of the stress program: they open, use and close, and record their results."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

import isolog
from isolog.errors import (
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownOutcome,
)
from tests.chaos.outcomes import ABSENT, ACKNOWLEDGED, ROWS, SCHEMA, UNKNOWN, Outcomes

LARGE_BYTES = 8 << 20  # more than the transport buffers: its write waits for a stopped broker
TIMEOUT_S = 20.0


@dataclass
class World:
    """The state that all threads share."""

    address: str
    stop: threading.Event = field(default_factory=threading.Event)
    rounds: Counter[str] = field(default_factory=Counter)
    outcomes: dict[int, Outcomes] = field(default_factory=dict)
    surprises: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> isolog.Log:
        return isolog.connect(self.address, timeout=TIMEOUT_S)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.rounds[what] += number

    def surprised(self, what: str) -> None:
        with self._lock:
            self.surprises.append(what)


Round = Callable[["Worker"], None]


class Worker(threading.Thread):
    """Repeats one kind of round until stopped."""

    def __init__(self, world: World, number: int, kind: Round, seed: int) -> None:
        super().__init__(name=f"{kind.__name__}-{number}", daemon=True)
        self.world = world
        self.number = number
        self.chance = random.Random(f"{seed}-{number}")
        self.outcomes = world.outcomes[number] = Outcomes()
        self._kind = kind

    def run(self) -> None:
        while not self.world.stop.is_set():
            self.round()

    def round(self) -> None:
        """One round. A cut may only cause retriable errors."""
        try:
            self._kind(self)
        except IsologError as error:
            if not error.retriable:
                self.world.surprised(f"{self.name}: {error!r}")
        except Exception as error:
            self.world.surprised(f"{self.name}: {error!r}")
        self.world.count(self._kind.__name__)

    def batch(self) -> tuple[int, pa.RecordBatch]:
        """Return the next batch with its number. Some batches are large."""
        number = self.outcomes.begun()
        size = LARGE_BYTES // ROWS if self.chance.random() < 0.003 else 10
        columns = [
            pa.array(np.full(ROWS, self.number, np.int32)),
            pa.array(np.full(ROWS, number, np.int64)),
            pa.array(np.arange(ROWS, dtype=np.int32)),
            pa.array([b"x" * size] * ROWS, pa.binary()),
        ]
        return number, pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def produce(worker: Worker) -> None:
    """Opens a producer, appends, and closes it while some appends are under way."""
    with worker.world.connect() as log:
        producer = log.producer(timeout_ms=4000)
        written = {}
        try:
            for _ in range(worker.chance.randint(1, 8)):
                number, batch = worker.batch()
                worker.outcomes[number] = ABSENT
                written[number] = producer.append("t", batch)
        finally:
            with contextlib.suppress(IsologError):  # the futures have the failures too
                producer.close()
        for number, future in written.items():
            worker.outcomes[number] = _outcome(future.exception(0))


def _outcome(error: BaseException | None) -> int:
    if error is None:
        return ACKNOWLEDGED
    if isinstance(error, UnknownOutcome):
        return UNKNOWN
    if isinstance(error, IsologError) and error.retriable:
        return ABSENT
    raise error


def transact(worker: Worker) -> None:
    """A few transactions of one producer. Some are aborted, and some commits are repeated."""
    with worker.world.connect() as log:
        producer = log.producer(
            transactional_id=f"loader-{worker.number}",
            transaction_timeout_ms=10_000,
            timeout_ms=4000,
        )
        try:
            for _ in range(worker.chance.randint(1, 3)):
                _transaction(worker, producer)
        finally:
            with contextlib.suppress(IsologError):
                producer.close()


def _transaction(worker: Worker, producer: isolog.TransactionalProducer) -> None:
    producer.begin_transaction()
    numbers = []
    for partition in worker.chance.choices((0, 1, 2, 3), k=3):
        number, batch = worker.batch()
        worker.outcomes[number] = ABSENT
        numbers.append(number)
        producer.append("t", batch, partition)
    if worker.chance.random() < 0.2:
        producer.abort_transaction()
        return
    for number in numbers:
        worker.outcomes[number] = UNKNOWN
    found = _committed(producer)
    for number in numbers:
        worker.outcomes[number] = found
    worker.world.count("commits", found == ACKNOWLEDGED)


def _committed(producer: isolog.TransactionalProducer) -> int:
    """Return the outcome of the transaction, or unknown if no request gets an answer."""
    for _ in range(5):
        try:
            producer.commit_transaction()
        except (TransactionAborted, ProducerFenced):
            return ABSENT
        except IsologError as error:
            if not error.retriable:
                raise
        else:
            return ACKNOWLEDGED
    return UNKNOWN


def follow(worker: Worker) -> None:
    """Follows the topic for a while. Despite the cuts, every offset comes once and in order.

    The iteration ends by a close from another thread, or is abandoned for another to clean up.
    """
    with worker.world.connect() as log:
        consumer = log.consumer("t", start="latest", columns=["_partition", "_offset"])
        next_offsets = {key[1]: offset for key, offset in consumer.position().items()}
        closing = threading.Timer(worker.chance.uniform(0.05, 3), consumer.close)
        closing.start()
        batches = consumer.batches()
        left = worker.chance.randint(1, 200)
        for batch in batches:
            partition = batch.column("_partition")[0].as_py()
            offsets = batch.column("_offset").to_numpy()
            expected = np.arange(offsets.size) + next_offsets[partition]
            if not np.array_equal(offsets, expected):
                worker.world.surprised(f"{worker.name}: {partition}: {offsets} for {expected}")
            next_offsets[partition] = int(offsets[-1]) + 1
            left -= 1
            if not left:
                break
        cleaner = threading.Thread(target=batches.close)
        cleaner.start()
        cleaner.join()
        closing.cancel()
        closing.join()


def poll(worker: Worker) -> None:
    """Waits for records that do not come, until its consumer or connection is closed."""
    log = worker.world.connect()
    consumer = log.consumer("quiet")
    polling = threading.Thread(target=_poll, args=(worker, consumer), name=f"{worker.name}-polling")
    polling.start()
    worker.world.stop.wait(worker.chance.uniform(0, 1))
    # In either order: a connection may be closed during its use.
    for each in worker.chance.sample((log, consumer), 2):
        each.close()
    polling.join(TIMEOUT_S * 2)
    if polling.is_alive():
        worker.world.surprised(f"{worker.name}: a long poll outlives its consumer")


def _poll(worker: Worker, consumer: isolog.Consumer) -> None:
    try:
        for _ in consumer.batches():
            worker.world.surprised(f"{worker.name}: a record nobody wrote")
    except isolog.errors.InvalidRequest:
        pass  # the connection was closed
    except IsologError as error:
        if not error.retriable:
            worker.world.surprised(f"{worker.name}: {error!r}")


def look(worker: Worker) -> None:
    """Bounded reads of the topic's end, in several threads of the client."""
    with worker.world.connect() as log:
        known = {each.partition: each.log_end_offset for each in log.describe("t").partitions}
        ends = {number: end for number, end in known.items() if end is not None}
        if len(ends) < len(known):
            return  # a leader did not answer
        start = {number: max(0, end - 50) for number, end in ends.items()}
        table = log.read("t", start=start, end=ends, columns=["row"])
        if table.num_rows != sum(ends[number] - start[number] for number in ends):
            worker.world.surprised(f"{worker.name}: {table.num_rows} of {start} to {ends}")
