"""What an invariant sees of a run.

An invariant overrides those methods that tell it what it needs; each is called in the event in
which it happens, after the history has it. It raises ``Broken`` through :meth:`Invariant.require`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_stream.broker.partition import Partition
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions import PositionOf, Transaction
from spark_stream.scripts.deciding import Commit
from spark_stream.testing.simulation.broker import SimulatedBroker
from spark_stream.testing.simulation.clock import VirtualClock
from spark_stream.testing.simulation.history import History, Line, Place, Seen, Sent
from spark_stream.wire.messages import Ack


class Broken(BaseException):
    """Something did not hold. No code under test catches it: it is no error of a call."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


@dataclass(frozen=True, slots=True)
class Looked:
    """A reader got these numbers for the offsets from ``start`` to ``end`` (exclusive)."""

    line: Line
    isolation: Isolation
    start: int
    end: int
    values: Sequence[int]


@dataclass
class View:
    """What invariants may look at."""

    history: History
    clock: VirtualClock
    brokers: Sequence[SimulatedBroker]

    def partition(self, place: Place) -> Partition | None:
        """The partition, if its leader has it open."""
        for broker in self.brokers:
            if broker.runs and broker.lives == broker.opened_in:
                for hosted in broker.host.topics():
                    if hosted.topic.id == place[0] and place[1] < len(hosted.partitions):
                        found = hosted.partitions[place[1]]
                        return found if isinstance(found, Partition) else None
        return None


class Invariant:
    """What holds in every run."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.history = view.history

    def require(self, holds: bool, what: str) -> None:
        """Broken, with what is wrong, unless it holds."""
        if not holds:
            raise Broken(type(self).__name__, what)

    # -- what happens ------------------------------------------------------------------------------

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        """A partition was opened; these entries of it are gone. ``power``: its machine was off."""

    def died(self, files: Mapping[Path, bytes]) -> None:
        """A broker's process has ended within a step, and has left these files of open logs."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        """An entry is in a log."""

    def observed(self, line: Line, partition: Partition) -> None:
        """A broker has done something; this is one of its partitions."""

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        """A broker has changed the record of a transactional id."""

    def found_over(self, holder: SimulatedBroker) -> None:
        """A broker has looked at this one's lease, and found that it is over."""

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """The record of a consumer's name has changed."""

    def sealed(self, line: Line, transaction: int) -> None:
        """The partition's leader was asked to take no more of the transaction."""

    def acknowledged(self, sent: Sent, ack: Ack, partition: Partition | None) -> None:
        """A batch is acknowledged, or refused."""

    def asked(self, commit: Commit) -> None:
        """A client asks for a commit."""

    def stored(self, positions: Sequence[PositionOf]) -> None:
        """A client asks to store positions outside any transaction."""

    def committed(self, commit: Commit, answer: Transaction) -> None:
        """A client is told that it is committed."""

    def owned(self, consumer: str, instance: str, found: Sequence[PositionOf]) -> None:
        """A client owns a consumer's name, and goes on from here."""

    def looked(self, read: Looked) -> None:
        """A reader got records."""

    def waited(self, where: str, woken: bool) -> None:
        """A reader waited, its bound has passed for a while, and it was woken or not."""

    def cut(self, offsets: Mapping[Place, int]) -> None:
        """A reader got a cut through partitions."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        """All trouble is over, everybody had time; ``folders``: on each broker's machine."""
