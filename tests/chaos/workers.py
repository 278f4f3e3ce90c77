"""Writers and readers that continue through faults of brokers, and record their results."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa

import isolog
from isolog.errors import (
    InvalidTransaction,
    IsologError,
    MetadataLost,
    ProducerFenced,
    TransactionAborted,
    UnknownOutcome,
)
from spark_stream.client.values import Written
from tests.chaos.checker import READ, WRITE
from tests.histories.writing import HistoryWriter

T = TypeVar("T")
SCHEMA = pa.schema([("writer", pa.string()), ("number", pa.int64())])
TOPICS = {"t": 3, "u": 1}
PARTITIONS = 3
KAFKA_TOPIC = "k"
"""The topic of Kafka's clients, with this number of partitions."""
_transactions = itertools.count()


def rows(writer: str, first: int, count: int) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + count), pa.int64())
    return pa.RecordBatch.from_arrays([pa.array([writer] * count), numbers], schema=SCHEMA)


@dataclass
class Notes:
    """The results of all workers, as frames for the checker, and as a history on request."""

    history: HistoryWriter | None = None
    positions: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """The position of each following reader, by topic and partition."""
    writes: list[pd.DataFrame] = field(default_factory=list)
    reads: list[pd.DataFrame] = field(default_factory=list)
    surprises: list[BaseException] = field(default_factory=list)
    commits: int = 0
    aborts: int = 0

    @property
    def enough(self) -> bool:
        """Return whether the history has enough results, or an unexpected error ends the run.

        The time for that depends on the machine. A run lasts at least that long.
        """
        return bool(self.surprises) or (self.commits >= 10 and self.aborts >= 5)

    def wrote(
        self,
        writer: str,
        sent: Sent,
        *,
        transaction: int,
        outcome: str,
        acks: str = "replicated",
    ) -> None:
        self._write_append(writer, sent, transaction, acks)
        first, count, to = sent.first, sent.count, sent.to
        self.writes.append(
            pd.DataFrame(
                {
                    "writer": writer,
                    "number": range(first, first + count),
                    "topic": to[0],
                    "partition": to[1],
                    "transaction": transaction,
                    "outcome": outcome,
                },
                columns=WRITE,
            )
        )

    def _write_append(self, writer: str, sent: Sent, transaction: int, acks: str) -> None:
        if self.history is None:
            return
        outcome, offset = sent.told()
        is_inside = transaction >= 0
        self.history.write(
            "append",
            client=writer,
            producer=f"{writer} in {transaction}" if is_inside else writer,
            topic=sent.to[0],
            partition=sent.to[1],
            call=sent.called,
            **{"return": sent.returned if outcome == "ok" else None},
            outcome=outcome,
            values=[f"{writer}/{number}" for number in range(sent.first, sent.first + sent.count)],
            transaction=str(transaction) if is_inside else None,
            acks=acks,
            offset=offset,
        )

    def ended(self, writer: str, op: str, transaction: int, called: int, outcome: str) -> None:
        """Record the outcome of a transaction for its writer, which may be unknown."""
        if self.history is not None:
            self.history.write(
                op,
                client=writer,
                transaction=str(transaction),
                call=called,
                **{"return": None if outcome == "unknown" else time.monotonic_ns()},
                outcome=outcome,
            )

    def _write_reads(
        self, frame: pd.DataFrame, called: int, *, topics: Sequence[str], complete: bool
    ) -> None:
        """Write one event for each partition, also for those without records in the read."""
        assert self.history is not None
        returned = time.monotonic_ns()
        for place, records in _records_by_place(frame, topics).items():
            reader, level = frame.attrs["reader"], frame.attrs["level"]
            at, snapshot = 0, frame.attrs["snapshot"]
            if snapshot < 0:  # it continues from its position, or from a position after a loss
                at = self.positions.get((reader, *place), 0)
                if level == "read_uncommitted":
                    at = records[0][0]
                self.positions[reader, *place] = records[-1][0] + 1
            self.history.write(
                "read",
                client=reader,
                topic=place[0],
                partition=place[1],
                call=called,
                **{"return": returned, "from": at},
                to=records[-1][0] + 1 if snapshot < 0 else None,
                isolation=level,
                records=records,
                snapshot=str(snapshot) if snapshot >= 0 else None,
                complete=complete or None,
            )

    def read(
        self,
        reader: str,
        level: str,
        snapshot: int,
        batch: pa.RecordBatch | pa.Table,
        called: int,
        *,
        topic: str | None = None,
        complete: bool = False,
    ) -> None:
        """``topic``: the topic of a whole snapshot. ``complete``: the read reached the end."""
        frame = pd.DataFrame(
            {
                "reader": reader,
                "level": level,
                "snapshot": snapshot,
                "topic": batch.column("_topic").to_pandas(),
                "partition": batch.column("_partition").to_pandas(),
                "offset": batch.column("_offset").to_pandas(),
                "writer": batch.column("writer").to_pandas(),
                "number": batch.column("number").to_pandas(),
            },
            columns=READ,
        )
        if self.history is not None:
            frame.attrs = {"reader": reader, "level": level, "snapshot": snapshot}
            whole = () if topic is None else (topic,)
            self._write_reads(frame, called, topics=whole, complete=complete)
        if topic in (None, *TOPICS, KAFKA_TOPIC):
            self.reads.append(frame)


