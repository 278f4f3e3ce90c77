"""The assignment of partitions' replicas to brokers, and the check of manual assignments.

The goals of :func:`assign`, the most important first:

1. a partition's replicas are on different brokers,
2. they are in as many racks as there are, or as there are replicas,
3. the brokers' numbers of replicas differ by one at most, and so do their numbers of leaders (the
   first replica of a partition is its preferred leader), existing ones included,
4. the followers of a leader's partitions are spread over many brokers, and so are the first
   followers, so that many brokers take over its partitions when it dies.

Goal 2 wins over goal 3 where racks differ in size. Both count the replicas that exist already: a
broker that has fewer than the others is filled first.

Source: Kafka's replica placer (racks first, then brokers).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise, permutations

from msgspec import Struct, field

from spark_stream.consistency.ids import BrokerId

Assignment = tuple[tuple[BrokerId, ...], ...]
"""The replicas of each partition from 0 on, the preferred leader first."""

Racks = Mapping[BrokerId, str | None]
"""The brokers that may get replicas, with their racks. One without (None) is its own rack."""


class Misfit(StrEnum):
    """The fault of an assignment."""

    NO_PARTITIONS = "no partitions"
    NO_REPLICAS = "no replicas"
    TOO_MANY_REPLICAS = "too many replicas"
    UNKNOWN_BROKER = "unknown broker"
    REPEATED_BROKER = "repeated broker"
    DIFFERENT_LENGTHS = "different lengths"


class Misassigned(Struct, frozen=True):
    """An assignment that is not possible. ``message`` explains it to a person.

    ``partition`` and ``broker`` are set if one of them is the cause.
    """

    why: Misfit
    message: str
    partition: int | None = None
    broker: BrokerId | None = None


class Load(Struct):
    """The number of replicas, preferred leaders and shared partitions of each broker.

    ``heirs`` counts, for a (leader, broker) pair, the partitions of the leader in which the broker
    is the first follower.
    """

    replicas: Counter[BrokerId] = field(default_factory=Counter)
    leaders: Counter[BrokerId] = field(default_factory=Counter)
    shared: Counter[tuple[BrokerId, BrokerId]] = field(default_factory=Counter)
    heirs: Counter[tuple[BrokerId, BrokerId]] = field(default_factory=Counter)

    def add(self, replicas: Sequence[BrokerId]) -> None:
        """Count one more partition with these replicas."""
        self.replicas.update(replicas)
        self.leaders.update(replicas[:1])
        self.shared.update(permutations(replicas, 2))
        self.heirs.update(pairwise(replicas[:2]))

    def remove(self, replicas: Sequence[BrokerId]) -> None:
        """Count one partition fewer with these replicas."""
        self.replicas.subtract(replicas)
        self.leaders.subtract(replicas[:1])
        self.shared.subtract(permutations(replicas, 2))
        self.heirs.subtract(pairwise(replicas[:2]))


def load_of(partitions: Iterable[Sequence[BrokerId]]) -> Load:
    """Return the load of these partitions."""
    load = Load()
    for replicas in partitions:
        load.add(replicas)
    return load


def assign(partitions: int, factor: int, racks: Racks, load: Load) -> Assignment | Misassigned:
    """Choose ``factor`` replicas for each new partition, and add them to ``load``."""
    if partitions < 1:
        return Misassigned(Misfit.NO_PARTITIONS, f"{partitions} partitions: at least one is needed")
    wrong = _wrong_factor(factor, racks)
    if wrong is not None:
        return wrong
    found = []
    for _ in range(partitions):
        chosen: list[BrokerId] = []
        while len(chosen) < factor:
            chosen.append(_next_replica(chosen, racks, load))
        # The broker with the fewest preferred leaderships comes first.
        first = min(chosen, key=lambda broker: (load.leaders[broker], chosen.index(broker)))
        others = (broker for broker in chosen if broker != first)
        replicas = (first, *sorted(others, key=lambda broker: (load.heirs[first, broker], broker)))
        load.add(replicas)
        found.append(replicas)
    return tuple(_with_even_leaders(found, load))


def replace_broker(
    replicas: Sequence[BrokerId], leaving: BrokerId, racks: Racks, load: Load
) -> tuple[BrokerId, ...] | Misassigned:
    """Replace the leaving broker among the replicas by another, and update ``load``.

    ``racks`` are the brokers that may take over. The leaving one is ignored there.
    """
    stay = [broker for broker in replicas if broker != leaving]
    others = {broker: rack for broker, rack in racks.items() if broker != leaving}
    if not set(others) - set(stay):
        message = f"no broker is left to take the place of {leaving!r} beside {_named(stay)}"
        return Misassigned(Misfit.TOO_MANY_REPLICAS, message, broker=leaving)
    heir = _next_replica(stay, others, load)
    found = tuple(heir if broker == leaving else broker for broker in replicas)
    load.remove(replicas)
    load.add(found)
    return found


def misassigned(
    assignment: Sequence[Sequence[str]], brokers: Collection[str], *, first_partition: int = 0
) -> Misassigned | None:
    """Return the first fault of manually chosen replicas, or None."""
    if not assignment:
        return Misassigned(Misfit.NO_PARTITIONS, "the assignment names no partition")
    for number, replicas in enumerate(assignment, first_partition):
        where = f"partition {number}"
        if not replicas:
            return Misassigned(Misfit.NO_REPLICAS, f"{where} gets no replica", number)
        if len(replicas) != len(assignment[0]):
            message = (
                f"partitions {first_partition} and {number} differ in their number of replicas"
                f" ({len(assignment[0])} and {len(replicas)}): a topic has one for all"
            )
            return Misassigned(Misfit.DIFFERENT_LENGTHS, message, number)
        for place, broker in enumerate(replicas):
            if broker not in brokers:
                message = f"{where}: there is no broker {broker!r}; there are {_named(brokers)}"
                return Misassigned(Misfit.UNKNOWN_BROKER, message, number, BrokerId(broker))
            if broker in replicas[:place]:
                message = f"{where} names broker {broker!r} twice"
                return Misassigned(Misfit.REPEATED_BROKER, message, number, BrokerId(broker))
    return None


def _wrong_factor(factor: int, racks: Racks) -> Misassigned | None:
    if factor < 1:
        return Misassigned(
            Misfit.NO_REPLICAS, f"the replication factor is 1 at least, not {factor}"
        )
    if factor > len(racks):
        message = f"a replication factor of {factor} needs as many brokers; {_count(racks)}"
        return Misassigned(Misfit.TOO_MANY_REPLICAS, message)
    return None


def _next_replica(chosen: Sequence[BrokerId], racks: Racks, load: Load) -> BrokerId:
    """Choose the broker for one more replica of a partition that has the replicas ``chosen``."""
    used = Counter(_rack(broker, racks) for broker in chosen)
    return min(
        (broker for broker in racks if broker not in chosen),
        key=lambda broker: (
            used[_rack(broker, racks)],
            load.replicas[broker],
            sum(load.shared[broker, other] for other in chosen),
            load.leaders[broker],
            broker,
        ),
    )


def _rack(broker: BrokerId, racks: Racks) -> tuple[str, str]:
    """Return the broker's rack, or the broker itself if it has none (or is unknown)."""
    rack = racks.get(broker)
    return ("rack", rack) if rack is not None else ("broker", broker)


