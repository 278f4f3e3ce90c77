"""Leases: what a holder may believe, what an observer may conclude, and never both."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.lease_files import LeaseFiles
from spark_stream.cluster.leases import (
    Board,
    Leases,
    Place,
    Renewal,
    Sighting,
    note,
    time_left,
)
from spark_stream.cluster.sqlite import SqliteStore
from spark_stream.environment import SystemClock
from spark_stream.testing.simulation.leases import MemoryBoard, MemoryPlace
from tests.support import eventually

BOARDS: dict[str, Callable[[Path], Board]] = {
    "files": lambda folder: LeaseFiles(folder / "leases"),
    "memory": lambda _: MemoryBoard(),
}


class HandClock:
    """A clock that a test moves; each broker's has another beginning."""

    def __init__(self, moments: list[float], beginning: float = 0.0) -> None:
        self._moments = moments
        self._beginning = beginning

    def monotonic(self) -> float:
        return self._beginning + self._moments[-1]

    steady_us = wall_us = lambda self: 0


@pytest.fixture(params=BOARDS)
def board(request, tmp_path) -> Board:
    return BOARDS[request.param](tmp_path)


@pytest.fixture
def moments() -> list[float]:
    return [0.0]


@pytest.fixture
def holders(board, moments) -> Leases:
    return Leases(board, HandClock(moments, 100.0), 10.0)


@pytest.fixture
def observers(board, moments) -> Leases:
    return Leases(board, HandClock(moments, 7_000.0), 10.0)


def test_a_lease_lasts_for_as_long_as_it_is_renewed(holders, observers, moments):
    lease = holders.hold("b1", "start-1")
    for _ in range(10):
        assert observers.alive("b1")
        moments.append(moments[-1] + 6.0)
        assert lease.renew()
    assert lease.left_s() == 10.0
    moments.append(moments[-1] + 9.0)
    assert observers.left_s("b1") == 10.0, "it was seen only now"
    moments.append(moments[-1] + 10.5)
    assert lease.left_s() < 0
    assert not observers.alive("b1")


def test_who_looks_for_the_first_time_gives_a_lease_its_full_time(holders, board, moments):
    """A broker that starts knows nothing of how old a lease is."""
    holders.hold("b1", "start-1")
    moments.append(1_000.0)
    newcomer = Leases(board, HandClock(moments), 10.0)
    assert newcomer.left_s("b1") == 10.0
    moments.append(1_010.0)
    assert not newcomer.alive("b1")


def test_a_broker_without_a_lease_is_not_alive(holders, observers):
    assert not observers.alive("b1")
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    lease.release()
    lease.release()
    assert not observers.alive("b1"), "a released lease is over at once"
    assert not lease.renew()


def test_a_renewal_that_comes_too_late_says_so_and_is_seen_again(holders, observers, moments):
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    moments.append(11.0)
    assert not observers.alive("b1")
    assert not lease.renew(), "others may have taken over"
    assert observers.alive("b1")
    assert lease.renew()


def test_a_lease_is_its_incarnations_alone(holders, observers, moments):
    """The later takes the place; what the earlier writes then is not seen."""
    earlier = holders.hold("b1", "start-1")
    later = holders.hold("b1", "start-2")
    assert not earlier.renew()
    earlier.release()
    assert observers.alive("b1")
    assert later.renew()
    later.release()
    assert not observers.alive("b1")


def test_leases_of_several_brokers_have_nothing_to_do_with_each_other(holders, observers, moments):
    first, _ = holders.hold("b1", "s"), holders.hold("b2", "s")
    assert observers.alive("b1")
    assert observers.alive("b2")
    moments.append(8.0)
    first.renew()
    observers.alive("b1")
    moments.append(12.0)
    assert observers.alive("b1")
    assert not observers.alive("b2")


# -- the rule -------------------------------------------------------------------------------------

DURATION_S = 10.0


class SlowBoard(MemoryBoard):
    """Time passes, and other things happen, before and after it is read or written."""

    happen: Callable[[], None] = staticmethod(lambda: None)
    happen_after_write: Callable[[], None] = staticmethod(lambda: None)

    def take_place(self, broker_id: str, incarnation: str) -> Place:
        place = super().take_place(broker_id, incarnation)
        return SlowPlace(self, place.broker_id, place.incarnation)

    def read(self, broker_id: str) -> Renewal | None:
        self.happen()
        shown = super().read(broker_id)
        self.happen()
        return shown


class SlowPlace(MemoryPlace):
    def write(self, count: int) -> bool:
        done = super().write(count)
        self.board.happen_after_write()
        return done


