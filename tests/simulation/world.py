"""One simulated run: brokers, clients and faults, one event after the other, and who looks on.

A run has three parts. First clients work, and faults happen. Then all trouble ends, brokers come
back and everybody has time. Then all brokers start once more, and what holds at the end is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

import pyarrow as pa

from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.serving.fetching import Answers
from spark_stream.cluster.brokers import BROKERS, RegisteredBroker
from spark_stream.cluster.brokers import encode as encode_broker
from spark_stream.cluster.generations import GENERATIONS, LastRun
from spark_stream.cluster.generations import encode as encode_left_behind
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.topics import REMOVED, TOPICS, Topic, encode
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.transactions.transactions import State
from spark_stream.wire.stream_messages import Ack, BatchRefused, Fetch
from tests.simulation.broker import (
    SCHEMA,
    Killed,
    News,
    SimulatedBroker,
    Surroundings,
)
from tests.simulation.clock import SeededIds, VirtualClock
from tests.simulation.fetching import watched
from tests.simulation.form import Form
from tests.simulation.history import Course, History, Place
from tests.simulation.invariants import INVARIANTS
from tests.simulation.invariants.base import Broken, Invariant, View
from tests.simulation.leases import LEASE_S, MemoryBoard
from tests.simulation.network import Network
from tests.simulation.observer import Onlooker
from tests.simulation.producing import ClientProcess
from tests.simulation.schedule import Body, Schedule, Signal
from tests.simulation.store import MemoryRecords, MemoryStore

EVENTS_MAX: Final = 20_000  # a run that needs more hangs
_WORK_S: Final = 60.0  # after so long the trouble ends, done or not
_PATIENCE_S: Final = 240.0  # longer than any client goes on asking
_REST_S: Final = 3.0  # the last decisions are finished, left-overs removed

Notice = Callable[..., None]


class World:
    """A run."""

    def __init__(
        self, form: Form, *, tells: bool = False, watch: Callable[[View], Invariant] | None = None
    ) -> None:
        """``watch`` makes an observer that gets the same reports as invariants."""
        self.form = form
        self.clock = VirtualClock()
        self.schedule = Schedule(form.chance(f"order {form.order}"), self.clock)
        self.calm = False
        self.rests: list[Callable[[], bool]] = []
        """Whether the endless tasks of clients have settled, at the end of the run."""
        self.favourite: Place | None = None
        """The partition that clients choose most of the time."""
        self.history = History()
        self.records = MemoryRecords()
        self.network = Network(self.schedule, form.chance("network"))
        self.story: list[str] | None = [] if tells else None
        self.ids = SeededIds(form.chance("ids"))
        self._board = MemoryBoard()
        news = News(self.schedule)
        around = Surroundings(
            self.clock,
            self.schedule,
            self.ids,
            self.records,
            self._board,
            self.network,
            form.chance("steps"),
            form.chance("outages"),
            lambda *step: self._onlooker.note_step(*step),
            self._note_answer,
            self._watch_fetch,
            lambda holder: self.notice("found_over", self._by_owner[holder]),
            self.look_at,
            news,
            sees_ends=form.chance("ends").random() < 0.5,
            has_group=form.has_fault(("member",)),
        )
        self.clients = ClientProcess(self)
        self.asks: dict[bytes, tuple[int, ...]] = {}
        """The records that readers had, by the fetches that they have sent."""
        self.brokers = [SimulatedBroker(f"broker-{name}", around) for name in "abc"[: form.brokers]]
        self._view = View(self.history, self.clock, self.brokers, self.notice)
        self._onlooker = Onlooker(self._view, self.records, news, self.tell, tells=tells)
        self._notices: dict[str, list[Notice]] = {}
        for kind in INVARIANTS:
            self._register(kind(self._view))
        if watch is not None:
            self._register(watch(self._view))
        self._by_owner = {each.broker_id: each for each in self.brokers}
        self._clients = 0

    def _note_answer(self, broker: SimulatedBroker, values: list[int], ack: Ack) -> None:
        """An acknowledgement is about to leave the broker."""
        self.look_at(broker)
        if self.story is not None:
            what = ack.error.message if isinstance(ack, BatchRefused) else f"at {ack.offset}"
            again = " (it was there)" if ack.duplicate else ""
            self.tell(f"{broker.broker_id} answers {values}: {what}{again}")
        self.notice("acknowledged", self.history.sent[values[0]], ack, broker)

    def _watch_fetch(
        self, broker: SimulatedBroker, body: bytes, schema: pa.Schema, answers: Answers
    ) -> Answers:
        asked = Fetch.from_bytes(body).ranges[0]
        return watched(self, broker, asked, self.asks.get(body), schema, answers)

    def _register(self, invariant: Invariant) -> None:
        for name in vars(Invariant):
            if not name.startswith("_") and getattr(type(invariant), name) is not getattr(
                Invariant, name
            ):
                self._notices.setdefault(name, []).append(getattr(invariant, name))

    # -- for clients and faults --------------------------------------------------------------------

    def notice(self, what: str, *facts: Any) -> None:
        """Calls all invariants with this method of ``Invariant``."""
        for each in self._notices.get(what, ()):
            each(*facts)

    def tell(self, what: str) -> None:
        """One more sentence of the story."""
        if self.story is not None:
            self.story.append(f"{self.schedule.events:5} {self.clock.monotonic():7.2f} s  {what}")

    def start_client(self, name: str, body: Body) -> Signal:
        """A client, for which the run waits. The signal is given at its end."""
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
        if not broker.ended_in_order:
            self.history.doubtful.add(broker.broker_id)
        broker.crash(power=True)
        broker.logs.lose_power(self.form.chance(f"power {self.schedule.events}"))
        for (name, _), line in self.history.lines.items():
            line.lost_power |= name == broker.broker_id

    def wipe(self, broker: SimulatedBroker, topic: Topic) -> None:
        """The folder of a topic was removed from a broker's machine."""
        broker.wipe(topic)
        for (name, place), line in self.history.lines.items():
            if name == broker.broker_id and place[0] == topic.id:
                line.lost_power = True
                self.history.remove_replica(name, place)

    def topics(self) -> list[Topic]:
        """The existing topics."""
        found = self._onlooker.topics
        return [found[name] for name in sorted(found)]

    def look_at(self, broker: SimulatedBroker) -> None:
        """Reads the changes of the broker in the middle of an event."""
        self._onlooker.look(broker, whole=False)

    def broker(self, broker_id: str) -> SimulatedBroker:
        """The broker of this id."""
        return self._by_owner[broker_id]

    # -- the run -----------------------------------------------------------------------------------

    def begin(self, actors: Mapping[str, Callable[[World, str], Body]]) -> None:
        """Creates the topics, and starts the brokers and the form's actors."""
        self._make_cluster()
        for broker in self.brokers:
            broker.start()
        for name in self.form.actors:
            kind, _, _ = name.rpartition("-")
            body = actors[kind](self, name)
            self.start_client(name, body)

    def run(self) -> None:
        """From the first event to the last check. Broken if something does not hold."""
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
        is_settled = False
        while not is_settled:  # a move may be under way
            self._wait_until(self._all_is_led, "partitions have no leaders")
            self._wait_until(self._all_is_replicated, "replicas have not caught up")
            self._wait_until(self._all_is_stable, "records are not stable")
            self._wait_until(self._all_is_removed, "something is left of deleted topics")
            placed = [each.record for each in self.history.there()]
            self._advance_for(_REST_S)
            is_settled = placed == [each.record for each in self.history.there()]
            is_settled = is_settled and self._all_is_replicated() and self._all_is_stable()
        if self.rests:
            self._wait_until(self._all_rest, "a group is not at rest")
        folders = {each.broker_id: each.logs.folders() for each in self.brokers}
        self.notice("ended", folders)

    def finish(self, name: str, body: Body) -> None:
        """One more client, after the run."""
        self.start_client(name, body)
        self._wait_until(lambda: not self._clients, f"{name} has not come to an end")

    def _end_trouble(self) -> None:
        self.calm = True
        self.network.trouble.lost = self.network.trouble.late = 0.0
        self.network.trouble.answer_lost = self.network.trouble.repeated = 0.0
        self.network.heal_all()
        for broker in self.brokers:
            broker.logs.mend()
            broker.dies_in, broker.renews = None, True
            broker.outage.end(partial(self.look_at, broker))
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

    def _all_is_stable(self) -> bool:
        led = [self._view.partition(each.place) for each in self.history.there()]
        bounds = [None if each is None else each.bounds() for each in led]
        return all(each and each.last_stable_offset == each.log_end_offset for each in bounds)

    def _all_is_removed(self) -> bool:
        """A cancelled alteration stays announced while its topic exists."""
        announced = {each for each in self.records.kept if each.startswith(REMOVED)}
        return announced <= {REMOVED + topic.id for topic in self.topics()}

    def _is_replicated(self, course: Course) -> bool:
        """Whether all replicas of a partition are in sync, and have all entries."""
        led = self.history.led(course.place)
        if led is None or course.record is None:
            return False
        lines = [self.history.line(each, course.place) for each in course.record.replicas]
        same = all(len(each.entries) == len(led.entries) for each in lines)
        whole = len(course.record.isr) == len(course.record.replicas)
        return same and whole and len(course.committed.entries) == len(led.entries)

    def _all_rest(self) -> bool:
        at_rest = all(check() for check in self.rests)
        return at_rest and self._all_is_decided() and self._all_is_marked()

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
            self._onlooker.look(broker, whole=False)
            self._onlooker.note_death(broker)
            opened = broker.open_folders()
            broker.crash()
            files = broker.logs.files().items()
            self.notice("died", {path: raw for path, raw in files if path.parent in opened})
            return
        if task is None:
            raise Broken("NothingHangs", "nobody can go on")
        self._onlooker.look(self._by_owner.get(task.owner.partition("/")[0]))

    def _make_cluster(self) -> None:
        """The brokers have run before, and topics were made. All logs are empty."""
        store = MemoryStore(self.records)
        for broker in self.brokers:
            before = LastRun(Generation(f"{broker.broker_id}.0"), "before", None, broker.boot_id())
            broker.logs.record_run("before")
            store.put(GENERATIONS + broker.broker_id, encode_left_behind(before), 0)
            known = RegisteredBroker(
                broker.broker_id, broker.broker_id, "before", "1", before.generation
            )
            store.put(BROKERS + broker.broker_id, encode_broker(known), 0)
            self._board.take_place(broker.broker_id, "before", LEASE_S)
        self._make_topics(store)
        self._onlooker.note_changes("")

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
            if chance.random() < 0.25:
                config |= {"retention.ms": "4000", "segment.ms": "500"}
            elif chance.random() < 0.08:
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
        """The number of replicas of a topic."""
        return min(len(self.brokers), chance.choices((1, 2, 3), (2, 3, 5))[0])
