"""What happened in a run, as somebody sees it who sees everything.

The entries of every partition are folded here in a plain way of its own, and the decisions are
taken from the records of the store as they change. Invariants compare what brokers and clients do
with this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.producers import Stamp
from spark_stream.consistency.transactions import ABORTS, COMMITS, State, Transaction
from spark_stream.storage.settings import Flush

Place = tuple[str, int]
"""(topic id, partition)."""
Part = tuple[int, int]
"""(transaction, producer id)."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that a client sends: these numbers, which no other batch has."""

    values: range
    place: Place
    stamp: Stamp | None

    @property
    def transaction(self) -> int:
        return NO_TRANSACTION if self.stamp is None else self.stamp.transaction


@dataclass(slots=True)
class Seen:
    """An entry in a log, with the numbers that are its records."""

    entry: Entry
    values: tuple[int, ...]

    @property
    def part(self) -> Part:
        return self.entry.transaction, self.entry.producer_id

    @property
    def end(self) -> int:
        return self.entry.base_offset + self.entry.count


@dataclass(slots=True)
class Line:
    """The entries of one partition, and what follows from them."""

    topic: str
    place: Place
    leader: str
    flush: Flush
    entries: list[Seen] = field(default_factory=list)
    open: dict[Part, int] = field(default_factory=dict)
    """Where each part that has no marker begins."""
    marked: dict[Part, Kind] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Transactions of which a power cut took a marker: they are marked again, in time."""
    unmarked: set[int] = field(default_factory=set)
    """Transactions of which a power cut took a marker that nobody had promised to keep."""
    deleted: bool = False
    lost_power: bool = False
    """Its machine has lost power since it was opened last."""
    state: object = None
    """The bounds of the partition when it was looked at last."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.place[1]}"

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.entries[-1].end if self.entries else 0

    def add(self, seen: Seen) -> None:
        self.entries.append(seen)
        self._fold(seen)

    def cut(self, entries: int) -> list[Seen]:
        """Only so many are left; those that are gone."""
        gone = self.entries[entries:]
        if gone:
            del self.entries[entries:]
            self.open, self.marked = {}, {}
            for each in self.entries:
                self._fold(each)
            lost = {each.part[0] for each in gone if each.entry.kind is not Kind.DATA}
            self.lost |= lost
            if self.flush is Flush.NONE:  # elsewhere the markers of a commit are forced
                self.unmarked |= lost
        return gone

    def _fold(self, seen: Seen) -> None:
        part = seen.part
        if part[0] == NO_TRANSACTION:
            return
        if seen.entry.kind is Kind.DATA:
            if part not in self.marked:
                self.open.setdefault(part, seen.entry.base_offset)
        else:
            self.open.pop(part, None)
            self.marked.setdefault(part, seen.entry.kind)

    def between(self, start: int, end: int) -> Iterable[tuple[Seen, Sequence[int]]]:
        """What lies at these offsets: entries, and those of their numbers."""
        for each in self.entries:
            first = each.entry.base_offset
            if each.values and each.end > start and first < end:
                yield each, each.values[max(0, start - first) : max(0, end - first)]


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a transaction."""

    transactional_id: str
    committed: bool
    taken: frozenset[int]


class History:
    """Of one run."""

    def __init__(self) -> None:
        self.lines: dict[Place, Line] = {}
        self.records: dict[str, Transaction] = {}
        self.decisions: dict[int, Decision] = {}
        self.dropped: set[Part] = set()
        self.finished: set[int] = set()
        self.members: dict[int, Transaction] = {}
        """By number: the record as it was last, with its partitions."""
        self.sent: dict[int, Sent] = {}
        self.losses = 0
        """How often a log was found shorter than it had been."""
        self._values = 0

    def send(self, count: int, place: Place, stamp: Stamp | None) -> Sent:
        """A new batch of so many records."""
        sent = Sent(range(self._values, self._values + count), place, stamp)
        self.sent[self._values] = sent
        self._values += count
        return sent

    def record(self, name: str, after: Transaction | None) -> None:
        """The record of a transactional id is this one now."""
        before = self.records.get(name)
        if after is None:
            self.records.pop(name, None)
            return
        self.records[name] = after
        self.members[after.number] = after
        self.dropped |= {(after.number, each) for each in after.dropped}
        if after.state in COMMITS or after.state in ABORTS:
            committed = after.state in COMMITS
            self.decisions.setdefault(
                after.number, Decision(name, committed, frozenset(after.taken))
            )
        if before is not None and before.number >= 0:
            gone_on = after.number != before.number
            if gone_on or after.state in (State.COMMITTED, State.ABORTED):
                self.finished.add(before.number)

    def is_committed(self, part: Part) -> bool | None:
        """Whether what the producer wrote in the transaction counts; None: it is not decided."""
        if part[0] == NO_TRANSACTION:
            return True
        if part in self.dropped:
            return False
        decision = self.decisions.get(part[0])
        if decision is None:
            return None
        return decision.committed and part[1] in decision.taken