def _with_even_leaders(
    assignment: list[tuple[BrokerId, ...]], load: Load
) -> list[tuple[BrokerId, ...]]:
    """Reorder the replicas so that the brokers' numbers of preferred leaders differ least.

    A broker that leads two more than another hands one over, through other brokers if necessary.
    """
    led = defaultdict[BrokerId, list[int]](list)
    for number, replicas in enumerate(assignment):
        led[replicas[0]].append(number)
    busiest = sorted(led, key=lambda broker: -load.leaders[broker])
    while busiest:
        path = _path_to_idler(busiest[0], assignment, led, load)
        if not path:
            busiest.pop(0)
        for number, heir in path:
            replicas = assignment[number]
            led[replicas[0]].remove(number)
            led[heir].append(number)
            load.remove(replicas)
            replicas = (heir, *(broker for broker in replicas if broker != heir))
            load.add(replicas)
            assignment[number] = replicas
    return assignment


def _path_to_idler(
    begin: BrokerId,
    assignment: Sequence[Sequence[BrokerId]],
    led: Mapping[BrokerId, list[int]],
    load: Load,
) -> list[tuple[int, BrokerId]]:
    """Return moves of leadership from ``begin`` to a broker that leads at least two fewer.

    Each is a partition and its new leader, the last move first, or empty if there is no such path.
    """
    came: dict[BrokerId, tuple[int, BrokerId]] = {}
    reached = deque([begin])
    while reached:
        broker = reached.popleft()
        if load.leaders[broker] <= load.leaders[begin] - 2:
            path = []
            while broker != begin:
                number, before = came[broker]
                path.append((number, broker))
                broker = before
            return path
        for number in led.get(broker, ()):
            for heir in assignment[number]:
                if heir != begin and heir not in came:
                    came[heir] = (number, broker)
                    reached.append(heir)
    return []


def _named(brokers: Iterable[str]) -> str:
    return ", ".join(sorted(brokers)) or "none"


def _count(racks: Racks) -> str:
    return f"there are {len(racks)} ({_named(racks)})" if len(racks) != 1 else "there is one"
