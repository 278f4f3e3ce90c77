"""Invariants of the positions of named consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_stream.cluster.consumers import decode_positions
from spark_stream.consistency.transactions.transactions import PositionOf, State, Transaction
from spark_stream.wire.transaction_messages import CommitTransaction
from tests.simulation.invariants.base import Invariant, View

Key = tuple[str, str, int]


def moves(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[Key, tuple[int | None, PositionOf]]:
    """The changed positions in a consumer's record: (offset before, position now)."""
    known = {
        (each.consumer, each.topic_id, each.partition): each.offset
        for each in decode_positions(before.get("positions", []))
    }
    found = {
        (each.consumer, each.topic_id, each.partition): each
        for each in decode_positions(after.get("positions", []))
    }
    return {
        key: (known.get(key), each) for key, each in found.items() if known.get(key) != each.offset
    }


class PositionsMoveWithTheirTransaction(Invariant):
    """A position moves to the offset of a committed transaction, or of its consumer, and only one
    time."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._asked: set[PositionOf] = set()

    def stored(self, positions: Sequence[PositionOf]) -> None:
        self._asked |= set(positions)

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for _, position in moves(before, after).values():
            committing = any(
                position in record.positions and record.state is State.COMMITTING
                for record in self.history.records.values()
            )
            what = f"{consumer!r} moves to {position.offset}, which nothing committed says"
            self.require(committing or position in self._asked, what)


class PositionsNeverGoBack(Invariant):
    """A transaction that is finished late never moves a position back."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._plain: set[PositionOf] = set()  # a call that comes late moves it back

    def stored(self, positions: Sequence[PositionOf]) -> None:
        self._plain |= set(positions)

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for was, position in moves(before, after).values():
            what = f"{consumer!r} moves from {was} to {position.offset}"
            forward = was is None or position.offset > was
            self.require(forward or position in self._plain, what)


class FinishedMeansPositionsStored(Invariant):
    """A transaction that moves positions is finished only when they are stored."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._stored: dict[Key, int] = {}

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for key, (_, position) in moves(before, after).items():
            self._stored[key] = position.offset

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if before is None or after is None or before.state is not State.COMMITTING:
            return
        if after.state is State.COMMITTING:
            return
        for each in before.positions:
            stored = self._stored.get((each.consumer, each.topic_id, each.partition), -1)
            what = f"transaction {before.number} is over, and {each.consumer!r} is at {stored}"
            self.require(stored >= each.offset, f"{what}, not {each.offset}")


class ANameHasOneOwner(Invariant):
    """A position that a new owner of a consumer's name has read moves only for that owner."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._owner: dict[str, str] = {}
        self._asked: dict[int, Mapping[str, str]] = {}

    def asked(self, commit: CommitTransaction) -> None:
        self._asked[commit.number] = commit.owners

    def owned(self, consumer: str, instance: str, found: Sequence[PositionOf]) -> None:
        self._owner[consumer] = instance

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        owner = self._owner.get(consumer)
        if owner is None or after.get("instance") != owner:
            return  # the next owner is on its way, and has read nothing
        for _, position in moves(before, after).values():
            for record in self.history.records.values():
                if position in record.positions and record.state is State.COMMITTING:
                    by = self._asked.get(record.number, {}).get(consumer)
                    what = f"{consumer!r} is {owner}'s and moves for {by}"
                    self.require(by in (None, owner), what)
