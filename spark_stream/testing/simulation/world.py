"""One simulated run: brokers, clients and faults, one event after the other, and who looks on.

A run has three parts. First clients work, and faults happen. Then all trouble ends, brokers come
back and everybody has time. Then all brokers start once more, and what holds at the end is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from spark_stream.broker.driver import RemoteStep
from spark_stream.broker.partition import Partition
from spark_stream.broker.step_table import Answer
from spark_stream.cluster.brokers import BROKERS, RegisteredBroker
from spark_stream.cluster.brokers import encode as encode_broker
from spark_stream.cluster.consumers import CONSUMERS
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, decode_value, id_of, put_of
from spark_stream.cluster.store import Record
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.topics import decode as decode_topic
from spark_stream.cluster.transactions import PREFIX, decode
from spark_stream.cluster.view import PREFIXES
from spark_stream.cluster.vouching import VOUCHING, LeftBehind
from spark_stream.cluster.vouching import encode as encode_left_behind
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch, Offset
from spark_stream.consistency.partition_record import Member, PartitionRecord
from spark_stream.consistency.transactions import State
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import PartitionStep, ReadBounds, Seal, WriteMarkers
from spark_stream.storage.settings import Flush, parse_settings
from spark_stream.testing.simulation.broker import (
    SCHEMA,
    Killed,
    News,
    SimulatedBroker,
    Surroundings,
)
from spark_stream.testing.simulation.clock import SeededIds, VirtualClock
from spark_stream.testing.simulation.form import Form
from spark_stream.testing.simulation.history import Course, History, Line, Seen
from spark_stream.testing.simulation.invariants import INVARIANTS
from spark_stream.testing.simulation.invariants.base import Broken, Invariant, View
from spark_stream.testing.simulation.leases import LEASE_S, MemoryBoard
from spark_stream.testing.simulation.log_entries import entries_from
from spark_stream.testing.simulation.network import Network
from spark_stream.testing.simulation.schedule import Body, Schedule, Signal
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore

EVENTS_MAX: Final = 12_000  # a run that needs more hangs
_WORK_S: Final = 60.0  # after so long the trouble ends, done or not
_PATIENCE_S: Final = 240.0  # longer than any client goes on asking, and any sweep rests
_REST_S: Final = 2.0  # what was decided last is finished

Notice = Callable[..., None]


class World:
    """A run."""

    def __init__(self, form: Form, *, tells: bool = False) -> None:
        self.form = form
        self.clock = VirtualClock()
        self.schedule = Schedule(form.chance(f"order {form.order}"), self.clock)
        self.calm = False
        self.history = History()
        self.records = MemoryRecords()
        self.network = Network(self.schedule, form.chance("network"))
        self.story: list[str] | None = [] if tells else None
        self.ids = SeededIds(form.chance("ids"))
        self._board = MemoryBoard()
        self._news = News(self.schedule)
        self._topics: dict[str, Topic] = {}
        self._incarnations: dict[str, str] = {}
        around = Surroundings(
            self.clock,
            self.schedule,
            self.ids,
            self.records,
            self._board,
            self.network,
            form.chance("steps"),
            self._carried_out,
            lambda holder: self.notice("found_over", self._by_owner[holder]),
            self._news,
            sees_ends=form.chance("ends").random() < 0.5,
        )
        self.brokers = [
            SimulatedBroker(f"broker-{name}", around, alone=form.brokers == 1, files=form.files)
            for name in "abc"[: form.brokers]
        ]
        self._view = View(self.history, self.clock, self.brokers, self.notice)
        self._notices: dict[str, list[Notice]] = {}
        for kind in INVARIANTS:
            self._register(kind(self._view))
        self._by_owner = {each.broker_id: each for each in self.brokers}
        self._known: dict[Partition, Line] = {}
        self._clients = 0

    def _register(self, invariant: Invariant) -> None:
        for name in vars(Invariant):
            if not name.startswith("_") and getattr(type(invariant), name) is not getattr(
                Invariant, name
            ):
                self._notices.setdefault(name, []).append(getattr(invariant, name))

    # -- for clients and faults --------------------------------------------------------------------

    def notice(self, what: str, *facts: Any) -> None:
        """Tells all invariants that look at this (a method of ``Invariant``)."""
        for each in self._notices.get(what, ()):
            each(*facts)

    def tell(self, what: str) -> None:
        """One more sentence of the story."""
        if self.story is not None:
            self.story.append(f"{self.schedule.events:5} {self.clock.monotonic():7.2f} s  {what}")

    def start_client(self, name: str, body: Body) -> Signal:
        """A client, for which the run waits; the signal is given at its end."""
        done = Signal(self.schedule)

        def live() -> Body:
            try:
                yield from body
            finally:
                self._clients -= 1
                done.give()

        self._clients += 1
        self.schedule.start(name, live())
        return done

    def lose_power(self, broker: SimulatedBroker) -> None:
        """The machine of a broker ends."""
        broker.crash(power=True)
        broker.logs.lose_power(self.form.chance(f"power {self.schedule.events}"))
        for (name, _), line in self.history.lines.items():
            line.lost_power |= name == broker.broker_id

    def wipe(self, broker: SimulatedBroker, topic: Topic) -> None:
        """The folder of a topic is gone from a broker's machine."""
        broker.wipe(topic)
        for (name, place), line in self.history.lines.items():
            if name == broker.broker_id and place[0] == topic.id:
                line.lost_power = line.may_be_gone = True

    def topics(self) -> list[Topic]:
        """The topics that are there now."""
        return [self._topics[name] for name in sorted(self._topics)]

    def broker(self, broker_id: str) -> SimulatedBroker:
        """The broker of this id."""
        return self._by_owner[broker_id]

    # -- the run -----------------------------------------------------------------------------------

    def begin(self, actors: Mapping[str, Callable[[World, str], Body]]) -> None:
        """Topics are there, brokers start, and the form's actors with them."""
        self._make_cluster()
        for broker in self.brokers:
            broker.start()
        for name in self.form.actors:
            kind, _, _ = name.rpartition("-")
            body = actors[kind](self, name)
            self.start_client(name, body)

    def run(self) -> None:
        """From the first event to the last check; Broken if something does not hold."""
        while self._clients and self.clock.monotonic() < _WORK_S:
            self._advance()
        self.tell("all trouble ends")
        self._end_trouble()
        self._wait_until(lambda: not self._clients, "clients have not come to an end")
        over = False
        while not over:  # a call may arrive that its client has given up
            self._wait_until(self._all_is_decided, "transactions are open")
            self._wait_until(self._all_is_marked, "parts of transactions are open")
            self._advance_for(_REST_S)
            over = self._all_is_decided() and self._all_is_marked()
        self.tell("all brokers start once more")
        for broker in self.brokers:
            broker.crash()
        for broker in self.brokers:
            broker.start()
        self._wait_until(self._all_serve, "brokers have not started")
        self._wait_until(self._all_is_led, "partitions have no leaders")
        self._wait_until(self._all_is_replicated, "replicas have not caught up")
        self._advance_for(_REST_S)
        folders = {each.broker_id: each.logs.folders() for each in self.brokers}
        self.notice("ended", folders)

    def _end_trouble(self) -> None:
        self.calm = True
        self.network.trouble.lost = self.network.trouble.late = 0.0
        self.network.trouble.answer_lost = self.network.trouble.repeated = 0.0
        self.network.heal_all()
        for broker in self.brokers:
            broker.logs.mend()
            broker.dies_in = None
            broker.go_on()
            if broker.runs and self._has_failed(broker):
                broker.crash()
            if not broker.runs:
                broker.start()

    def _has_failed(self, broker: SimulatedBroker) -> bool:
        if broker.opened_in != broker.lives:
            return False
        parts = [each for hosted in broker.host.topics() for each in hosted.replicas.values()]
        return any(not isinstance(each, Partition) or each.log.failed for each in parts)

    def _advance_for(self, seconds: float) -> None:
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self._advance()

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        until = self.clock.monotonic() + _PATIENCE_S
        while not done():
            if self.clock.monotonic() > until:
                raise Broken("NothingHangs", f"after {_PATIENCE_S:.0f} s {what}")
            self._advance()

    def _all_serve(self) -> bool:
        return all(each.serves for each in self.brokers)

    def _all_is_marked(self) -> bool:
        lines = [self.history.led(course.place) for course in self.history.there()]
        return all(line is not None and not line.open for line in lines)

    def _all_is_led(self) -> bool:
        return all(self._view.partition(each.place) for each in self.history.there())

    def _all_is_replicated(self) -> bool:
        return all(map(self._is_replicated, self.history.there()))

    def _is_replicated(self, course: Course) -> bool:
        """Whether all replicas of a partition are in sync, and have all that is there."""
        led = self.history.led(course.place)
        if led is None or course.record is None:
            return False
        lines = [self.history.line(each, course.place) for each in course.record.replicas]
        same = all(len(each.entries) == len(led.entries) for each in lines)
        whole = len(course.record.isr) == len(course.record.replicas)
        return same and whole and len(course.committed.entries) == len(led.entries)

    def _all_is_decided(self) -> bool:
        over = (State.EMPTY, State.COMMITTED, State.ABORTED)
        return all(each.state in over for each in self.history.records.values())

    def _advance(self) -> None:
        if self.schedule.events > EVENTS_MAX:
            raise Broken("NothingHangs", f"the run goes on after {EVENTS_MAX} events")
        try:
            task = self.schedule.advance()
        except Killed as killed:
            broker = self._by_owner[killed.broker_id]
            self.tell(f"{broker.broker_id} ends within a step")
            self._look(broker, whole=False)
            opened = broker.open_folders()
            broker.crash()
            files = broker.logs.files().items()
            self.notice("died", {path: raw for path, raw in files if path.parent in opened})
            return
        if task is None:
            raise Broken("NothingHangs", "nobody can go on")
        self._look(self._by_owner.get(task.owner.partition("/")[0]))

    def _make_cluster(self) -> None:
        """The brokers have run before, and topics were made; all logs are empty."""
        store = MemoryStore(self.records)
        for broker in self.brokers:
            before = LeftBehind(Generation(f"{broker.broker_id}.0"), "before", None, broker.boot_id)
            broker.logs.record_run("before")
            store.put(VOUCHING + broker.broker_id, encode_left_behind(before), 0)
            known = RegisteredBroker(
                broker.broker_id, broker.broker_id, "before", "1", before.generation
            )
            store.put(BROKERS + broker.broker_id, encode_broker(known), 0)
            self._board.take_place(broker.broker_id, "before", LEASE_S)
        self._make_topics(store)
        self._note_changes("")

    def _make_topics(self, store: MemoryStore) -> None:
        chance = self.form.chance("topics")
        for number in range(self.form.topics):
            flush = chance.choice(("none", "interval", "batch"))
            config = {"flush": flush, "segment.entries": "16"}
            if chance.random() < 0.5:
                config["segment.ms"] = "1000"
            if chance.random() < 0.7:
                config["replica.lag.time.max.ms"] = str(chance.choice((500, 2_000)))
            replicas = self.replication_factor(chance)
            if replicas > 1 and chance.random() < 0.4:
                config["min.insync.replicas"] = "2"
            if chance.random() < 0.08:
                config["unclean.leader.election"] = "true"
            topic = Topic(
                f"topic-{number}",
                self.ids.new_id(),
                SCHEMA,
                chance.choice((1, 1, 2)),
                config,
                replication_factor=replicas,
            )
            for at in range(topic.partitions):
                brokers = chance.sample(self.brokers, replicas)
                for each in brokers:
                    each.make_folder(topic)
                ids = [BrokerId(each.broker_id) for each in brokers]
                members = tuple(Member(each, Generation(f"{each}.0")) for each in ids)
                record = PartitionRecord(tuple(ids), ids[0], LeaderEpoch(0), members)
                store.put(*put_of(PartitionId(topic.id, at), record, 0))
            store.put(TOPICS + topic.name, encode(topic), 0)

    def replication_factor(self, chance: Random) -> int:
        """How many replicas a topic is to have."""
        return min(len(self.brokers), chance.choices((1, 2, 3), (2, 3, 5))[0])

    # -- looking on --------------------------------------------------------------------------------

    def look_at(self, broker: SimulatedBroker) -> None:
        """Takes notice of what the broker has done in the middle of an event."""
        self._look(broker, whole=False)

    def _look(self, broker: SimulatedBroker | None, *, whole: bool = True) -> None:
        """``whole``: the event is over, so that what is known fits together."""
        if self.records.changes:
            self._note_changes(broker.broker_id if broker else "")
        if broker is not None and broker.runs and broker.opened_in == broker.lives:
            for hosted in broker.host.topics():
                for partition in hosted.open_partitions():
                    self._look_at_log(broker, partition, whole=whole)

    def _note_changes(self, by: str) -> None:
        changes, self.records.changes = self.records.changes, []
        for change in changes:
            self._note_change(*change, by)
        if any(key.startswith(PREFIXES) for key, _, _ in changes):
            self._news.give()

    def _look_at_log(self, broker: SimulatedBroker, partition: Partition, *, whole: bool) -> None:
        line = self._known.get(partition)
        state = partition.replica.bounds_state
        if line is None:
            line = self._open_line(broker, partition)
        elif whole and line.state is state:
            return
        end = int(partition.log.end.entry)
        if end < len(line.entries):
            self.tell(f"{line.name} is cut back to {end} entries")
            line.cut(end)
        grown = end != len(line.entries)
        if grown:
            self._take_entries(line, partition, broker)
        if partition.replica.progress is not None:
            self._take_committed(line, partition)
        if whole and (grown or line.state is not state):
            line.state = state
            self.notice("observed", line, partition)

    def _open_line(self, broker: SimulatedBroker, partition: Partition) -> Line:
        """The line of a replica that was opened a moment ago, or was not known before."""
        place = (partition.topic_id, partition.number)
        self.history.course(place, partition.topic, flush_of(partition))
        line = self._known[partition] = self.history.line(broker.broker_id, place)
        lost = line.cut(self._kept(line, partition))
        if lost:
            self.tell(f"{line.name} has lost {len(lost)} entries")
        self.notice("opened", line, lost, partition, line.lost_power)
        line.lost_power = False
        return line

    def _kept(self, line: Line, partition: Partition) -> int:
        """How many of the entries that were in a log are still there when it is opened."""
        there = entries_from(partition.log, 0)
        for index, (entry, seen) in enumerate(zip(there, line.entries, strict=False)):
            if entry != seen.entry:
                return index
        return min(len(there), len(line.entries))

    def _take_committed(self, line: Line, partition: Partition) -> None:
        """What the leader's high watermark has passed is committed."""
        committed = line.course.committed
        upto = int(partition.replica.bounds_state.high_watermark.entry)
        first = len(committed.entries)
        for seen in line.entries[first:upto]:
            committed.add(seen)
        if upto > first:
            self.notice("committed_upto", line, first, upto)

    def _take_entries(self, line: Line, partition: Partition, broker: SimulatedBroker) -> None:
        course = line.course
        for entry in entries_from(partition.log, len(line.entries)):
            known = course.written.get((entry.leader_epoch, entry.entry_index))
            if known is not None:
                line.add(known)
                self.tell(f"{line.name}: entry {entry.entry_index} is there")
                self.notice("copied", line, known, entry)
                continue
            numbers: list[int] = []
            if entry.count:
                start = Offset(entry.base_offset)
                for chunk in partition.log.read(start, Offset(start + entry.count)):
                    numbers += chunk.batch.column(0).to_pylist()
            seen = Seen(entry, tuple(numbers))
            course.written[entry.leader_epoch, entry.entry_index] = seen
            line.add(seen)
            if self.story is not None:
                self.tell(f"{line.name}: {describe_entry(seen)}")
            self.notice("appended", line, seen, broker)

    def _note_change(self, key: str, before: str | None, after: str | None, by: str) -> None:
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX)
            was = self.history.records.get(name)
            now = None if after is None else decode(json.loads(after))
            self.history.record(name, now)
            if self.story is not None:
                self.tell(f"{by}: {name} is {describe_record(now)}")
            self.notice("recorded", was, now, by)
        elif key.startswith(CONSUMERS):
            self.tell(f"{by}: {key} is {after}")
            then = json.loads(before) if before else {"positions": []}
            self.notice("moved", key.removeprefix(CONSUMERS), then, json.loads(after or "{}"))
        elif key.startswith(PARTITIONS):
            self._note_partition(key, after, by)
        elif key.startswith(BROKERS):
            self._note_broker(key.removeprefix(BROKERS), after)
        elif key.startswith(TOPICS):
            self._note_topic(key, before, after, by)

    def _note_topic(self, key: str, before: str | None, after: str | None, by: str) -> None:
        self.tell(f"{by}: {key} is {'gone' if after is None else 'there'}")
        name = key.removeprefix(TOPICS)
        old = self._topics.pop(name, None)
        if after is not None:
            topic = self._topics[name] = decode_topic(Record(key, json.loads(after), 1))
            settings = self._view.settings[topic.id] = parse_settings(topic.config)
            flush = settings.flush
            for number in range(topic.partitions):
                course = self.history.course((topic.id, number), topic.name, flush)
                course.topic, course.flush, course.deleted = topic.name, flush, False
        if old is not None and (after is None or self._topics[name].id != old.id):
            for course in self.history.courses.values():
                course.deleted |= course.place[0] == old.id

    def _note_partition(self, key: str, after: str | None, by: str) -> None:
        at = id_of(key)
        course = self.history.courses.get((at.topic_id, at.number))
        if course is None:  # of a topic in the making
            course = self.history.course((at.topic_id, at.number))
            course.deleted = True
        before = course.record
        course.record = None if after is None else decode_value(json.loads(after))
        if course.record is None:
            return
        if self.story is not None:
            self.tell(f"{by}: {course.name} {describe_partition(course.record)}")
        if course.record.leader is not None:
            course.leaders[int(course.record.leader_epoch)] = course.record.leader
        gone = set(() if before is None else before.replicas) - set(course.record.replicas)
        for broker in gone:
            self.history.line(broker, course.place).may_be_gone = True
        self.notice("placed", course, before, course.record, by)

    def _note_broker(self, broker: str, after: str | None) -> None:
        if after is None:
            self.history.generations.pop(broker, None)
            return
        value = json.loads(after)
        generation, incarnation = value["generation"], value["incarnation"]
        if self.history.generations.get(broker) != generation:
            self.tell(f"{broker} is in generation {generation[-6:]}")
        self.history.generations[broker] = generation
        if self._incarnations.get(broker) != incarnation:
            self._incarnations[broker] = incarnation
            self.notice("registered", broker, generation)

    def _tell_step(self, broker: SimulatedBroker, step: RemoteStep, answer: Answer) -> None:
        outcome = f": {answer.message}" if isinstance(answer, IsologError) else ""
        if isinstance(step, PartitionStep):
            name, kind = f"{step.at.topic}/{step.at.partition}", type(step).__name__
            number = getattr(step, "transaction", None)
            what = kind if number is None else f"{kind} of transaction {number}"
            self.tell(f"{broker.broker_id}: {name}: {what}{outcome}")

    def _carried_out(self, broker: SimulatedBroker, step: RemoteStep, answer: Answer) -> None:
        if self.story is not None:
            self._tell_step(broker, step, answer)
        if not isinstance(step, PartitionStep) or isinstance(answer, IsologError):
            return
        course = self.history.courses.get((step.at.topic_id, step.at.partition))
        if course is None or not isinstance(step, Seal | ReadBounds | WriteMarkers):
            return
        found = broker.host.topic(step.at.topic, step.at.topic_id).replicas[step.at.partition]
        assert isinstance(found, Partition)
        if isinstance(step, Seal):
            self.notice("sealed", course, step.transaction, int(found.leader_epoch))
        elif isinstance(step, WriteMarkers):
            self.notice("marked", course, step, answer, found)
        else:
            self.notice("told", course, answer, int(found.leader_epoch))


def flush_of(partition: Partition) -> Flush:
    """When the partition's topic forces what is appended."""
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
    where = ", ".join(f"{each.topic}/{each.partition}" for each in record.partitions)
    cause = f" ({record.cause.value})" if record.cause.value else ""
    return f"{record.state.value}{cause}, number {record.number}, in [{where}]"
