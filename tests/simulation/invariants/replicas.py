"""Invariants of the replicas of a partition, and of their leaders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.control.handover import FULL_US
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.entries import Entry
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.storage.settings import Flush
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Course, Line, Place, Seen
from tests.simulation.invariants.base import Invariant, View

_HESITATION_S: Final = 5.0
"""For how long a broker that has looked at a lease may hesitate to act on that."""
_HANDOVER_S: Final = 2 * FULL_US / 1_000_000
"""The longest time until a leader has handed over, with full disks too."""


class EqualAtEqualIndexAndEpoch(Invariant):
    """Entries of one index and one epoch are the same in every log, and so are all before them."""

    def copied(self, line: Line, seen: Seen, entry: Entry, partition: Partition) -> None:
        what = f"{line.name}: entry {entry.entry_index} of epoch {entry.leader_epoch}"
        self.require(seen.entry == entry, f"{what} is {entry}, elsewhere {seen.entry}")
        if len(line.entries) > 1:
            before = line.entries[-2]
            known = self._before.setdefault((line.place, id(seen)), before)
            self.require(known is before, f"{what} lies behind another entry elsewhere")

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._before: dict[tuple[Place, int], Seen] = {}

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if len(line.entries) > 1:
            self._before[line.place, id(seen)] = line.entries[-2]


class OneLeaderPerEpoch(Invariant):
    """A leader epoch has one leader, and epochs rise with every new one."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._leaders: dict[tuple[Place, int], str] = {}

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        epoch = int(after.leader_epoch)
        if before is not None:
            what = f"{course.name}: epoch {epoch} after {before.leader_epoch}"
            self.require(epoch >= before.leader_epoch, what)
            if before.leader is not None:  # who led when the partition was made
                self._leaders.setdefault((course.place, int(before.leader_epoch)), before.leader)
        if after.leader is not None:
            known = self._leaders.setdefault((course.place, epoch), after.leader)
            what = f"{course.name}: epoch {epoch} is led by {known} and by {after.leader}"
            self.require(known == after.leader, what)


class OneServesAtATime(Invariant):
    """While a leader serves, none serves that was elected in its place."""

    # With one exception: while its lease lasts, a leader serves until it reads that an operator has
    # named another one, or that somebody had found its lease over and elected another one just when
    # it took its lease again.

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._changes: defaultdict[Place, dict[int, tuple[bool, float]]] = defaultdict(dict)

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is None or after.leader_epoch == before.leader_epoch:
            return
        others = set(after.replicas) - {each.broker for each in after.isr}
        found_dead = before.leader in others and by != before.leader
        change = found_dead, self.view.clock.monotonic()
        self._changes[course.place][int(after.leader_epoch)] = change

    def observed(self, line: Line, partition: Partition) -> None:
        if not partition.leads:
            return
        mine = int(partition.leader_epoch)
        for broker in self.view.brokers:
            other = self.view.replica(broker, line.place)
            if other is None or other is partition or not other.leads:
                continue
            earlier = min(mine, int(other.leader_epoch))
            first = line.broker if mine == earlier else broker.broker_id
            what = f"{line.name} and {broker.broker_id} serve, after epoch {earlier}"
            self.require(self._may_not_know(first, line.place, earlier), what)

    def _may_not_know(self, leader: str, place: Place, epoch: int) -> bool:
        """Whether the leader of an epoch serves by its lease, and another one has its place."""
        later = [each for each in self._changes[place] if each > epoch]
        (broker,) = (each for each in self.view.brokers if each.broker_id == leader)
        if not later or not broker.core.lease_keeper.serves():
            return False
        found_dead, changed_at = self._changes[place][min(later)]
        return not found_dead or broker.leases.taken_again_at >= changed_at - _HESITATION_S


