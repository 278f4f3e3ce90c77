"""Fixtures, environment and order of all tests."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from xdist.scheduler import LoadFileScheduling

from spark_stream.testing import local_cluster
from tests.examples import choose, is_quick, mark_further
from tests.forks import popen
from tests.support import broker, channel, log, shared, topic

__all__ = ["broker", "channel", "log", "shared", "topic"]

ROOT = Path(__file__).resolve().parents[1]

# Spark's workers and the brokers that clients start are other processes. They need this Python, and
# the checkout on their path even if it is not installed.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
)
# A JVM of the tests runs for a minute or two. The work of its second compiler does not pay off in
# that time, and takes half of Spark's processor time. (Spark's launcher reads this variable.)
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A collection in a forked child would destroy Flight servers of earlier tests, and wait for their
# threads, which the child does not have. So a child collects no garbage of its parent. A collection
# before each fork would take a second.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
for name in ("ISOLOG_PATH", "ISOLOG_BOOTSTRAP", "ISOLOG_DIR", "ISOLOG_LISTEN"):
    os.environ.pop(name, None)


# Tests that start processes take seconds. `make test-fast` leaves out these folders, and tests with
# these fixtures. Other files that start brokers are marked as slow.
SLOW_FOLDERS = ("broker", "cli", "demo", "docs", "system")
SLOW_FIXTURES = {"broker", "channel", "log", "shared"}

# The files of these folders go first, in this order. Files are distributed to parallel processes,
# and a long file at the end would keep the others waiting.
FIRST_FOLDERS = (
    "spark",
    "demo",
    "simulation",
    "chaos",
    "client",
    "system",
    "broker",
    "cli",
    "storage",
)


def pytest_configure(config: pytest.Config) -> None:
    choose(config)


def folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_further(items, whole=not any("::" in each for each in config.args))
    for item in items:
        starts = SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        if starts or folder_of(item) in SLOW_FOLDERS:
            item.add_marker("slow")
    rank = {folder: number for number, folder in enumerate(FIRST_FOLDERS)}
    items.sort(key=lambda item: rank.get(folder_of(item), len(rank)))  # stable: files stay whole


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return SparkTogether(config, log) if is_quick() else None


class SparkTogether(LoadFileScheduling):
    """Sends the files of Spark to one process with one JVM, whose first minute is slow."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/spark" if file.startswith("tests/spark/") else file


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens, because an interrupted parallel run would not report it."""
    if report.failed and hasattr(report, "node"):
        print(f"\n{report.nodeid} ({report.when}):", flush=True)
        print("\n".join(report.longreprtext.splitlines()[-15:]), flush=True)


def stop_broker(directory: Path, *, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> None:
    """End the broker that a client started on the directory, and wait for its exit."""
    from spark_stream.client.connecting.embedded import known_address
    from spark_stream.operating_system import is_running

    if known_address(directory) is None:
        return
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if "spark_stream.broker" in words and str(directory) in words:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            deadline = time.monotonic() + timeout_s
            while is_running(process):
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.01)


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Start the brokers of ``LocalCluster`` and ``BrokerProcess`` as forks in ``make test``."""
    with pytest.MonkeyPatch.context() as patch:
        instead = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
        patch.setattr(local_cluster, "subprocess", instead)
        yield


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[Path]:
    """A directory for a broker that a client starts. The broker ends with the test."""
    directory = tmp_path / "log"
    yield directory
    stop_broker(directory)
