"""A broker of a simulated run: the broker's own host, desks and steps, on a machine of its own.

It starts as ``broker.process`` does, and its keepers do the same at the same times. What differs:
its tasks belong to a schedule, which may end them all between any two events; its calls come over a
simulated network; and its machine may lose power, fail a force, or be full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from spark_stream.broker.append import Append, AppendStream
from spark_stream.broker.driver import Driver
from spark_stream.broker.host import Host
from spark_stream.broker.step_table import StepTable
from spark_stream.broker.steps import facts_of, step_of
from spark_stream.broker.topics import TopicDesk
from spark_stream.broker.transactions import TransactionDesk
from spark_stream.cluster.leases import Lease
from spark_stream.cluster.topics import Topic
from spark_stream.errors import IsologError, LeaderUnavailable
from spark_stream.scripts import topics as topic_scripts
from spark_stream.scripts.steps import PartitionStep, Script
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.settings import LogSettings
from spark_stream.testing.simulation.clock import SeededIds, VirtualClock
from spark_stream.testing.simulation.driving import CarriedOut, SimulatedDriver
from spark_stream.testing.simulation.leases import LEASE_S, MemoryBoard, WatchedLeases
from spark_stream.testing.simulation.logs import DiskLogs, ListLogs, MachineLogs
from spark_stream.testing.simulation.network import Call, Network, NoAnswer
from spark_stream.testing.simulation.schedule import NOW, Body, Schedule
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore
from spark_stream.wire.messages import Ack, AppendTo, Envelope

SWEEP_S: Final = 1.5
FLUSH_S: Final = 2.0
HOUSEKEEPING_S: Final = 30.0
_RETRY_S: Final = 1.0


class Killed(BaseException):
    """The broker's process ends within a step."""

    def __init__(self, broker_id: str) -> None:
        super().__init__(broker_id)
        self.broker_id = broker_id


@dataclass
class Surroundings:
    """What all brokers of a run share."""

    clock: VirtualClock
    schedule: Schedule
    ids: SeededIds
    records: MemoryRecords
    board: MemoryBoard
    network: Network
    chance: Random
    carried_out: CarriedOut
    found_over: Callable[[str], None]


class MortalStore(MemoryStore):
    """A broker's way to the store, in which its process may end."""

    def __init__(self, records: MemoryRecords, before: Callable[[], None]) -> None:
        super().__init__(records)
        self._before = before

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        self._before()
        return super().put(key, value, expected)

    def delete(self, key: str, expected: int) -> bool:
        self._before()
        return super().delete(key, expected)


