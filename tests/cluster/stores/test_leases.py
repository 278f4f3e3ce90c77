"""Leases: a holder and an observer never count on opposite facts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from isolog.errors import MetadataUnavailable, StorageFailure
from spark_stream.cluster.stores import lease_files
from spark_stream.cluster.stores.etcd_client import encoded
from spark_stream.cluster.stores.etcd_leases import EtcdLeases
from spark_stream.cluster.stores.lease_files import LeaseFiles
from spark_stream.cluster.stores.leases import (
    Board,
    LeasePlace,
    Leases,
    Renewal,
)
from spark_stream.environment import SystemMachine
from tests.clocks import FakeClock
from tests.etcd import needs_etcd
from tests.simulation.leases import MemoryBoard, MemoryPlace
from tests.support import eventually

BOARDS: dict[str, Callable[[Path], Board]] = {
    "files": lambda folder: LeaseFiles(folder / "leases"),
    "memory": lambda _: MemoryBoard(),
}


class HandClock:
    """A clock that a test moves. Each broker's has another beginning."""

    def __init__(self, moments: list[float], beginning: float = 0.0) -> None:
        self._moments = moments
        self._beginning = beginning

    def monotonic(self) -> float:
        return self._beginning + self._moments[-1]

    steady_us = wall_us = lambda self: 0


class PromptLeases(EtcdLeases):
    """Leases in etcd whose watch is never late: it reports a change before the next read."""

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
    with closing(
        PromptLeases(client, tmp_path.name, HandClock(moments), SystemMachine(), 3.0)
    ) as found:
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


def test_an_observer_of_an_expired_lease_sees_the_next_one(holders, observers, moments):
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


def test_an_observer_counts_an_unseen_lease_with_its_full_duration(holders, board, moments):
    """A broker that starts does not have the age of a lease."""
    holders.hold("b1", "start-1")
    moments.append(1_000.0)
    newcomer = Leases(board, HandClock(moments), 10.0)
    assert newcomer.left_s("b1") == 10.0
    moments.append(1_010.0)
    assert not newcomer.alive("b1")


class LateAnswer:
    """A board whose next read takes ``slow_s``. The holder renews just before its answer."""

    def __init__(self, board: Board, moments: list[float], slow_s: float) -> None:
        self._board = board
        self._moments = moments
        self._slow_s = slow_s
        self.renew: Callable[[], object] = lambda: None

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> LeasePlace:
        return self._board.take_place(broker_id, incarnation, duration_s)

    def read(self, broker_id: str) -> Renewal | None:
        self._moments.append(self._moments[-1] + self._slow_s)
        self._slow_s = 0.0
        self.renew()
        return self._board.read(broker_id)


@pytest.mark.rule("the start of a lease for its observers", "cluster/stores/leases.py")
def test_an_observer_counts_a_renewal_from_the_end_of_the_read_that_showed_it(moments):
    """The renewal may have been written just before the answer, and its holder counts from then."""
    board = LateAnswer(MemoryBoard(), moments, 5.0)
    lease = Leases(board, HandClock(moments, 100.0), 10.0).hold("b1", "start-1")
    board.renew = lease.renew
    observer = Leases(board, HandClock(moments, 7_000.0), 10.0)
    assert observer.alive("b1")
    board.renew = lambda: None
    moments.append(14.0)
    assert lease.may_serve() is False
    assert lease.left_s() == 1.0
    assert observer.left_s("b1") == 1.0, "an observer that finds it over earlier elects too early"


def test_a_broker_without_a_lease_is_not_alive(holders, observers):
    assert not observers.alive("b1")
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    lease.release()
    lease.release()
    assert not observers.alive("b1"), "a released lease is over at once"
    assert not lease.renew()


def test_a_late_renewal_fails_and_is_seen_again(holders, observers, moments):
    lease = holders.hold("b1", "start-1")
    assert observers.alive("b1")
    moments.append(11.0)
    assert not observers.alive("b1")
    assert not lease.renew(), "others may have taken over"
    assert observers.alive("b1")
    assert not lease.renew(), "its holder takes a new one"


def test_only_its_incarnation_renews_a_lease(holders, observers, moments):
    """A later incarnation replaces an earlier one, whose further writes are ignored."""
    earlier = holders.hold("b1", "start-1")
    later = holders.hold("b1", "start-2")
    assert not earlier.renew()
    earlier.release()
    assert observers.alive("b1")
    assert later.renew()
    later.release()
    assert not observers.alive("b1")


