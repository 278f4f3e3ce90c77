"""Kafka's clients beside the mishaps of a cluster, through two gateways that have mishaps too.

Idempotent and transactional producers write to a topic, a copier copies it exactly once by its
group, and the members of another group read it. At the end each acknowledged record is in the log
once, the copy has the committed records once, and the group has skipped none.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import confluent_kafka
import pyarrow as pa
from confluent_kafka import KafkaException, TopicPartition

import isolog
from isolog.testing import LocalCluster
from tests.chaos.workers import (
    KAFKA_TOPIC,
    PARTITIONS,
    Delivered,
    Notes,
    Sent,
    Worker,
    next_transaction,
)
from tests.support import eventually, free_port

LEVELS = {"read_replicated": "read_uncommitted", "read_committed": "read_committed"}
"""The levels of isolog, and their names for Kafka's clients."""

FINAL = "kafka-final"
COPY, GROUP = f"{KAFKA_TOPIC}-copy", "readers"
PAUSED_S = 4.0
_WAIT_S = 60.0
_ENDING_S = 180.0


class Gateways(threading.Thread):
    """Two gateways as processes, and a thread that harms them until :meth:`calm`."""

    def __init__(self, cluster: LocalCluster, folder: Path, seed: int) -> None:
        super().__init__(name="gateways", daemon=True)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.strikes: Counter[str] = Counter()
        self._cluster, self._folder = cluster, folder
        self._random = random.Random(f"{seed}/gateways")
        self._over = threading.Event()
        self._processes = [self._start(each) for each in range(2)]

    def _start(self, at: int) -> subprocess.Popen[bytes]:
        with (self._folder / f"gateway-{at}").open("ab") as errors:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "isolog", "kafka-gateway"),
                    *("--bootstrap", self._cluster.bootstrap, "--listen", self.addresses[at]),
                    *("--peers", self.addresses[1 - at]),
                ],
                stdout=errors,
                stderr=errors,
            )

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(3.0, 12.0)):
            at = self._random.randrange(2)
            kind = self._random.choice(("kill", "stop", "pause"))
            self.strikes[kind] += 1
            if kind == "pause":
                self._processes[at].send_signal(signal.SIGSTOP)
                self._over.wait(PAUSED_S)
                self._processes[at].send_signal(signal.SIGCONT)
                continue
            self._end(at, kind)
            self._over.wait(self._random.uniform(0.0, 4.0))
            self._processes[at] = self._start(at)

    def _end(self, at: int, kind: str) -> None:
        if kind == "stop":
            self._processes[at].terminate()
            with suppress(subprocess.TimeoutExpired):
                self._processes[at].wait(30)
        self._processes[at].kill()
        self._processes[at].wait()

    def calm(self) -> None:
        """End the mishaps. Both gateways serve afterwards."""
        self._over.set()
        self.join(_WAIT_S)
        for at, each in enumerate(self._processes):
            if each.poll() is not None:  # it could not connect to a broker when it started
                self._processes[at] = self._start(at)

    def close(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join(_WAIT_S)
        for each in self._processes:
            each.kill()
            each.wait()

    def errors(self) -> list[str]:
        """Return the tracebacks that the gateways have logged."""
        found = []
        for at in range(2):
            said = (self._folder / f"gateway-{at}").read_text()
            if "Traceback" in said:
                found.append(f"gateway {at}: {said[said.index('Traceback') - 300 :][:3_000]}")
        return found


class KafkaClients:
    """The clients, from :meth:`start` to :meth:`check`."""

    def __init__(
        self, cluster: LocalCluster, log: isolog.Log, notes: Notes, folder: Path, seed: int
    ) -> None:
        for name in (KAFKA_TOPIC, COPY):
            config = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 1500}
            log.create_topic(name, PARTITIONS, 3, config=config)
        self.gateways = Gateways(cluster, folder, seed)
        self._notes = notes
        self._stop, self._end = threading.Event(), threading.Event()
        self._settings = {"bootstrap.servers": ",".join(self.gateways.addresses)}
        self._read: set[tuple[str, int]] = set()
        self._copied: Counter[str] = Counter()
        tasks: dict[str, Callable[[Worker], None]] = {
            **{f"idempotent-{n}": self._write for n in range(2)},
            **{f"transactional-{n}": self._transact for n in range(2)},
        }
        self._writers = [
            Worker(f"kafka-{name}", seed, notes, self._stop, task) for name, task in tasks.items()
        ]
        readers = {
            **{f"member-{n}": self._read_as_member for n in range(2)},
            **{f"follow-{level}": self._follow for level in LEVELS},
            "copier": self._copy,
        }
        self._readers = [
            Worker(f"kafka-{name}", seed, notes, self._end, task) for name, task in readers.items()
        ]

    def start(self) -> None:
        for each in (*self._writers, *self._readers, self.gateways):
            each.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._end.set()
        for each in (*self._writers, *self._readers):
            if each.is_alive():
                each.join(_WAIT_S)
        self.gateways.close()

    # -- writers ------------------------------------------------------------------------------

    def _producer(self, **settings: Any) -> Any:
        return confluent_kafka.Producer(
            {
                **self._settings,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "socket.timeout.ms": 10_000,
                "metadata.recovery.strategy": "none",  # librdkafka's issue 5511
                "log_level": 0,
                **settings,
            }
        )

    def _send(self, worker: Worker, producer: Any) -> list[Sent]:
        """Send some records to a partition. The outcome of each is a separate future."""
        found = []
        partition = worker.random.randrange(PARTITIONS)
        for _ in range(worker.random.randint(1, 8)):
            number, worker.number = worker.number, worker.number + 1
            future: Future[Delivered] = Future()
            sent = Sent(number, 1, (KAFKA_TOPIC, partition), future, time.monotonic_ns())
            future.add_done_callback(sent.note_answer)
            producer.produce(
                KAFKA_TOPIC,
                b"%d" % number,
                worker.name.encode(),
                partition,
                on_delivery=lambda error, message, future=future: settle(future, error, message),
            )
            found.append(sent)
        return found

    def _write(self, worker: Worker) -> None:
        producer = self._producer()
        while not worker.stopped.is_set():
            sent = [each for _ in range(3) for each in self._send(worker, producer)]
            producer.flush(2 * _WAIT_S)
            told = ["acknowledged" if each.told()[0] == "ok" else "unknown" for each in sent]
            for each, outcome in zip(sent, told, strict=True):
                self._notes.wrote(worker.name, each, transaction=-1, outcome=outcome)
            if "unknown" in told:  # a fatal error, or no answer in time
                self.gateways.strikes["another producer"] += 1
                producer = self._producer()
            worker.pause(0.2)

    def _transactional(self, worker: Worker) -> Any:
        while True:
            producer = self._producer(**{"transactional.id": worker.name})
            try:
                producer.init_transactions(_WAIT_S)
            except KafkaException:
                if worker.stopped.is_set():
                    return producer
                continue
            return producer

    def _transact(self, worker: Worker) -> None:
        producer = self._transactional(worker)
        while not worker.stopped.is_set():
            transaction, called = next_transaction(), time.monotonic_ns()
            sent: list[Sent] = []
            aborts = worker.random.random() < 1 / 3

            def write(producer: Any = producer, sent: list[Sent] = sent) -> None:
                for _ in range(3):
                    sent += self._send(worker, producer)
                producer.flush(2 * _WAIT_S)

            outcome = _one_transaction(producer, write, aborts=aborts)
            op = "abort" if outcome == "aborted" else "commit"
            told = "unknown" if outcome == "unknown" else "ok"
            self._notes.ended(worker.name, op, transaction, called, told)
            if not producer_works(producer, outcome):
                self.gateways.strikes["another transactional producer"] += 1
                producer = self._transactional(worker)
            for each in sent:
                self._notes.wrote(worker.name, each, transaction=transaction, outcome=outcome)
            self._notes.commits += outcome == "committed"
            self._notes.aborts += outcome == "aborted"
            worker.pause(0.2)

    # -- readers ------------------------------------------------------------------------------

    def _consumer(self, group: str, **settings: Any) -> Any:
        consumer = confluent_kafka.Consumer(
            {
                **self._settings,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                "socket.timeout.ms": 10_000,
                "auto.commit.interval.ms": 500,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe([KAFKA_TOPIC])
        return consumer

    def _follow(self, worker: Worker) -> None:
        """Read all partitions from their beginning, without a group."""
        level = worker.name.removeprefix("kafka-follow-")
        consumer = self._consumer("none", **_MANUAL, **{"isolation.level": LEVELS[level]})
        consumer.unsubscribe()
        consumer.assign([TopicPartition(KAFKA_TOPIC, each, 0) for each in range(PARTITIONS)])
        while not worker.stopped.is_set():
            called = time.monotonic_ns()
            messages = [each for each in consumer.consume(200, 0.5) if each.error() is None]
            if messages:
                self._notes.read(worker.name, level, -1, _frame(messages), called)
        consumer.close()

    def _read_as_member(self, worker: Worker) -> None:
        """Read as a member of a group, which is closed and opened again from time to time."""
        while not worker.stopped.is_set():
            consumer = self._consumer(
                GROUP,
                **{
                    "partition.assignment.strategy": worker.random.choice(
                        ("range", "cooperative-sticky")
                    )
                },
            )
            until = time.monotonic() + worker.random.uniform(5.0, 60.0)
            while not worker.stopped.is_set() and time.monotonic() < until:
                for each in consumer.consume(100, 0.2):
                    if each.error() is None:
                        self._read.add((each.key().decode(), int(each.value())))
            consumer.close()

    def _copy(self, worker: Worker) -> None:
        """Copy each committed record once."""
        producer, consumer = self._transactional(worker), self._consumer(COPY, **_MANUAL)
        while not worker.stopped.is_set():
            messages = [each for each in consumer.consume(500, 0.5) if each.error() is None]
            if not messages:
                continue

            def write(
                producer: Any = producer,
                consumer: Any = consumer,
                messages: list[Any] = messages,
            ) -> None:
                for each in messages:
                    producer.produce(COPY, each.value(), each.key(), each.partition())
                producer.flush(2 * _WAIT_S)
                ends: dict[int, int] = {}
                for each in messages:
                    ends[each.partition()] = each.offset() + 1
                places = [TopicPartition(KAFKA_TOPIC, *each) for each in ends.items()]
                group = consumer.consumer_group_metadata()
                _send_offsets(producer, places, group)

            try:
                outcome = _one_transaction(producer, write, aborts=worker.random.random() < 0.1)
            except CoordinatorLost:  # the next producer aborts the transaction
                self.gateways.strikes["positions without an answer"] += 1
                outcome = "aborted"
            self._copied[outcome] += 1
            if outcome != "committed":  # continue from the stored positions
                consumer.close()
                producer = self._transactional(worker)
                consumer = self._consumer(COPY, **_MANUAL)
        consumer.close()

    # -- the check ----------------------------------------------------------------------------

    def finish_writing(self) -> list[str]:
        """End the mishaps of the gateways, and then the writers. Return those that do not end."""
        self.gateways.calm()
        self._stop.set()
        return _joined(self._writers)

    def check(self, log: isolog.Log) -> list[str]:
        """Wait for the readers, and compare their records with the log."""
        problems = self.gateways.errors()
        table = log.read(KAFKA_TOPIC, isolation="read_committed", metadata=True)
        wanted = _identities(table)
        with suppress(AssertionError):
            eventually(lambda: set(wanted) <= self._read, _ENDING_S)
            eventually(
                lambda: len(log.read(COPY, isolation="read_committed")) >= len(wanted), _ENDING_S
            )
        self._end.set()
        problems += [f"{name} does not end" for name in _joined(self._readers)]
        if missing := sorted(set(wanted) - self._read):
            problems.append(f"the group skipped {len(missing)} records, first {missing[:3]}")
        if invented := sorted(self._read - set(wanted)):
            problems.append(f"the group read {len(invented)} others, first {invented[:3]}")
        copied = Counter(_identities(log.read(COPY, isolation="read_committed", metadata=True)))
        if copied != Counter(wanted):
            for what, rows in (
                ("lacks", Counter(wanted) - copied),
                ("has too many of", copied - Counter(wanted)),
            ):
                problems.append(f"the copy {what} {rows.total()}: {list(rows)[:3]}")
        if not (self._copied["committed"] and wanted):
            problems.append(f"nothing was copied: {self._copied}")
        called = time.monotonic_ns()
        rows = _with_identities(log.read(KAFKA_TOPIC, isolation="read_committed", metadata=True))
        self._notes.read(FINAL, "read_committed", 0, rows, called, topic=KAFKA_TOPIC, complete=True)
        return problems


_MANUAL = {"enable.auto.commit": False}


def settle(future: Future[Delivered], error: Any, message: Any) -> None:
    """Take a delivery report. confluent-kafka would replace an error here by a SystemError."""
    if error is None:
        future.set_result(Delivered(message.offset()))
    else:
        future.set_exception(KafkaException(error))


def _one_transaction(producer: Any, write: Callable[[], None], *, aborts: bool) -> str:
    """Write and end a transaction. Return its outcome: committed, aborted or unknown."""
    asked_to_commit = False
    try:
        producer.begin_transaction()
        write()
        if aborts:
            _retried(lambda: producer.abort_transaction(_WAIT_S))
            return "aborted"
        asked_to_commit = True
        _retried(lambda: producer.commit_transaction(_WAIT_S))
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            # Fatal. The next producer with this id aborts its open transaction.
            return "unknown" if asked_to_commit else "aborted"
        try:
            _retried(lambda: producer.abort_transaction(_WAIT_S))
        except KafkaException:
            return "unknown" if asked_to_commit else "aborted"
        return "aborted"
    return "committed"


class CoordinatorLost(Exception):
    """The error for a producer that waits without end for its group's coordinator."""


def _send_offsets(producer: Any, places: list[TopicPartition], group: Any) -> None:
    """Add positions to a transaction.

    If a gateway ends while librdkafka looks for the coordinator, it waits until another connection
    changes, and ignores its timeout (its issue 5456).

    Raises:
        CoordinatorLost: It does not end in time.
    """
    outcome: Future[None] = Future()

    def send() -> None:
        try:
            producer.send_offsets_to_transaction(places, group, _WAIT_S)
        except KafkaException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=send, daemon=True).start()
    try:
        outcome.result(2 * _WAIT_S)
    except TimeoutError:
        raise CoordinatorLost from None


def _retried(call: Callable[[], None]) -> None:
    deadline = time.monotonic() + 2 * _WAIT_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def producer_works(producer: Any, outcome: str) -> bool:
    """Return whether a producer can begin another transaction."""
    if outcome == "unknown":
        return False
    try:
        producer.begin_transaction()
        producer.abort_transaction(_WAIT_S)
    except KafkaException:
        return False
    return True


def _frame(messages: list[Any]) -> pa.Table:
    """Return messages as a table of their places, their writers and their numbers."""
    return pa.table(
        {
            "_topic": [each.topic() for each in messages],
            "_partition": [each.partition() for each in messages],
            "_offset": [each.offset() for each in messages],
            "writer": [each.key().decode() for each in messages],
            "number": [int(each.value()) for each in messages],
        }
    )


def _with_identities(table: pa.Table) -> pa.Table:
    writers, numbers = zip(*_identities(table), strict=True)
    places = table.select(["topic", "partition", "offset"])
    named = places.rename_columns(["_topic", "_partition", "_offset"])
    with_writers = named.append_column("writer", pa.array(writers))
    return with_writers.append_column("number", pa.array(numbers, pa.int64()))


def _identities(table: pa.Table) -> list[tuple[str, int]]:
    """Return the writer and the number of each record."""
    rows = zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    return [(key.decode(), int(value)) for key, value in rows]


def _joined(threads: list[Worker]) -> list[str]:
    deadline = time.monotonic() + _ENDING_S
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    return [each.name for each in threads if each.is_alive()]
