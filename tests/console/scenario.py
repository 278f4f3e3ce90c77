"""A cluster of three brokers with all states that the console shows.

Topic ``flights`` is written to continuously. A load of it was aborted, and another is open. The
leader of ``fares`` was isolated with unreplicated records, was killed, and returned, so these
records were rolled back. ``departures`` is a query that keeps up, ``nightly`` is a stalled query.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from datetime import UTC, datetime

import pyarrow as pa

from isolog.testing import LocalCluster
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.topics import TopicsClient
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.lake_worker.worker import LakeWorker
from spark_stream.wire.consumer_messages import PinStart, ReaderHeartbeat, RecordProgress
from spark_stream.wire.transaction_messages import CommitTransaction, OpenBranch
from tests.support import eventually

SCHEMA = (
    "carrier string not null, flight int, origin string, dep_delay double, tags array<string>,"
    " departed timestamp"
)
CONF = {"lease_seconds": 2.0}


def flights(count: int) -> pa.RecordBatch:
    chosen = random.Random(count)
    return pa.record_batch(
        {
            "carrier": pa.array([chosen.choice(["UA", "AA", "DL", "B6"]) for _ in range(count)]),
            "flight": pa.array([chosen.randrange(1, 6000) for _ in range(count)], pa.int32()),
            "origin": pa.array([chosen.choice(["JFK", "EWR", "LGA", None]) for _ in range(count)]),
            "dep_delay": pa.array([round(chosen.gauss(12, 35), 1) for _ in range(count)]),
            "tags": pa.array(
                [chosen.choice([["late"], ["late", "winter"], []]) for _ in range(count)],
                pa.list_(pa.string()),
            ),
            "departed": pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")),
        }
    )


class Scenario:
    """The cluster, and the threads that write to it and read from it."""

    def __init__(self) -> None:
        racks = ["rack-a", "rack-b", "rack-c"]
        self.cluster = LocalCluster(3, racks=racks, conf=CONF)
        self.log = self.cluster.connect(timeout=60)
        self._connection = ClusterConnection(self.cluster.bootstrap)
        self._topics = TopicsClient(self._connection)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def begin(self) -> None:
        """Create all states."""
        log = self.log
        log.create_topic("flights", 3, 3, schema=SCHEMA, config={"partition.by": "carrier"})
        log.create_topic("fares", 1, 3, schema="fare double")
        log.create_topic("greetings", 2, 3)
        self._write()
        self._roll_back()
        self._transactions()
        self._sink()
        self._lakes()
        self.member = log.consumer("greetings", group="mailing", processing_timeout=3_600)
        self.member.poll(30)
        log.reset_consumer("importer", "earliest", topics="greetings")
        self._threads = [
            threading.Thread(target=self._guarded, args=(each,), daemon=True)
            for each in (self._load, self._follow)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _write(self) -> None:
        with self.log.producer(isolation="read_committed") as producer:
            for number in range(3):
                producer.append("flights", flights(400 + number), partition=number)
            producer.append("fares", pa.record_batch({"fare": [float(n) for n in range(40)]}))
            producer.send("greetings", "hello", key=b"en", headers=[("lang", b"en")])
            producer.send("greetings", b"\xff\xfe\x00", key=b"raw")

    def _roll_back(self) -> None:
        """Kill the leader of ``fares`` while it has 17 unreplicated records."""
        leader = self.cluster.leader("fares")
        self.cluster.cut_off(leader)
        with self.cluster.connect(timeout=20) as log, log.producer() as producer:
            future = producer.append("fares", pa.record_batch({"fare": [-1.0] * 17}), partition=0)
            assert future.result(20).offset == 40
        self.cluster.kill(leader)

        def is_led() -> bool:
            found = self.log.describe("fares").partitions[0]
            return found.leader not in (None, str(leader)) and found.error is None

        eventually(is_led, 60)
        self.cluster.heal()  # now, because the held back data belongs to an old epoch
        with self.log.producer(isolation="read_committed") as producer:
            producer.append("fares", pa.record_batch({"fare": [1.0, 2.0]})).result(30)
        self.cluster.restart(leader)

    def _transactions(self) -> None:
        with self.log.producer(transactional_id="wrong-load") as producer:
            producer.begin_transaction()
            producer.append("flights", flights(12), partition=0)
            producer.flush()
            producer.abort_transaction()
        self.loader = self.log.producer(
            transactional_id="loader-1", transaction_timeout_ms=7_200_000
        )
        self.loader.begin_transaction()
        for number in (0, 2):
            self.loader.append("flights", flights(30), partition=number)
        self.loader.flush()

    def _sink(self) -> None:
        for batch in range(3):
            asked = OpenBranch(
                transactional_id="sink/departures", query="departures", instance="run", batch=batch
            )
            branch = self._connection.call(asked)
            self._connection.call(
                CommitTransaction(
                    transactional_id="sink/departures",
                    instance="run",
                    number=branch.number,
                    branches=(branch.producer_id,),
                    batch=batch,
                )
            )

    def _lakes(self) -> None:
        """Copy ``greetings`` into ``archive``. The worker of ``broken`` has stopped."""
        self.folder = tempfile.TemporaryDirectory(prefix="isolog-lakes-")
        self.log.create_lake("archive", "greetings", self.folder.name)
        LakeWorker(self.log, "archive").run_once()
        broken = self.log.create_lake("broken", "fares", "/nowhere/broken", check=False)
        self.log._lakes.record_progress("broken", broken.id, {}, "an older copy was restored")

    def _load(self) -> None:
        with self.cluster.connect(timeout=120) as log, log.producer() as producer:
            while not self._over.wait(0.25):
                for number in range(3):
                    producer.append("flights", flights(random.randrange(2, 9)), partition=number)
                producer.flush()

    def _follow(self) -> None:
        """Report positions like queries: ``departures`` keeps up, ``nightly`` is stalled."""
        selection = json.dumps({"subscribe": "flights"})
        for name in ("departures", "nightly"):
            start = json.dumps({"flights": {"0": 0, "1": 0, "2": 0}})
            self._connection.call(
                PinStart(
                    consumer=name,
                    instance="run",
                    selection=selection,
                    isolation=Isolation.READ_COMMITTED,
                    starting="earliest",
                    start=start,
                )
            )
        topic_id = self.log.describe("flights").id
        beats = 0
        while not self._over.wait(0.5):
            ends = self._topics.offsets("flights", isolation=Isolation.READ_COMMITTED).offsets
            for name, offsets in (("departures", ends), ("nightly", dict.fromkeys(ends, 100))):
                positions = [
                    ReadPosition(topic="flights", topic_id=topic_id, partition=number, offset=at)
                    for number, at in offsets.items()
                ]
                if beats % 10 == 0:
                    self._beat(name, idle_ms=200_000 if name == "nightly" else 0)
                self._connection.call(
                    RecordProgress(
                        consumer=name,
                        instance="run",
                        selection=selection,
                        isolation=Isolation.READ_COMMITTED,
                        positions=positions,
                    )
                )

            beats += 1

    def _beat(self, name: str, idle_ms: int) -> None:
        asked = ReaderHeartbeat(
            consumer=name,
            kind="query",
            instance="run",
            session_ms=45_000,
            isolation=Isolation.READ_COMMITTED,
            idle_ms=idle_ms,
        )
        self._connection.call(asked)

    def close(self) -> None:
        """End the threads and the cluster."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self._connection.close()
        self.folder.cleanup()
        self.log.close()
        self.cluster.close()


if __name__ == "__main__":  # for inspection of the console
    scenario = Scenario()
    try:
        scenario.begin()
        print(scenario.cluster.bootstrap, flush=True)
        while not scenario.failures:
            time.sleep(1)
        raise scenario.failures[0]
    finally:
        scenario.close()
