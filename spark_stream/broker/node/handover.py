"""Hand-overs of leadership to other brokers.

A broker hands over at a clean shutdown, when its log refuses writes, and when another broker is
the preferred leader.

Order of steps:

1. This broker has the other in-sync replicas probe their own logs (``ProbeReplica``).
2. It refuses appends. For a while, the followers fetch the entries that they still lack.
3. The records name other leaders, one compare-and-set each.

Entries that a new leader lacks are truncated later. They were never acknowledged as replicated. A
partition without another possible leader stays.

When a replica in trouble hands over, and when a preferred leader leads again, are rules of
``consistency.control.handover``. No entry is given up for a preferred leader, so a partition whose
followers do not catch up in time stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from contextlib import nullcontext
from typing import Final, NamedTuple

from msgspec.structs import replace

from spark_stream.broker.host.host import Host
from spark_stream.broker.node.members import Members
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.control.handover import Settling, after_look, due_handovers, has_heir
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.environment import Clock
from spark_stream.errors import IsologError, TooManyOpenFiles
from spark_stream.loggers import logger_of
from spark_stream.scripts.partition_records import change_records
from spark_stream.scripts.steps import Pause, ProbeReplica, Script, together
from spark_stream.storage.disk.descriptors import SpareFiles

logger = logger_of(__name__)

_PAUSES: Final = 100
_PAUSE_S: Final = 0.01
_NAMES_MAX: Final = 5  # in one line of the broker's log
TROUBLE_S: Final = 0.2
"""The pause between two checks for replicas in trouble."""
_BALANCE_S: Final = 3.0


def handing_over(host: Host, members: Members) -> Script[int]:
    """Hand over the led partitions that another live replica can lead. Return their number."""
    generation = host.generation
    if generation is None:
        return 0
    me = Member(host.broker_id, generation)
    led = [
        partition
        for hosted in host.topics()
        for partition in hosted.led()
        if partition.has_followers
    ]
    heirs = yield from find_heirs(host, members, led, me)
    alive = members.alive()
    resigned = yield from _resigning(
        led, host, lambda place, at: election.resign(at, me, alive, heirs.get(place, []))
    )
    return len(resigned)


def find_heirs(
    host: Host, members: Members, partitions: Iterable[Partition], me: Member
) -> Script[dict[PartitionId, list[BrokerId]]]:
    """Return the live in-sync replicas, by partition led here, whose logs take writes.

    A broker that does not answer in time is not among them.
    """
    alive, steps = members.alive(), []
    for each in partitions:
        stored = host.view_of(id_of(each))
        if not each.leads or stored is None or not has_heir(stored.record, me, alive):
            continue
        at = Joined(each.topic, each.topic_id, each.number)
        live = election.live_members(stored.record, alive)
        steps += [ProbeReplica(other.broker, at) for other in live if other != me]
    answers = yield from together(steps)
    found: dict[PartitionId, list[BrokerId]] = {}
    for step, answer in zip(steps, answers, strict=True):
        if not isinstance(answer, IsologError):
            place = PartitionId(step.at.topic_id, step.at.partition)
            found.setdefault(place, []).append(step.broker)
    return found


def _resigning(
    led: Collection[Partition],
    host: Host,
    resign: Callable[[PartitionId, PartitionRecord], election.Outcome],
    *,
    complete: bool = False,
) -> Script[list[PartitionId]]:
    """Wait for followers, then change the records. Return the partitions with another leader.

    ``complete``: a partition whose in-sync replicas have not caught up by then stays here.
    """
    for partition in led:
        partition.role.begin_hand_over()
    for _ in range(_PAUSES):
        if all(each.is_all_replicated() for each in led):
            break
        yield Pause(_PAUSE_S)
    if complete:
        led = [each for each in led if each.is_all_replicated()]
    outcomes = yield from change_records([id_of(each) for each in led], host.view_of, resign)
    return [each for each, found in outcomes.items() if not isinstance(found, election.Unchanged)]


def id_of(partition: Partition) -> PartitionId:
    """Return the key of the partition's record."""
    return PartitionId(partition.topic_id, partition.number)


class _News(NamedTuple):
    """The last report of a replica in trouble: whether it leads, and the error's code."""

    leads: bool
    code: str


