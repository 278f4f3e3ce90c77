"""Invariants of seals and markers."""

from __future__ import annotations

from spark_stream.consistency.entries import Kind
from spark_stream.consistency.transactions.transactions import DECIDED
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Course, Line, Part, Seen
from tests.simulation.invariants.base import Invariant, View


class NoMarkerBeforeDecision(Invariant):
    """A marker matches an earlier decision: a commit, an abort, or a branch's drop."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if seen.entry.kind is Kind.DATA or seen.part[0] in line.course.unmarked:
            return
        fate = self.history.is_committed(seen.part)
        what = f"{line.name}: {seen.entry.kind.name} for {seen.part}"
        self.require(fate is not None, f"{what}, which is not decided")
        kind = Kind.COMMIT if fate else Kind.ABORT
        self.require(seen.entry.kind is kind, f"{what}, which is decided as {kind.name}")


class AMarkerEndsAPart(Invariant):
    """A marker is written for an open part, and only one time."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if seen.entry.kind is Kind.DATA:
            return
        data = [each for each in line.entries if each.part == seen.part]
        markers = [each for each in data if each.entry.kind is not Kind.DATA]
        what = f"{line.name}: a marker of {seen.part}"
        self.require(len(data) > len(markers), f"{what} without a batch")
        self.require(len(markers) == 1, f"{what}, and it had one")


class SealedBeforeMarked(Invariant):
    """Before a partition of a transaction is marked, none that is left takes a batch of it."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if seen.entry.kind is Kind.DATA or seen.part in self.history.dropped:
            return
        if seen.entry.leader_epoch != line.course.epoch:
            return  # written by a deposed leader: it is truncated later
        number = seen.part[0]
        found = self.history.members.get(number)
        if found is None or found.state not in DECIDED or found.number != number:
            return
        for each in self.history.places[number]:
            place = (each.topic_id, each.partition)
            other, partition = self.history.courses.get(place), self.view.partition(place)
            if partition is not None and other is not None and not other.deleted:
                open_for = [
                    producer
                    for producer in {found.producer_id, *found.branches}
                    if partition.transactions.has_joined(number, producer)
                ]
                self.require(
                    not open_for,
                    f"{line.name} is marked, and {each.topic}/{each.partition} takes"
                    f" transaction {number} of {open_for}",
                )


class NoBatchAfterTheSeal(Invariant):
    """No batch of a transaction lands in a partition that was sealed, or after any was marked."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._sealed: set[tuple[object, int]] = set()
        self._marked: dict[int, str] = {}

    def sealed(self, course: Course, transaction: int, epoch: int) -> None:
        if epoch == course.epoch:
            self._sealed.add((course.place, transaction))

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        number = seen.part[0]
        if number < 0 or seen.entry.leader_epoch != line.course.epoch:
            return  # the entries of a deposed leader are truncated later
        if seen.entry.kind is not Kind.DATA:
            if seen.part not in self.history.dropped:
                self._marked.setdefault(number, line.name)
            return
        what = f"{line.name}: a batch of transaction {number}"
        sealed = (line.place, number) in self._sealed
        self.require(not sealed, f"{what}, which was sealed there")
        self.require(number not in self._marked, f"{what}, which {self._marked.get(number)} marked")
        self.require(seen.part not in line.marked, f"{what}, of which {seen.part[1]} was marked")


class FatesAgree(Invariant):
    """The records of a producer in a transaction have the same outcome in all partitions."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._fates: dict[Part, tuple[Kind, str]] = {}

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        kind = seen.entry.kind
        if kind is not Kind.DATA and seen.part[0] not in line.course.unmarked:
            known, where = self._fates.setdefault(seen.part, (kind, line.name))
            what = f"{seen.part}: {kind.name} in {line.name}, {known.name} in {where}"
            self.require(kind is known, what)
