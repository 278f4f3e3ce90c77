"""What is amiss in a cluster, from its records alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from msgspec import Struct

from spark_stream.cluster.brokers import BrokerState
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.wire.cluster_messages import BrokerDescription, Problem, ProblemKind

_NAMES_MAX: Final = 20


class Watched(Struct, frozen=True):
    """A partition as ``topic/number``, its record, and its topic's ``min.insync.replicas``."""

    name: str
    record: PartitionRecord
    least_in_sync: int

    @property
    def is_moving(self) -> bool:
        """Whether a move is under way."""
        return bool(self.record.adding or self.record.removing)

    @property
    def lacks_replicas(self) -> bool:
        """Whether a replica is not in sync; those that a move brings are not expected to be."""
        record = self.record
        return any(
            record.member(each) is None for each in record.replicas if each not in record.adding
        )


def find_problems(
    partitions: Sequence[Watched],
    brokers: Sequence[BrokerDescription],
    alive: Alive,
    takers: Set[BrokerId],
) -> list[Problem]:
    """Return what an operator has to look at, the worst first.

    ``takers`` are the brokers that may be given replicas.
    """
    led = [each for each in partitions if each.record.leader in alive]
    found = [
        _of_partitions(
            ProblemKind.NO_LEADER,
            (each for each in partitions if each.record.leader not in alive),
            "without a leader that is alive",
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
    dead = [each for each in brokers if not each.alive and each.replicas]
    found += [
        Problem(
            ProblemKind.DEAD_BROKER,
            f"broker {each.id} is dead; it holds replicas of {_count(each.replicas)}",
            1,
            (each.id,),
        )
        for each in dead
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

    One that a move takes away has its heir already.
    """
    return any(
        broker in staying and takers <= {*staying}
        for staying in (election.staying(each.record) for each in partitions)
    )


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _of_partitions(kind: ProblemKind, those: Iterable[Watched], what: str) -> Problem | None:
    names = [each.name for each in those]
    if not names:
        return None
    return Problem(kind, f"partitions {what}: {len(names)}", len(names), tuple(names[:_NAMES_MAX]))
