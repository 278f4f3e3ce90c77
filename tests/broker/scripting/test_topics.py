"""Topics are made and deleted step by step: no call waits, and a crash leaves no orphan."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from isolog.errors import (
    IsologError,
    MetadataUnavailable,
    StorageFailure,
    TopicExists,
    UnknownTopic,
)
from spark_stream.cluster.topics import TOPICS
from spark_stream.scripts.topics import create_topic
from spark_stream.storage.logs import FileLogs
from tests.broker.local_broker import to_create
from tests.broker.topic_desk import Died, LocalTopics
from tests.simulation.disk import SimulatedDisk
from tests.storage.disks import FaultyDisk
from tests.support import NUMBERS, numbers


def folders(path: Path) -> list[str]:
    """Name and partition of every folder of a topic."""
    found = [each for each in path.glob("topics/*/*/*") if each.is_dir()]
    return sorted(f"{each.parts[-3]}/{each.name}" for each in found)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_during_a_creation_leaves_a_whole_topic_or_none(tmp_path: Path, when: str):
    first = LocalTopics(tmp_path)
    first.store.fails, first.store.when = Died(), when
    with pytest.raises(Died):
        first.create("t", 3, 1, NUMBERS, {})
    first.store.close()  # and no more than that: no left-over was removed

    second = LocalTopics(tmp_path)
    made = when == "after"
    assert second.left_over == ([] if made else ["t"])
    assert folders(tmp_path) == []  # an empty log has no folder
    assert second.host.names() == (["t"] if made else [])
    if not made:
        second.create("t", 1, 1, NUMBERS, {})
    assert second.topic("t").partition(0).append(numbers(0, 1)).offset == 0
    second.close()
    third = LocalTopics(tmp_path)
    assert third.left_over == []
    assert third.topic("t").partition(0).bounds().log_end_offset == 1
    third.close()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_repeated_creation_returns_the_first_topic(tmp_path: Path, when: str):
    """The first answer was lost, and the second broker must not report another's topic."""
    transactions = LocalTopics(tmp_path)
    made = []

    def make() -> None:
        made.append(
            transactions.transactions._driver.run(
                create_topic(first, records, transactions.host.broker_id)
            ).id
        )

    plan, records = transactions.transactions.plan(to_create("t", 2, 1, NUMBERS, {}))
    first = replace(plan, token="mine")
    if when == "before":
        make()
    else:
        transactions.store.meanwhile = make
    again = transactions.create("t", 2, 1, NUMBERS, {}, token="mine")
    assert [again.topic.id] == made
    assert again.partition(1).append(numbers(0, 1)).offset == 0
    for token in ("other", ""):
        with pytest.raises(TopicExists):
            transactions.create("t", 2, 1, NUMBERS, {}, token=token)
    transactions.close()
    again_opened = LocalTopics(tmp_path)
    assert again_opened.left_over == []
    again_opened.close()


class CountingDisk(FaultyDisk):
    """Counts the forces of files."""

    forces = 0

    def before(self, operation: str, path: Path) -> None:
        self.forces += operation == "flush"


@pytest.mark.parametrize("case", ["deleted", "record missing", "record missing, store fails"])
def test_the_files_of_a_deleted_topic_are_not_forced(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
):
    """To force those of 2,000 partitions, one after the other, takes most of a minute."""
    deleted = case == "deleted"
    disk = CountingDisk()
    transactions = LocalTopics(tmp_path, FileLogs(disk))
    transactions.create("t", 3, 1, NUMBERS, {})
    for number in range(3):
        transactions.topic("t").partition(number).append(numbers(0, 1))
    before = disk.forces
    if deleted:
        transactions.delete("t")
        assert folders(tmp_path) == []
    else:
        record = transactions.store.get(f"{TOPICS}t")
        assert record is not None
        assert transactions.store.delete(record.key, record.version)
        if case.endswith("fails"):
            monkeypatch.setattr(transactions.store, "get", _fail)
        transactions.host.refresh()
        monkeypatch.undo()
        assert len(folders(tmp_path)) == 3
    assert (disk.forces == before) is deleted
    transactions.close()


