"""Invariants of the entries that logs remove at their starts."""

from __future__ import annotations

from collections.abc import Sequence

from spark_stream.broker.partition.partition import Partition
from tests.simulation.history import Course, Line, Place, Seen
from tests.simulation.invariants.base import Invariant, View


class OnlyOldRecordsGo(Invariant):
    """A log gives up from its start only trimmed entries, and those past their retention."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._have_lost: set[Place] = set()

    def lost(self, course: Course, gone: Sequence[Seen]) -> None:
        """A replica may still have old entries where all others have only young ones."""
        self._have_lost.add(course.place)

    def evicted(self, line: Line, gone: Sequence[Seen]) -> None:
        settings = self.view.settings.get(line.place[0])
        if settings is None or line.may_be_gone or line.place in self._have_lost:
            return
        what = f"{line.name}: entries in front of {line.start} are gone"
        record = line.course.record
        trimmed = 0 if record is None else int(record.trimmed)
        gone = [each for each in gone if each.end > trimmed]
        self.require(settings.retention_ms >= 0 or not gone, f"{what}, for nothing")
        oldest = self.view.clock.steady_us() - settings.retention_ms * 1_000
        young = [each.entry.entry_index for each in gone if each.entry.appended >= oldest]
        self.require(not young, f"{what}, and {young} are young")


class OnlyWhatIsDecidedGoes(Invariant):
    """A log removes from its start only committed entries, and none of an open transaction."""

    def evicted(self, line: Line, gone: Sequence[Seen]) -> None:
        committed = line.course.committed.entries
        what = f"{line.name}: entries in front of {line.start} are gone"
        same = line.entries[: line.start] == committed[: line.start]
        self.require(same or self.history.losses > 0, f"{what}, which were not committed")
        course = line.course
        decided = course.committed.marked.keys()
        undecided = [
            each.part
            for each in gone
            if each.values and each.part[0] >= 0 and each.part not in decided
            if each.part[0] not in course.lost  # it had its marker when the first replica did this
        ]
        self.require(not undecided, f"{what}, and {undecided} are open")


class TrimmedRecordsStayHidden(Invariant):
    """The log start of a leader is never below an acknowledged trim."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._trims: dict[Place, int] = {}

    def trimmed(self, course: Course, log_start: int) -> None:
        self._trims[course.place] = max(log_start, self._trims.get(course.place, 0))

    def observed(self, line: Line, partition: Partition) -> None:
        trim = self._trims.get(line.place)
        if trim is None or not partition.leads or int(partition.leader_epoch) != line.course.epoch:
            return
        found = int(partition.bounds().log_start_offset)
        self.require(found >= trim, f"{line.name} starts at {found}, below its trim at {trim}")
