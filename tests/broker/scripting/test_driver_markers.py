"""A commit's markers are on the disk with the step that writes them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from isolog.errors import BrokerStopping
from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.control.election import begin_move
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.partition_records import change_records
from spark_stream.scripts.steps import Force, WriteMarkers
from tests.broker.clusters import make, see
from tests.broker.local_broker import Surroundings, replicate, to_create
from tests.simulation.logs import DiskLogs
from tests.support import NUMBERS, numbers

PRODUCER, TRANSACTION = 1, 7
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def write(partition: Partition) -> None:
    """A transaction that waits for its markers."""
    pending = partition.transactions.open_join(TRANSACTION, PRODUCER)
    assert pending is not None
    partition.transactions.close_join(pending, on_record=True)
    stamp = Stamp(PRODUCER, 0, 0, TRANSACTION)
    assert (
        partition.appends.take(partition.appends.prepare(numbers(0, 3), stamp), stamp, UNCOMMITTED)
        is not None
    )


class OneBroker:
    """A broker on a machine whose power can be cut. It leads topic ``t``, forced by interval."""

    def __init__(self, path: Path) -> None:
        self._around = Surroundings(path)
        self.logs = DiskLogs(path, lambda: None)
        self._broker = self._around.start("b", logs=self.logs)
        config = {"flush": "interval", "flush.ms": "60000"}
        self._broker.topics.create(to_create("t", 1, 1, NUMBERS, config))

    @property
    def host(self) -> Host:
        return self._broker.host

    def cut_power(self, seed: int) -> None:
        """It starts again after that, and cannot vouch for its logs."""
        self.logs.end_process()
        self.logs.lose_power(Random(seed))
        self._broker = self._around.start("b", f"after cut {seed}", logs=self.logs)

    @property
    def at(self) -> Joined:
        partition = self.host.topic("t").partition(0)
        return Joined("t", partition.topic_id, 0)

    def write(self) -> None:
        write(self.host.topic("t").partition(0))

    def take(self, step: Force | WriteMarkers) -> None:
        self._broker.table.run_here(step)

    def stable(self) -> tuple[int, int]:
        """The last stable offset, and the high watermark."""
        bounds = self.host.topic("t").partition(0).bounds()
        return int(bounds.last_stable_offset), int(bounds.high_watermark)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_loses_no_marker_of_a_commit(tmp_path, seed):
    broker = OneBroker(tmp_path)
    broker.write()
    broker.take(WriteMarkers(broker.at, TRANSACTION, (PRODUCER,)))
    broker.cut_power(seed)
    assert broker.stable() == (3, 3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("before", ["ab", "a"])
def test_a_power_cut_after_a_move_loses_no_part_of_a_commit(tmp_path, before, seed):
    """Broker b has the partition from a, which has fsynced it and is removed."""
    around = Surroundings(tmp_path)
    logs = DiskLogs(tmp_path / "b", lambda: None)
    a, b = around.start("a"), around.start("b", logs=logs)
    make(a, "t", before, **{"flush": "interval", "flush.ms": "60000"})
    write(a.partition("t"))
    if before == "ab":
        replicate(a, b, "t")
    at = Joined("t", a.host.find("t").id, 0)
    a.table.run_here(WriteMarkers(at, TRANSACTION, (PRODUCER,)))
    place = PartitionId(at.topic_id, 0)
    asked = change_records([place], a.host.view_of, lambda _, found: begin_move(found, [b.id]))
    a.driver.run(asked)
    see(around)
    replicate(a, b, "t")
    for _ in range(2):
        a.put_proposals()
        a.control_once()
        see(around)
    assert b.record("t").replicas == (b.id,)
    logs.end_process()
    logs.lose_power(Random(seed))
    b = around.start("b", "after the cut", logs=logs)
    bounds = b.partition("t").bounds()
    assert (bounds.last_stable_offset, bounds.high_watermark) == (3, 3)


def test_a_closed_partition_refuses_to_force(tmp_path):
    broker = OneBroker(tmp_path)
    broker.write()
    at = broker.at
    partition = broker.host.topic("t").partition(0)
    partition.close()
    with pytest.raises(BrokerStopping):
        broker.take(Force(at))
