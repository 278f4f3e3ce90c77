"""A broker of a simulated run: ``broker.core`` on a separate machine.

It starts as ``broker.process`` does, and runs the same tasks. The differences: its tasks belong to
a schedule, which may end them all between any two events. Its calls come over a simulated network.
It reads the store after changes, and not forty times a second. And its machine may lose power, fail
an fsync, or have a full disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import pyarrow as pa
from msgspec import Struct, field

from isolog.errors import (
    IsologError,
    LeaderUnavailable,
    MetadataUnavailable,
    StorageFailure,
)
from spark_stream.broker.actions.topics import leaders_of
from spark_stream.broker.core import BrokerCore, BrokerDisk
from spark_stream.broker.host.host import Host
from spark_stream.broker.node.identity import BrokerIdentity, Endpoint
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.interfaces import ReplicationContext
from spark_stream.broker.replication.leader_stream import LeaderStreams
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.broker.scripting.coordinator import StreamJoins, TransactionCoordinator
from spark_stream.broker.scripting.driver import Answer, Peers
from spark_stream.broker.scripting.peers import pack_steps, unpack_steps
from spark_stream.broker.serving.append_batch import Append, StreamFacts
from spark_stream.broker.serving.fetch_task import FetchTask, FetchTasks
from spark_stream.broker.serving.fetching import Answers, FetchStream
from spark_stream.broker.serving.pool import Pool
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.brokers import BrokerState, ClusterSecret, RegisteredBroker
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Outcome
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.replication.follower import Spot
from spark_stream.protocol import StreamOpened
from spark_stream.scripts import partition_records
from spark_stream.scripts import topics as topic_scripts
from spark_stream.scripts.readers import SESSIONS_S
from spark_stream.scripts.steps import RemoteStep, Script
from spark_stream.storage.disk.directory import LogDirectory
from spark_stream.transport.loop import Loop
from spark_stream.transport.streams import Stream, error_bytes
from spark_stream.wire.messages import APPEND, FETCH
from spark_stream.wire.replication_messages import OpenReplication
from spark_stream.wire.stream_messages import Ack, AppendTo, Envelope, Fetch
from spark_stream.wire.topic_messages import AlterTopic, CreateTopic
from tests.simulation.appends import SimulatedAppends
from tests.simulation.clock import SeededIds, VirtualClock
from tests.simulation.connections import (
    SimulatedConnection,
    SimulatedLines,
    Threads,
)
from tests.simulation.driving import SimulatedDriver
from tests.simulation.leases import LEASE_S, MemoryBoard, WatchedLeases
from tests.simulation.logs import DiskLogs
from tests.simulation.network import Call, Network, NoAnswer
from tests.simulation.schedule import NOW, Body, Schedule, Signal
from tests.simulation.store import MemoryRecords, MortalStore, Outage, OutageBoard

SWEEP_S: Final = 2.0
LEFT_OVERS_S: Final = 2.5
FLUSH_S: Final = 2.0
HOUSEKEEPING_S: Final = 1.7
CONTROL_S: Final = 0.9
SETTLE_S: Final = 2.0
BEAT_S: Final = 2.0
DEATH_S: Final = 6.0
_FRAME_BYTES: Final = (1, 1_000, 1 << 20)
_SECRET: Final = ClusterSecret(b"of all simulated brokers")
_MEMORY: Final = 1 << 30
_RETRY_S: Final = 1.0
_LOOK_S: Final = 0.6
_LATE: Final = 0.1  # the share of late reads of the store's changes
_LATE_S: Final = 1.5


class Killed(BaseException):
    """The broker's process ends within a step."""

    def __init__(self, broker_id: str) -> None:
        super().__init__(broker_id)
        self.broker_id = broker_id


