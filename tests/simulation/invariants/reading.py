"""Invariants of the records that readers get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from isolog.errors import IsologError
from spark_stream.broker.actions.topics import partition_facts
from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.isolation import Bounds, Isolation
from tests.simulation.history import Course, Line, Place, Seen
from tests.simulation.invariants.base import Invariant, Looked, View

_DECIDED_ONLY: Final = (Isolation.READ_COMMITTED, Isolation.READ_ATOMIC)


class ReadersSeeWhatIsThere(Invariant):
    """A reader of ``read_uncommitted`` or ``read_replicated`` gets every record of the range, in
    order."""

    def looked(self, read: Looked) -> None:
        if read.isolation not in _DECIDED_ONLY:
            wanted = [n for _, part in read.line.between(read.start, read.end) for n in part]
            what = f"{read.line.name} [{read.start}, {read.end}): {list(read.values)}"
            self.require(list(read.values) == wanted, f"{what}, not {wanted}")


class ReadersSeeWhatIsCommitted(Invariant):
    """A reader of ``read_committed`` or ``read_atomic`` gets exactly the committed records, in
    order."""

    def looked(self, read: Looked) -> None:
        if read.isolation not in _DECIDED_ONLY:
            return
        line, wanted = read.line, []
        what = f"{line.name} [{read.start}, {read.end}): {list(read.values)}"
        for seen, numbers in line.between(read.start, read.end):
            fate = self.history.is_committed(seen.part)
            if seen.part[0] in line.course.unmarked:  # it must not be visible
                fate = numbers[0] in read.values
            self.require(fate is not None, f"{what}, and {list(numbers)} is undecided")
            wanted += list(numbers) if fate else []
        self.require(list(read.values) == wanted, f"{what}, not {wanted}")


class ReadersSeeWhatIsReplicated(Invariant):
    """A reader of other levels than ``read_uncommitted`` gets only records below the high
    watermark."""

    def looked(self, read: Looked) -> None:
        if read.isolation is not Isolation.READ_UNCOMMITTED:
            end = read.line.course.committed.end
            what = f"{read.line.name} [{read.start}, {read.end}) ({read.isolation.value})"
            self.require(read.end <= max(end, read.start), f"{what}, committed up to {end}")
            mine = [each for each, _ in read.line.between(read.start, read.end)]
            theirs = [each for each, _ in read.line.course.committed.between(read.start, read.end)]
            self.require(mine == theirs, f"{what}: other records are committed")


class ReadersNoticeWhatWasTakenBack(Invariant):
    """A reader of everything goes on only where all that it has read is still there."""

    def went_on(self, line: Line, got: Sequence[int], position: int) -> None:
        there = [n for _, part in line.between(position - len(got), position) for n in part]
        what = f"{line.name}: a reader at {position} got {list(got)}"
        self.require(there == list(got), f"{what}, and there is {there}")


class RangesEndWhereTheyWereToldToEnd(Invariant):
    """No reader gets the end of a range before the end that some leader had returned."""

    def ended_short(self, course: Course, position: int, end: int) -> None:
        lost = self.history.losses > 0
        self.require(lost, f"{course.name}: the range to {end} is over at {position}")


class OnlyReadersOfEverythingAreToldOfLoss(Invariant):
    """No reader gets a loss of replicated records, unless committed ones were lost."""

    def told_of_loss(self, topic_id: str, partition: int, isolation: Isolation) -> None:
        if isolation is not Isolation.READ_UNCOMMITTED:
            course = self.history.courses[topic_id, partition]
            what = f"{course.name}: a reader of {isolation.value} is told of a loss"
            self.require(self.history.losses > 0, what)


class ToldBoundsNeverGoBack(Invariant):
    """The high watermark and the last stable offset that leaders return never move back."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._told: dict[Place, list[tuple[int, int, int]]] = {}

    def lost(self, course: Course, gone: Sequence[Seen]) -> None:
        self._told.pop(course.place, None)

    def told(self, course: Course, bounds: Bounds, epoch: int) -> None:
        self._check(course, epoch, bounds.high_watermark, bounds.last_stable_offset)

    def observed(self, line: Line, partition: Partition) -> None:
        """Describe the partition, as its leader can do at any moment."""
        if partition.leads and not line.deleted:
            try:
                described = partition.described()
            except IsologError:  # it is closed: its broker is about to stop
                return
            found = partition_facts(partition.number, line.course.record, described)
            high, stable = found.high_watermark, found.last_stable_offset
            if high is not None and stable is not None:  # else it does not have them yet
                self._check(line.course, found.leader_epoch, high, stable)

    def _check(self, course: Course, epoch: int, high: int, stable: int) -> None:
        if not course.counts(epoch):
            return  # an answer that was under way when an unclean election lost records
        known = self._told.setdefault(course.place, [])
        what = f"{course.name}: told {high} and {stable} in epoch {epoch}"
        for earlier, high_before, stable_before in known:
            if earlier <= epoch:
                before = f"{high_before} and {stable_before} in epoch {earlier}"
                risen = high >= high_before and stable >= stable_before
                self.require(risen, f"{what}, and before {before}")
        known[:] = [each for each in known if each[0] != epoch]
        known.append((epoch, high, stable))


class WaitersAreWoken(Invariant):
    """A read that waits for a bound is woken when the bound has passed."""

    def waited(self, where: str, woken: bool) -> None:
        self.require(woken, f"{where}: a reader has something to read and still waits")


class ACutSplitsNoTransaction(Invariant):
    """Of a committed transaction all records are below a cut through partitions, or none."""

    def cut(self, offsets: Mapping[Place, int]) -> None:
        below: dict[int, str] = {}
        above: dict[int, str] = {}
        for place, offset in offsets.items():
            line = self.history.led(place)
            if line is not None and line.entries:
                self._sort(line, offset, below, above)
        for number in below.keys() & above.keys():
            what = f"transaction {number}: {below[number]} is below, {above[number]} is not"
            self.require(False, what)

    def _sort(self, line: Line, offset: int, below: dict[int, str], above: dict[int, str]) -> None:
        for each in line.entries[line.start :]:  # a fetch of evicted records gets an error
            number = each.part[0]
            counts = each.values and number >= 0 and number not in line.course.unmarked
            if counts and self.history.is_committed(each.part):
                if each.entry.base_offset < offset:
                    below[number] = f"{line.name}:{each.entry.base_offset}"
                if each.end > offset:
                    above[number] = f"{line.name}:{each.entry.base_offset}"
