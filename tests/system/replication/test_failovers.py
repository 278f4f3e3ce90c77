"""Leaders and followers that die, end, stand still or are cut off: nothing is lost or repeated."""

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
    copies_are_equal,
    in_sync,
    partition,
    read,
    restored,
    written,
)

pytestmark = pytest.mark.chaos

Strike = Callable[[LocalCluster, int], None]
STRIKES: dict[str, Strike] = {
    "killed": lambda cluster, number: cluster.kill(number),
    "stopped": lambda cluster, number: cluster.stop(number),
    "paused": lambda cluster, number: cluster.pause(number),
    "cut off": lambda cluster, number: cluster.cut_off(number),
}
MANY = 5  # batches that are acknowledged before and after each strike


class Load:
    """A producer that writes one number after the other, until :meth:`end`."""

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

    def goes_on(self) -> None:
        """Waits until records that were sent from now on are acknowledged."""
        until = len(self.futures) + MANY
        eventually(lambda: self.acknowledged() >= until, WAIT_S)

    def end(self) -> int:
        """Stops, and waits for all acknowledgements; how many there are."""
        self._stop.set()
        self._thread.join()
        for each in self.futures:
            each.result(WAIT_S)
        self._producer.close()
        return len(self.futures)


def struck(cluster: LocalCluster, topic: str, strike: Strike, leaders: list[bool]) -> None:
    """Writes while brokers are struck, one after the other, and come back: all is there once."""
    with cluster.connect(timeout=60) as log:
        log.create_topic(topic, 1, 3, schema=NUMBERS, config={"replica.lag.time.max.ms": 1000})
        load = Load(log, topic, "read_committed")
        try:
            for leads in leaders:
                load.goes_on()
                leader = cluster.leader(topic)
                number = leader if leads else leader % 3 + 1
                strike(cluster, number)
                load.goes_on()
                if leads and strike is not STRIKES["cut off"]:
                    assert partition(log, topic).leader != str(number)
                restored(cluster)
                in_sync_under_load(log, topic)
        finally:
            restored(cluster)
            count = load.end()
        in_sync(log, topic)
        assert [each.result(0).offset for each in load.futures] == list(range(count))
        for level in ("read_committed", "read_uncommitted"):
            assert read(log, topic, level) == list(range(count))
    copies_are_equal(cluster, topic)


def in_sync_under_load(log: isolog.Log, topic: str) -> None:
    eventually(lambda: len(partition(log, topic).isr) == 3, WAIT_S)


def only(*first: str) -> list[Any]:
    """All strikes; those that are not among the first are for `make test-all`."""
    return [how if how in first else pytest.param(how, marks=pytest.mark.full) for how in STRIKES]


@pytest.mark.parametrize("how", only("killed", "cut off"))
def test_nothing_is_lost_or_repeated_when_a_leader_is(cluster, topic, how):
    struck(cluster, topic, STRIKES[how], [True])


@pytest.mark.parametrize("how", only("killed"))
def test_nothing_is_lost_or_repeated_when_a_follower_is(cluster, topic, how):
    struck(cluster, topic, STRIKES[how], [False])


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_nothing_is_lost_or_repeated_when_leader_and_follower_in_turn_are(cluster, topic, how):
    struck(cluster, topic, STRIKES[how], [True, False, True])


def test_all_brokers_are_killed_at_once_and_what_was_committed_is_there(cluster, log, topic):
    log.create_topic(topic, 3, 3, schema=NUMBERS)
    for number in range(3):
        written(log, topic, 100 * number, 50, number)
    for number in cluster.brokers:
        cluster.kill(number)
    restored(cluster)
    in_sync(log, topic)
    assert read(log, topic) == [n + 100 * part for part in range(3) for n in range(50)]
    for number in range(3):
        copies_are_equal(cluster, topic, number)


def test_a_follower_that_is_cut_off_from_its_leader_alone_leaves_the_isr_and_comes_back(
    cluster, log, topic
):
    log.create_topic(topic, 1, 3, schema=NUMBERS, config={"replica.lag.time.max.ms": 500})
    written(log, topic, 0, 5)
    in_sync(log, topic)
    leader = cluster.leader(topic)
    follower = leader % 3 + 1
    cluster.cut(leader, follower)
    written(log, topic, 5, 5)  # it waits until the follower is out; the others are enough
    assert str(follower) not in partition(log, topic).isr
    assert cluster.leader(topic) == leader
    cluster.heal(leader, follower)
    in_sync(log, topic)
    copies_are_equal(cluster, topic)
    assert read(log, topic) == list(range(10))


def test_a_leader_that_stood_still_serves_nothing_of_its_old_epoch(cluster, log, topic):
    """Its clients meet it again: it must send them on, not answer from its past."""
    log.create_topic(topic, 1, 3, schema=NUMBERS)
    written(log, topic, 0, 5)
    in_sync(log, topic)
    old = cluster.leader(topic)
    with cluster.connect(timeout=60) as late, late.producer(timeout_ms=60_000) as producer:
        producer.append(topic, numbers(5, 1), 0).result(WAIT_S)
        in_sync(log, topic)  # the leader alone has acknowledged it: a new one would lack it
        cluster.pause(old)
        eventually(lambda: partition(log, topic).leader not in (None, str(old)))
        written(log, topic, 6, 4)
        cluster.resume(old)
        assert producer.append(topic, numbers(10, 1), 0).result(WAIT_S).offset == 10
        assert read(late, topic, "read_uncommitted") == list(range(11))
    in_sync(log, topic)
    copies_are_equal(cluster, topic)
