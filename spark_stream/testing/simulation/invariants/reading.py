"""What holds of what readers get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_stream.consistency.isolation import Isolation
from spark_stream.testing.simulation.history import Line, Place
from spark_stream.testing.simulation.invariants.base import Invariant, Looked

_DECIDED_ONLY: Final = (Isolation.READ_COMMITTED, Isolation.READ_ATOMIC)


class ReadersSeeWhatIsThere(Invariant):
    """Who reads uncommitted or replicated gets every record of the range, in order."""

    def looked(self, read: Looked) -> None:
        if read.isolation not in _DECIDED_ONLY:
            wanted = [n for _, part in read.line.between(read.start, read.end) for n in part]
            what = f"{read.line.name} [{read.start}, {read.end}): {list(read.values)}"
            self.require(list(read.values) == wanted, f"{what}, not {wanted}")


class ReadersSeeWhatIsCommitted(Invariant):
    """Who reads committed or atomic gets exactly the committed records of the range, in order."""

    def looked(self, read: Looked) -> None:
        if read.isolation not in _DECIDED_ONLY:
            return
        line, wanted = read.line, []
        what = f"{line.name} [{read.start}, {read.end}): {list(read.values)}"
        for seen, numbers in line.between(read.start, read.end):
            fate = self.history.is_committed(seen.part)
            if seen.part[0] in line.unmarked:  # nobody may know any more: then it is not shown
                fate = numbers[0] in read.values
            self.require(fate is not None, f"{what}, and {list(numbers)} is undecided")
            wanted += list(numbers) if fate else []
        self.require(list(read.values) == wanted, f"{what}, not {wanted}")


class WaitersAreWoken(Invariant):
    """Who waits for a bound to pass is woken when it has."""

    def waited(self, where: str, woken: bool) -> None:
        self.require(woken, f"{where}: a reader has something to read and still waits")


class ACutSplitsNoTransaction(Invariant):
    """Of a committed transaction all records are below a cut through partitions, or none."""

    def cut(self, offsets: Mapping[Place, int]) -> None:
        below: dict[int, str] = {}
        above: dict[int, str] = {}
        for place, offset in offsets.items():
            line = self.history.lines.get(place)
            if line is not None:
                self._sort(line, offset, below, above)
        for number in below.keys() & above.keys():
            what = f"transaction {number}: {below[number]} is below, {above[number]} is not"
            self.require(False, what)

    def _sort(self, line: Line, offset: int, below: dict[int, str], above: dict[int, str]) -> None:
        for each in line.entries:
            number = each.part[0]
            counts = each.values and number >= 0 and number not in line.unmarked
            if counts and self.history.is_committed(each.part):
                if each.entry.base_offset < offset:
                    below[number] = f"{line.name}:{each.entry.base_offset}"
                if each.end > offset:
                    above[number] = f"{line.name}:{each.entry.base_offset}"
