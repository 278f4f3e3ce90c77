"""Which brokers get the replicas of a topic's partitions: the rules, on the cluster as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from spark_stream.broker.node.members import Members
from spark_stream.cluster.brokers import BrokerState
from spark_stream.cluster.topics import Topic
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control import election
from spark_stream.consistency.control.assignment import (
    Misassigned,
    Misfit,
    assign,
    load_of,
    misassigned,
)
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import InvalidAssignment

FACTOR_MAX: Final = 3
"""The largest replication factor that a topic gets by default."""


def default_factor(members: Members, least: int) -> int:
    """Return the replication factor of a topic that is created without one.

    It is the number of brokers up to three. While some of them are dead, the living ones are
    enough, down to ``least``: the ``min.insync.replicas`` of the topic.
    """
    alive = len(members.takers(members.alive()))
    return min(_usual_factor(members), max(least, alive))


def _usual_factor(members: Members) -> int:
    """Return the default replication factor while all brokers are alive."""
    return min(FACTOR_MAX, max(1, members.count_staying()))


def missing_replicas_warning(topic: Topic, members: Members) -> str | None:
    """Return a warning if a new topic has fewer replicas because brokers are dead."""
    usual = _usual_factor(members)
    if topic.replication_factor >= usual:
        return None
    alive = members.alive()
    dead = [BrokerId(each.id) for each in members.brokers() if BrokerId(each.id) not in alive]
    why = _in_words(sorted(dead), "not alive") or "a broker was not alive"
    return (
        f"topic {topic.name!r} has {topic.replication_factor} of the usual {usual} replicas of each"
        f" partition ({why}): add the others with `isolog topic move` when all brokers are alive"
    )


def lone_replica_warning(topic: Topic, members: Members) -> str | None:
    """Return a warning if the topic has one replica though the cluster has several brokers."""
    brokers = members.count_staying()
    if topic.replication_factor > 1 or brokers < 2:
        return None
    return (
        f"topic {topic.name!r} has one replica of each partition, on a cluster of {brokers}"
        " brokers: while a broker is away, its partitions cannot be read or written; if its disk is"
        " lost, so are their records"
    )


def placed(
    topic: Topic, partitions: int, view: ClusterView, members: Members
) -> Sequence[PartitionRecord]:
    """Return the first records of new partitions of the topic, spread over the brokers.

    Raises:
        InvalidAssignment: fewer brokers can take a replica than the topic has replicas.
    """
    there = [each for found in view.now.partitions.values() for each in found.values()]
    load = load_of(each.record.replicas for each in there)
    found = assign(partitions, topic.replication_factor, members.takers(members.alive()), load)
    if isinstance(found, Misassigned):
        raise _too_few(topic, found, members) or _refused(topic, found)
    return _records(topic, found, members)


def _too_few(topic: Topic, wrong: Misassigned, members: Members) -> InvalidAssignment | None:
    """Return the error that names dead and leaving brokers, or None if they are not the reason."""
    alive = members.alive()
    takers = members.takers(alive)
    others = [each for each in sorted(members.registered()) if each not in takers]
    enough = len(takers) + len(others) >= topic.replication_factor
    if wrong.why is not Misfit.TOO_MANY_REPLICAS or not others or not enough:
        return None
    dead = [each for each in others if each not in alive]
    leaving = [each for each in others if each in alive]
    why = [_in_words(dead, "not alive"), _in_words(leaving, "leaving")]
    return InvalidAssignment(
        "; ".join([f"topic {topic.name!r}: {wrong.message}", *filter(None, why)]),
        topic=topic.name,
        broker=", ".join(others),
        hint=_START if dead else _KEEP,
    )


_START: Final = "Start it again, or ask for fewer replicas and move some there when it is back."
_KEEP: Final = "Keep it (`isolog cluster recommission`), start another, or ask for fewer replicas."


def _in_words(brokers: Sequence[BrokerId], state: str) -> str:
    names = ", ".join(repr(str(each)) for each in brokers)
    if not names:
        return ""
    return f"broker {names} is {state}" if len(brokers) == 1 else f"brokers {names} are {state}"


def placed_by_hand(
    topic: Topic, assignment: Sequence[Sequence[str]], members: Members, first: int = 0
) -> Sequence[PartitionRecord]:
    """Return the first records of partitions whose brokers an operator chose.

    Raises:
        InvalidAssignment: it names the partition, and the broker that cannot be chosen.
    """
    wrong = misassigned(assignment, members.registered().keys(), first_partition=first)
    if wrong is not None:
        raise _refused(topic, wrong)
    _check_alive(topic, assignment, members, first)
    for number, replicas in enumerate(assignment, first):
        check_stay(topic, number, replicas, members)
    return _records(topic, [tuple(map(BrokerId, each)) for each in assignment], members)


def check_stay(topic: Topic, number: int, brokers: Iterable[str], members: Members) -> None:
    """Raise InvalidAssignment for a decommissioned broker: it would give the replica away again."""
    for broker in brokers:
        found = members.get(broker)
        if found is not None and found.state is BrokerState.LEAVING:
            hint = "Name brokers that stay; `isolog cluster status` shows them."
            raise _unfit(topic, number, broker, "leaving", hint)


def _check_alive(
    topic: Topic, assignment: Sequence[Sequence[str]], members: Members, first: int
) -> None:
    """Check that all brokers live: each makes the topic's folder before the topic exists."""
    alive = members.alive()
    for number, replicas in enumerate(assignment, first):
        dead = next((each for each in replicas if BrokerId(each) not in alive), None)
        if dead is not None:
            hint = "Name brokers that are alive; move replicas to the other when it is back."
            raise _unfit(topic, number, dead, "not alive", hint)


def _unfit(topic: Topic, number: int, broker: str, state: str, hint: str) -> InvalidAssignment:
    return InvalidAssignment(
        f"topic {topic.name!r}: partition {number}: broker {broker!r} is {state}",
        topic=topic.name,
        partition=number,
        broker=broker,
        hint=hint,
    )


def _records(
    topic: Topic, assignment: Iterable[tuple[BrokerId, ...]], members: Members
) -> list[PartitionRecord]:
    alive = members.alive()
    records = []
    for number, replicas in enumerate(assignment):
        record = election.create(replicas, alive)
        if record is None:
            raise InvalidAssignment(
                f"topic {topic.name!r}: no broker of {', '.join(replicas)} is alive"
                f" (partition {number})",
                topic=topic.name,
                partition=number,
            )
        records.append(record)
    return records


def _refused(topic: Topic, wrong: Misassigned) -> InvalidAssignment:
    details: dict[str, Any] = {"partition": wrong.partition, "broker": wrong.broker}
    known = {name: value for name, value in details.items() if value is not None}
    hint = "Start more brokers, or ask for fewer replicas."
    return InvalidAssignment(
        f"topic {topic.name!r}: {wrong.message}",
        topic=topic.name,
        hint=hint if wrong.why is Misfit.TOO_MANY_REPLICAS else None,
        **known,
    )
