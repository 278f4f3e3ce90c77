"""What all tests share: where they run, and that no broker outlives its test."""

from __future__ import annotations

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
from tests.examples import choose, is_quick
from tests.forks import popen
from tests.support import broker, channel, log, shared, topic

__all__ = ["broker", "channel", "log", "shared", "topic"]

ROOT = Path(__file__).resolve().parents[1]

# Spark's workers and the brokers that clients start are other processes: they need this Python, and
# the checkout on their path even where it is not installed.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
)
# A JVM of the tests lives for a minute or two: what its second compiler would do does not pay off
# in that time, and costs half of all that Spark computes. (Spark's launcher reads this variable.)
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for name in ("ISOLOG_PATH", "ISOLOG_BOOTSTRAP", "ISOLOG_DIR", "ISOLOG_LISTEN"):
    os.environ.pop(name, None)


# What starts processes takes seconds: `make test-fast` leaves out these folders, and whoever uses
# one of these fixtures. A file elsewhere that starts a broker in another way marks itself as slow.
SLOW_FOLDERS = ("broker", "cli", "demo", "docs", "system")
SLOW_FIXTURES = {"broker", "channel", "log", "shared"}

# The files of these go first, in this order. Files are dealt out to processes that run side by
# side, and a long one that comes last would keep the others waiting.
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
    """The files of Spark go to one process, where they share a JVM: its first minute is slow."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/spark" if file.startswith("tests/spark/") else file


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure when it happens: side by side, a run that is cut off would not tell it."""
    if report.failed and hasattr(report, "node"):
        print(f"\n{report.nodeid} ({report.when}):", flush=True)
        print("\n".join(report.longreprtext.splitlines()[-15:]), flush=True)


def stop_broker(directory: Path, *, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> None:
    """End the broker that a client started on the directory, and wait for its exit."""
    from spark_stream.client.connecting.embedded import known_address

    if known_address(directory) is None:
        return
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if "spark_stream.broker" in words and str(directory) in words:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
            deadline = time.monotonic() + timeout_s
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.01)


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Start the brokers of a ``LocalCluster`` as those of ``BrokerProcess``."""
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
