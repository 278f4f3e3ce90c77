"""The history of a run, from a view of all its parts.

The entries of every replica are folded here in a separate, plain way (``Fold``), and the committed
entries of each partition too (``Course``). Records of the store are taken as they change.
Invariants compare the actions of brokers and clients with this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.entries import Entry, Kind
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.transactions.transactions import (
    ABORTS,
    COMMITS,
    Joined,
    State,
    Transaction,
)
from spark_stream.storage.settings import Flush

Place = tuple[str, int]
"""(topic id, partition)."""
Part = tuple[int, int]
"""(transaction, producer id)."""


class Sent(Struct, frozen=True):
    """A batch that a client sends: these numbers, which no other batch has."""

    values: range
    place: Place
    producer: int | None
    """The number of its producer, which has ids and may send it again. Else None."""
    committed: bool = False
    """Its client requires an acknowledgement after replication."""
    client: str = ""
    part: Part | None = None
    """The transaction that it belongs to."""
    called: int = 0
    """The moment at which it was sent."""


class Fetched(Struct, frozen=True):
    """A client's result of one fetch."""

    client: str
    place: Place
    isolation: Isolation
    called: int
    start: int
    end: int
    records: list[tuple[int, int]]
    """(offset, number)."""
    epoch: int | None
    """The epoch in which the leader answered, or None if the fetch ended before."""
    bounds: Bounds | None


class Finish(Struct, frozen=True):
    """The answer to a client's request to end a transaction."""

    client: str
    commits: bool
    transaction: int
    taken: tuple[int, ...]
    called: int
    outcome: str


class Seen(Struct, eq=False):
    """An entry in a log, with the numbers that are its records.

    The same entry in two replicas is one object.
    """

    entry: Entry
    values: tuple[int, ...]

    @property
    def part(self) -> Part:
        return self.entry.transaction, self.entry.producer_id

    @property
    def end(self) -> int:
        return self.entry.base_offset + self.entry.count


class Fold:
    """A sequence of entries, and the state that follows from them.

    ``start``: the first entry. Earlier ones have been removed. ``start_offset``: the
    offset there, above the end of the entry before it if a trimmed log began above its end.
    """

    def __init__(self) -> None:
        self.entries: list[Seen] = []
        self.start = 0
        self.start_offset = 0
        self.open: dict[Part, int] = {}
        """The beginning of each part without a marker."""
        self.marked: dict[Part, Kind] = {}
        self._ended: list[tuple[int, int]] = []  # (index of the marker, where its part began)

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return max(self.start_offset, self.entries[-1].end if self.entries else 0)

    def add(self, seen: Seen) -> None:
        self.entries.append(seen)
        self._fold(seen)

    def cut(self, entries: int) -> list[Seen]:
        """Truncate to this number of entries. Return the removed ones."""
        gone = self.entries[entries:]
        if gone:
            del self.entries[entries:]
            self._fold_anew()
        return gone

    def begin_at(self, start: int) -> None:
        """Remove the entries before this one. Their parts are not open any more."""
        self.start = start
        self._fold_anew()

    def _fold_anew(self) -> None:
        self.open, self.marked, self._ended = {}, {}, []
        for each in self.entries:
            self._fold(each)

    def _fold(self, seen: Seen) -> None:
        part = seen.part
        if part[0] == NO_TRANSACTION:
            return
        if seen.entry.kind is Kind.DATA:
            if part not in self.marked and seen.entry.entry_index >= self.start:
                self.open.setdefault(part, seen.entry.base_offset)
        else:
            began = self.open.pop(part, None)
            if began is not None:
                self._ended.append((seen.entry.entry_index, began))
            self.marked.setdefault(part, seen.entry.kind)

    def undecided(self, high_watermark: int) -> int | None:
        """The begin of the first part whose marker is not below this entry index."""
        late = [began for index, began in self._ended if index >= high_watermark]
        return min([*late, *self.open.values()], default=None)

    def between(self, start: int, end: int) -> Iterable[tuple[Seen, Sequence[int]]]:
        """The entries at these offsets, and those of their numbers."""
        for each in self.entries:
            first = each.entry.base_offset
            if each.values and each.end > start and first < end:
                yield each, each.values[max(0, start - first) : max(0, end - first)]

    def shared(self, other: Fold) -> int:
        """The number of common entries at the start of both."""
        for index, (mine, theirs) in enumerate(zip(self.entries, other.entries, strict=False)):
            if mine is not theirs:
                return index
        return min(len(self.entries), len(other.entries))


