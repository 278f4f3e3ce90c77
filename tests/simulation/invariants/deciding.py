"""Invariants of the records of transactions."""

from __future__ import annotations

from typing import Final

from spark_stream.cluster.transactions import Join
from spark_stream.consistency.transactions.transactions import (
    ABORTS,
    COMMITS,
    Cause,
    Joined,
    State,
    Transaction,
)
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Line, Seen
from tests.simulation.invariants.base import Invariant, View

_HESITATION_S: Final = 5.0
"""The longest pause of a thread between its look at a lease and its action."""


class ADecisionStands(Invariant):
    """Once decided, a transaction's fate never changes, nor what its commit took."""

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if before is None or after is None or before.number != after.number:
            return
        for fate in (COMMITS, ABORTS):
            if before.state in fate:
                what = f"transaction {after.number} was {before.state} and is {after.state}"
                self.require(after.state in fate, what)
                self.require(after.taken == before.taken, f"{what}: taken {after.taken}")


class NumbersRise(Invariant):
    """The numbers of an id's transactions rise, and no two transactions have the same."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._whose: dict[int, str] = {}

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if after is None or after.number < 0:
            return
        name = after.transactional_id
        last = -1 if before is None else before.number
        self.require(after.number >= last, f"{name!r}: number {after.number} after {last}")
        owner = self._whose.setdefault(after.number, name)
        self.require(owner == name, f"number {after.number} is of {owner!r} and of {name!r}")


class APartitionWithABatchHasJoined(Invariant):
    """A partition's join is on record from before the decision until it is finished there."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._in_time: set[tuple[int, Joined]] = set()

    def joined(self, join: Join) -> None:
        found = self.history.members.get(join.number)  # None: it begins after the join
        if found is None or found.state is State.OPEN:
            self._in_time.add((join.number, join.at))

    def unjoined(self, join: Join) -> None:
        if join.number not in self.history.finished:
            self._in_time.discard((join.number, join.at))
        over = join.number in self.history.finished
        unknown = join.number not in self.history.members
        what = f"the join of {join.at} is gone, and transaction {join.number} is not finished"
        self.require(over or unknown, what)

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        number = seen.part[0]
        if number < 0 or not seen.values:
            return
        named = any(
            each == number and (at.topic_id, at.partition) == line.place
            for each, at in self._in_time
        )
        self.require(named, f"{line.name} has a batch of transaction {number} and has not joined")


class TheNextBeginsAfterTheLastIsFinished(Invariant):
    """A transaction begins when the one before is marked in every partition that can be written."""

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if before is None or after is None or before.number < 0:
            return
        begins = after.number != before.number
        finished = after.state in (State.COMMITTED, State.ABORTED)
        if not begins and not (finished and before.state is not after.state):
            return
        for each in self.history.places[before.number]:
            course = self.history.courses.get((each.topic_id, each.partition))
            if course is None or course.deleted or before.number in course.lost:
                continue
            left = [part for part in course.committed.open if part[0] == before.number]
            what = f"transaction {before.number} is over, and open in {course.name}: {left}"
            self.require(not left, what)


class TimeoutsAreKept(Invariant):
    """A transaction expires only after its timeout without a renewal by its owner."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._since: dict[str, tuple[tuple[int, int], float]] = {}

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if after is None:
            return
        now, name = self.view.clock.monotonic(), after.transactional_id
        if after.cause is Cause.EXPIRED and before is not None and before.state is State.OPEN:
            key, since = self._since[name]
            quiet_ms = (now - since) * 1000
            what = f"transaction {before.number} expired after {quiet_ms:.0f} ms"
            self.require(quiet_ms >= before.timeout_ms, f"{what} of {before.timeout_ms}")
        key = (after.number, after.deadline_ms)
        if name not in self._since or self._since[name][0] != key:
            self._since[name] = (key, now)


class OthersTransactionsAreLeftAlone(Invariant):
    """A broker aborts an expired transaction of another only after that one's lease expired."""

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if after is None or before is None or after.cause is not Cause.EXPIRED:
            return
        if before.state is State.OPEN and before.coordinator != by:
            broker = next(each for each in self.view.brokers if each.broker_id == by)
            over = broker.leases.was_over(before.coordinator, within_s=_HESITATION_S)
            over |= broker.outage.ends  # it was so when the change was sent
            what = f"{by} expired transaction {after.number} of {before.coordinator}"
            self.require(over, f"{what}, which held its lease")


class ALeaseIsOverForItsHolderFirst(Invariant):
    """Nobody finds a lease over whose holder still counts on it."""

    def found_over(self, holder: SimulatedBroker) -> None:
        if holder.runs and holder.serves:
            self.require(not holder.core.lease_keeper.serves(), f"{holder.broker_id} still leads")


class BatchesOfASinkAreCommittedOnce(Invariant):
    """A sink's batches are committed in the order of their numbers, each by one transaction."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._by: dict[tuple[str, int], int] = {}

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if after is None or not after.query:
            return
        last = -1 if before is None else before.committed_batch
        name, batch = after.transactional_id, after.committed_batch
        self.require(batch >= last, f"{name!r}: batch {batch} after {last}")
        if after.state in COMMITS and after.batch >= 0:
            number = self._by.setdefault((name, after.batch), after.number)
            what = f"{name!r}: batch {after.batch} is committed by {number} and {after.number}"
            self.require(number == after.number, what)
