"""The observer of a run: after each event it reads the changes of logs and of the store.

It keeps the history of the run, and calls the invariants.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from isolog.errors import IsologError
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.scripting.driver import Answer
from spark_stream.cluster.brokers import BROKERS
from spark_stream.cluster.consumers import CONSUMERS, SESSIONS, group_of, member_of
from spark_stream.cluster.partitions import PARTITIONS, decode_value, id_of
from spark_stream.cluster.stores.store import StoreRecord
from spark_stream.cluster.topics import TOPICS, Topic
from spark_stream.cluster.topics import decode as decode_topic
from spark_stream.cluster.transactions import JOINS, PREFIX, decode, decode_join
from spark_stream.cluster.view import PREFIXES
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.groups import Group
from spark_stream.consistency.ids import Offset
from spark_stream.scripts.steps import PartitionStep, ReadBounds, RemoteStep, Seal, WriteMarkers
from spark_stream.storage.settings import Flush, parse_settings
from tests.simulation.broker import (
    News,
    SimulatedBroker,
)
from tests.simulation.history import Line, Seen
from tests.simulation.invariants.base import View
from tests.simulation.log_entries import entries_from
from tests.simulation.store import MemoryRecords


class Onlooker:
    """Sees everything, and changes nothing."""

    def __init__(
        self,
        view: View,
        records: MemoryRecords,
        news: News,
        tell: Callable[[str], None],
        *,
        tells: bool,
    ) -> None:
        """``tell`` takes a sentence of the story. ``tells``: somebody reads it."""
        self.topics: dict[str, Topic] = {}
        """The existing topics, by name."""
        self._view = view
        self._history = view.history
        self._notice = view.notice
        self._records = records
        self._news = news
        self._tell = tell
        self._tells = tells
        self._incarnations: dict[str, str] = {}
        self._known: dict[Partition, Line] = {}

    def look(self, broker: SimulatedBroker | None, *, whole: bool = True) -> None:
        """``whole``: the event has ended, so that the state is consistent."""
        if self._records.changes:
            self.note_changes(broker.broker_id if broker else "")
        if broker is not None and broker.runs and broker.opened_in == broker.lives:
            for hosted in broker.host.topics():
                for partition in hosted.open_partitions():
                    self._look_at_log(broker, partition, whole=whole)

    def note_death(self, broker: SimulatedBroker) -> None:
        """The broker ends within a step, which may be a truncation by its leader's answer."""
        for partition, line in self._known.items():
            if line.broker == broker.broker_id and partition.follows:
                line.may_be_cut = True

    def note_changes(self, by: str) -> None:
        """Takes the store's changes. ``by``: the broker that did it, if one did."""
        changes, self._records.changes = self._records.changes, []
        for change in changes:
            self._note_change(*change, by)
        if any(key.startswith(PREFIXES) for key, _, _ in changes):
            self._news.give()

    def _look_at_log(self, broker: SimulatedBroker, partition: Partition, *, whole: bool) -> None:
        line = self._known.get(partition)
        state = partition.core.bounds_state
        known = line is not None
        if line is None:
            line = self._open_line(broker, partition)
        if whole and partition.log.failed is not None:  # else it may not have noted that yet
            line.has_failed = True
            line.may_be_cut |= partition.follows
        if known and whole and line.state is state:
            return
        self._note_start(line, partition)
        end = int(partition.log.end.entry)
        if end < len(line.entries):
            self._tell(f"{line.name} is cut back to {end} entries")
            line.cut(end)
        grown = end != len(line.entries)
        if grown:
            self._take_entries(line, partition, broker)
        if partition.core.progress is not None:
            self._take_committed(line, partition)
        if whole and (grown or line.state is not state):
            line.state = state
            self._notice("observed", line, partition)

    def _open_line(self, broker: SimulatedBroker, partition: Partition) -> Line:
        """The line of a replica that was just opened, or is new."""
        place = (partition.topic_id, partition.number)
        self._history.course(place, partition.topic, flush_of(partition))
        line = self._known[partition] = self._history.line(broker.broker_id, place)
        self._note_start(line, partition)
        lost = line.cut(self._kept(line, partition))
        if lost:
            self._tell(f"{line.name} has lost {len(lost)} entries")
        self._notice("opened", line, lost, partition, line.lost_power)
        line.lost_power = line.may_be_gone = line.may_be_cut = False
        return line

    def _kept(self, line: Line, partition: Partition) -> int:
        """The number of a log's entries that remain when it is opened again."""
        there = entries_from(partition.log, line.start)
        for index, (entry, seen) in enumerate(
            zip(there, line.entries[line.start :], strict=False), line.start
        ):
            if entry != seen.entry:
                return index
        return min(line.start + len(there), len(line.entries))

    def _note_start(self, line: Line, partition: Partition) -> None:
        """The start of the log: retention removed the entries before it, here or at its leader.

        A line keeps them. A follower that started from an empty log may never have had them, or
        others in their place. One that removed its own may be at another offset. Only the common
        part with the committed entries counts as removed.
        """
        before, start = line.start, int(partition.log.start.entry)
        line.start_offset = int(partition.log.start.offset)
        if start == before:
            return
        committed = line.course.committed
        shared = line.shared(committed)
        gone = line.entries[before : min(shared, start)]
        known = shared < start <= len(committed.entries)
        if known and committed.entries[start - 1].end == partition.log.start.offset:
            line.cut(shared)
            for seen in committed.entries[shared:start]:
                line.add(seen)
        line.begin_at(start)
        self._tell(f"{line.name} starts at entry {start}")
        self._notice("evicted", line, gone)

    def _take_committed(self, line: Line, partition: Partition) -> None:
        """The entries below the leader's high watermark are committed.

        The commits of a leader that an unclean election has replaced do not count.
        """
        course = line.course
        if not course.counts(int(partition.leader_epoch)):
            return
        committed = course.committed
        upto = int(partition.core.bounds_state.high_watermark.entry)
        first = len(committed.entries)
        for seen in line.entries[first:upto]:
            committed.add(seen)
        if upto > first:
            self._notice("committed_upto", line, first, upto)

    def _take_entries(self, line: Line, partition: Partition, broker: SimulatedBroker) -> None:
        course = line.course
        for entry in entries_from(partition.log, len(line.entries)):
            known = course.written.get((entry.leader_epoch, entry.entry_index))
            if known is not None:
                line.add(known)
                self._tell(f"{line.name}: entry {entry.entry_index} is there")
                self._notice("copied", line, known, entry, partition)
                continue
            numbers: list[int] = []
            if entry.count:
                start = Offset(entry.base_offset)
                for chunk in partition.log.read(start, Offset(start + entry.count)):
                    numbers += chunk.batch.column(0).to_pylist()
            seen = Seen(entry, tuple(numbers))
            course.written[entry.leader_epoch, entry.entry_index] = seen
            line.add(seen)
            if self._tells:
                self._tell(f"{line.name}: {describe_entry(seen)}")
            self._notice("appended", line, seen, broker)

    def _note_change(self, key: str, before: str | None, after: str | None, by: str) -> None:
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX)
            was = self._history.records.get(name)
            now = None if after is None else decode(json.loads(after))
            self._history.record(name, now)
            if self._tells:
                self._tell(f"{by}: {name} is {describe_record(now)}")
            self._notice("recorded", was, now, by)
        elif key.startswith(JOINS):
            join = decode_join(StoreRecord(key, json.loads(after or before or ""), 1))
            what = "is gone" if after is None else f"of {join.transactional_id}"
            self._tell(f"{by}: the join of transaction {join.number} in {key} {what}")
            if after is not None:
                self._history.places[join.number].add(join.at)
            self._notice("joined" if after is not None else "unjoined", join)
        elif key.startswith(CONSUMERS):
            self._tell(f"{by}: {key} is {after}")
            then = json.loads(before) if before else {"positions": []}
            now = json.loads(after or "{}")
            self._notice("moved", key.removeprefix(CONSUMERS), then, now)
            group = group_of(now)
            if group is not None:
                self._notice("grouped", group_of(then) or Group(), group)
        elif key.startswith(SESSIONS):
            self._notice("heard", member_of(key)[1], after is not None)
        elif key.startswith(PARTITIONS):
            self._note_partition(key, after, by)
        elif key.startswith(BROKERS):
            self._note_broker(key.removeprefix(BROKERS), after)
        elif key.startswith(TOPICS):
            self._note_topic(key, before, after, by)

    def _note_topic(self, key: str, before: str | None, after: str | None, by: str) -> None:
        self._tell(f"{by}: {key} is {'gone' if after is None else 'there'}")
        name = key.removeprefix(TOPICS)
        old = self.topics.pop(name, None)
        if after is not None:
            topic = self.topics[name] = decode_topic(StoreRecord(key, json.loads(after), 1))
            settings = self._view.settings[topic.id] = parse_settings(topic.config)
            flush = settings.flush
            for number in range(topic.partitions):
                course = self._history.course((topic.id, number), topic.name, flush)
                course.topic, course.flush, course.deleted = topic.name, flush, False
        if old is not None and (after is None or self.topics[name].id != old.id):
            for course in self._history.courses.values():
                course.deleted |= course.place[0] == old.id

    def _note_partition(self, key: str, after: str | None, by: str) -> None:
        at = id_of(key)
        course = self._history.courses.get((at.topic_id, at.number))
        if course is None:  # of a topic in the making
            course = self._history.course((at.topic_id, at.number))
            course.deleted = True
        before = course.record
        course.record = None if after is None else decode_value(json.loads(after))
        if course.record is None:
            return
        if self._tells:
            self._tell(f"{by}: {course.name} {describe_partition(course.record)}")
        if before is not None:
            course.note_election(before, course.record)
        if course.record.leader is not None:
            course.leaders[int(course.record.leader_epoch)] = course.record.leader
        gone = set(() if before is None else before.replicas) - set(course.record.replicas)
        for broker in gone:
            self._history.remove_replica(broker, course.place)
        if not course.deleted:  # else it does not exist yet, or no more: it may be recreated
            self._notice("placed", course, before, course.record, by)

    def _note_broker(self, broker: str, after: str | None) -> None:
        if after is None:
            self._history.generations.pop(broker, None)
            self._history.note_departure(broker)
            return
        value = json.loads(after)
        generation, incarnation = value["generation"], value["incarnation"]
        if self._history.generations.get(broker) != generation:
            self._tell(f"{broker} is in generation {generation[-6:]}")
        self._history.generations[broker] = generation
        if self._incarnations.get(broker) != incarnation:
            self._incarnations[broker] = incarnation
            self._notice("registered", broker, generation)

    def _tell_step(self, broker: SimulatedBroker, step: RemoteStep, answer: Answer) -> None:
        outcome = f": {answer.message}" if isinstance(answer, IsologError) else ""
        if isinstance(step, PartitionStep):
            name, kind = f"{step.at.topic}/{step.at.partition}", type(step).__name__
            number = getattr(step, "transaction", None)
            what = kind if number is None else f"{kind} of transaction {number}"
            self._tell(f"{broker.broker_id}: {name}: {what}{outcome}")

    def note_step(self, broker: SimulatedBroker, step: RemoteStep, answer: Answer) -> None:
        if self._tells:
            self._tell_step(broker, step, answer)
        if not isinstance(step, PartitionStep) or isinstance(answer, IsologError):
            return
        course = self._history.courses.get((step.at.topic_id, step.at.partition))
        if course is None or not isinstance(step, Seal | ReadBounds | WriteMarkers):
            return
        found = broker.host.topic(step.at.topic, step.at.topic_id).replicas[step.at.partition]
        assert isinstance(found, Partition)
        if isinstance(step, Seal):
            self._notice("sealed", course, step.transaction, int(found.leader_epoch))
        elif isinstance(step, WriteMarkers):
            self._notice("marked", course, step, answer, broker, found)
        else:
            self._notice("told", course, answer, int(found.leader_epoch))


def flush_of(partition: Partition) -> Flush:
    """The fsync setting of the partition's topic."""
    return partition.log.format.settings.flush


def describe_entry(seen: Seen) -> str:
    """An entry, for people."""
    entry, part = seen.entry, ""
    if seen.part[0] >= 0:
        part = f" of transaction {seen.part[0]}, producer {seen.part[1]}"
    what = str(list(seen.values)) if seen.values else entry.kind.name
    where = f"entry {entry.entry_index} at {entry.base_offset}, epoch {entry.leader_epoch},"
    return f"{where} is {what}{part}"


def describe_partition(record: PartitionRecord) -> str:
    """A partition's record, for people."""
    isr = ", ".join(f"{each.broker} ({each.generation[-6:]})" for each in record.isr)
    moves = f", adding {list(record.adding)}, removing {list(record.removing)}"
    return (
        f"is led by {record.leader} in epoch {record.leader_epoch}, in sync {isr}"
        f"{moves if record.adding or record.removing else ''}"
    )


def describe_record(record: Any) -> str:
    """A transaction's record, for people."""
    if record is None:
        return "forgotten"
    cause = f" ({record.cause.value})" if record.cause.value else ""
    return f"{record.state.value}{cause}, number {record.number}"