class CommittedRecordsStay(Invariant):
    """A leader has all committed entries, unless no in-sync replica has them any more."""

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is None or after.leader is None or after.leader_epoch == before.leader_epoch:
            return
        line = self.history.line(after.leader, course.place)
        shared = line.shared(course.committed)
        if before.member(after.leader) != after.member(after.leader):
            course.bring_back(self._over_and_back(line, shared))
        if shared == len(course.committed.entries):
            return
        what = f"{course.name}: {after.leader} leads and lacks entries from {shared} on"
        self.require(self._is_told(course, before, after), what)
        gone = course.lose(shared)
        self.history.losses += 1
        self.view.notice("lost", course, gone)

    def _over_and_back(self, line: Line, shared: int) -> set[int]:
        """Transactions that were finished before an unclean election brought batches of them back.

        Their outcome is not on record any more, and the batches were not committed: they are
        aborted.
        """
        found = {each.part for each in line.entries[shared:] if each.part[0] != NO_TRANSACTION}
        return {part[0] for part in found if self.history.is_committed(part) is not None}

    def _is_told(self, course: Course, before: PartitionRecord, after: PartitionRecord) -> bool:
        """Whether the election was one of the last resort."""
        assert after.leader is not None
        known = self.history.generations
        member = after.member(after.leader)
        # A broker that has begun another generation does not lead by this record.
        is_over = member is not None and known.get(member.broker) != member.generation
        if before.member(after.leader) == member and not is_over:
            return False
        if self.view.settings[course.place[0]].unclean_leader_election:
            return True
        return all(known.get(each.broker) != each.generation for each in before.isr)


class OnlyInSyncReplicasAreElected(Invariant):
    """An elected leader was in sync in its generation, unless no in-sync replica can come back."""

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is None or after.leader in (None, before.leader):
            return
        assert after.leader is not None
        member = before.member(after.leader)
        if member is not None and member == after.member(after.leader):
            return
        if self.view.settings[course.place[0]].unclean_leader_election:
            return
        known = self.history.generations
        awaited = [each for each in before.isr if known.get(each.broker) == each.generation]
        what = f"{course.name}: {after.leader} is elected, and {awaited} were in sync"
        self.require(not awaited, what)


class ALeaderThatCannotWriteHandsOver(Invariant):
    """A leader whose log refuses writes does not lead on for long beside an in-sync replica."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._since: dict[Place, float] = {}

    def refuses_writes(self, broker: SimulatedBroker) -> None:
        now = self.view.clock.monotonic()
        for course in self.history.there():
            partition, record = self.view.replica(broker, course.place), course.record
            stays = (
                partition is not None
                and partition.leads
                and partition.fitness.trouble is not None  # it has tried to write
                and record is not None
                and len(record.isr) > 1
            )
            if not stays:
                self._since.pop(course.place, None)
                continue
            waited = now - self._since.setdefault(course.place, now)
            what = f"{course.name}: {broker.broker_id} refuses writes and leads on for {waited} s"
            self.require(waited < _HANDOVER_S, what)


class InSyncReplicasHaveWhatIsCommitted(Invariant):
    """Every in-sync replica has every committed entry."""

    def committed_upto(self, line: Line, first: int, upto: int) -> None:
        self._check(line.course)

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is not None and before.isr != after.isr:
            self._check(course)

    def _check(self, course: Course) -> None:
        for member in () if course.record is None else course.record.isr:
            line = self.history.line(member.broker, course.place)
            if line.lost_power or not self.view.vouches(member):
                continue
            shared = line.shared(course.committed)
            committed = len(course.committed.entries)
            what = f"{line.name} is in sync and has {shared} of {committed} committed entries"
            self.require(shared >= committed, what)


class FollowersTakeFromTheirLeader(Invariant):
    """The leader of the present epoch has all entries that a follower appends in it."""

    # Entries that a follower restores from its part truncated at damage may be unknown to its
    # leader: the next agreement with it truncates them again.

    def copied(self, line: Line, seen: Seen, entry: Entry, partition: Partition) -> None:
        if line.course.epoch != int(partition.leader_epoch):
            return
        leader, led = self.view.partition(line.place), self.history.led(line.place)
        if leader is None or led is None:
            return  # its machine is off, or it has not read yet that it leads
        if seen in line.given_up:
            return
        at = entry.entry_index
        same = at < len(led.entries) and led.entries[at] is seen
        what = f"{line.name}: entry {at} of epoch {entry.leader_epoch}"
        self.require(same, f"{what} is not what {led.broker} has, which leads {line.course.epoch}")


class WhoIsCountedHasTheEntries(Invariant):
    """A follower that the present leader waits for has all entries that it is counted for."""

    def observed(self, line: Line, partition: Partition) -> None:
        progress = partition.core.progress
        if progress is None or line.course.epoch != int(partition.leader_epoch):
            return  # a deposed leader may count any followers
        for member in progress.maximal:
            acked, other = progress.acked(member), self.history.line(member.broker, line.place)
            if not acked or other.lost_power or not self.view.vouches(member):
                continue
            shared = other.shared(line)
            what = f"{line.name} counts {member.broker} for {acked} entries, and it has {shared}"
            self.require(shared >= min(acked, len(line.entries)), what)


class LeadersAgreeOnWhatIsCommitted(Invariant):
    """A leader's entries below its high watermark are the committed ones."""

    def observed(self, line: Line, partition: Partition) -> None:
        high = int(partition.core.bounds_state.high_watermark.entry)
        committed = line.course.committed.entries
        counts = line.course.counts(int(partition.leader_epoch))
        if partition.core.progress is not None and high and counts:
            same = high <= len(committed) and line.entries[high - 1] is committed[high - 1]
            self.require(same, f"{line.name}: entry {high - 1} is not the committed one")


