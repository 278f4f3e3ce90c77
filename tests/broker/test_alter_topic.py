"""A broker that dies, or whose store fails, while it alters a topic: the old topic, or the new."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_stream.broker.host import Host
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.environment import SystemClock
from spark_stream.errors import InvalidTopic, StorageFailure
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.settings import LogSettings
from tests.support import NUMBERS, numbers


class Died(Exception):
    """The broker ended here."""


class FailingStore(SqliteStore):
    """A store in whose changes of topics something happens: before they are made, or after."""

    fails: Exception | None = None
    when = "before"

    def put(self, key: str, value: Mapping[str, Any], expected: int) -> int | None:
        failing = self.fails is not None and key.startswith("topics/")
        if failing and self.when == "before":
            raise self.fails
        done = super().put(key, value, expected)
        if failing:
            raise self.fails
        return done


def host(path: Path) -> tuple[Host, FailingStore]:
    store = FailingStore(path / "metadata.sqlite")
    return Host(LogDirectory(path, "cluster"), store, LogSettings(), SystemClock()), store


def folders(path: Path) -> list[str]:
    return sorted(each.name for each in path.glob("topics/t/*/*"))


@pytest.mark.parametrize(("when", "partitions"), [("before", 1), ("after", 3)])
def test_a_death_in_the_middle_leaves_the_old_topic_or_the_new(
    tmp_path: Path, when: str, partitions: int
) -> None:
    first, store = host(tmp_path)
    first.create("t", 1, 1, NUMBERS, {})
    first.topic("t").partition(0).append(numbers(0, 5))
    store.fails, store.when = Died(), when
    with pytest.raises(Died):
        first.alter("t", 3, {"segment.ms": "777"})
    store.close()  # and no more than that: nothing is tidied up

    second, store = host(tmp_path)
    found = second.topic("t")
    assert len(found.open_partitions()) == partitions
    assert (found.settings.segment_ms == 777) == (when == "after")
    assert found.partition(0).bounds().log_end_offset == 5
    altered = second.alter("t", 4, {})  # whatever was left behind is not in the way
    assert [int(each.append(numbers(0, 1)).offset) for each in altered.open_partitions()] == [
        5,
        0,
        0,
        0,
    ]
    second.close()
    store.close()


def test_a_store_that_refuses_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    found, store = host(tmp_path)
    found.create("t", 1, 1, NUMBERS, {})
    found.topic("t").partition(0).append(numbers(0, 1))  # what is empty has no folder
    store.fails = StorageFailure("the disk says no")
    with pytest.raises(StorageFailure):
        found.alter("t", 3, {"segment.ms": "777"})
    assert folders(tmp_path) == ["0"]
    assert len(found.topic("t").partitions) == 1
    store.fails = None
    assert len(found.alter("t", 2, {}).partitions) == 2
    found.topic("t").partition(1).append(numbers(0, 1))
    assert folders(tmp_path) == ["0", "1"]
    found.close()
    store.close()


def test_a_topic_that_somebody_else_changed_is_not_overwritten(tmp_path: Path) -> None:
    one, store = host(tmp_path)
    one.create("t", 1, 1, NUMBERS, {})
    other, again = host(tmp_path)
    other.alter("t", None, {"segment.ms": "777"})
    with pytest.raises(InvalidTopic, match="by somebody else"):
        one.alter("t", 3, {})
    assert len(one.topic("t").partitions) == 1
    for each in (one, other):
        each.close()
    store.close()
    again.close()
