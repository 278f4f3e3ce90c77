"""A broker's sweeps of its transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import (
    LeaderUnavailable,
    MetadataUnavailable,
    StorageFailure,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.broker.host.hosted_topic import TopicFolders
from spark_stream.broker.scripting.coordinator import TransactionCoordinator
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined, State
from spark_stream.scripts.steps import PartitionStep
from spark_stream.scripts.transactions import records
from spark_stream.scripts.transactions.finishing import FORGET_AFTER_MS, TransactionSettings
from spark_stream.storage.disk.directory import LogDirectory
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.logs import FileLogs
from spark_stream.wire.transaction_messages import (
    AbortTransaction,
    BeginTransaction,
    InitTransactions,
)
from tests.broker.local_broker import LocalBroker, Surroundings
from tests.clocks import FakeClock
from tests.scripts.on_store import OnStore
from tests.simulation.disk import SimulatedDisk
from tests.simulation.store import MemoryRecords, MemoryStore
from tests.support import NUMBERS, numbers

SECOND_US = 1_000_000


class SilentPeers:
    """Brokers that do not answer, so that calls to them wait for their timeout."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.asked = 0

    def run_steps(self, broker_id: str, steps: Sequence[PartitionStep]) -> list[Any]:
        self.asked += 1
        self.clock.pass_us(10 * SECOND_US)
        raise LeaderUnavailable(f"{broker_id} does not answer", leader=broker_id)


def led_by(broker: BrokerId) -> PartitionRecord:
    """A partition that only this broker has."""
    member = Member(broker, Generation(f"{broker}-logs"))
    return PartitionRecord((broker,), broker, LeaderEpoch(0), (member,))


class Desk:
    """A broker's transactions, one of which has a partition at a silent broker."""

    def __init__(self, path: Path, leader: str = "elsewhere", disk: Disk = HOST_DISK) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(MemoryRecords())
        self.store.put(TOPICS + "t", encode(Topic("t", "id", NUMBERS, 1, {})), 0)
        self.store.put_many([put_of(PartitionId("id", 0), led_by(BrokerId(leader)), 0)])
        self.peers = SilentPeers(self.clock)
        logs = FileLogs(disk)
        logs.make_folder(LogDirectory(path, "cluster", "here").topic("t", "id"))
        broker = LocalBroker(
            Surroundings(path, self.clock),
            "here",
            "here-logs",
            logs=logs,
            store=self.store,
            folder=path,
            peers=self.peers,
        )
        self.host = broker.host
        self.transactions = TransactionCoordinator(
            broker.driver, self.host, self.clock, "here", broker.leases, TransactionSettings()
        )

    def begin(self, name: str, *, joins: bool) -> None:
        transactions, run = self.transactions, self.transactions.run
        me = {"transactional_id": name, "instance": "me"}
        run(transactions.decisions.take_over(InitTransactions.of(**me, timeout_ms=1_000)))
        begun = run(transactions.decisions.begin(BeginTransaction.of(**me)))
        if joins:
            place = Joined("t", "id", 0)
            run(
                transactions.decisions.join(
                    name, begun.number, begun.producer_id, begun.epoch, place
                )
            )

    def state(self, name: str) -> State:
        return self.transactions.run(self.transactions.decisions.describe(name)).state


@pytest.mark.rule("the interval of sweeps over all transactions", "broker/scripting/coordinator.py")
def test_a_silent_broker_delays_no_other_transaction(tmp_path: Path):
    """Its ten seconds without an answer do not delay the sweep of the others."""
    found = Desk(tmp_path)
    found.begin("stuck", joins=True)
    found.transactions.run(found.transactions.sweeping())
    found.clock.pass_us(2 * SECOND_US)
    found.transactions.run(
        found.transactions.sweeping()
    )  # it expires, and its leader does not answer
    assert (found.peers.asked, found.state("stuck")) == (1, State.ABORTING)
    found.begin("other", joins=False)
    found.transactions.run(found.transactions.sweeping())
    found.clock.pass_us(2 * SECOND_US)
    found.transactions.run(found.transactions.sweeping())
    assert found.state("other") is State.ABORTED


