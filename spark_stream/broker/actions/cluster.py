"""Handlers of calls on the cluster: its state, its problems, and the brokers of its replicas."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence, Set
from typing import Final

import psutil
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.access.rules import THE_CLUSTER, Operation, ResourceKind
from spark_stream.broker.actions.context import BrokerContext, handles
from spark_stream.broker.scripting.topics import check_stay
from spark_stream.cluster.brokers import BrokerState
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control import election
from spark_stream.consistency.control.assignment import misassigned
from spark_stream.consistency.control.election import Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import VERSION
from spark_stream.errors import InvalidAssignment, InvalidRequest, MetadataLost
from spark_stream.operating_system import own_memory
from spark_stream.scripts.partition_records import change_records, mark_broker
from spark_stream.wire.cluster_messages import (
    BrokerAddress,
    BrokerDescription,
    BrokerList,
    BrokerStatus,
    CancelMoves,
    ClusterDescription,
    Decommission,
    DescribeCluster,
    Elected,
    ElectPreferred,
    GetStatus,
    ListBrokers,
    MoveReplicas,
    Problem,
    ProblemKind,
    Recommission,
    RestoreMetadata,
)

_NAMES_MAX: Final = 20


class Watched(Struct, frozen=True):
    """A partition as ``topic/number``, its record, and its topic's ``min.insync.replicas``.

    ``name`` is None if the caller may not describe the topic. ``is_led``: whether its leader on
    record leads it.
    """

    name: str | None
    record: PartitionRecord
    least_in_sync: int
    is_led: bool

    @property
    def is_moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.record.adding or self.record.removing)

    @property
    def lacks_replicas(self) -> bool:
        """Whether a replica is not in sync, except the replicas that a move adds."""
        record = self.record
        return any(
            record.member(each) is None for each in record.replicas if each not in record.adding
        )


@handles(ListBrokers)
def list_brokers(context: BrokerContext, asked: ListBrokers) -> BrokerList:
    found = context.host.view.now.brokers.values()
    return BrokerList(brokers=[BrokerAddress(id=each.id, address=each.address) for each in found])


def find_problems(
    partitions: Sequence[Watched],
    brokers: Sequence[BrokerDescription],
    takers: Set[BrokerId],
) -> list[Problem]:
    """Return the problems that an operator has to look at, causes before their effects.

    ``takers`` are the brokers that may get replicas.
    """
    dead = [each for each in brokers if not each.alive and each.replicas]
    led = [each for each in partitions if each.is_led]
    found = [
        *(
            Problem(
                ProblemKind.DEAD_BROKER,
                f"broker {each.id} is dead; it holds replicas of {_count(each.replicas)}",
                1,
                (each.id,),
            )
            for each in dead
        ),
        _of_partitions(
            ProblemKind.NO_LEADER,
            (each for each in partitions if not each.is_led),
            "without a leader that is alive and holds its lease",
        ),
        _of_partitions(
            ProblemKind.BELOW_MIN_ISR,
            (
                each
                for each in led
                if len(each.record.isr) < min(each.least_in_sync, len(each.record.replicas))
            ),
            "with fewer in-sync replicas than min.insync.replicas: writes with read_committed fail",
        ),
        _of_partitions(
            ProblemKind.UNDER_REPLICATED,
            (each for each in partitions if each.lacks_replicas),
            "with replicas that are not in sync",
        ),
    ]
    stuck = [
        each.id
        for each in brokers
        if each.state == BrokerState.LEAVING
        and _cannot_leave(BrokerId(each.id), partitions, takers)
    ]
    if stuck:
        which = "broker" if len(stuck) == 1 else "brokers"
        text = f"no broker can take all replicas of {which} {', '.join(stuck)}: start one more"
        found.append(Problem(ProblemKind.CANNOT_LEAVE, text, len(stuck), tuple(stuck)))
    return [each for each in found if each is not None]


def _cannot_leave(broker: BrokerId, partitions: Iterable[Watched], takers: Set[BrokerId]) -> bool:
    """Return whether the broker has a replica that no other broker can take.

    A replica that a move takes away already has a replacement.
    """
    return any(
        broker in staying and takers <= {*staying}
        for staying in (election.staying(each.record) for each in partitions)
    )


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _of_partitions(kind: ProblemKind, those: Iterable[Watched], what: str) -> Problem | None:
    found = [each.name for each in those]
    if not found:
        return None
    names = [each for each in found if each is not None]
    return Problem(kind, f"partitions {what}: {len(found)}", len(found), tuple(names[:_NAMES_MAX]))


@handles(DescribeCluster)
def describe_cluster(context: BrokerContext, asked: DescribeCluster) -> ClusterDescription:
    context.host.contact.try_refresh()
    return known_cluster(context)


def known_cluster(context: BrokerContext) -> ClusterDescription:
    """Return the cluster as this broker observes it, without a read of the records.

    The action `describe-cluster` and the metrics are views of this function.
    """
    now, observed = context.host.view.now, context.observer.observe()
    holder = None if now.controller is None else now.controller.broker
    controller = holder if holder in observed.alive else None
    watched = [
        Watched(
            f"{topic.name}/{number}" if is_shown else None,
            observed.in_sync(stored.record) if is_led else stored.record,
            settings.min_insync_replicas,
            is_led,
        )
        for topic in now.topics.values()
        for is_shown in (context.may_describe(ResourceKind.TOPIC, topic.name),)
        for settings in (context.host.settings_of(topic),)
        for number, stored in now.partitions.get(topic.id, {}).items()
        if number < topic.partitions
        for is_led in (observed.leads(topic.id, number, stored.record),)
    ]
    there = [each.record for each in watched]
    led = [each.record for each in watched if each.is_led]
    alive = observed.alive
    brokers = [
        BrokerDescription(
            id=each.id,
            address=each.address,
            release=each.release,
            rack=each.rack,
            state=each.state.value,
            alive=broker in alive,
            leaders=sum(record.leader == broker for record in led),
            replicas=sum(broker in record.replicas for record in there),
            in_sync=sum(record.member(broker) is not None for record in there)
            if broker in alive
            else 0,
        )
        for broker, each in sorted(now.brokers.items())
    ]
    problems = find_problems(watched, brokers, context.members.takers(alive).keys())
    failure = observed.failure or context.store.write_failure
    if failure is not None and not isinstance(failure, MetadataLost):
        text = f"the metadata store cannot be used ({failure.message}): {failure.hint}"
        problems.insert(0, Problem(ProblemKind.METADATA_AWAY, text, 1))
    if (lost := context.store.lost) is not None:
        text = f"{lost.message}: {lost.hint}"
        problems.insert(0, Problem(ProblemKind.METADATA_LOST, text, 1))
    return ClusterDescription(
        cluster_id=context.facts.cluster_id,
        controller=controller,
        brokers=tuple(brokers),
        topics=len(now.topics),
        partitions=len(there),
        without_leader=len(there) - len(led),
        under_replicated=sum(each.lacks_replicas for each in watched),
        moving=sum(each.is_moving for each in watched),
        problems=tuple(problems),
    )


@handles(MoveReplicas)
def move_replicas(context: BrokerContext, asked: MoveReplicas) -> None:
    context.host.refresh()  # another broker may have changed the topic a moment ago
    topic = context.host.find(asked.topic)
    hosted = context.host.topic(asked.topic, topic.id)
    targets = {}
    for number, brokers in asked.partitions.items():
        hosted.check_number(number)
        wrong = misassigned([brokers], context.members.registered().keys(), first_partition=number)
        if wrong is not None:
            raise InvalidAssignment(
                f"topic {topic.name!r}: {wrong.message}", topic=topic.name, partition=number
            )
        there = context.host.record(topic, number)
        comes = set(brokers) - set(() if there is None else there.replicas)
        check_stay(topic, number, sorted(comes), context.members)
        targets[PartitionId(topic.id, number)] = [BrokerId(each) for each in brokers]
    context.transactions.run(
        change_records(
            list(targets),
            context.host.view_of,
            lambda at, record: election.begin_move(record, targets[at]),
        )
    )


@handles(CancelMoves)
def cancel_moves(context: BrokerContext, asked: CancelMoves) -> None:
    context.host.refresh()
    topic = context.host.find(asked.topic)
    numbers = asked.partitions or range(topic.partitions)
    places = [PartitionId(topic.id, number) for number in numbers]
    alive = context.members.alive()
    context.transactions.run(
        change_records(
            places, context.host.view_of, lambda _, record: election.cancel_move(record, alive)
        )
    )


@handles(ElectPreferred)
def elect_preferred(context: BrokerContext, asked: ElectPreferred) -> Elected:
    context.host.refresh()
    topics: Sequence[Topic] = (
        [context.host.find(asked.topic)]
        if asked.topic
        else list(context.host.view.now.topics.values())
    )
    if asked.topic_ids is not None:
        topics = [each for each in topics if each.id in asked.topic_ids]
    alive = context.members.alive()
    places = [PartitionId(each.id, number) for each in topics for number in range(each.partitions)]
    outcomes = context.transactions.run(
        change_records(
            places, context.host.view_of, lambda _, record: election.prefer(record, alive)
        )
    )
    found = list(outcomes.values())
    obstacles = [each.why for each in found if isinstance(each, Unchanged)]
    return Elected(
        elected=len(found) - len(obstacles), not_in_sync=obstacles.count(Obstacle.NOT_PREFERRED)
    )


@handles(Decommission)
def decommission(context: BrokerContext, asked: Decommission) -> None:
    context.host.refresh()
    others = context.members.takers(context.members.alive()).keys() - {asked.broker}
    if context.members.get(asked.broker) is not None and not others:
        raise InvalidRequest(
            f"broker {asked.broker} is the only one that can keep replicas",
            broker=asked.broker,
            hint="Start another broker first.",
        )
    context.transactions.run(mark_broker(BrokerId(asked.broker), BrokerState.LEAVING))


@handles(Recommission)
def recommission(context: BrokerContext, asked: Recommission) -> None:
    context.transactions.run(mark_broker(BrokerId(asked.broker), BrokerState.ACTIVE))


@handles(RestoreMetadata)
def restore_metadata(context: BrokerContext, asked: RestoreMetadata) -> None:
    context.store.write_back()


@handles(GetStatus)
def status(context: BrokerContext, asked: GetStatus) -> BrokerStatus:
    hosted, checked = context.host.topics(), context.scrub.last
    replicas = context.host.open_replicas()
    free, total = disk_room(context.facts.directory)
    found = BrokerStatus(
        version=VERSION,
        pid=os.getpid(),
        address=context.facts.address,
        directory=context.facts.directory,
        cluster_id=context.facts.cluster_id,
        topics=len(hosted),
        partitions=sum(len(each.replicas) for each in hosted),
        uptime_s=context.clock.monotonic() - context.facts.started,
        memory=_memory(),
        broker_id=context.host.broker_id,
        flight=context.facts.flight,
        checked_ms=None if checked is None else checked.ended_us // 1000,
        damaged={
            each.name: int(each.log.boundary_of(hole).offset)
            for each in replicas
            if (hole := each.log.hole) is not None
        },
        refused={
            each.name: error.code
            for each in replicas
            if each.fitness.trouble is not None and (error := each.fitness.error) is not None
        },
        principal=context.caller.principal,
        principals=context.quotas.use(),
        log_bytes=sum(each.log.size for each in replicas),
        disk_free=free,
        disk_total=total,
        rolled_back=tuple(
            found
            for each in replicas
            if context.may_describe(ResourceKind.TOPIC, each.topic)
            for found in tuple(each.following.rolled_back)
        ),
    )
    if context.authorizer.may(context.caller, Operation.DESCRIBE, THE_CLUSTER):
        return found
    return replace(
        found,
        pid=0,
        directory="",
        topics=0,
        partitions=0,
        memory=0,
        damaged={},
        refused={},
        principals={},
        log_bytes=0,
        disk_free=0,
        disk_total=0,
    )


def disk_room(directory: str) -> tuple[int, int]:
    """Return the free and the total bytes of the directory's file system, else zeros."""
    try:
        found = shutil.disk_usage(directory)
    except OSError:
        return 0, 0
    return found.free, found.total


def _memory() -> int:
    """Return the memory of this process, or 0 at its limit of open files."""
    try:
        return own_memory(psutil.Process())
    except OSError:
        return 0
