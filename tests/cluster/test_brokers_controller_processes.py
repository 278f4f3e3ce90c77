"""The controller among real processes that are killed and stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from spark_stream.cluster.brokers import CONTROLLER, Controller, ControllerSeat, decode_controller
from spark_stream.cluster.stores.lease_files import LeaseFiles
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import SystemClock
from spark_stream.testing.local_cluster import pause_process
from tests.support import eventually

NAMES = ("b1", "b2", "b3")


def _be_a_broker(folder: Path, name: str, duration_s: float) -> None:
    """Holds a lease, and the controller's seat whenever that is free, until it is killed."""
    store = SqliteStore(folder / "metadata.sqlite")
    leases = Leases(LeaseFiles(folder / "leases"), SystemClock(), duration_s)
    incarnation = f"{name}-{os.getpid()}"
    lease = leases.hold(name, incarnation)
    seat, view = ControllerSeat(store, BrokerId(name), incarnation), ClusterView(store)
    while True:
        if not lease.renew():
            lease = leases.hold(name, incarnation)
        view.refresh()
        if not seat.holds(view.now.controller):
            seat.take(lambda broker, it: leases.holder(broker) == it)
        time.sleep(0.02)


class Brokers:
    """Processes on one store, and their controllers."""

    def __init__(self, folder: Path) -> None:
        self.store = SqliteStore(folder / "metadata.sqlite")
        self.processes: dict[str, BaseProcess] = {}
        self._folder = folder

    def start(self, name: str, duration_s: float) -> None:
        self.processes[name] = multiprocessing.get_context("spawn").Process(
            target=_be_a_broker, args=(self._folder, name, duration_s)
        )
        self.processes[name].start()

    def controller(self) -> Controller | None:
        record = self.store.get(CONTROLLER)
        return None if record is None else decode_controller(record.value)

    def is_led_after(self, term: int) -> bool:
        held = self.controller()
        return held is not None and held.term > term

    def close(self) -> None:
        for each in self.processes.values():
            each.kill()  # a stopped process, too
            each.join()
        self.store.close()


@pytest.fixture
def brokers(tmp_path) -> Iterator[Brokers]:
    found = Brokers(tmp_path)
    yield found
    found.close()


@pytest.mark.slow
def test_a_killed_controller_is_replaced_immediately(brokers):
    """Its lease would last for a thousand seconds. All brokers but one are killed in turn."""
    for name in NAMES:
        brokers.start(name, 1_000.0)
    eventually(lambda: brokers.controller() is not None)
    for _ in NAMES[1:]:
        held = brokers.controller()
        killed = brokers.processes.pop(held.broker)
        killed.kill()
        killed.join()
        eventually(lambda term=held.term: brokers.is_led_after(term))
        following = brokers.controller()
        assert following.term == held.term + 1
        assert following.broker in brokers.processes


@pytest.mark.slow
def test_a_restarted_controller_does_not_keep_its_term(brokers):
    brokers.start("b1", 1_000.0)
    eventually(lambda: brokers.controller() is not None)
    first = brokers.controller()
    brokers.processes["b1"].kill()
    brokers.processes["b1"].join()
    brokers.start("b1", 1_000.0)
    eventually(lambda: brokers.is_led_after(first.term))
    assert brokers.controller().broker == "b1"
    assert brokers.controller().incarnation != first.incarnation


@pytest.mark.full  # expired leases: tests/cluster/stores/test_leases.py
@pytest.mark.slow
def test_a_paused_controller_is_replaced_when_its_lease_expires(brokers):
    brokers.start("b1", 2.0)
    eventually(lambda: brokers.controller() is not None)
    brokers.start("b2", 2.0)
    leases = Leases(LeaseFiles(brokers._folder / "leases"), SystemClock(), 3.0)
    eventually(lambda: leases.alive("b2"))
    first = brokers.controller()
    pause_process(brokers.processes["b1"].pid)
    eventually(lambda: brokers.is_led_after(first.term))
    assert brokers.controller() == Controller(
        BrokerId("b2"), f"b2-{brokers.processes['b2'].pid}", first.term + 1
    )
    os.kill(brokers.processes["b1"].pid, signal.SIGCONT)
    eventually(lambda: leases.holder("b1") is not None)
    assert brokers.controller().broker == "b2", "it takes nothing back"
