"""A replica that moved to another broker while this one was away leaves no files behind."""

from __future__ import annotations

from pathlib import Path

from spark_stream.broker.host import Host
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.topics import TOPICS, Topic, encode
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.partition_record import Member, PartitionRecord
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.settings import LogSettings
from spark_stream.testing.simulation.store import MemoryRecords, MemoryStore
from tests.clocks import FakeClock
from tests.support import NUMBERS

ME, OTHER = BrokerId("me"), BrokerId("other")


def led_by(broker: BrokerId) -> PartitionRecord:
    member = Member(broker, Generation("g"))
    return PartitionRecord((broker,), broker, LeaderEpoch(3), (member,))


def test_files_of_replicas_that_moved_are_removed_when_the_broker_begins(tmp_path: Path):
    store = MemoryStore(MemoryRecords())
    topic = Topic("t", "id", NUMBERS, 3, {})
    for number, leader in enumerate((ME, OTHER)):  # nothing is known of the third
        store.put(*put_of(PartitionId("id", number), led_by(leader), 0))
    store.put(TOPICS + "t", encode(topic), 0)
    directory = LogDirectory(tmp_path, "cluster", ME)
    folders = [directory.partition("t", "id", number) for number in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "something").touch()
    host = Host(directory, ClusterView(store), LogSettings(), FakeClock())
    assert all(folder.exists() for folder in folders), "nothing is removed before it may vouch"
    host.generation = Generation("g")
    host.begin(lambda: True)
    assert [folder.exists() for folder in folders] == [True, False, True]
    host.close()
