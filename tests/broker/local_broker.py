"""Brokers without processes and threads: the test runs their repeated tasks.

Brokers of one ``Surroundings`` share its store, its leases and its clock, and send each other steps
by plain calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from isolog.errors import DiskFull, IsologError, LeaderUnavailable, StorageFailure
from spark_stream.broker.core import BrokerCore, BrokerDisk
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.replication import FollowedReplica, FollowerSession
from spark_stream.broker.scripting.driver import Peers
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.partitions import PartitionId, Partitions
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import Clock, SystemIds, SystemMachine
from spark_stream.scripts.steps import RemoteStep
from spark_stream.storage.disk.directory import LogDirectory, RunFile
from spark_stream.storage.logs import FileLogs
from spark_stream.wire.topic_messages import AlterTopic, CreateTopic
from tests.clocks import FakeClock
from tests.simulation.leases import MemoryBoard
from tests.simulation.store import MemoryRecords, MemoryStore

LEASE_S = 10.0


@dataclass
class Surroundings:
    """The shared parts of a cluster's brokers. ``up`` are those that answer."""

    path: Path
    clock: Clock = field(default_factory=FakeClock)
    records: MemoryRecords = field(default_factory=MemoryRecords)
    board: MemoryBoard = field(default_factory=MemoryBoard)
    up: dict[str, LocalBroker] = field(default_factory=dict)
    starts: int = 0

    def store(self) -> MetadataStore:
        """A broker's connection to the metadata store."""
        return MemoryStore(self.records)

    def start(self, name: str, generation: str = "", **options: Any) -> LocalBroker:
        """The broker of this name, by default in the generation ``<name>-logs``."""
        return LocalBroker(self, name, generation or f"{name}-logs", **options)

    def close(self) -> None:
        for each in list(self.up.values()):
            each.end()


class LocalPeers:
    """The other brokers, called by plain calls."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Any]:
        found = self._around.up.get(broker_id)
        if found is None:
            raise LeaderUnavailable(f"broker {broker_id} is down")
        return [found.tried(step) for step in steps]


@dataclass
class NotedLinks:
    """The leaders that replicas follow, in place of streams."""

    followed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By the replica's name: its leader and the epoch."""
    waits_until: float = 0.0
    """The times at which replicas may lead that have followed."""
    _names: dict[PartitionId, str] = field(default_factory=dict)

    def follow(self, leader: BrokerId, partition: FollowedReplica) -> None:
        self.followed[partition.role.state.name] = (leader, partition.epoch)
        self._names[partition.key] = partition.role.state.name

    def unfollow(self, key: PartitionId) -> None:
        self.followed.pop(self._names.get(key, ""), None)

    def may_lead_at(self, key: PartitionId) -> float:
        del key
        return self.waits_until


@dataclass
class LocalNetwork:
    """Peers that are called by plain calls, and links that are only noted."""

    asked: Peers
    noted: NotedLinks = field(default_factory=NotedLinks)

    def peers(self, core: BrokerCore) -> Peers:
        return self.asked

    def links(self, core: BrokerCore) -> NotedLinks:
        return self.noted


def replicate(
    leader: LocalBroker, follower: LocalBroker, topic: str, number: int = 0
) -> FollowerSession:
    """The follower gets all missing entries and acknowledges them, as a stream does it."""
    replica = follower.replica(topic, number)
    followed = replica.followed(follower.generation)
    session = leader.host.start_session(
        follower.id,
        follower.generation,
        followed.key,
        followed.epoch,
        followed.history(),
        lambda _: None,
    )
    try:
        end = followed.cut_back(session.agreement)
        while (found := session.read_entries(end, 1 << 20)) is not None:
            end = followed.append_frame(end, found.rows, found.data, session.high_watermark)
    except (DiskFull, StorageFailure):
        session.on_writes_refused()
        session.close()
        raise
    session.on_acked(end)
    followed.take_high_watermark(session.high_watermark)
    return session