class Course:
    """The history of one partition."""

    def __init__(self, topic: str, place: Place, flush: Flush) -> None:
        self.topic = topic
        self.place = place
        self.flush = flush
        self.record: PartitionRecord | None = None
        self.leaders: dict[int, str] = {}
        """Of each leader epoch."""
        self.written: dict[tuple[int, int], Seen] = {}
        """Every entry that ever was, by its epoch and index."""
        self.committed = Fold()
        """The entries that some leader's high watermark has passed."""
        self.lost: set[int] = set()
        """Transactions of which a marker was lost, or a batch came back: it is marked in time."""
        self.unmarked: set[int] = set()
        """Transactions that lost an unreplicated marker, or batches of which an unclean election
        brought back after their end."""
        self.deleted = False
        self.unclean_epoch = -1
        """The last leader epoch that began with a leader which was not in sync until then."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.place[1]}"

    @property
    def epoch(self) -> int:
        """Of the present leader."""
        return -1 if self.record is None else int(self.record.leader_epoch)

    def note_election(self, before: PartitionRecord, after: PartitionRecord) -> None:
        """The record has changed, perhaps by an election."""
        if after.leader is None or after.leader_epoch == before.leader_epoch:
            return
        if before.member(after.leader) != after.member(after.leader):
            self.unclean_epoch = int(after.leader_epoch)

    def counts(self, epoch: int) -> bool:
        """Whether a leader of this epoch may still commit entries.

        A leader after an unclean election need not have the entries that an earlier leader commits
        later.
        """
        return epoch >= self.unclean_epoch

    def lose(self, entries: int) -> list[Seen]:
        """Truncate the committed entries to this number. Return the lost ones."""
        gone = self.committed.cut(entries)
        markers = {each.part[0] for each in gone if each.entry.kind is not Kind.DATA}
        self.lost |= markers
        if self.flush is Flush.NONE or (self.record and len(self.record.replicas) > 1):
            self.unmarked |= markers  # elsewhere the markers of a commit are forced
        return gone

    def bring_back(self, numbers: set[int]) -> None:
        """An unclean election has brought back batches of these finished transactions."""
        self.lost |= numbers
        self.unmarked |= numbers


class Line(Fold):
    """One replica's entries."""

    def __init__(self, course: Course, broker: str) -> None:
        super().__init__()
        self.course = course
        self.broker = broker
        self.lost_power = False
        """Its machine has lost power since it was opened last."""
        self.has_failed = False
        """A force of it has failed, or another step, since its broker registered last."""
        self.may_be_cut = False
        """It failed, or its broker ended within a step, while it followed: perhaps in a cut."""
        self.may_be_gone = False
        """Somebody was to remove it, since it was opened last."""
        self.damaged: set[int] = set()
        """Entries of which a byte has changed."""
        self.was_damaged = False
        """A byte of it has changed at some time."""
        self.given_up: set[Seen] = set()
        """Entries that were truncated since then, and may be restored from the kept part of the
        log."""
        self.may_be_left = False
        """Its broker was removed from the record, which does not wait for the removal of its
        files."""
        self.state: object = None
        """The bounds of the replica when it was looked at last."""

    def cut(self, entries: int) -> list[Seen]:
        gone = super().cut(entries)
        if self.was_damaged:
            self.given_up.update(gone)
        self.damaged = {each for each in self.damaged if each < entries}
        return gone

    def is_sound(self, entry: int) -> bool:
        """Whether it has this entry, as it was written."""
        return self.start <= entry < len(self.entries) and entry not in self.damaged

    @property
    def name(self) -> str:
        return f"{self.course.name} at {self.broker}"

    @property
    def place(self) -> Place:
        return self.course.place

    @property
    def deleted(self) -> bool:
        return self.course.deleted