def _records_by_place(
    frame: pd.DataFrame, topics: Sequence[str]
) -> dict[tuple[str, int], list[tuple[int, str]]]:
    found: dict[tuple[str, int], list[tuple[int, str]]] = {
        (topic, at): [] for topic in topics for at in range(TOPICS.get(topic, TOPICS["t"]))
    }
    columns = (frame[name].tolist() for name in READ[3:])
    for topic, at, offset, writer, number in zip(*columns, strict=True):
        prefix = "" if topic in (*TOPICS, KAFKA_TOPIC) else f"{topic}/"
        found.setdefault((topic, at), []).append((offset, f"{prefix}{writer}/{number}"))
    return found


def next_transaction() -> int:
    """Return the number of another transaction of the run."""
    return next(_transactions)


class Worker(threading.Thread):
    """A thread with its own random seed. An unexpected error fails the test."""

    def __init__(
        self,
        name: str,
        seed: int,
        notes: Notes,
        stop: threading.Event,
        task: Callable[[Worker], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.random = random.Random(f"{seed}/{name}")
        self.notes = notes
        self.stopped = stop
        self.number = 0
        self._task = task

    def run(self) -> None:
        try:
            self._task(self)
        except BaseException as error:
            traceback.print_exc()
            self.notes.surprises.append(error)

    def place(self) -> tuple[str, int]:
        topic = self.random.choice(list(TOPICS))
        return topic, self.random.randrange(TOPICS[topic])

    def pause(self, longest_s: float = 0.02) -> None:
        time.sleep(self.random.random() * longest_s)


class Delivered(NamedTuple):
    """An acknowledgement for a Kafka client.

    Its offset is unknown if the client only has the answer about a later batch.
    """

    offset: int | None


@dataclass
class Sent:
    first: int
    count: int
    to: tuple[str, int]
    future: Future[Written] | Future[Delivered]
    called: int
    returned: int = 0

    def told(self) -> tuple[str, int | None]:
        """Return the present outcome, ok or unknown, and the offset or None."""
        if not self.future.done() or self.future.cancelled() or self.future.exception():
            return "unknown", None
        self.returned = self.returned or time.monotonic_ns()
        return "ok", self.future.result().offset

    def note_answer(self, _: object) -> None:
        self.returned = time.monotonic_ns()


def send(worker: Worker, producer: isolog.Producer, rows_max: int) -> Sent:
    count = worker.random.randint(1, rows_max)
    first, worker.number = worker.number, worker.number + count
    to = worker.place()
    called = time.monotonic_ns()
    future = producer.append(to[0], rows(worker.name, first, count), partition=to[1])
    sent = Sent(first, count, to, future, called)
    future.add_done_callback(sent.note_answer)
    return sent


def passes(error: IsologError) -> bool:
    """Return whether the cluster recovers from the error, or an operator repairs the metadata."""
    return error.retriable or isinstance(error, MetadataLost)


def repaired(call: Callable[[], T]) -> T:
    """Repeat the call until the cluster has recovered, or an operator has repaired the metadata."""
    while True:
        try:
            return call()
        except IsologError as error:
            if not passes(error):
                raise
            time.sleep(0.2)


def outcome_of(sent: Sent) -> str:
    """Return the outcome of a write outside transactions."""
    try:
        sent.future.result(120)
    except UnknownOutcome:
        return "unknown"
    return "acknowledged"


def replicated_outcome_of(sent: Sent) -> str:
    """Return the outcome as :func:`outcome_of`, or unknown if a leader is missing for long."""
    try:
        return outcome_of(sent)
    except IsologError as error:
        if not passes(error):
            raise
        return "unknown"


def fleeting_outcome_of(sent: Sent) -> str:
    """Wait for the answer. Return unknown, because a failover may remove the write."""
    replicated_outcome_of(sent)
    return "unknown"


def plain_writer(
    connect: Callable[[], isolog.Log],
    outcome: Callable[[Sent], str] = outcome_of,
    *,
    rows_max: int = 20,
    pause_s: float = 0.02,
    **settings: object,
) -> Callable[[Worker], None]:
    """Appends outside transactions, with several batches under way.

    Batches have up to ``rows_max`` records. ``settings`` are those of the producer.
    """

    acks = "replicated" if settings.get("isolation") == "read_committed" else "leader"

    def task(worker: Worker) -> None:
        with connect() as log, log.producer(**settings) as producer:
            while not worker.stopped.is_set():
                sent = [
                    send(worker, producer, rows_max) for _ in range(worker.random.randint(1, 5))
                ]
                for each in sent:
                    told = outcome(each)
                    worker.notes.wrote(worker.name, each, transaction=-1, outcome=told, acks=acks)
                worker.pause(pause_s)

    return task


def transactional_writer(
    connect: Callable[[], isolog.Log], *, replicated: bool = False
) -> Callable[[Worker], None]:
    """Transactions over several partitions and topics. A third of them is aborted.

    Some are left open: the next producer of the same id takes over, which aborts them.
    ``replicated``: a leader may be missing for so long that the outcome stays unknown.
    """

    def task(worker: Worker) -> None:
        with connect() as log:
            producer = repaired(lambda: log.producer(transactional_id=worker.name))
            while not worker.stopped.is_set():
                transaction = next(_transactions)
                if worker.random.random() < 0.1:
                    sent, outcome, producer = walked_away(
                        worker, log, producer, transaction, replicated=replicated
                    )
                else:
                    sent, outcome = one_transaction(
                        worker, producer, transaction, replicated=replicated
                    )
                    if outcome == "unknown":
                        producer = taken_over(worker, log, producer)
                for each in sent:
                    worker.notes.wrote(worker.name, each, transaction=transaction, outcome=outcome)
                worker.pause()
            producer.close()

    return task


def walked_away(
    worker: Worker,
    log: isolog.Log,
    producer: isolog.TransactionalProducer,
    transaction: int,
    *,
    replicated: bool,
) -> tuple[list[Sent], str, isolog.TransactionalProducer]:
    try:
        producer.begin_transaction()
    except IsologError as error:  # it first repeats an abort that got no answer
        if not (replicated and passes(error)):
            raise
        return [], "unknown", taken_over(worker, log, producer)
    sent = [send(worker, producer, 10) for _ in range(3)]
    if worker.random.random() < 0.5:
        with contextlib.suppress(IsologError):
            producer.flush()
    called = time.monotonic_ns()
    following = taken_over(worker, log, producer)
    worker.notes.ended(worker.name, "abort", transaction, called, "ok")
    worker.notes.aborts += 1
    return sent, "aborted", following


def taken_over(
    worker: Worker, log: isolog.Log, producer: isolog.TransactionalProducer
) -> isolog.TransactionalProducer:
    """Open another producer of the same id, which aborts the open transaction."""
    following = repaired(lambda: log.producer(transactional_id=worker.name))
    with contextlib.suppress(IsologError):
        producer.close()
    return following


def one_transaction(
    worker: Worker, producer: isolog.TransactionalProducer, transaction: int, *, replicated: bool
) -> tuple[list[Sent], str]:
    sent: list[Sent] = []
    op, called, told = "abort", time.monotonic_ns(), "unknown"
    try:
        producer.begin_transaction()
        sent += [send(worker, producer, 10) for _ in range(worker.random.randint(1, 6))]
        called = time.monotonic_ns()
        if worker.random.random() < 1 / 3:
            producer.abort_transaction()
            told = "ok"
            worker.notes.aborts += 1
            return sent, "aborted"
        op = "commit"
        producer.commit_transaction()
        told = "ok"
    except (TransactionAborted, ProducerFenced, InvalidTransaction):
        told = "failed" if op == "commit" else "ok"
        worker.notes.aborts += 1
        return sent, "aborted"
    except IsologError as error:
        if not (replicated and (passes(error) or isinstance(error, UnknownOutcome))):
            raise
        return sent, "unknown"
    finally:
        worker.notes.ended(worker.name, op, transaction, called, told)
    worker.notes.commits += 1
    return sent, "committed"


def following_reader(
    connect: Callable[[], isolog.Log], level: str, end: threading.Event, **settings: object
) -> Callable[[Worker], None]:
    """Continues from its position until ``end`` is set and its level's bound is reached.

    ``settings`` are those of the consumer.
    """

    def task(worker: Worker) -> None:
        with connect() as log:
            consumer = log.consumer(list(TOPICS), isolation=level, metadata=True, **settings)
            last = False
            while not last:
                last = end.is_set()
                called = time.monotonic_ns()
                try:
                    for batch in consumer.batches(until="latest"):
                        worker.notes.read(worker.name, level, -1, batch, called)
                        called = time.monotonic_ns()
                except IsologError as error:
                    if not passes(error):
                        raise
                    last = False
                time.sleep(0.02)
            consumer.close()

    return task


def snapshot_reader(
    connect: Callable[[], isolog.Log], level: str, pause_s: float = 0.2
) -> Callable[[Worker], None]:
    """Repeatedly reads both topics as a whole, one snapshot each time."""

    def task(worker: Worker) -> None:
        with connect() as log:
            snapshots = itertools.count()
            while not worker.stopped.is_set():
                called = time.monotonic_ns()
                try:
                    tables = log.read(list(TOPICS), isolation=level, metadata=True)
                except IsologError as error:
                    if not passes(error):
                        raise
                    continue
                number = next(snapshots)
                for topic, table in tables.items():
                    worker.notes.read(worker.name, level, number, table, called, topic=topic)
                worker.stopped.wait(pause_s)

    return task
