"""One simulated run: brokers, clients and faults, one event after the other, and who looks on.

A run has three parts. First clients work, and faults happen. Then all trouble ends, brokers come
back and everybody has time. Then all brokers start once more, and what holds at the end is checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from spark_stream.broker.partition import Partition
from spark_stream.broker.step_table import Answer
from spark_stream.cluster.consumers import CONSUMERS
from spark_stream.cluster.store import Record
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.topics import decode as decode_topic
from spark_stream.cluster.transactions import PREFIX, decode
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.transactions import State
from spark_stream.errors import IsologError, NotLeader
from spark_stream.scripts.steps import PartitionStep, Seal
from spark_stream.storage.settings import Flush
from spark_stream.testing.simulation.broker import (
    SCHEMA,
    Killed,
    SimulatedBroker,
    Surroundings,
)
from spark_stream.testing.simulation.clock import SeededIds, VirtualClock
from spark_stream.testing.simulation.form import Form
from spark_stream.testing.simulation.history import History, Line, Place, Seen
from spark_stream.testing.simulation.invariants import INVARIANTS
from spark_stream.testing.simulation.invariants.base import Broken, Invariant, View
from spark_stream.testing.simulation.leases import MemoryBoard
from spark_stream.testing.simulation.log_entries import entries_from
from spark_stream.testing.simulation.network import Network
from spark_stream.testing.simulation.schedule import Body, Schedule, Signal
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore

EVENTS_MAX: Final = 3_000  # a run that needs more hangs
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
        around = Surroundings(
            self.clock,
            self.schedule,
            self.ids,
            self.records,
            MemoryBoard(),
            self.network,
            form.chance("steps"),
            self._carried_out,
            lambda holder: self.notice("found_over", self._by_owner[holder]),
        )
        self.brokers = [
            SimulatedBroker(f"broker-{name}", around, alone=form.brokers == 1, files=form.files)
            for name in "abc"[: form.brokers]
        ]
        for broker in self.brokers:
            broker.meet(self.brokers)
        self._view = View(self.history, self.clock, self.brokers)
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
        if broker.runs:
            broker.crash()
        broker.logs.lose_power(self.form.chance(f"power {self.schedule.events}"))
        for line in self.history.lines.values():
            line.lost_power |= line.leader == broker.broker_id

    def topics(self) -> list[Topic]:
        """The topics that are there now."""
        found = self.records.kept.items()
        return [
            decode_topic(Record(key, json.loads(text), version))
            for key, (text, version) in sorted(found)
            if key.startswith(TOPICS)
        ]

    def partition(self, place: Place) -> Partition | None:
        """The partition, if its leader has it open."""
        return self._view.partition(place)

    def leader(self, broker_id: str) -> SimulatedBroker:
        """The broker of this id."""
        return self._by_owner[broker_id]

    # -- the run -----------------------------------------------------------------------------------

    def begin(self, actors: Mapping[str, Callable[[World, str], Body]]) -> None:
        """Topics are there, brokers start, and the form's actors with them."""
        self._make_topics()
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
            broker.start()
        self._wait_until(self._all_serve, "brokers have not started")
        self._advance_for(_REST_S)
        folders = {each.broker_id: each.logs.folders() for each in self.brokers}
        self.notice("ended", folders)

    def _end_trouble(self) -> None:
        self.calm = True
        self.network.trouble.lost = self.network.trouble.late = 0.0
        self.network.trouble.answer_lost = self.network.trouble.repeated = 0.0
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
        parts = [each for hosted in broker.host.topics() for each in hosted.partitions]
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
        return not any(line.open for line in self.history.lines.values() if not line.deleted)

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

    def _make_topics(self) -> None:
        chance, store = self.form.chance("topics"), MemoryStore(self.records)
        for number in range(self.form.topics):
            leader = self.brokers[chance.randrange(len(self.brokers))]
            flush = chance.choice(("none", "interval", "batch"))
            config = {"flush": flush, "segment.entries": "16"}
            if chance.random() < 0.5:
                config["segment.ms"] = "1000"
            topic = Topic(
                f"topic-{number}",
                self.ids.new_id(),
                SCHEMA,
                chance.randint(1, 3),
                config,
                leader.broker_id,
            )
            leader.make_folder(topic)
            store.put(TOPICS + topic.name, encode(topic), 0)

    # -- looking on --------------------------------------------------------------------------------

    def look_at(self, broker: SimulatedBroker) -> None:
        """Takes notice of what the broker has done in the middle of an event."""
        self._look(broker, whole=False)

    def _look(self, broker: SimulatedBroker | None, *, whole: bool = True) -> None:
        """``whole``: the event is over, so that what is known fits together."""
        if self.records.changes:
            changes, self.records.changes = self.records.changes, []
            for change in changes:
                self._note_change(*change, broker.broker_id if broker else "")
        if broker is not None and broker.runs and broker.opened_in == broker.lives:
            self._look_at_logs(broker, whole=whole)

    def _look_at_logs(self, broker: SimulatedBroker, *, whole: bool) -> None:
        for hosted in broker.host.topics():
            for partition in hosted.partitions:
                if isinstance(partition, Partition):
                    self._look_at_log(broker, partition, whole=whole)

    def _look_at_log(self, broker: SimulatedBroker, partition: Partition, *, whole: bool) -> None:
        line = self._known.get(partition)
        if line is None:
            line = self._line(partition, flush_of(partition), broker)
            self._known[partition] = line
            end = int(partition.log.end.entry)
            lost = line.cut(end)
            if lost:
                self.history.losses += 1
                self.tell(f"{line.name} has lost {len(lost)} entries, from {end} on")
            self.notice("opened", line, lost, partition, line.lost_power)
            line.lost_power = False
        grown = int(partition.log.end.entry) != len(line.entries)
        if grown:
            self._take_entries(line, partition, broker)
        state = partition.replica.bounds_state
        if whole and (grown or line.state is not state):
            line.state = state
            self.notice("observed", line, partition)

    def _line(self, partition: Partition, flush: Flush, broker: SimulatedBroker) -> Line:
        place = (partition.topic_id, partition.number)
        if place not in self.history.lines:
            self.history.lines[place] = Line(partition.topic, place, broker.broker_id, flush)
        return self.history.lines[place]

    def _take_entries(self, line: Line, partition: Partition, broker: SimulatedBroker) -> None:
        entries = entries_from(partition.log, len(line.entries))
        numbers: list[int] = []
        if any(each.count for each in entries):
            start, end = Offset(line.end), partition.log.end.offset
            for chunk in partition.log.read(start, end):
                numbers += chunk.batch.column(0).to_pylist()
        taken = 0
        for entry in entries:
            values = tuple(numbers[taken : taken + entry.count])
            taken += entry.count
            seen = Seen(entry, values)
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
        elif key.startswith(TOPICS):
            self.tell(f"{by}: {key} is {'gone' if after is None else 'there'}")
            if before is not None:
                old = json.loads(before)
                if after is None or json.loads(after)["id"] != old["id"]:
                    for line in self.history.lines.values():
                        line.deleted |= line.place[0] == old["id"]

    def _tell_step(self, step: PartitionStep, answer: Answer) -> None:
        if not isinstance(answer, NotLeader):  # who asks goes to the leader then
            name, kind = f"{step.at.topic}/{step.at.partition}", type(step).__name__
            number = getattr(step, "transaction", None)
            what = kind if number is None else f"{kind} of transaction {number}"
            outcome = f": {answer.message}" if isinstance(answer, IsologError) else ""
            self.tell(f"{name}: {what}{outcome}")

    def _carried_out(self, step: PartitionStep, answer: Answer) -> None:
        line = self.history.lines.get((step.at.topic_id, step.at.partition))
        if self.story is not None:
            self._tell_step(step, answer)
        if line is not None and isinstance(step, Seal) and not isinstance(answer, IsologError):
            self.notice("sealed", line, step.transaction)


def flush_of(partition: Partition) -> Flush:
    """When the partition's topic forces what is appended."""
    return partition.log.format.settings.flush


def describe_entry(seen: Seen) -> str:
    """An entry, for people."""
    entry, part = seen.entry, ""
    if seen.part[0] >= 0:
        part = f" of transaction {seen.part[0]}, producer {seen.part[1]}"
    what = str(list(seen.values)) if seen.values else entry.kind.name
    return f"entry {entry.entry_index} at {entry.base_offset} is {what}{part}"


def describe_record(record: Any) -> str:
    """A transaction's record, for people."""
    if record is None:
        return "forgotten"
    where = ", ".join(f"{each.topic}/{each.partition}" for each in record.partitions)
    cause = f" ({record.cause.value})" if record.cause.value else ""
    return f"{record.state.value}{cause}, number {record.number}, in [{where}]"