def test_a_lease_lasts_for_its_holders_duration(board, moments):
    """The duration of the observer's own leases does not matter."""
    long = Leases(board, HandClock(moments, 50.0), 20.0)
    short = Leases(board, HandClock(moments, 60.0), 2.0)
    long.hold("b1", "s"), short.hold("b2", "s")
    assert short.left_s("b1") == 20.0
    assert long.left_s("b2") == 2.0
    moments.append(2.0)
    assert short.alive("b1")
    assert not long.alive("b2")


def test_a_lease_has_one_holding_incarnation(holders, observers, moments):
    assert observers.holder("b1") is None
    holders.hold("b1", "start-1")
    assert observers.holder("b1") == "start-1"
    holders.hold("b1", "start-2")
    assert observers.holder("b1") == "start-2"
    moments.append(10.0)
    assert observers.holder("b1") is None


def test_a_broker_ceases_to_serve_before_its_lease_expires(holders, observers, moments):
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


def test_an_expired_lease_is_never_served_on_again(holders, observers, moments):
    """Others may have taken over: its holder has to check that first."""
    lease = holders.hold("b1", "start-1")
    moments.append(10.5)
    assert not lease.renew()
    assert not lease.renew()
    assert lease.left_s() == 10.0
    assert not lease.may_serve()
    assert holders.hold("b1", "start-1").may_serve()


def test_a_renewal_is_due_several_times_in_a_leases_duration(holders):
    assert holders.pause_s == 10.0 / 6
    assert Leases(MemoryBoard(), HandClock([0.0]), 3.0).pause_s == 0.5


def test_a_board_removes_the_lease_of_a_process_that_ended(observers, moments):
    board = MemoryBoard()
    leases = Leases(board, HandClock(moments), 10.0)
    lease = leases.hold("b1", "s")
    assert leases.alive("b1")
    board.gone("b1")
    board.gone("b2")
    assert not leases.alive("b1")
    assert not lease.renew()
    assert not leases.alive("b1")


def test_leases_of_several_brokers_are_independent(holders, observers, moments):
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


class SlowBoard:
    """A board whose reads fail, or take so long."""

    def __init__(self, moments: list[float]) -> None:
        self.shown = MemoryBoard()
        self.moments = moments
        self.takes_s = 0.0
        self.fails = False

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> MemoryPlace:
        return self.shown.take_place(broker_id, incarnation, duration_s)

    def read(self, broker_id: str) -> Renewal | None:
        self.moments.append(self.moments[-1] + self.takes_s)
        if self.fails:
            raise StorageFailure("the board does not answer")
        return self.shown.read(broker_id)


class MomentsClock(FakeClock):
    def __init__(self, moments: list[float]) -> None:
        super().__init__()
        self.moments = moments

    def monotonic(self) -> float:
        return self.moments[-1]


@pytest.mark.parametrize("trouble", ["reads fail", "a read takes long", "the own lease is over"])
def test_after_a_read_outage_all_leases_count_as_valid_for_half_their_duration(trouble):
    """They were probably cut off too: no broker counts as dead after an outage of all reads."""
    moments = [0.0]
    board, clock = SlowBoard(moments), MomentsClock(moments)
    leases = Leases(board, clock, 6.0)
    Leases(board, clock, 6.0).hold("b1", "start-1")
    if trouble == "the own lease is over":
        leases.hold("b2", "start-1")
    assert leases.alive("b1")
    moments.append(6.5)
    if trouble == "reads fail":
        board.fails = True
        with pytest.raises(StorageFailure):
            leases.alive("b1")
        moments.append(20.0)
        board.fails = False
    elif trouble == "a read takes long":
        board.takes_s = 2.0
    assert leases.alive("b1")
    board.takes_s = 0.0
    if trouble != "the own lease is over":
        moments.append(moments[-1] + 3.1)
        assert not leases.alive("b1"), "it has not renewed its lease since"


def test_an_observer_sees_a_lease_expire_on_time():
    moments = [0.0]
    board, clock = SlowBoard(moments), MomentsClock(moments)
    leases = Leases(board, clock, 6.0)
    Leases(board, clock, 6.0).hold("b1", "start-1")
    assert leases.alive("b1")
    moments.append(6.1)
    assert not leases.alive("b1")


def test_a_renewal_on_a_read_only_disk_is_a_store_that_cannot_be_used(tmp_path, monkeypatch):
    """The error of the system is in the text: status, metrics and console show it."""
    place = LeaseFiles(tmp_path / "leases").take_place("b1", "start-1", 10.0)

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(lease_files.os, "pwrite", refuse)
    with pytest.raises(MetadataUnavailable, match="Read-only file system") as failed:
        place.write(1)
    assert "allowed to write" in failed.value.hint