@pytest.mark.rule("the clock of a transaction's timeout", "broker/scripting/coordinator.py")
@pytest.mark.parametrize("outage_s", [2, 40])
def test_a_transaction_does_not_expire_because_of_an_outage_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outage_s: int
) -> None:
    """Its owner could not renew it in that time."""
    found = Desk(tmp_path)
    found.begin("x", joins=False)
    transactions = found.transactions
    transactions.run(transactions.sweeping())

    def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("the store does not answer")

    with monkeypatch.context() as outage:
        for name in ("put", "delete", "get", "list", "changes"):
            present = getattr(found.store, name)

            def answer(
                *given: Any, present: Callable[..., Any] = present, fresh: bool = True, **more: Any
            ) -> Any:
                """Cached reads only."""
                if fresh:
                    unavailable()
                return present(*given, fresh=False, **more)

            outage.setattr(found.store, name, answer)
        for _ in range(2 * outage_s):
            found.clock.pass_us(SECOND_US // 2)
            with suppress(MetadataUnavailable):
                transactions.run(transactions.sweeping())
    transactions.run(transactions.sweeping())
    assert found.state("x") is State.OPEN
    found.clock.pass_us(2 * SECOND_US)
    transactions.run(transactions.sweeping())
    assert found.state("x") is State.ABORTED


def test_any_broker_removes_an_id_without_transactions(tmp_path: Path):
    found = Desk(tmp_path)
    transactions = found.transactions
    asked = InitTransactions(transactional_id="unused", instance="me", timeout_ms=1_000)
    transactions.run(transactions.decisions.take_over(asked))
    transactions.run(transactions.sweeping())
    found.clock.pass_us(FORGET_AFTER_MS * 1_000 + 2 * SECOND_US)
    transactions.run(transactions.sweeping())
    with pytest.raises(UnknownTransaction):
        found.state("unused")


def test_a_refused_join_leaves_no_record_behind(tmp_path: Path):
    found = Desk(tmp_path)
    transactions, place = found.transactions, Joined("t", "id", 0)
    found.begin("x", joins=False)
    begun = transactions.run(transactions.decisions.describe("x"))
    of = (begun.number, begun.producer_id, begun.epoch)
    late = OnStore(found.store).start(transactions.decisions.join("x", *of, place))
    late.advance()  # it has checked, and the transaction was open
    transactions.run(
        transactions.decisions.abort(
            AbortTransaction(transactional_id="x", instance="me", number=begun.number)
        )
    )
    transactions.run(transactions.sweeping())
    with pytest.raises(TransactionAborted):
        late.end()
    assert transactions.run(records.read_joins()) != []
    transactions.run(transactions.sweeping())
    assert transactions.run(records.read_joins()) == []


def test_a_lost_marker_is_restored_once_the_disk_has_room(tmp_path: Path):
    """No other broker would: the transaction ended, and readers would wait for the next start."""
    disk = SimulatedDisk()
    found = Desk(tmp_path, "here", disk)
    partition = found.host.topic("t").partition(0)
    partition.transactions.close_join(partition.transactions.open_join(7, 1), on_record=True)
    partition.append(numbers(0, 1), Stamp(1, 0, 0, 7))  # no record has it any more
    disk.room, room = 0, disk.room
    found.transactions.run(found.transactions.recovering())
    assert partition.bounds().last_stable_offset == 0
    disk.room = room
    found.transactions.run(found.transactions.sweeping())
    assert partition.bounds().last_stable_offset == 1
    assert partition.log.has_aborted(0, 1)


def test_a_folder_is_removed_once_unless_it_was_made_again(tmp_path: Path):
    """Its announcement may stay for hours, and all brokers read it twice a second."""
    disk, directory = SimulatedDisk(), LogDirectory(tmp_path, "cluster", "here")
    logs = FileLogs(disk)
    folders, topic = TopicFolders(directory, logs, lambda: None), Topic("t", "id", NUMBERS, 1, {})
    folder = directory.topic("t", "id")
    logs.make_folder(folder)
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        folders.remove(topic)
    before = disk.forces
    folders.remove(topic)
    assert disk.forces > before
    before = disk.forces
    folders.remove(topic)
    assert disk.forces == before
    logs.make_folder(folder)
    disk.fail_next_force()
    with pytest.raises(StorageFailure):
        folders.remove(topic)
    before = disk.forces
    folders.remove(topic)
    assert disk.forces > before
    assert not logs.has_folder(folder)