class News:
    """That something has changed in the store."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.next = Signal(schedule)

    def give(self) -> None:
        """Something has."""
        given, self.next = self.next, Signal(self._schedule)
        given.give()


class Surroundings(Struct):
    """The shared state of all brokers of a run.

    ``look_at`` is called after an action of a broker in the middle of an event.
    ``sees_ends``: whether the lease of a process that has ended expires immediately. ``has_group``:
    whether the run has members of a consumer group.
    """

    clock: VirtualClock
    schedule: Schedule
    ids: SeededIds
    records: MemoryRecords
    board: MemoryBoard
    network: Network
    chance: Random
    outages: Random
    carried_out: Callable[[SimulatedBroker, RemoteStep, Answer], None]
    answered: Callable[[SimulatedBroker, list[int], Ack], None]
    watch_fetch: Callable[[SimulatedBroker, bytes, pa.Schema, Answers], Answers]
    found_over: Callable[[str], None]
    look_at: Callable[[SimulatedBroker], None]
    news: News
    sees_ends: bool
    has_group: bool
    brokers: dict[str, SimulatedBroker] = field(default_factory=dict)


class SimulatedBroker:
    """One broker and its machine, over all its processes."""

    def __init__(self, broker_id: str, around: Surroundings) -> None:
        self.broker_id = broker_id
        self.calls: dict[Call, None] = {}  # in their order: the same run makes them in the same
        self.connections: dict[SimulatedConnection, None] = {}
        self._directory = LogDirectory(Path("/") / broker_id, "cluster", broker_id)
        self.logs = DiskLogs(self._directory.path, self._count_down)
        self.lives = 0
        self.runs = False
        self.serves = False
        self.paused = False
        self.dies_in: int | None = None
        self.outage = Outage(around.outages)
        """Of its way to the store and the leases."""
        self.renews = True
        """Whether it can renew its lease."""
        self._around = around
        self._changing: set[str] = set()
        self.core: BrokerCore
        self.host: Host
        self.transactions: TransactionCoordinator
        self.driver: SimulatedDriver
        self.leases: WatchedLeases
        self._leading: LeaderStreams
        self._me: BrokerIdentity
        self._store: MortalStore
        self._proposed: Signal
        self.ended_in_order = False
        """Whether the last process that registered shut down cleanly."""
        self.opened_in = 0  # the last life that came as far as open logs
        self.registered_in = 0  # … and as far as its registration
        around.brokers[broker_id] = self

    @property
    def owner(self) -> str:
        return f"{self.broker_id}/{self.lives}"

    def make_folder(self, topic: Topic) -> None:
        """Creates the folder of a topic that existed before the run."""
        self.logs.make_folder(self._directory.topic(topic.name, topic.id))

    def wipe(self, topic: Topic) -> None:
        """Somebody removes the topic's folder while the broker does not run."""
        with contextlib.suppress(StorageFailure):  # no invariant requires an fsync of that
            self.logs.disk.remove_tree(self._directory.topic(topic.name, topic.id))

    # -- its life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The process starts. It serves when it is ready."""
        self.lives += 1
        self.runs = True
        self._around.schedule.start(f"{self.broker_id} starts", self._start(), self.owner)

    def crash(self, *, power: bool = False) -> None:
        """The process ends where it stands. With ``power`` its machine does."""
        self.runs = self.serves = self.paused = False
        self.dies_in = None
        self._around.schedule.resume(self.owner)
        self._around.schedule.drop(self.owner)
        self.logs.end_process()
        if self._around.sees_ends and not power:
            self._around.board.gone(self.broker_id)
        calls, self.calls = self.calls, {}
        for call in calls:
            call.fail(NoAnswer(f"the connection to {self.broker_id} broke"))
        connections, self.connections = self.connections, {}
        for connection in connections:
            connection.break_off()

    def pause(self) -> None:
        """The process stands still."""
        if self.runs:
            self.paused = True
            self._around.schedule.stop(self.owner)

    def go_on(self) -> None:
        """It goes on as if nothing had happened."""
        if self.paused:
            self.paused = False
            self._around.schedule.resume(self.owner)

    def _count_down(self) -> None:
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                raise Killed(self.broker_id)

    def _start(self) -> Body:
        try:
            yield from self._start_up()
        except MetadataUnavailable:  # then its process ends, and its operator starts another one
            self._around.schedule.start(f"{self.broker_id} is started", self._start_again(), "")
            self.crash()

    def _start_again(self) -> Body:
        yield _RETRY_S
        if not self.runs:
            self.start()

    def _start_up(self) -> Body:
        around = self._around
        yield NOW
        self._store = MortalStore(around.records, self._count_down, self.outage)
        board = OutageBoard(around.board, self.outage)
        self.leases = WatchedLeases(board, around.clock, around.found_over)
        self._proposed = Signal(around.schedule)
        incarnation = around.ids.new_id()
        self._me = BrokerIdentity("cluster", BrokerId(self.broker_id), incarnation, _SECRET)
        while True:
            try:
                core = self.core = self._opened()
                self.host, self.transactions, self.members = (
                    core.host,
                    core.transactions,
                    core.members,
                )
                self.opened_in = self.lives
                yield NOW
                self.ended_in_order = False
                core.registration.decide_generation()
                break
            except IsologError:
                yield _RETRY_S
        yield NOW
        core.table.reserve_used_numbers()
        self.driver = SimulatedDriver(core.table, self._ask_peer, around.chance, self._carried_out)
        self._changing = set()
        context = self._replication_context(self._threads())
        self._leading = LeaderStreams(context, core.host, core.promise_to_ask_s)
        core.registration.register(
            RegisteredBroker(
                self.broker_id,
                self.broker_id,
                incarnation,
                "1",
                rack=self.broker_id,
                begins_reserved=True,
            )
        )
        self.registered_in = self.lives
        yield NOW
        core.take_lease(incarnation)
        self._keep("lease", LEASE_S / 3, lambda: core.lease_keeper.renew() if self.renews else None)
        self.serves = True
        yield NOW
        yield from self.run(core.beginning())
        self._start_task("watcher", self._watch())
        self._keep("waiting replicas", _LOOK_S, core.host.follow_store)
        self._start_task("proposals", self._put_proposals())
        self._keep("controller", CONTROL_S, lambda: self.run(core.control()))
        self._keep("moves", CONTROL_S, lambda: self.run(core.controlling.finishing()))
        self._keep("withdrawals", CONTROL_S, self._hand_over)
        yield from self.run(core.recovering())
        self._keep("left-overs", LEFT_OVERS_S, lambda: self.run(core.topics.removing_left_overs()))
        self._keep("sweep", SWEEP_S, lambda: self.run(core.transactions.sweeping()))
        if self._around.has_group:
            self._keep("sessions", SESSIONS_S, lambda: self.run(core.ending_sessions()))
        self._keep("flush", FLUSH_S, core.host.upkeep.flush_due)
        self._keep("housekeeping", HOUSEKEEPING_S, core.host.upkeep.housekeep)

    def _opened(self) -> BrokerCore:
        return BrokerCore(
            self._store,
            self.leases,
            self._around.clock,
            self._around.ids,
            self,
            BrokerDisk(
                self._directory, self.logs, self.logs, self.logs.marks(), self.logs.promises()
            ),
            self,
            CoreSettings(leader_balance_seconds=SETTLE_S),
            lambda: self._proposed.give(),
        )

    def peers(self, core: BrokerCore) -> Peers:
        """No thread calls a peer: ``driver`` does, by the schedule."""
        return _NoPeers()

    def links(self, core: BrokerCore) -> Fetchers:
        """Streams over the simulated network."""
        around, threads = self._around, self._threads()
        context = self._replication_context(threads)
        lines = SimulatedLines(self, threads, context.settings, around.brokers, around.network)
        return Fetchers(context, self._endpoint_of, lines.call, core.promising)

    def serve(self, opened: StreamOpened, stream: Stream) -> None:
        """Serve a stream of a follower, or of a client."""
        try:
            if opened.method == APPEND:
                SimulatedAppends(self, self._around.schedule, self.owner, opened, stream)
            elif opened.method == FETCH:
                self._fetch(bytes(opened.body), stream)
            else:
                self._leading.serve(OpenReplication.from_bytes(bytes(opened.body)), stream)
        except IsologError as error:
            stream.fail(error_bytes(error))

    def _fetch(self, body: bytes, stream: Stream) -> None:
        threads, clock = self._threads(), self._around.clock
        # A turn is one frame: much may happen between two of them.
        tasks = FetchTasks(
            cast(Pool, threads),
            cast(Pool, threads),
            cast(Loop, threads),
            clock,
            _MEMORY,
            turn_bytes=1,
        )

        def begin() -> None:
            try:
                asked = FetchStream(
                    self.host,
                    Fetch.from_bytes(body),
                    lambda: stream.over is not None,
                    clock,
                    encoded=True,
                )
                answers = self._around.watch_fetch(self, body, asked.schema, asked.answers())
                FetchTask(tasks, stream, asked.schema, answers, contextlib.nullcontext()).begin()
            except IsologError as error:
                stream.fail(error_bytes(error))

        threads.submit(begin)

    def _endpoint_of(self, broker_id: BrokerId) -> Endpoint | None:
        found = self._around.brokers.get(broker_id)
        registered = found is not None and found.registered_in > 0
        return Endpoint(broker_id, found._me.incarnation) if found and registered else None

    def _threads(self) -> Threads:
        return Threads(self._around.schedule, self._around.chance, self.owner)

    def _replication_context(self, threads: Threads) -> ReplicationContext:
        """Return a context whose settings let little be under way, or much."""
        frame_bytes = self._around.chance.choice(_FRAME_BYTES)
        settings = ReplicationSettings(
            BEAT_S, DEATH_S, 4 * frame_bytes, 8 * frame_bytes, frame_bytes
        )
        return ReplicationContext(self._me, settings, self._around.clock, threads.background)

    def boot_id(self) -> str:
        """Identifies the boots of its machine."""
        return f"{self.broker_id} boot {self.logs.boot}"

    def end_in_order(self) -> Body:
        """A body that ends the process as an operator who waits for the end."""
        with contextlib.suppress(IsologError):
            yield from self.run(self.core.leaving())
        in_order = self.host.close()
        self.serves = False
        yield NOW
        self.ended_in_order = in_order
        with contextlib.suppress(IsologError):
            if in_order:
                self.core.registration.end()
        with contextlib.suppress(IsologError):
            self.core.lease_keeper.end()
        self.crash()

    def _start_task(self, name: str, body: Body) -> None:
        self._around.schedule.start(f"{self.broker_id} {name}", body, self.owner)

    def _keep(self, name: str, pause_s: float, task: Callable[[], Body | float | None]) -> None:
        """Start a task that repeats this, a call or a body, with pauses."""

        def keep() -> Body:
            while True:
                yield pause_s
                with contextlib.suppress(IsologError):  # as a broker does, which logs it
                    body = task()
                    if isinstance(body, Generator):
                        yield from body

        self._start_task(name, keep())

    def _watch(self) -> Body:
        """Reads the store's changes. Now and then late, or it applies them late.

        Other tasks of this broker may have read later changes before: then it changes nothing.
        """
        chance, records = self._around.chance, self._around.records
        while True:
            self.host.follow_store()
            yield self._around.news.next
            if chance.random() < _LATE:
                read = records.last_version if chance.random() < 0.5 else None
                yield chance.random() * _LATE_S
                with self._store.as_of(read), contextlib.suppress(MetadataUnavailable):
                    self.host.refresh()
                self._around.look_at(self)  # it may have led by that, and will follow in a moment

    def _put_proposals(self) -> Body:
        while True:
            yield self._proposed
            self._proposed = Signal(self._around.schedule)
            try:
                yield from self.run(self.core.proposals.putting())
            except IsologError:
                yield _RETRY_S
                self._proposed.give()

    def _hand_over(self) -> Body:
        yield from self.run(self.core.withdrawals.checking())
        yield from self.run(self.core.balance.checking())

    def _carried_out(self, step: RemoteStep, answer: Answer) -> None:
        self._around.carried_out(self, step, answer)

    def open_folders(self) -> set[Path]:
        """The folders of the partitions that the process has open."""
        if self.opened_in != self.lives:
            return set()
        return {
            self._directory.partition(hosted.topic.name, hosted.topic.id, each.number)
            for hosted in self.host.topics()
            for each in hosted.open_partitions()
        }

    # -- calls ------------------------------------------------------------------------------------

    def run(self, script: Script[Any]) -> Body:
        """A body that returns what the script returns."""
        return self.driver.run(script)

    def new_facts(self, asked: AppendTo) -> StreamFacts:
        """Return the shared state of one stream's appends."""
        joins = StreamJoins(self.transactions.decisions, asked.transactional_id)
        return StreamFacts(asked, self._around.clock, joins)

    def new_append(self, facts: StreamFacts, envelope: Envelope, batch: pa.RecordBatch) -> Append:
        """Return the append of a batch that a client has sent."""
        hosted = self.host.topic(facts.request.topic, facts.request.topic_id)
        return Append(facts, hosted, envelope, batch)

    def may_stand_still(self) -> Body:
        """A body in which a thread of the broker stands still, now and then."""
        return self.driver.may_stand_still()

    def answers(self, batch: pa.RecordBatch, ack: Ack) -> None:
        """Record the answer of a batch."""
        self._around.answered(self, batch.column(0).to_pylist(), ack)

    def create_topic(
        self, name: str, partitions: int, replicas: int, config: Mapping[str, str]
    ) -> Body:
        """A body that makes a topic, and returns it."""
        topic, records = self.core.topics.plan(
            CreateTopic(
                topic=name,
                partitions=partitions,
                replication_factor=replicas,
                schema=SCHEMA,
                config=dict(config),
            )
        )
        made = topic_scripts.create_topic(topic, records, BrokerId(self.broker_id))
        yield from self._alone_with(name, made)
        return topic

    def alter_topic(self, name: str, partitions: int) -> Body:
        """A body that gives a topic more partitions."""
        self.host.topic(name)
        change = self.core.topics.plan_change(AlterTopic(topic=name, partitions=partitions))
        placed = self.core.topics.plan_added()
        yield from self._alone_with(name, topic_scripts.alter_topic(name, change, placed))

    def find_leaders(self, topic: str, topic_id: str, rack: str | None = None) -> Body:
        """A body that returns who leads the topic's partitions, as this broker sees it."""
        yield NOW
        found = self.host.find(topic, topic_id)
        return leaders_of(self.host, found, range(found.partitions), Spot(rack))

    def change_records(
        self,
        places: Sequence[PartitionId],
        change: Callable[[PartitionId, PartitionRecord], Outcome],
    ) -> Body:
        """A body that changes the records of these partitions."""
        return self.run(partition_records.change_records(places, self.host.view_of, change))

    def prefer(self, places: Sequence[PartitionId]) -> Body:
        """A body that lets preferred leaders lead."""
        alive = self.members.alive()
        return self.change_records(places, lambda _, record: election.prefer(record, alive))

    def move(self, place: PartitionId, target: Iterable[str]) -> Body:
        """A body that moves a partition to other brokers."""
        wanted = [BrokerId(each) for each in target]
        return self.change_records([place], lambda _, at: election.begin_move(at, wanted))

    def trim(self, topic: Topic, before: Mapping[int, int]) -> Body:
        """A body that moves log starts, and returns those that the leaders have then."""
        found = self.host.topic(topic.name, topic.id).topic
        return self.run(partition_records.trim(found, before, self.host.view_of))

    def decommission(self, broker: str) -> Body:
        """A body that lets a broker leave, if another can keep replicas."""
        if self.members.takers(self.members.alive()).keys() - {broker}:
            yield from self.run(
                partition_records.mark_broker(BrokerId(broker), BrokerState.LEAVING)
            )

    def recommission(self, broker: str) -> Body:
        """A body that lets a broker that was to leave stay."""
        return self.run(partition_records.mark_broker(BrokerId(broker), BrokerState.ACTIVE))

    def delete_topic(self, name: str) -> Body:
        """A body that deletes a topic."""
        self.host.topic(name)
        yield from self._alone_with(name, topic_scripts.delete_topic(name))

    def _alone_with(self, name: str, script: Script[Any]) -> Body:
        """As ``TopicDesk`` does: the changes of one topic come one after the other."""
        while name in self._changing:
            yield 0.1
        self._changing.add(name)
        try:
            return (yield from self.run(script))
        finally:
            self._changing.discard(name)

    def _ask_peer(self, broker_id: str, steps: Sequence[RemoteStep]) -> Body:
        peer = self._around.brokers.get(broker_id)
        if peer is None or peer is self:
            raise LeaderUnavailable(f"broker {broker_id} is not registered", leader=broker_id)
        sent = unpack_steps(pack_steps(steps))
        name = (
            f"{broker_id} for {self.broker_id}: {', '.join(type(each).__name__ for each in sent)}"
        )
        try:
            return (
                yield from self._around.network.call(
                    name, peer, lambda: peer.driver.run_here(sent), by=self.broker_id
                )
            )
        except NoAnswer as error:
            raise LeaderUnavailable(str(error), leader=broker_id) from None


SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
"""Every record is a number that no other record has."""


class _NoPeers:
    """For what no thread drives."""

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Any]:
        raise AssertionError(f"{len(steps)} steps for {broker_id} in a thread")