class LocalBroker(BrokerCore):
    """One broker in a given generation, from its start to :meth:`end` or :meth:`die`."""

    def __init__(
        self,
        around: Surroundings,
        name: str,
        generation: str,
        *,
        logs: FileLogs | None = None,
        store: MetadataStore | None = None,
        folder: Path | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.around = around
        self.id = BrokerId(name)
        around.starts += 1
        self.incarnation = f"start {around.starts}"
        self.path = around.path / name if folder is None else folder
        self.path.mkdir(exist_ok=True)
        self.network = LocalNetwork(LocalPeers(around) if peers is None else peers)
        super().__init__(
            around.store() if store is None else store,
            Leases(around.board, around.clock, LEASE_S),
            around.clock,
            SystemIds(),
            SystemMachine(),
            BrokerDisk(LogDirectory(self.path, "cluster", name), RunFile(self.path), logs),
            self.network,
            CoreSettings(),
        )
        self.generation = self.host.generation = Generation(generation)
        Brokers(self.store).register(
            RegisteredBroker(
                name,
                f"{name}:1",
                self.incarnation,
                "1",
                self.generation,
                begins_reserved=True,
            )
        )
        self.take_lease(self.incarnation)
        self.resumed = self.driver.run(self.beginning())
        self.left_over = self.driver.run(self.topics.removing_left_overs(starts=True))
        around.up[name] = self

    @property
    def links(self) -> NotedLinks:
        """The leaders that its replicas follow."""
        return self.network.noted

    # -- requests ----------------------------------------------------------------------------------

    def partition(self, topic: str, number: int = 0) -> Partition:
        """The partition, which it leads. Raises as ``HostedTopic.partition``."""
        return self.host.topic(topic).partition(number)

    def replica(self, topic: str, number: int = 0) -> Any:
        """Its replica, whoever leads, or None if it has none."""
        hosted = next((each for each in self.host.topics() if each.topic.name == topic), None)
        return None if hosted is None else hosted.replicas.get(number)

    def record(self, topic: str, number: int = 0) -> PartitionRecord:
        """The partition's record in the store."""
        found = Partitions(self.store).get(PartitionId(self.host.find(topic).id, number))
        assert found is not None
        return found.record

    def tried(self, step: RemoteStep) -> Any:
        """A step that another broker sent. Return its answer or its error."""
        try:
            return self.table.run_here(step)
        except IsologError as error:
            return error

    # -- repeated tasks ----------------------------------------------------------------------------

    def control_once(self) -> None:
        """A round of its controller's threads."""
        self.driver.run(self.control())
        self.driver.run(self.controlling.finishing())

    def put_proposals(self) -> None:
        """A round of the thread that puts in-sync replicas on record."""
        self.driver.run(self.proposals.putting())

    # -- its end -----------------------------------------------------------------------------------

    def die(self) -> None:
        """Its process and its lease end. Its files stay."""
        self.around.up.pop(self.id, None)
        self.around.board.gone(self.id)
        self.host.close()  # the files are closed, and its records stay

    def end(self) -> None:
        """It shuts down cleanly."""
        self.around.up.pop(self.id, None)
        self.host.close()
        self.lease_keeper.end()


def to_create(
    topic: str,
    partitions: int,
    factor: int | None,
    schema: pa.Schema,
    config: Mapping[str, str],
    assignment: list[list[str]] | None = None,
    token: str = "",
) -> CreateTopic:
    return CreateTopic(
        topic=topic,
        partitions=partitions,
        replication_factor=factor,
        schema=schema,
        config=dict(config),
        assignment=assignment,
        token=token,
    )


def to_alter(
    topic: str,
    partitions: int | None,
    config: Mapping[str, str],
    assignment: list[list[str]] | None = None,
) -> AlterTopic:
    return AlterTopic(
        topic=topic, partitions=partitions, config=dict(config), assignment=assignment
    )
