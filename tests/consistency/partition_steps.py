"""The small steps of a partition in memory, and runs of them that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.consistency.partition_model import LAG_MAX, Cluster
from tests.consistency.partition_parts import Process

Step = Callable[[Cluster], None]


def _any(cluster: Cluster, processes: list[Process]) -> Process | None:
    return cluster.choose(processes) if processes else None


def append(cluster: Cluster) -> None:
    leaders = [each for each in cluster.running.values() if each.leads]
    process = _any(cluster, leaders)
    if process is not None:
        cluster.append(process, cluster.choose([1, 1, 2, 5, 0]))


def push(cluster: Cluster) -> None:
    if cluster.links:
        cluster.push(cluster.choose(list(cluster.links.values())), cluster.choose([0, 1, 2, 5]))


def deliver(cluster: Cluster) -> None:
    ways = [
        (way, link)
        for link in cluster.links.values()
        for way, queue in ((cluster.deliver_up, link.up), (cluster.deliver_down, link.down))
        if queue
    ]
    if ways:
        way, link = cluster.choose(ways)
        way(link)


def connect(cluster: Cluster) -> None:
    unconnected = [
        each
        for each in cluster.running.values()
        if not each.leads and each.me.broker not in cluster.links
    ]
    process = _any(cluster, unconnected)
    if process is not None:
        cluster.connect(process)


def connect_again(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.connect(process)


def cut(cluster: Cluster) -> None:
    if cluster.links:
        cluster.cut(cluster.choose(list(cluster.links)))


def see(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.see(process)


def land(cluster: Cluster) -> None:
    if cluster.writes:
        answered = cluster.choose([True, True, True, False])
        cluster.land(cluster.choose(cluster.writes), answered=answered)


def tick(cluster: Cluster) -> None:
    cluster.now += cluster.choose([1, 10, LAG_MAX // 20, LAG_MAX // 4, 2 * LAG_MAX])
    for process in cluster.running.values():
        cluster.obey(process, process.core.tick(cluster.now))


def kill(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.kill(process)


def lose_power(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.lose_power(process)


def start(cluster: Cluster) -> None:
    down = [broker for broker in cluster.brokers if broker not in cluster.running]
    if down:
        cluster.start(cluster.choose(down))


def expire(cluster: Cluster) -> None:
    """A lease expires. Its holder, if it runs, has not detected that yet."""
    if cluster.alive:
        del cluster.alive[cluster.choose(list(cluster.alive))]


def renew(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None and process.me.broker not in cluster.alive:
        cluster.alive[process.me.broker] = process.me.generation


def force(cluster: Cluster) -> None:
    log = cluster.choose(list(cluster.logs.values()))
    log.forced = log.end.entry


def evict(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.evict(process)


def read(cluster: Cluster) -> None:
    process = _any(cluster, list(cluster.running.values()))
    if process is not None:
        cluster.read(process)


WEIGHTS: dict[Step, int] = {
    append: 60,
    push: 120,
    deliver: 240,
    connect: 80,
    connect_again: 4,
    cut: 4,
    see: 80,
    land: 60,
    tick: 25,
    kill: 3,
    lose_power: 1,
    start: 30,
    expire: 5,
    renew: 30,
    force: 30,
    evict: 3,
    read: 30,
    Cluster.elect: 20,
    Cluster.elect_longest: 5,
    Cluster.control: 6,
}


def run(seed: int, steps: int = 600) -> Cluster:
    """A run that the seed decides. AssertionError (or ValueError) if something does not hold."""
    chance = random.Random(seed)
    brokers = chance.choice([1, 2, 3, 3, 4])
    factor = chance.randint(1, min(3, brokers))
    cluster = Cluster(
        brokers, factor, chance.choice([1, 1, 2]), chance.choice, moves=chance.random() < 0.5
    )
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    for step in chance.choices(kinds, weights, k=steps):
        step(cluster)
        cluster.check()
    cluster.check_same()
    cluster.heal()
    return cluster