def _fail(*_: object, **__: object) -> None:
    raise MetadataUnavailable("no answer")


class StubbornLogs(FileLogs):
    """Folders that cannot be removed."""

    def remove_folder(self, folder: Path) -> None:
        raise StorageFailure(f"{folder}: Input/output error")


def test_files_that_cannot_be_removed_are_removed_at_the_next_start(tmp_path: Path):
    first = LocalTopics(tmp_path, StubbornLogs())
    first.create("t", 1, 1, NUMBERS, {})
    first.topic("t").partition(0).append(numbers(0, 5))
    first.delete("t")
    first.close()
    assert folders(tmp_path) == ["t/0"]
    second = LocalTopics(tmp_path)
    assert second.left_over == ["t"]
    assert folders(tmp_path) == []
    second.close()


def test_files_of_a_deleted_topic_stay_gone_after_a_power_cut(tmp_path: Path):
    """Its record is deleted, so no broker would ever remove them."""
    for seed in range(20):
        disk, path = SimulatedDisk(), tmp_path / str(seed)
        path.mkdir()
        found = LocalTopics(path, FileLogs(disk))
        found.create("t", 1, 1, NUMBERS, {"flush": "batch"})
        found.topic("t").partition(0).append(numbers(0, 5))
        found.delete("t")
        found.close()
        disk.crash(Random(seed))
        assert disk.files() == {}


@pytest.mark.rule(
    "the creation, change and deletion of a topic", "scripts/topics.py", "broker/host/host.py"
)
def test_a_crash_during_a_deletion_leaves_no_orphan(tmp_path: Path):
    first = LocalTopics(tmp_path)
    first.create("t", 2, 1, NUMBERS, {})
    for number in (0, 1):
        first.topic("t").partition(number).append(numbers(0, 5))
    first.store.fails = Died()
    with pytest.raises(Died):
        first.delete("t")
    first.store.close()
    assert folders(tmp_path) == ["t/0", "t/1"]

    second = LocalTopics(tmp_path)
    assert second.left_over == ["t"]
    assert folders(tmp_path) == []
    with pytest.raises(UnknownTopic):
        second.topic("t")
    second.create("t", 1, 1, NUMBERS, {})
    second.topic("t").partition(0).append(numbers(0, 1))
    second.close()
    third = LocalTopics(tmp_path)
    assert (third.left_over, folders(tmp_path)) == ([], ["t/0"])
    third.close()


def test_a_failed_creation_leaves_no_files(tmp_path: Path):
    found = LocalTopics(tmp_path)
    found.store.fails = StorageFailure("the disk says no")
    with pytest.raises(StorageFailure):
        found.create("t", 3, 1, NUMBERS, {})
    assert folders(tmp_path) == []
    found.store.fails = None
    found.create("t", 1, 1, NUMBERS, {})
    found.topic("t").partition(0).append(numbers(0, 1))
    with pytest.raises(TopicExists):
        found.create("t", 2, 1, NUMBERS, {})
    assert folders(tmp_path) == ["t/0"]
    found.close()


def test_a_creation_blocks_no_other_call(tmp_path: Path):
    """Neither calls that list topics, nor those that make, read and delete others."""
    found = LocalTopics(tmp_path)
    found.create("old", 1, 1, NUMBERS, {})
    here, go_on = threading.Event(), threading.Event()
    errors: list[IsologError] = []

    def wait() -> None:
        here.set()
        assert go_on.wait(30)

    def make() -> None:
        try:
            found.create("slow", 2, 1, NUMBERS, {})
        except IsologError as error:
            errors.append(error)

    found.store.meanwhile = wait
    maker = threading.Thread(target=make)
    maker.start()
    assert here.wait(30)
    assert found.host.names() == ["old"]
    assert [each.topic.name for each in found.host.topics()] == ["old"]
    found.create("quick", 1, 1, NUMBERS, {})
    assert found.topic("quick").partition(0).append(numbers(0, 1)).offset == 0
    found.host.upkeep.housekeep()
    found.delete("old")
    assert found.host.names() == ["quick"]
    go_on.set()
    maker.join(30)
    assert (errors, found.host.names()) == ([], ["quick", "slow"])
    found.close()
