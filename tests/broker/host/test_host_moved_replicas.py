"""Replicas that moved, and topics that were deleted: their files are removed, without a delay."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from isolog.errors import UnknownTopic
from spark_stream.broker.host.host import Host
from spark_stream.broker.settings import CoreSettings
from spark_stream.cluster.partitions import PartitionId, Partitions, put_of
from spark_stream.cluster.topics import REMOVED, TOPICS, Topic, encode
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.storage.disk.directory import LogDirectory, topic_note
from spark_stream.storage.logs import FileLogs
from tests.broker.clusters import around, make
from tests.broker.local_broker import Surroundings
from tests.clocks import FakeClock
from tests.simulation.disk import SimulatedDisk
from tests.simulation.logs import DiskLogs
from tests.simulation.store import MemoryRecords, MemoryStore
from tests.support import NUMBERS, numbers

__all__ = ["around"]

ME, OTHER = BrokerId("me"), BrokerId("other")


def led_by(broker: BrokerId) -> PartitionRecord:
    member = Member(broker, Generation("g"))
    return PartitionRecord((broker,), broker, LeaderEpoch(3), (member,))


def test_files_of_replicas_that_moved_are_removed_when_the_broker_begins(tmp_path: Path):
    store = MemoryStore(MemoryRecords())
    topic = Topic("t", "id", NUMBERS, 3, {})
    for number, leader in enumerate((ME, OTHER)):  # the third has no record
        store.put(*put_of(PartitionId("id", number), led_by(leader), 0))
    store.put(TOPICS + "t", encode(topic), 0)
    directory = LogDirectory(tmp_path, "cluster", ME)
    folders = [directory.partition("t", "id", number) for number in range(3)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "something").touch()
        folder.with_name(f"{folder.name}.begun").touch()
    host = Host(directory, ClusterView(store), CoreSettings(), FakeClock())
    assert all(folder.exists() for folder in folders), "nothing is removed before it may vouch"
    host.generation = Generation("g")
    host.begin(lambda: True)
    assert [folder.exists() for folder in folders] == [True, False, True]
    begun = sorted(path.name for path in folders[0].parent.glob("*.begun"))
    assert begun == ["0.begun", "2.begun"]  # otherwise a replica that came back would look lost
    host.close()


def test_a_failed_fsync_of_a_removed_replica_delays_nothing(tmp_path: Path):
    store, disk = MemoryStore(MemoryRecords()), SimulatedDisk()
    directory = LogDirectory(tmp_path, "cluster", ME)
    logs = FileLogs(disk)
    for name in ("gone", "new"):
        store.put(*put_of(PartitionId(name, 0), led_by(ME), 0))
        logs.make_folder(directory.topic(name, name))
    gone = store.put(TOPICS + "gone", encode(Topic("gone", "gone", NUMBERS, 1, {})), 0)
    assert gone is not None
    host = Host(directory, ClusterView(store), CoreSettings(), FakeClock(), logs=logs)
    host.generation = Generation("g")
    host.begin(lambda: True)
    host.topic("gone").partition(0).append(numbers(0, 3))
    store.delete(TOPICS + "gone", gone)
    store.put(TOPICS + "new", encode(Topic("new", "new", NUMBERS, 1, {})), 0)
    disk.fail_next_force()
    host.refresh()
    assert host.topic("new").partition(0).leads
    host.close()


def test_a_folder_whose_maker_died_before_it_was_forced_is_forced_by_the_next_start():
    """Otherwise the next power cut takes it, with all replicas that moved here since."""
    disk, directory = SimulatedDisk(), LogDirectory(Path("/me"), "cluster", ME)
    disk.make_directory(directory.topic("t", "id").parent)
    logs, folder = FileLogs(disk), directory.topic("t", "id")

    def end() -> None:
        raise KeyboardInterrupt

    disk.before_change = end
    with pytest.raises(KeyboardInterrupt):
        logs.make_folder(folder)
    disk.before_change = lambda: None
    assert logs.has_folder(folder)
    start_with_a_topic(directory, logs).close()
    disk.crash(Random(0))
    assert logs.has_folder(folder)


def test_the_note_of_a_folder_is_forced_by_a_second_attempt():
    disk, directory = SimulatedDisk(), LogDirectory(Path("/me"), "cluster", ME)
    logs, folder = FileLogs(disk), directory.topic("t", "id")
    logs.make_folder(folder)
    disk.remove(topic_note(folder))
    disk.create(topic_note(folder)).close()  # without an fsync
    logs.make_folder(folder)
    disk.crash(Random(0))
    disk.remove_tree(folder)
    assert logs.is_folder_lost(folder)


def test_a_broker_whose_disk_fails_to_force_a_folder_doubts_its_logs():
    """Otherwise it would stay the leader of a replica that it cannot open."""
    disk, directory = SimulatedDisk(), LogDirectory(Path("/me"), "cluster", ME)
    disk.make_directory(directory.topic("t", "id").parent)
    disk.make_directory(directory.topic("t", "id"), forced=False)
    disk.fail_next_force()
    host = start_with_a_topic(directory, FileLogs(disk))
    assert host.open_replicas() == []
    assert len(host.doubts) == 1
    host.close()


def start_with_a_topic(directory: LogDirectory, logs: FileLogs) -> Host:
    store = MemoryStore(MemoryRecords())
    store.put(*put_of(PartitionId("id", 0), led_by(ME), 0))
    store.put(TOPICS + "t", encode(Topic("t", "id", NUMBERS, 1, {})), 0)
    return Host(directory, ClusterView(store), CoreSettings(), FakeClock(), logs=logs)


def test_a_removed_topic_takes_no_appends_before_its_deletion_is_seen(around):
    """An append to an empty log would make its folder again, and no broker would remove it then."""
    a, b = around.start("a"), around.start("b")
    make(a, "t", "a")
    partition = a.partition("t")
    b.topics.delete("t")
    a.driver.run(a.topics.removing_left_overs())
    with pytest.raises(UnknownTopic):
        partition.append(numbers(0, 1))
    assert list(a.path.glob("topics/t/*")) == []
    assert a.store.list(REMOVED) == []


def test_files_of_a_moved_replica_are_removed_after_its_topics_deletion(
    around,
):
    """The record of the replica's brokers is deleted by then."""
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 1))
    a.die()
    stored = Partitions(b.store).of_topic(b.host.find("t").id)[0]
    moved = replace(stored.record, replicas=("b",), leader="b", isr=(Member("b", "b-logs"),))
    assert b.store.put(*put_of(stored.id, moved, stored.version)) is not None
    b.topics.delete("t")
    b.driver.run(b.topics.removing_left_overs())
    again = around.start("a")
    assert list(again.path.glob("topics/t/*")) == []
    assert again.store.list(REMOVED) == []


def test_files_that_cannot_be_removed_do_not_prevent_a_start(around: Surroundings):
    """The broker was down while two topics were deleted. A later round removes the rest."""
    logs = DiskLogs(around.path / "b", lambda: None)
    a, b = around.start("a"), around.start("b", logs=logs)
    for name in ("t", "u"):
        make(a, name, "b")
        b.partition(name).append(numbers(0, 3))
    b.die()
    logs.end_process()
    for name in ("t", "u"):
        a.topics.delete(name)
    logs.fail_next_force()
    b = around.start("b", logs=logs)
    assert len(b.store.list(REMOVED)) == 1
    b.driver.run(b.topics.removing_left_overs())
    assert b.store.list(REMOVED) == []
    assert logs.folders() == set()
