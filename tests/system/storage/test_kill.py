"""Repeated kill -9 during writes: acknowledged records are stored once, in order."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import isolog
from isolog.errors import IsologError
from spark_stream.client.values import Written
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from tests.support import BrokerProcess

KILLS = 20
PARTITIONS = 3
SCHEMA = pa.schema([("writer", pa.int32()), ("n", pa.int64())])
SEED = 20261121


@dataclass
class Writer:
    """Appends batches of consecutive numbers to one partition until it is stopped."""

    number: int
    seed: int
    next: int = 0
    asked: list[tuple[int, int, Future[Written]]] = field(default_factory=list)

    def run(self, log: isolog.Log, stop: threading.Event) -> None:
        chance = random.Random(self.seed)
        try:
            with log.producer(timeout_ms=700, buffer_bytes=1 << 20) as producer:
                while not stop.is_set():
                    count = chance.choice([1, 3, 100, 5_000])
                    numbers = pa.array(range(self.next, self.next + count), pa.int64())
                    writers = pa.array([self.number] * count, pa.int32())
                    batch = pa.record_batch([writers, numbers], schema=SCHEMA)
                    future = producer.append("t", batch, partition=self.number % PARTITIONS)
                    self.asked.append((self.next, count, future))
                    self.next += count
                    if chance.random() < 0.3:
                        future.exception(timeout=10)
        except IsologError:
            pass  # the broker was killed. The futures have the outcomes of all batches


@dataclass
class Sender:
    """Sends numbered records one by one, the number as the value, until it is stopped."""

    number: int
    next: int = 0
    asked: list[tuple[int, Future[Written]]] = field(default_factory=list)

    def run(self, log: isolog.Log, stop: threading.Event) -> None:
        try:
            with log.producer(timeout_ms=700) as producer:
                while not stop.is_set():
                    for _ in range(50):
                        if stop.is_set():
                            break
                        value = f"{self.number}:{self.next}"
                        partition = self.number % PARTITIONS
                        future = producer.send("s", value, key="k", partition=partition)
                        self.asked.append((self.next, future))
                        self.next += 1
                    future.exception(timeout=10)
        except IsologError:
            pass


@pytest.mark.chaos
@pytest.mark.full
def test_twenty_kills_during_writes_lose_no_acknowledged_record(tmp_path: Path) -> None:
    print("seed", SEED)
    chance = random.Random(SEED)
    senders = [Sender(number) for number in range(PARTITIONS)]
    writers = [Writer(number, SEED + number) for number in range(2 * PARTITIONS)]
    broker = BrokerProcess(tmp_path / "log")
    config = {"segment.bytes": 1 << 20, "segment.entries": 500}
    with broker:
        with broker.connect() as log:
            log.create_topic("t", PARTITIONS, schema=SCHEMA, config=config)
            log.create_topic("s", PARTITIONS, config=config)
        for _ in range(KILLS):
            stop = threading.Event()
            with broker.connect(timeout=0.5) as log:
                threads = [
                    threading.Thread(target=each.run, args=(log, stop))
                    for each in (*writers, *senders)
                ]
                for thread in threads:
                    thread.start()
                time.sleep(chance.uniform(0.05, 0.5))
                broker.kill()
                stop.set()
                for thread in threads:
                    thread.join(60)
                    assert not thread.is_alive()
            broker.restart()
        with broker.connect() as log:
            topics = [log.describe("t"), log.describe("s")]
            table = log.read("t", metadata=True)
            sent = log.read("s", columns=["value", "partition", "offset"])
        broker.terminate()

    _check(writers, table)
    _check_sent(senders, sent)
    for topic in topics:
        for partition in range(PARTITIONS):
            folder = tmp_path / "log" / "topics" / topic.name / topic.id / str(partition)
            log_on_disk = PartitionLog.open(folder, LogFormat(topic.schema))
            assert log_on_disk.cuts == ()
            log_on_disk.close()


def _check(writers: list[Writer], table: pa.Table) -> None:
    """Check that each acknowledged batch is whole, at its offset, once, and in order."""
    partitions, offsets, who, numbers = (
        table[name].to_numpy() for name in ("_partition", "_offset", "writer", "n")
    )
    starts = np.searchsorted(partitions, np.arange(PARTITIONS))
    assert (offsets == np.arange(len(offsets)) - starts[partitions]).all(), "offsets are not dense"
    acknowledged = 0
    for writer in writers:
        seen = numbers[who == writer.number]
        assert (np.diff(seen) > 0).all(), "a record is duplicated or out of order"
        for first, count, future in writer.asked:
            if future.exception() is not None:
                continue
            written = future.result()
            assert written.count == count
            at = slice(starts[written.partition] + written.offset, None)
            assert (who[at][:count] == writer.number).all()
            assert (numbers[at][:count] == np.arange(first, first + count)).all()
            acknowledged += count
    assert acknowledged > 1_000


def _check_sent(senders: list[Sender], table: pa.Table) -> None:
    """Check that each acknowledged record is at its offset, and that no record is duplicated."""
    at = {
        (partition, offset): value.decode()
        for partition, offset, value in zip(
            *(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True
        )
    }
    values = list(at.values())
    for sender in senders:
        mine = [int(v.partition(":")[2]) for v in values if v.startswith(f"{sender.number}:")]
        assert mine == sorted(set(mine)), "a record is duplicated or out of order"
        acknowledged = [each for each in sender.asked if each[1].exception() is None]
        assert len(acknowledged) > 100
        for number, future in acknowledged:
            written = future.result()
            assert at[written.partition, written.offset] == f"{sender.number}:{number}"