class SimulatedBroker:
    """One broker and its machine, through all its lives."""

    def __init__(self, broker_id: str, around: Surroundings, *, alone: bool, files: bool) -> None:
        self.broker_id = broker_id
        self.calls: dict[Call, None] = {}  # in their order: the same run makes them in the same
        self.logs: MachineLogs = DiskLogs(self._count_down) if files else ListLogs()
        self._directory = LogDirectory(Path("/") / broker_id, "cluster", broker_id)
        self.lives = 0
        self.runs = False
        self.serves = False
        self.paused = False
        self.dies_in: int | None = None
        self._around = around
        self._alone = alone
        self._peers: dict[str, SimulatedBroker] = {}
        self._changing: set[str] = set()
        self.host: Host
        self.desk: TransactionDesk
        self.topic_desk: TopicDesk
        self.lease: Lease
        self.driver: SimulatedDriver
        self.leases: WatchedLeases
        self.opened_in = 0  # the last life that came as far as open logs

    @property
    def owner(self) -> str:
        return f"{self.broker_id}/{self.lives}"

    def meet(self, brokers: Sequence[SimulatedBroker]) -> None:
        """These are all brokers of the store."""
        self._peers = {each.broker_id: each for each in brokers if each is not self}

    def make_folder(self, topic: Topic) -> None:
        """Gives a topic that was there before the run the folder that its leader made."""
        self.logs.make_folder(self._directory.topic(topic.name, topic.id))

    # -- its life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """The process starts; it serves when it is ready."""
        self.lives += 1
        self.runs = True
        self._around.schedule.start(f"{self.broker_id} starts", self._start(), self.owner)

    def crash(self) -> None:
        """The process ends where it stands."""
        self.runs = self.serves = self.paused = False
        self.dies_in = None
        self._around.schedule.resume(self.owner)
        self._around.schedule.drop(self.owner)
        self.logs.end_process()
        if self._around.chance.random() < 0.5:  # as on one host, where others know that; or not
            self._around.board.gone(self.broker_id)
        calls, self.calls = self.calls, {}
        for call in calls:
            call.fail(NoAnswer(f"the connection to {self.broker_id} broke"))

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
        around = self._around
        yield NOW
        store = MortalStore(around.records, self._count_down)
        while True:
            try:
                self.host = Host(
                    self._directory,
                    store,
                    LogSettings(),
                    around.clock,
                    holds_store=self._alone,
                    logs=self.logs,
                )
                break
            except IsologError:
                yield _RETRY_S
        self.opened_in = self.lives
        yield NOW
        self.leases = WatchedLeases(around.board, around.clock, around.found_over)
        self.lease = self.leases.hold(self.broker_id, around.ids.new_id())
        table = StepTable(store, self.host)
        self.driver = SimulatedDriver(table, self._ask_peer, around.chance, around.carried_out)
        threads = Driver(table, _NoPeers())
        self._changing = set()
        self.topic_desk = TopicDesk(threads, self.host, LogSettings(), around.ids)
        self.desk = TransactionDesk(
            threads, self.host, around.clock, self.broker_id, self.leases, adopts=self._alone
        )
        yield from self.run(self.topic_desk.removing_left_overs())
        yield from self.run(self.desk.recovering())
        self.serves = True
        self._keep("lease", LEASE_S / 4, self._renew_lease)
        self._keep("sweep", SWEEP_S, lambda: self.run(self.desk.sweeping()))
        self._keep("flush", FLUSH_S, lambda: _at_once(self.host.flush_due))
        self._keep("housekeeping", HOUSEKEEPING_S, lambda: _at_once(self.host.housekeep))

    def _keep(self, name: str, pause_s: float, task: Callable[[], Body]) -> None:
        def keep() -> Body:
            while True:
                yield pause_s
                yield from task()

        self._around.schedule.start(f"{self.broker_id} {name}", keep(), self.owner)

    def _renew_lease(self) -> Body:
        yield NOW
        self.lease.renew()

    def open_folders(self) -> set[Path]:
        """The folders of the partitions that the process has open."""
        if self.opened_in != self.lives:
            return set()
        return {
            self._directory.partition(hosted.topic.name, hosted.topic.id, each.number)
            for hosted in self.host.topics()
            for each in hosted.open_partitions()
        }

    # -- what it is asked --------------------------------------------------------------------------

    def run(self, script: Script[Any]) -> Body:
        """A body that returns what the script returns."""
        return self.driver.run(script)

    def append(
        self,
        asked: AppendTo,
        envelope: Envelope,
        batch: pa.RecordBatch,
        heard: Callable[[Ack], None],
    ) -> Body:
        """A body that returns the acknowledgement of a batch.

        ``heard`` is called when it leaves the broker, which may be before the body goes on.
        """
        acks: list[Ack] = []

        def acknowledge(message: bytes) -> None:
            acks.append(Ack.from_bytes(message))
            heard(acks[-1])

        hosted = self.host.topic(asked.topic, asked.topic_id)
        stream = AppendStream(asked, acknowledge, self._around.clock)
        append = Append(stream, hosted, envelope, batch)
        yield from self.run(append.finish())
        return acks[0]

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> Body:
        """A body that makes a topic, and returns it."""
        topic = self.topic_desk.plan(name, partitions, 1, SCHEMA, config)
        yield from self._alone_with(name, topic_scripts.create_topic(topic))
        return topic

    def alter_topic(self, name: str, partitions: int) -> Body:
        """A body that gives a topic more partitions."""
        self.host.topic(name)
        change = self.topic_desk.plan_change(name, partitions, {})
        yield from self._alone_with(name, topic_scripts.alter_topic(name, change))

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

    def _ask_peer(self, broker_id: str, steps: Sequence[PartitionStep]) -> Body:
        peer = self._peers.get(broker_id)
        if peer is None:
            raise LeaderUnavailable(f"broker {broker_id} is not registered", leader=broker_id)
        sent = [step_of(facts_of(step)) for step in steps]
        name = (
            f"{broker_id} for {self.broker_id}: {', '.join(type(each).__name__ for each in sent)}"
        )
        try:
            return (
                yield from self._around.network.call(name, peer, lambda: peer.driver.run_here(sent))
            )
        except NoAnswer as error:
            raise LeaderUnavailable(str(error), leader=broker_id) from None


SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
"""Every record is a number that no other record has."""


class _NoPeers:
    """For what no thread drives."""

    def run_steps(self, broker_id: str, steps: Sequence[PartitionStep]) -> list[Any]:
        raise AssertionError(f"{len(steps)} steps for {broker_id} in a thread")


def _at_once(act: Callable[[], object]) -> Body:
    yield NOW
    act()
