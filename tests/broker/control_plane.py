"""A control plane of any size: a real controller, and brokers that exist only on record.

The recorded brokers have a lease, hold and lead all partitions, and answer immediately. So
100,000 partitions need no logs, and all code that runs is the controller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from spark_stream.cluster.brokers import Brokers, RegisteredBroker
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.stores.leases import Renewal
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.stores.store import TimedStore
from spark_stream.consistency.control.assignment import Load, Misassigned, assign
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.counting import Histogram, NamedCounts
from spark_stream.scripts.steps import ReadBounds, RemoteStep
from tests.broker.local_broker import LEASE_S, LocalBroker, Surroundings, to_create
from tests.support import NUMBERS

REPLICAS = 3
_EMPTY = Bounds(Offset(0), Offset(0), Offset(0), Offset(0))


class Requests(NamedTuple):
    """Requests to the metadata store, and the records that they changed."""

    reads: int
    writes: int
    records: int

    def __sub__(self, before: Requests) -> Requests:
        return Requests(*(now - then for now, then in zip(self, before, strict=True)))


class RecordedPeers:
    """The answers of brokers without a process."""

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Any]:
        del broker_id
        return [_EMPTY if isinstance(each, ReadBounds) else None for each in steps]


class ControlPlane:
    """One controller beside ``brokers`` recorded brokers."""

    def __init__(self, folder: Path, brokers: int) -> None:
        self._reads, self._writes = Histogram(), Histogram()
        self._plain = SqliteStore(folder / "metadata.sqlite")
        self.store = TimedStore(self._plain, self._reads, self._writes, NamedCounts())
        self._around = Surroundings(folder)
        self.brokers = [BrokerId(f"broker-{number:03}") for number in range(brokers)]
        self._load = Load()
        for each in self.brokers:
            self._start(each)
        self.controller = LocalBroker(
            self._around, "controller", "logs", store=self.store, peers=RecordedPeers()
        )
        self.rounds(2)

    def _start(self, broker: BrokerId) -> None:
        known = RegisteredBroker(broker, f"{broker}:1", "start", "1", Generation(f"{broker}-logs"))
        Brokers(self.store).register(known)
        self._around.board.shown[broker] = Renewal("start", 0, LEASE_S)

    def create(self, topic: str, partitions: int) -> None:
        """A topic whose partitions are on the recorded brokers."""
        found = assign(partitions, REPLICAS, dict.fromkeys(self.brokers), self._load)
        assert not isinstance(found, Misassigned)
        asked = to_create(topic, 1, 1, NUMBERS, {}, [list(each) for each in found])
        self.controller.topics.create(asked)

    def change(self, topic: str) -> None:
        """A follower of partition 0 leaves the ISR, or returns to it."""
        host = self.controller.host
        stored = host.view_of(PartitionId(host.view.now.topics[topic].id, 0))
        assert stored is not None
        record = stored.record
        members = tuple(Member(each, Generation(f"{each}-logs")) for each in record.replicas)
        isr = members[:-1] if len(record.isr) == len(members) else members
        changed = PartitionRecord(record.replicas, record.leader, record.leader_epoch, isr)
        (done,) = self.store.put_many([put_of(stored.id, changed, stored.version)])
        assert done is not None

    def kill(self, broker: BrokerId) -> None:
        """The broker's lease ends."""
        self._around.board.gone(broker)

    def rounds(self, count: int = 1) -> None:
        """Rounds of the controller's threads. The first one reads all changes."""
        for _ in range(count):
            self.controller.host.follow_store()
            self.controller.control_once()

    def requests(self) -> Requests:
        """The requests so far."""
        revision = self._plain.changes(0, ("none",)).revision
        return Requests(self._reads.read().count, self._writes.read().count, revision)

    def close(self) -> None:
        self._around.close()
        self.store.close()
