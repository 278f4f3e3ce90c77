"""Killed, stopped, paused or partitioned brokers lose no record and store no duplicate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import isolog
from isolog.testing import LocalCluster
from spark_stream.client.values import Written
from tests.support import NUMBERS, eventually, numbers
from tests.system.replication.clusters import (
    WAIT_S,
    append_replicated,
    await_equal_copies,
    await_in_sync,
    partition,
    read,
    restore,
)

pytestmark = pytest.mark.chaos

Strike = Callable[[LocalCluster, int], None]
STRIKES: dict[str, Strike] = {
    "killed": lambda cluster, number: cluster.kill(number),
    "stopped": lambda cluster, number: cluster.stop(number),
    "paused": lambda cluster, number: cluster.pause(number),
    "cut off": lambda cluster, number: cluster.cut_off(number),
}
MANY = 5  # batches acknowledged before and after each strike


class Load:
    """A producer that writes consecutive numbers until :meth:`end`."""

    def __init__(self, log: isolog.Log, topic: str, isolation: str) -> None:
        self.futures: list[Future[Written]] = []
        self._producer = log.producer(isolation=isolation, timeout_ms=60_000)
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            number = len(self.futures)
            self.futures.append(self._producer.append(self._topic, numbers(number, 1), 0))

    def acknowledged(self) -> int:
        return sum(each.done() for each in list(self.futures))

    def await_progress(self) -> None:
        """Wait until records sent after this call are acknowledged."""
        until = len(self.futures) + MANY
        eventually(lambda: self.acknowledged() >= until, WAIT_S)

    def end(self) -> int:
        """Stop, and wait for all acknowledgements. Return their number."""
        self._stop.set()
        self._thread.join()
        for each in self.futures:
            each.result(WAIT_S)
        self._producer.close()
        return len(self.futures)


def strike_under_load(
    cluster: LocalCluster, topic: str, strike: Strike, leaders: list[bool]
) -> None:
    """Strike and restore brokers in turn under load. Check that each record is stored once."""
    with cluster.connect(timeout=60) as log:
        log.create_topic(topic, 1, 3, schema=NUMBERS, config={"replica.lag.time.max.ms": 1000})
        load = Load(log, topic, "read_committed")
        try:
            for leads in leaders:
                load.await_progress()
                leader = cluster.leader(topic)
                number = leader if leads else leader % 3 + 1
                strike(cluster, number)
                load.await_progress()
                if leads and strike is not STRIKES["cut off"]:
                    assert partition(log, topic).leader != str(number)
                restore(cluster)
                await_isr_under_load(log, topic)
        finally:
            restore(cluster)
            count = load.end()
        await_in_sync(log, topic)
        assert [each.result(0).offset for each in load.futures] == list(range(count))
        for level in ("read_committed", "read_uncommitted"):
            assert read(log, topic, level) == list(range(count))
    await_equal_copies(cluster, topic)


def await_isr_under_load(log: isolog.Log, topic: str) -> None:
    eventually(lambda: len(partition(log, topic).isr) == 3, WAIT_S)


def strikes_with(*first: str) -> list[Any]:
    """Return all strikes. Only `make test-all` runs those that are not among ``first``."""
    return [how if how in first else pytest.param(how, marks=pytest.mark.full) for how in STRIKES]


@pytest.mark.parametrize("how", strikes_with("killed", "cut off"))
def test_leader_failure_loses_and_duplicates_no_record(cluster, topic, how):
    strike_under_load(cluster, topic, STRIKES[how], [True])


@pytest.mark.parametrize("how", strikes_with("killed"))
def test_follower_failure_loses_and_duplicates_no_record(cluster, topic, how):
    strike_under_load(cluster, topic, STRIKES[how], [False])


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_failures_in_turn_lose_and_duplicate_no_record(cluster, topic, how):
    strike_under_load(cluster, topic, STRIKES[how], [True, False, True])


def test_committed_records_survive_the_kill_of_all_brokers(cluster, log, topic):
    log.create_topic(topic, 3, 3, schema=NUMBERS)
    for number in range(3):
        append_replicated(log, topic, 100 * number, 50, number)
    for number in cluster.brokers:
        cluster.kill(number)
    restore(cluster)
    await_in_sync(log, topic)
    assert read(log, topic) == [n + 100 * part for part in range(3) for n in range(50)]
    for number in range(3):
        await_equal_copies(cluster, topic, number)


def test_follower_partitioned_from_its_leader_leaves_the_isr_and_rejoins(cluster, log, topic):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config={"replica.lag.time.max.ms": 500})
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    leader = cluster.leader(topic)
    follower = leader % 3 + 1
    cluster.cut(leader, follower)
    append_replicated(log, topic, 5, 5)  # acknowledged after the follower has left the ISR
    assert str(follower) not in partition(log, topic).isr
    assert cluster.leader(topic) == leader
    cluster.heal(leader, follower)
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
    assert read(log, topic) == list(range(10))


@pytest.mark.full  # simulated pauses: tests/simulation/test_simulator.py
def test_resumed_leader_serves_no_request_of_its_old_epoch(cluster, log, topic):
    """It must redirect its old clients to the new leader."""
    log.create_topic(topic, 1, 3, schema=NUMBERS)
    append_replicated(log, topic, 0, 5)
    await_in_sync(log, topic)
    old = cluster.leader(topic)
    with cluster.connect(timeout=60) as late, late.producer(timeout_ms=60_000) as producer:
        producer.append(topic, numbers(5, 1), 0).result(WAIT_S)
        await_in_sync(log, topic)  # only the leader has acknowledged it, so it is replicated first
        cluster.pause(old)
        eventually(lambda: partition(log, topic).leader not in (None, str(old)))
        append_replicated(log, topic, 6, 4)
        cluster.resume(old)
        assert producer.append(topic, numbers(10, 1), 0).result(WAIT_S).offset == 10
        assert read(late, topic, "read_uncommitted") == list(range(11))
    await_in_sync(log, topic)
    await_equal_copies(cluster, topic)
