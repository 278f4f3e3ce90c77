"""The promises of a broker to its leaders, also across restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from isolog.errors import StorageFailure
from spark_stream.broker.replication.promises import Promises
from spark_stream.storage.disk.directory import PromiseFile
from tests.clocks import FakeClock


class FullDisk(PromiseFile):
    def record(self, lasts_s: float) -> None:
        raise StorageFailure("no room")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def given(promising: Promises, lasts_s: float = 4.0) -> list[float]:
    found: list[float] = []
    promising.promise(lasts_s, found.append)
    return found


def test_broker_with_access_to_the_store_makes_no_promise(tmp_path: Path, clock: FakeClock):
    """In that case only the leader is cut off from the store, and should be replaced soon."""
    promising = Promises(PromiseFile(tmp_path), clock, lambda: False)
    assert given(promising) == []
    assert PromiseFile(tmp_path).recorded() is None


def test_note_is_written_before_the_promise(tmp_path: Path, clock: FakeClock):
    note = PromiseFile(tmp_path)
    promising = Promises(note, clock, lambda: True)
    seen: list[float | None] = []
    promising.promise(4.0, lambda _: seen.append(note.recorded()))
    promising.promise(2.0, lambda _: seen.append(note.recorded()))  # shorter than the recorded one
    promising.promise(6.0, lambda _: seen.append(note.recorded()))
    assert seen == [4.0, 4.0, 6.0]


def test_no_promise_is_made_without_its_note(tmp_path: Path, clock: FakeClock):
    assert given(Promises(FullDisk(tmp_path), clock, lambda: True)) == []


def test_restarted_broker_waits_as_if_it_had_just_promised(tmp_path: Path, clock: FakeClock):
    assert given(Promises(PromiseFile(tmp_path), clock, lambda: True)) == [clock.monotonic() + 4]
    clock.pass_us(1_000_000)
    again = Promises(PromiseFile(tmp_path), clock, lambda: True)
    assert again.earlier_until == clock.monotonic() + 4
    again.remove_expired()
    assert PromiseFile(tmp_path).recorded() == 4.0
    clock.pass_us(4_000_000)
    again.remove_expired()
    assert PromiseFile(tmp_path).recorded() is None
    assert Promises(PromiseFile(tmp_path), clock, lambda: True).earlier_until == 0.0
