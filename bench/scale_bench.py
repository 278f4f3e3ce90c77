"""The control plane by its size: store requests and processor time of a controller, and a view.

The controller is real. The other brokers exist only on record (``tests.broker.control_plane``). The
metadata store is SQLite. So the figures have no logs, no networks and no waits.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from bench.results import Results
from spark_stream.cluster.view import ClusterView
from tests.broker.control_plane import ControlPlane

SIZES = ((3, 100), (3, 1_000), (3, 10_000), (10, 10_000), (100, 10_000), (100, 100_000))
"""Brokers and partitions."""
PARTITIONS = 500  # of a topic
TIMES = 20


def run(place: Path, results: Results) -> None:
    """Measure clusters of all sizes, each in a separate folder in ``place``."""
    for brokers, partitions in SIZES:
        folder = place / f"{brokers}-{partitions}"
        folder.mkdir(parents=True)
        _measure(ControlPlane(folder, brokers), partitions, results)


def _measure(plane: ControlPlane, partitions: int, results: Results) -> None:
    size = f"{len(plane.brokers)} brokers, {partitions:,} partitions"
    for number, first in enumerate(range(0, partitions, PARTITIONS)):
        plane.create(f"t{number}", min(PARTITIONS, partitions - first))
    plane.rounds(2)

    def measure(what: str, work: Callable[[int], None], times: int = TIMES) -> None:
        before, began = plane.requests(), time.process_time()
        for number in range(times):
            work(number)
        took = (time.process_time() - began) / times
        found = plane.requests() - before
        each = (f"{count / times:,.0f} {name}" for name, count in found._asdict().items())
        results.add(f"{what}, {size}", "ms", measured=took * 1e3, note=", ".join(each))

    def change(_: int) -> None:
        plane.change("t0")
        plane.rounds()

    def create(number: int) -> None:
        plane.create(f"new{number}", 10)
        plane.rounds()

    def fail(number: int) -> None:
        plane.kill(plane.brokers[number])
        plane.rounds()

    measure("controller's round at rest", lambda _: plane.rounds())
    measure("a change of an ISR", change)
    measure("creation of a topic with 10 partitions", create)
    measure("new leaders after the death of a broker", fail, 1)
    _measure_view(plane, size, results)
    plane.close()


def _measure_view(plane: ControlPlane, size: str, results: Results) -> None:
    began = time.process_time()
    ClusterView(plane.store).refresh()
    results.add(f"first view, {size}", "ms", measured=(time.process_time() - began) * 1e3)
    tracemalloc.start()
    view = ClusterView(plane.store)
    view.refresh()
    results.add(
        f"memory of a view, {size}", "MiB", measured=tracemalloc.get_traced_memory()[0] / 2**20
    )
    tracemalloc.stop()