class FollowersDoNotRunAhead(Invariant):
    """No follower's high watermark is above what a leader has committed, or it had itself."""

    # A leader that paused takes its followers' last reports before it detects that its lease
    # expired. It does not serve any more then, and as a follower it keeps that high watermark.

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._led: dict[str, int] = {}

    def observed(self, line: Line, partition: Partition) -> None:
        high = int(partition.core.bounds_state.high_watermark.entry)
        if partition.core.progress is not None:
            self._led[line.name] = high
        elif not self.history.losses:
            most = max(len(line.course.committed.entries), self._led.get(line.name, 0))
            what = f"{line.name}: its high watermark is {high}, committed are {most}"
            self.require(high <= most, what)


class AFewAreNotEnough(Invariant):
    """Committed entries are on as many replicas as the topic requires, or were lost there since."""

    # A replica counts that had an entry and lost it with its machine's power or its disk: it had
    # reported the entry, and the loss cannot be detected before it returns.

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._lost: defaultdict[str, set[Seen]] = defaultdict(set)

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        self._lost[line.name].update(lost)

    def committed_upto(self, line: Line, first: int, upto: int) -> None:
        course = line.course
        settings, record = self.view.settings.get(course.place[0]), course.record
        if settings is None or record is None:
            return
        needed = min(settings.min_insync_replicas, len(record.replicas))
        lines = [self.history.line(each, course.place) for each in record.replicas]
        there = sum(self._had(each, first, upto) for each in lines)
        what = f"{line.name}: entries up to {upto} are committed, and on {there} replicas"
        self.require(there >= needed, f"{what} of {needed}")

    def _had(self, line: Line, first: int, upto: int) -> bool:
        committed = line.course.committed
        missing = committed.entries[max(first, line.shared(committed)) : upto]
        return self._lost[line.name].issuperset(missing)


class AMoveLeavesNothingUnforced(Invariant):
    """Once a move is finished, all committed entries are on the disks of the remaining replicas."""

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        if before is None or course.flush is Flush.NONE or after.adding or after.removing:
            return
        goes = set(before.replicas) - set(after.replicas)
        if not goes or goes != set(before.removing):
            return  # no replica is removed, or the move was cancelled
        for broker in self.view.brokers:
            partition = self.view.replica(broker, course.place)
            stays = broker.broker_id in after.replicas and broker.broker_id != before.leader
            if partition is not None and stays:  # a leader sees to it with each commit
                forced = broker.logs.forced_entries(partition.log)
                committed = len(course.committed.entries)
                what = (
                    f"{course.name} has moved, and {broker.broker_id} has forced {forced} entries"
                )
                self.require(forced >= committed, f"{what} of {committed}")


class WhoCannotVouchIsNotInSync(Invariant):
    """A broker that lost its power while it ran, or noted a failed force, gets a new generation."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._known: dict[str, str] = {}

    def registered(self, broker: str, generation: str) -> None:
        before = self._known.get(broker)
        self._known[broker] = generation
        doubts = broker in self.history.doubtful
        self.history.doubtful.discard(broker)
        for line in self.history.lines_of(broker):
            record = None if line.deleted else line.course.record
            doubts |= line.has_failed and record is not None and broker in record.replicas
            line.has_failed = False
        what = f"{broker} cannot vouch, and is in the generation {generation} again"
        self.require(not doubts or before != generation, what)
