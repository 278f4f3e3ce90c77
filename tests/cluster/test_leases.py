"""Leases: what a holder may believe, what an observer may conclude, and never both."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cluster.stores import lease_files
from spark_stream.cluster.stores.etcd_client import encoded
from spark_stream.cluster.stores.etcd_leases import EtcdLeases
from spark_stream.cluster.stores.lease_files import LeaseFiles
from spark_stream.cluster.stores.leases import (
    Board,
    LeasePlace,
    Leases,
    Renewal,
    Sighting,
    note,
    time_left,
)
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.environment import SystemClock, SystemMachine
from tests.etcd import needs_etcd
from tests.simulation.leases import MemoryBoard, MemoryPlace
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


class PromptLeases(EtcdLeases):
    """Leases in etcd whose watch is never late: it tells of a change before the next read."""

    def read(self, broker_id: str) -> Renewal | None:
        super().read(broker_id)  # the watch goes on from the first read
        key = encoded((self._leases + broker_id).encode())
        found = self._client.read("/v3/kv/range", {"key": key}).get("kvs", [])
        at = int(found[0]["mod_revision"]) if found else None
        eventually(lambda: self._is_gone(broker_id) if at is None else self._at(broker_id) >= at)
        return super().read(broker_id)

    def _at(self, broker_id: str) -> int:
        return self._known._known[broker_id].revision

    def _is_gone(self, broker_id: str) -> bool:
        return self._known._known[broker_id].renewal is None


@pytest.fixture(params=[*BOARDS, pytest.param("etcd", marks=needs_etcd)])
def board(request, tmp_path, moments) -> Iterator[Board]:
    if request.param != "etcd":
        yield BOARDS[request.param](tmp_path)
        return
    client = request.getfixturevalue("etcd").client()
    with closing(PromptLeases(client, tmp_path.name, HandClock(moments), SystemMachine())) as found:
        yield found


@pytest.fixture
def moments() -> list[float]:
    return [0.0]


@pytest.fixture
def holders(board, moments) -> Leases:
    return Leases(board, HandClock(moments, 100.0), 10.0)


@pytest.fixture
def observers(board, moments) -> Leases:
    return Leases(board, HandClock(moments, 7_000.0), 10.0)


def test_who_saw_a_lease_end_sees_that_its_holder_has_another(holders, observers, moments):
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    moments.append(11.0)
    assert not observers.alive("b1")
    assert not lease.renew()
    lease.release()
    fresh = holders.hold("b1", "start-1", lease)
    assert observers.alive("b1"), "the lease was not renewed before, and neither is this one yet"
    assert fresh.may_serve()


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
    assert not lease.renew(), "its holder takes a new one"


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


def test_a_lease_lasts_as_long_as_its_holder_counts_on_it(board, moments):
    """Whatever the observer's own leases last."""
    long = Leases(board, HandClock(moments, 50.0), 20.0)
    short = Leases(board, HandClock(moments, 60.0), 2.0)
    long.hold("b1", "s"), short.hold("b2", "s")
    assert short.left_s("b1") == 20.0
    assert long.left_s("b2") == 2.0
    moments.append(2.0)
    assert short.alive("b1")
    assert not long.alive("b2")


def test_who_holds_a_lease_is_one_incarnation(holders, observers, moments):
    assert observers.holder("b1") is None
    holders.hold("b1", "start-1")
    assert observers.holder("b1") == "start-1"
    holders.hold("b1", "start-2")
    assert observers.holder("b1") == "start-2"
    moments.append(10.0)
    assert observers.holder("b1") is None


def test_a_broker_ceases_to_serve_before_its_lease_is_over(holders, observers, moments):
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    assert lease.may_serve()
    moments.append(8.9)
    assert lease.may_serve()
    moments.append(9.1)
    assert not lease.may_serve()
    assert lease.renew()
    assert lease.may_serve(), "it was not over"
    lease.release()
    assert not lease.may_serve()


def test_a_lease_that_was_over_is_never_served_on_again(holders, observers, moments):
    """Others may have taken over meanwhile: its holder has to find that out first."""
    lease = holders.hold("b1", "start-1")
    moments.append(10.5)
    assert not lease.renew()
    assert not lease.renew()
    assert lease.left_s() == 10.0
    assert not lease.may_serve()
    assert holders.hold("b1", "start-1").may_serve()


def test_a_renewal_is_due_several_times_in_a_leases_duration(holders):
    assert holders.pause_s == 10.0 / 6
    assert Leases(MemoryBoard(), HandClock([0.0])).pause_s == 0.5


def test_a_board_that_knows_that_a_process_has_ended_shows_nothing_of_it(observers, moments):
    board = MemoryBoard()
    leases = Leases(board, HandClock(moments), 10.0)
    lease = leases.hold("b1", "s")
    assert leases.alive("b1")
    board.gone("b1")
    board.gone("b2")
    assert not leases.alive("b1")
    assert not lease.renew()
    assert not leases.alive("b1")


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

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> LeasePlace:
        place = super().take_place(broker_id, incarnation, duration_s)
        return SlowPlace(self, place.broker_id, place.incarnation, place.duration_s)

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
        assert alive or not lease.may_serve(), moments
    return concluded[True], concluded[False]