class Decision(Struct, frozen=True):
    """The history of a transaction."""

    transactional_id: str
    committed: bool
    taken: frozenset[int]


class History(Struct):
    """Of one run."""

    courses: dict[Place, Course] = field(default_factory=dict)
    lines: dict[tuple[str, Place], Line] = field(default_factory=dict)
    """By broker and partition."""
    generations: dict[str, str] = field(default_factory=dict)
    """In which each broker is registered."""
    doubtful: set[str] = field(default_factory=set)
    """Brokers whose machines have ended while they ran, since they registered last."""
    records: dict[str, Transaction] = field(default_factory=dict)
    decisions: dict[int, Decision] = field(default_factory=dict)
    dropped: set[Part] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    members: dict[int, Transaction] = field(default_factory=dict)
    """By number: the record as it was last."""
    places: dict[int, set[Joined]] = field(default_factory=lambda: defaultdict(set))
    """By number: the partitions that were ever on record as joined."""
    sent: dict[int, Sent] = field(default_factory=dict)
    losses: int = 0
    """The number of losses of committed entries."""
    values: int = 0
    moments: int = 0

    def moment(self) -> int:
        """A new number: later ones are greater, so they order what clients do."""
        self.moments += 1
        return self.moments

    def remove_replica(self, broker: str, place: Place) -> None:
        """Its files are removed, or will be: missing entries are no evidence any more."""
        line = self.line(broker, place)
        line.has_failed, line.may_be_gone = False, True

    def send(
        self,
        count: int,
        place: Place,
        *,
        producer: int | None,
        committed: bool,
        client: str,
        part: Part | None,
    ) -> Sent:
        """A new batch of so many records. A producer's numbers rise in its order."""
        values = range(self.values, self.values + count)
        sent = Sent(values, place, producer, committed, client, part, self.moment())
        self.sent[self.values] = sent
        self.values += count
        return sent

    def course(self, place: Place, topic: str = "", flush: Flush = Flush.NONE) -> Course:
        """Of this partition."""
        found = self.courses.get(place)
        if found is None:
            found = self.courses[place] = Course(topic, place, flush)
        return found

    def line(self, broker: str, place: Place) -> Line:
        """Of this replica."""
        found = self.lines.get((broker, place))
        if found is None:
            found = self.lines[broker, place] = Line(self.courses[place], broker)
        return found

    def lines_of(self, broker: str) -> list[Line]:
        """Of all replicas that the broker has, or had."""
        return [line for (name, _), line in self.lines.items() if name == broker]

    def note_departure(self, broker: str) -> None:
        """The broker does not belong to the cluster any more."""
        for line in self.lines_of(broker):
            line.may_be_left = True

    def led(self, place: Place) -> Line | None:
        """The replica that leads the partition on record."""
        course = self.courses.get(place)
        if course is None or course.record is None or course.record.leader is None:
            return None
        return self.lines.get((course.record.leader, place))

    def there(self) -> list[Course]:
        """The partitions of existing topics."""
        return [each for each in self.courses.values() if not each.deleted]

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
        """Whether what the producer wrote in the transaction counts. None: it is not decided."""
        if part[0] == NO_TRANSACTION:
            return True
        if part in self.dropped:
            return False
        decision = self.decisions.get(part[0])
        if decision is None:
            return None
        return decision.committed and part[1] in decision.taken
