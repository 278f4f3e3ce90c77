"""The parts of a partition in memory: logs, processes, links between them, messages, writes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import Entry, Table
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, Offset
from spark_stream.consistency.partition.replica import Replica, ReplicaLookups
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochHistory
from tests.consistency.histories import AGE, START, table_of


@dataclass
class Log:
    """A replica's log. What is below ``forced`` outlives a loss of power."""

    start: Boundary = START
    entries: list[Entry] = field(default_factory=list)
    forced: int = 0

    @property
    def end(self) -> Boundary:
        return self.boundary_of(EntryIndex(self.start.entry + len(self.entries)))

    def boundary_of(self, entry: EntryIndex) -> Boundary:
        place = entry - self.start.entry
        assert 0 <= place <= len(self.entries)
        if place == len(self.entries):
            if not self.entries:
                return self.start
            last = self.entries[-1]
            return Boundary(entry, Offset(last.base_offset + last.count))
        return Boundary(entry, Offset(self.entries[place].base_offset))

    def tables(self) -> list[Table]:
        return [table_of(self.entries)]

    def at(self, index: int) -> Entry:
        return self.entries[index - self.start.entry]

    def since(self, index: int) -> list[Entry]:
        return self.entries[index - self.start.entry :]

    def cut(self, end: int) -> None:
        del self.entries[end - self.start.entry :]
        self.forced = min(self.forced, end)

    def evict(self, start: Boundary) -> None:
        del self.entries[: start.entry - self.start.entry]
        self.start = start


@dataclass(eq=False)
class Process:
    """A running broker. It has the record and the live brokers as it read them last."""

    me: Member
    log: Log
    version: int = 0
    record: PartitionRecord | None = None
    alive: dict[BrokerId, Generation] = field(default_factory=dict)
    found_epoch: int | None = None
    """The epoch of the first record that it saw: one that an earlier process may have led."""
    checked: int = 0
    """Its entries below were committed when they were looked at."""

    def __post_init__(self) -> None:
        lookups = ReplicaLookups(self.log.boundary_of, lambda broker: self.alive.get(broker))
        self.core = Replica(
            self.log.tables(), self.log.start, self.log.end, 0, AGE, 1, lookups=lookups
        )
        self.checked = self.log.start.entry

    @property
    def leads(self) -> bool:
        return self.core.progress is not None


@dataclass(eq=False)
class Link:
    """A connection that a follower opened. Each direction keeps its order."""

    taker: Process
    leader: Process
    up: deque[Any] = field(default_factory=deque)
    down: deque[Any] = field(default_factory=deque)
    session: int | None = None
    next_entry: int = 0


@dataclass(frozen=True)
class Follow:
    epoch: int
    history: EpochHistory


@dataclass(frozen=True)
class Acked:
    entry: EntryIndex


@dataclass(frozen=True)
class Frame:
    epoch: int
    first: int
    entries: tuple[Entry, ...]
    high_watermark: EntryIndex


@dataclass(frozen=True)
class Write:
    """A compare-and-set on its way. ``process`` waits for its outcome, if that is still there."""

    version: int
    record: PartitionRecord
    process: Process | None = None
    loses_records: bool = False
