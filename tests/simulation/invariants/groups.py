"""Invariants of consumer groups: assignments, and the start of the next reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_stream.consistency.groups import Assigned, Group, Place
from spark_stream.consistency.transactions.transactions import State
from tests.simulation.form import GROUP, SESSION_MS
from tests.simulation.invariants.base import Invariant, View
from tests.simulation.invariants.positions import moves


class APartitionHasOneReader(Invariant):
    """A partition is assigned to one member at a time, each time under a higher epoch."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._latest: dict[Place, tuple[int, str]] = {}

    def grouped(self, before: Group, after: Group) -> None:
        self.require(after.epoch >= before.epoch, f"epoch {after.epoch} follows {before.epoch}")
        found: set[Place] = set()
        for member in after.members:
            for each in member.assigned:
                self.require(each.place not in found, f"{each.place} is assigned twice")
                found.add(each.place)
                epoch, reader = self._latest.get(each.place, (-1, ""))
                same = (each.epoch, member.id) == (epoch, reader)
                what = f"{each.place} is {member.id}'s in {each.epoch}, after {reader}'s in {epoch}"
                self.require(same or each.epoch > epoch, what)
                self._latest[each.place] = each.epoch, member.id


class OnlyWhatIsReleasedMoves(Invariant):
    """A member that stays loses a partition only by releasing it, unless its session expired."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._beaten: dict[str, float] = {}
        self._silent: set[str] = set()
        self._leaving: set[str] = set()
        self._released: set[tuple[str, Place, int]] = set()

    def releasing(self, member: str, released: Sequence[Assigned]) -> None:
        self._released |= {(member, each.place, each.epoch) for each in released}

    def heard(self, member: str, beats: bool) -> None:
        now = self.view.clock.monotonic()
        self._look(member, now)
        self._beaten[member] = now

    def leaving(self, member: str) -> None:
        self._leaving.add(member)

    def grouped(self, before: Group, after: Group) -> None:
        now = self.view.clock.monotonic()
        for each in before.members:
            now_member = after.member(each.id)
            if now_member is None:
                self._look(each.id, now)
                what = f"{each.id} is removed, though its session was never over"
                self.require(each.id in self._silent | self._leaving, what)
                continue
            kept = {(at.place, at.epoch) for at in now_member.assigned}
            for at in each.assigned:
                was_released = (each.id, at.place, at.epoch) in self._released
                what = f"{each.id} has not released {at.place} of epoch {at.epoch}"
                self.require(was_released or (at.place, at.epoch) in kept, what)

    def _look(self, member: str, now: float) -> None:
        if 1_000 * (now - self._beaten.get(member, now)) > SESSION_MS:
            self._silent.add(member)


class GroupPositionsNeverGoBack(Invariant):
    """No position of a group moves back, as no member of these runs seeks."""

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        if consumer == GROUP:
            for place, (was, position) in moves(before, after).items():
                what = f"{place} moves from {was} to {position.offset}"
                self.require(was is None or position.offset > was, what)


class APositionMovesOverWhatWasProcessed(Invariant):
    """Every record below a position of a group was processed by the one whose position it was."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._done: dict[tuple[str, Place], set[int]] = {}
        self._asked: dict[int, tuple[str, Mapping[Place, int]]] = {}
        self._taken: dict[Place, tuple[str, int]] = {}

    def processed(self, member: str, assigned: Assigned, start: int, end: int) -> None:
        self._done.setdefault((member, assigned.place), set()).update(range(start, end))

    def group_asked(self, member: str, transaction: int, starts: Mapping[Place, int]) -> None:
        self._asked[transaction] = member, starts

    def taken(self, member: str, assigned: Assigned, offset: int) -> None:
        self._taken[assigned.place] = member, assigned.epoch

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        if consumer != GROUP:
            return
        group = after.get("group", {}).get("members", ())
        readers = {
            (at["topic_id"], at["partition"]): (each["id"], at["epoch"])
            for each in group
            for at in each.get("assigned", ())
        }
        for (_, *where), (was, position) in moves(before, after).items():
            place: Place = (str(where[0]), int(str(where[1])))
            deciding = [
                record.number
                for record in self.history.records.values()
                if record.state is State.COMMITTING and position in record.positions
            ]
            mover, _ = readers.get(place, ("nobody", 0))
            if deciding:
                mover, starts = self._asked[deciding[0]]
                began = starts[place]
                what = f"{place}: {mover} goes on from {began}, and the position is {was}"
                self.require(began == (was or 0), what)
                reader = self._taken.get(place, (mover, 0))
                what = f"{place} moves for {mover}, and {reader[0]} has begun to read it"
                self.require(reader[0] == mover or readers.get(place) != reader, what)
            span = range(was or 0, position.offset)
            done = self._done.get((mover, place), set())
            missing = [each for each in span if each not in done]
            what = f"{place} moves to {position.offset} for {mover}, which has not read {missing}"
            self.require(not missing, what)