class Withdrawals:
    """The replicas of one broker whose logs refuse writes. A single thread checks them."""

    def __init__(
        self, host: Host, members: Members, clock: Clock, spare: SpareFiles | None = None
    ) -> None:
        """Create the checker.

        ``spare``: the reserve of files for hand-overs while the broker is at its limit of open
        files.
        """
        self._host = host
        self._members = members
        self._clock = clock
        self._spare = spare or SpareFiles(0)
        self._reported: dict[str, _News] = {}

    def checking(self) -> Script[None]:
        """Hand over the partitions whose logs refuse writes, if another broker can lead them.

        This is run often.
        """
        found, generation = self._host.troubled(), self._host.generation
        names = {each.name for each in found}
        self._reported = {name: news for name, news in self._reported.items() if name in names}
        if not found or generation is None:
            return
        now, me = self._clock.steady_us(), Member(self._host.broker_id, generation)
        due = [each for each in found if (at := each.fitness.trouble) and at.due <= now]
        left = [each for each in due if not self._takes_writes(each)]
        short = any(isinstance(each.fitness.error, TooManyOpenFiles) for each in left)
        with self._spare.released() if short else nullcontext():
            gone = yield from self._hand_over(left, me)
        stuck = {each for each in left if each.leads} - gone
        self._report(gone, "another in-sync replica leads now", leads=False)
        self._report(stuck, "no other in-sync replica can take them", leads=True)
        self._report(set(left) - gone - stuck, "it does not lead here", leads=False)

    def _hand_over(self, left: Collection[Partition], me: Member) -> Script[set[Partition]]:
        """Hand these partitions over to other in-sync replicas. Return the moved ones."""
        led: list[Partition] = []
        try:
            heirs = yield from find_heirs(self._host, self._members, left, me)
            led = [each for each in left if heirs.get(id_of(each))]
            alive = self._members.alive()
            resigned = yield from _resigning(
                led,
                self._host,
                lambda place, record: election.resign(record, me, alive, heirs[place]),
            )
        finally:
            for partition in led:
                partition.role.end_hand_over()
            for partition in left:
                partition.fitness.postpone()
        return {each for each in led if id_of(each) in resigned}

    def _takes_writes(self, partition: Partition) -> bool:
        """Return whether a probe of its log succeeds, if one is due before the hand-over."""
        trouble = partition.fitness.trouble
        if trouble is None:
            return True
        if not trouble.needs_probe and partition.leads:
            return False
        try:
            partition.probe()
        except IsologError:
            return False
        logger.warning("the log of %s takes writes again", partition.name)
        return True

    def _report(self, partitions: Collection[Partition], outcome: str, *, leads: bool) -> None:
        """Log the outcome for partitions in trouble, in one line, and again when it changes.

        Args:
            partitions: The partitions in trouble.
            outcome: The outcome, as text.
            leads: Whether this broker still leads them.
        """
        errors = {each.name: each.fitness.error for each in partitions}
        found = {name: _News(leads, error.code if error else "") for name, error in errors.items()}
        names = sorted(name for name, news in found.items() if self._reported.get(name) != news)
        if not names:
            return
        self._reported |= found
        error = errors[names[0]]
        logger.error(
            "writes are refused in %s (%s); %s",
            _named(names),
            "" if error is None else error.message,
            outcome,
        )


class Balance:
    """The partitions of one broker with another preferred leader. A single thread checks them."""

    def __init__(
        self, host: Host, members: Members, clock: Clock, leader_balance_seconds: float
    ) -> None:
        """Create the checker. With 0 seconds it never hands leadership over."""
        self._host = host
        self._members = members
        self._clock = clock
        self._settle_us = int(leader_balance_seconds * 1_000_000)
        self.pause_s = min(leader_balance_seconds / 10, _BALANCE_S) or _BALANCE_S
        """The pause between two checks."""
        self._settling: dict[Partition, Settling] = {}

    def checking(self) -> Script[None]:
        """Hand partitions over to preferred leaders that can lead again. To be run often."""
        generation = self._host.generation
        if generation is None or not self._settle_us:
            return
        now, me = self._clock.steady_us(), Member(self._host.broker_id, generation)
        alive = self._members.alive()
        self._settling = after_look(self._settling, self._able(me, alive), now)
        due = due_handovers(self._settling, self._settle_us, now)
        if not due:
            return
        for each in due:  # a failed hand-over is retried after that time
            self._settling[each] = replace(self._settling[each], since=now)
        led = yield from self._taking_writes(due)
        try:
            resigned = yield from _resigning(
                led,
                self._host,
                lambda _, record: _prefer(record, me, self._members.alive()),
                complete=True,
            )
        finally:
            for partition in led:
                partition.role.end_hand_over()
        gone = sorted(each.name for each in led if id_of(each) in resigned)
        if gone:
            logger.info("preferred leaders lead again in %s", _named(gone))

    def _able(self, me: Member, alive: Alive) -> dict[Partition, Hashable]:
        """Return the partitions that the preferred leader could lead, with the facts to watch.

        If the facts change, the time until the hand-over starts again.
        """
        found: dict[Partition, Hashable] = {}
        for hosted in self._host.topics():
            for each in hosted.open_partitions():
                stored = self._host.view_of(id_of(each))
                if stored is None or stored.record.leader != me.broker:
                    continue
                record, known = stored.record, self._members.get(stored.record.replicas[0])
                if known and not isinstance(_prefer(record, me, alive), election.Unchanged):
                    found[each] = (record.leader_epoch, known.incarnation)
        return found

    def _taking_writes(self, partitions: Collection[Partition]) -> Script[list[Partition]]:
        """Return those of the partitions whose preferred leaders' logs take a write."""
        asked = []
        for each in partitions:
            stored = self._host.view_of(id_of(each))
            if stored is not None and each.leads:
                at = Joined(each.topic, each.topic_id, each.number)
                asked.append((each, ProbeReplica(stored.record.replicas[0], at)))
        answers = yield from together(step for _, step in asked)
        return [
            each
            for (each, _), answer in zip(asked, answers, strict=True)
            if not isinstance(answer, IsologError)
        ]


def _prefer(record: PartitionRecord, me: Member, alive: Alive) -> election.Outcome:
    """Return the record under the preferred leader, if this broker leads the partition."""
    if not election.leads(record, me):
        return election.Unchanged(election.Obstacle.NOT_THE_LEADER, record)
    return election.prefer(record, alive)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more