def observed_run(chance: random.Random) -> tuple[int, int]:
    """Looks and renewals with delays of chance; how often the lease was over, and was not."""
    moments = [0.0]
    board = SlowBoard()
    lease = Leases(board, HandClock(moments), DURATION_S).hold("b1", "s")
    observers = Leases(board, HandClock(moments, chance.randrange(-99, 99)), DURATION_S)
    held: list[bool] = []  # what the holder knew during one look
    concluded = {True: 0, False: 0}

    def wait() -> None:  # eighths, so that sums are exact
        moments.append(moments[-1] + chance.choice([0, 1, 40, 79, 80, 81, 100]) / 8)

    def happen() -> None:
        for _ in range(chance.randrange(3)):
            wait()
            if chance.random() < 0.3:
                held.append(lease.renew())

    def look_in_between() -> None:
        board.happen_after_write = lambda: None
        observers.alive("b1")
        wait()

    board.happen = happen
    for _ in range(30):
        if chance.random() < 0.3:
            board.happen_after_write = look_in_between
            lease.renew()
        wait()
        held.clear()
        alive = observers.alive("b1")
        concluded[alive] += 1
        # If it is over, it was so before the look: the first renewal during the look says so, too.
        holds = held[0] if held else lease.left_s() > 0
        assert alive or not holds, moments
    return concluded[True], concluded[False]


def test_nobody_finds_a_lease_over_that_its_holder_holds():
    """Whatever the delays on both sides, and with a renewal at any point of a look."""
    runs = [observed_run(random.Random(seed)) for seed in range(1_500)]
    alive, over = (sum(each) for each in zip(*runs, strict=True))
    assert min(alive, over) > 2_000, "both happened often"


@given(st.lists(st.integers(0, 3), min_size=1), st.floats(0.1, 100, allow_nan=False))
def test_an_observer_counts_from_when_it_first_read_what_is_shown(counts, duration):
    """Looks a second apart, against the obvious way to say it."""
    sighting = None
    for moment, count in enumerate(counts):
        sighting = note(sighting, Renewal("s", count), float(moment))
        first = moment
        while first > 0 and counts[first - 1] == count:
            first -= 1
        assert sighting == Sighting(Renewal("s", count), float(first))
        assert time_left(sighting, float(moment), duration) == first + duration - moment
    assert note(sighting, None, 1e9) is None


# -- real processes and files ---------------------------------------------------------------------

REAL_S = 1.0


def _renew_on_and_on(folder: Path, stop, said) -> None:
    lease = Leases(LeaseFiles(folder), SystemClock(), REAL_S).hold("b1", "start-1")
    said.put("held")
    while not stop.wait(0.02):
        if not lease.renew():
            said.put("over")
    lease.release()


def test_a_process_that_is_stopped_loses_its_lease_and_learns_of_it(tmp_path):
    context = multiprocessing.get_context("spawn")
    stop, said = context.Event(), context.Queue()
    process = context.Process(target=_renew_on_and_on, args=(tmp_path / "leases", stop, said))
    process.start()
    try:
        assert said.get(timeout=60) == "held"
        observers = Leases(LeaseFiles(tmp_path / "leases"), SystemClock(), REAL_S)
        assert observers.alive("b1")
        os.kill(process.pid, signal.SIGSTOP)
        eventually(lambda: not observers.alive("b1"))
        os.kill(process.pid, signal.SIGCONT)
        eventually(lambda: observers.alive("b1"))
        while said.get(timeout=60) != "over":
            pass
        stop.set()
        eventually(lambda: not observers.alive("b1"))
    finally:
        os.kill(process.pid, signal.SIGCONT)
        stop.set()
        process.join()
    assert process.exitcode == 0
    assert list((tmp_path / "leases").iterdir()) == []


def test_a_renewal_waits_for_nobody_who_changes_the_store(tmp_path):
    path = tmp_path / "metadata.sqlite"
    store = SqliteStore(path)
    clock = HandClock([0.0])
    lease = Leases(LeaseFiles(tmp_path / "leases"), clock, 10.0).hold("b1", "s")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    assert lease.renew()
    holder.execute("rollback")
    holder.close()
    store.close()


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"start-1", b"start-1 x", b"\xff\xfe 7"])
def test_a_file_of_which_a_power_cut_left_something_else_is_nobodys_lease(tmp_path, content):
    board = LeaseFiles(tmp_path)
    (tmp_path / "b1").write_bytes(content)
    moments = [0.0]
    observers = Leases(board, HandClock(moments), 10.0)
    assert board.read("b1").incarnation != "start-1"
    assert observers.alive("b1"), "it may be somebody's who is about to renew it"
    moments.append(10.0)
    assert not observers.alive("b1")
    Leases(board, HandClock(moments), 10.0).hold("b1", "start-2")
    assert board.read("b1") == Renewal("start-2", 0)
    assert observers.alive("b1")


def test_what_a_broker_left_that_died_while_it_took_its_place_goes(tmp_path, monkeypatch):
    """It dies, twice, when its file is written and not in its place yet."""

    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    board = LeaseFiles(tmp_path)
    for incarnation in ("start-1", "a-later-and-longer-name"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", die)
            with pytest.raises(Died):
                board.take_place("b1", incarnation)
        assert board.read("b1") is None
    board.take_place("b1", "start-3")
    assert board.read("b1") == Renewal("start-3", 0)
    assert [each.name for each in tmp_path.iterdir()] == ["b1"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "x" * 201])
def test_a_name_that_is_no_files_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file's name"):
        LeaseFiles(tmp_path).take_place(name, "s")
    with pytest.raises(ValueError, match="file's name"):
        LeaseFiles(tmp_path).take_place("b1", name)
