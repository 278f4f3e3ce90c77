"""A broker keeps the promises that it gave its leaders, over its restarts too."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolog.errors import StorageFailure
from spark_stream.broker.replication.promises import Promising
from spark_stream.storage.disk.directory import PromiseFile
from tests.clocks import FakeClock


class FullDisk(PromiseFile):
    def record(self, lasts_s: float) -> None:
        raise StorageFailure("no room")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def given(promising: Promising, lasts_s: float = 4.0) -> list[float]:
    found: list[float] = []
    promising.promise(lasts_s, found.append)
    return found


def test_a_broker_that_reaches_the_store_promises_nothing(tmp_path: Path, clock: FakeClock):
    """Its leader alone is cut off then, and is to be replaced at once."""
    promising = Promising(PromiseFile(tmp_path), clock, lambda: False)
    assert given(promising) == []
    assert PromiseFile(tmp_path).recorded() is None


def test_a_promise_is_noted_before_it_is_given(tmp_path: Path, clock: FakeClock):
    note = PromiseFile(tmp_path)
    promising = Promising(note, clock, lambda: True)
    seen: list[float | None] = []
    promising.promise(4.0, lambda _: seen.append(note.recorded()))
    promising.promise(2.0, lambda _: seen.append(note.recorded()))  # the longest one counts
    promising.promise(6.0, lambda _: seen.append(note.recorded()))
    assert seen == [4.0, 4.0, 6.0]


def test_what_cannot_be_noted_is_not_promised(tmp_path: Path, clock: FakeClock):
    assert given(Promising(FullDisk(tmp_path), clock, lambda: True)) == []


def test_a_broker_that_starts_again_waits_as_if_it_had_promised_a_moment_ago(
    tmp_path: Path, clock: FakeClock
):
    assert given(Promising(PromiseFile(tmp_path), clock, lambda: True)) == [clock.monotonic() + 4]
    clock.pass_us(1_000_000)
    again = Promising(PromiseFile(tmp_path), clock, lambda: True)
    assert again.earlier_until == clock.monotonic() + 4
    again.forget_ended()
    assert PromiseFile(tmp_path).recorded() == 4.0
    clock.pass_us(4_000_000)
    again.forget_ended()
    assert PromiseFile(tmp_path).recorded() is None
    assert Promising(PromiseFile(tmp_path), clock, lambda: True).earlier_until == 0.0
