"""A broker that dies, or whose store fails, while it alters a topic: the old topic, or the new."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from isolog.errors import InvalidTopic, StorageFailure
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.topics import decode, encode
from tests.broker.topic_desk import Died, LocalTopics
from tests.support import NUMBERS, numbers


def folders(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("topics/t/*/*") if each.is_dir())


@pytest.mark.parametrize(("when", "partitions"), [("before", 1), ("after", 3)])
def test_a_crash_during_an_alteration_leaves_the_old_topic_or_the_new(
    tmp_path: Path, when: str, partitions: int
) -> None:
    first = LocalTopics(tmp_path)
    first.create("t", 1, 1, NUMBERS, {})
    first.topic("t").partition(0).append(numbers(0, 5))
    first.store.fails, first.store.when = Died(), when
    with pytest.raises(Died):
        first.alter("t", 3, {"segment.ms": "777"})
    first.store.close()  # and no more than that: no left-over was removed

    second = LocalTopics(tmp_path)
    found = second.topic("t")
    assert len(found.open_partitions()) == partitions
    assert (found.settings.segment_ms == 777) == (when == "after")
    assert found.partition(0).bounds().log_end_offset == 5
    altered = second.alter("t", 4, {})  # left-overs are no obstacle
    assert [int(each.append(numbers(0, 1)).offset) for each in altered.open_partitions()] == [
        5,
        0,
        0,
        0,
    ]
    second.close()


def test_a_failing_store_leaves_the_topic_unchanged(tmp_path: Path) -> None:
    found = LocalTopics(tmp_path)
    found.create("t", 1, 1, NUMBERS, {})
    found.topic("t").partition(0).append(numbers(0, 1))  # an empty log has no folder
    found.store.fails = StorageFailure("the disk says no")
    with pytest.raises(StorageFailure):
        found.alter("t", 3, {"segment.ms": "777"})
    assert folders(tmp_path) == ["0"]
    assert len(found.topic("t").open_partitions()) == 1
    found.store.fails = None
    assert len(found.alter("t", 2, {}).open_partitions()) == 2
    found.topic("t").partition(1).append(numbers(0, 1))
    assert folders(tmp_path) == ["0", "1"]
    found.close()


def test_a_concurrent_change_of_a_topic_is_not_overwritten(tmp_path: Path) -> None:
    """The other change happens between this one's read of the record and its write."""
    found = LocalTopics(tmp_path)
    found.create("t", 1, 1, NUMBERS, {})

    def change() -> None:
        other = SqliteStore(tmp_path / "metadata.sqlite")
        record = other.get("topics/t")
        altered = replace(decode(record), config={"segment.ms": "777"})
        assert other.put(record.key, encode(altered), record.version)
        other.close()

    found.store.meanwhile = change
    with pytest.raises(InvalidTopic, match="was changed concurrently"):
        found.alter("t", 3, {})
    assert len(found.topic("t").open_partitions()) == 1
    assert found.alter("t", 2, {}).settings.segment_ms == 777
    found.close()