@pytest.mark.rule(
    "whether a broker is alive", "cluster/stores/leases.py", "cluster/stores/lease_files.py"
)
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
        shown = Renewal("s", count, duration)
        sighting = note(sighting, shown, float(moment))
        first = moment
        while first > 0 and counts[first - 1] == count:
            first -= 1
        assert sighting == Sighting(shown, float(first))
        assert time_left(sighting, float(moment)) == first + duration - moment
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


@pytest.mark.slow
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


NOISE = [b"", b"\0" * 40, b"start-1", b"start-1 x", b"start-1 7", b"a 1 2 3", b"\xff\xfe 7 8"]


@pytest.mark.parametrize("content", NOISE)
def test_a_file_of_which_a_power_cut_left_something_else_is_nobodys_lease(tmp_path, content):
    board = LeaseFiles(tmp_path)
    (tmp_path / "b1").write_bytes(content)
    observers = Leases(board, HandClock([0.0]), 10.0)
    assert board.read("b1") is None
    assert not observers.alive("b1")
    Leases(board, HandClock([0.0]), 10.0).hold("b1", "start-2")
    assert board.read("b1") == Renewal("start-2", 0, 10.0)
    assert observers.alive("b1")


@pytest.mark.parametrize("content", NOISE)
def test_a_file_that_was_tampered_with_is_its_holders_until_the_time_is_over(tmp_path, content):
    moments = [0.0]
    observers = Leases(LeaseFiles(tmp_path), HandClock(moments), 10.0)
    lease = observers.hold("b1", "start-1")
    with (tmp_path / "b1").open("r+b") as file:
        file.truncate(0)
        file.write(content)
    assert observers.alive("b1"), "it may be about to renew it"
    assert observers.holder("b1") != "start-1"
    moments.append(5.0)
    assert not observers.alive("b1")
    assert lease.renew()
    assert observers.holder("b1") == "start-1"


def test_a_place_that_is_taken_while_somebody_looks_is_not_found_empty(tmp_path, monkeypatch):
    """The observer has the earlier incarnation's file open, whose process ends then."""
    board = LeaseFiles(tmp_path)
    earlier = board.take_place("b1", "start-1", 10.0)
    is_locked = lease_files._is_locked
    looks = []

    def is_locked_after_a_start(descriptor: int) -> bool:
        looks.append(descriptor)
        if len(looks) == 1:
            board.take_place("b1", "start-2", 10.0)
            earlier.clear()
        return is_locked(descriptor)

    monkeypatch.setattr(lease_files, "_is_locked", is_locked_after_a_start)
    assert board.read("b1") == Renewal("start-2", 0, 10.0)
    assert len(looks) == 2


def _hold_and_stand_still(folder: Path, said) -> None:
    Leases(LeaseFiles(folder), SystemClock(), 1_000.0).hold("b1", "start-1")
    said.send("held")
    signal.pause()


@pytest.fixture
def holder(tmp_path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that holds a lease for a thousand seconds, and does not renew it."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_hold_and_stand_still, args=(tmp_path / "leases", its))
    process.start()
    assert mine.poll(60)
    assert mine.recv() == "held"
    yield process
    process.kill()
    process.join()


@pytest.mark.rule(
    "whether a broker is alive", "cluster/stores/leases.py", "cluster/stores/lease_files.py"
)
def test_the_lease_of_a_process_that_was_killed_is_over_at_once(holder, tmp_path):
    observers = Leases(LeaseFiles(tmp_path / "leases"), SystemClock())
    assert observers.left_s("b1") > 900
    assert observers.holder("b1") == "start-1"
    holder.kill()
    holder.join()
    assert not observers.alive("b1")
    assert observers.holder("b1") is None
    later = observers.hold("b1", "start-2")
    assert observers.holder("b1") == "start-2"
    later.release()


def test_a_process_that_stands_still_keeps_its_lease_until_the_time_is_over(holder, tmp_path):
    moments = [0.0]
    observers = Leases(LeaseFiles(tmp_path / "leases"), HandClock(moments))
    os.kill(holder.pid, signal.SIGSTOP)
    assert observers.left_s("b1") == 1_000.0
    moments.append(999.0)
    assert observers.alive("b1")
    moments.append(1_000.0)
    assert not observers.alive("b1")


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
                board.take_place("b1", incarnation, 10.0)
        assert board.read("b1") is None
    board.take_place("b1", "start-3", 10.0)
    assert board.read("b1") == Renewal("start-3", 0, 10.0)
    assert [each.name for each in tmp_path.iterdir()] == ["b1"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "x" * 201])
def test_a_name_that_is_no_files_name_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="file's name"):
        LeaseFiles(tmp_path).take_place(name, "s", 1.0)
    with pytest.raises(ValueError, match="file's name"):
        LeaseFiles(tmp_path).take_place("b1", name, 1.0)
