"""Killed queries continue with the same release of PySpark, and with another (``make test-spark``).

``ISOLOG_OTHER_PYTHON`` is the Python of an environment with the other release.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from tests.conftest import ROOT
from tests.spark.copies import kill_session
from tests.spark.moved_driver import (
    COPIED,
    COUNTED,
    JOINED,
    LATE_WORKER,
    LATEST,
    LEFT,
    RIGHT,
)
from tests.spark.test_stream_source import NUMBERS, add, wait_until

OTHER = os.environ.get("ISOLOG_OTHER_PYTHON")

ROWS = 1500
COUNTS = pa.schema([("start", pa.int64()), ("count", pa.int64())])


def values(log: isolog.Log, topic: str, column: str = "n") -> list[int]:
    found = log.read(topic, isolation="read_committed")[column].to_pylist()
    return [int(each) for each in found]


def pythons(route: str) -> list[str]:
    """Return the Python of each release on the route."""
    if "there" in route and OTHER is None:
        pytest.skip("a second PySpark is needed: make test-spark")
    return [OTHER or "" if each == "there" else sys.executable for each in route.split("-")]


def run(arguments: Sequence[str], checkpoints: Path, reached: Callable[[], bool]) -> None:
    """Run the driver with this Python and log, and kill it when the condition is met."""
    checkpoints.mkdir(exist_ok=True)
    written = checkpoints / "driver.log"
    while not is_killed(arguments, written, reached):
        # Spark waits ten seconds for a Python worker, which a busy machine may exceed.
        text = written.read_text()
        assert any(each in text for each in LATE_WORKER), text


def is_killed(arguments: Sequence[str], written: Path, reached: Callable[[], bool]) -> bool:
    """Run a driver until the condition is met, and kill it. Return whether it ran until then."""
    python, path, *only = arguments
    bin_first = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    given = {"PATH": bin_first, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with written.open("w") as out:
        driver = subprocess.Popen(
            [python, "-m", "tests.spark.moved_driver", path, str(written.parent), *only],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=os.environ | given,
            start_new_session=True,
        )
    try:
        wait_until(lambda: driver.poll() is not None or reached(), "enough is copied", 1700)
        return driver.poll() is None
    finally:
        kill_session(driver)


def test_an_environment_with_another_release_is_not_used(tmp_path: Path) -> None:
    """It is made again, here without an index."""
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "ensure-pyspark", tmp_path / "scripts")
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    folder = tmp_path / ".cache" / "spark-4.0.5"
    venv.create(folder)
    package = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)})) / "pyspark"
    package.mkdir()
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given |= {"PIP_NO_INDEX": "1", "PYTHON": sys.executable}
    # Texts of one length and one second would have the same bytecode.
    for release, code in (("4.0.5", 0), ("4.1.10", 1)):
        (package / "__init__.py").write_text(f"__version__ = {release!r}\n")
        (folder / ".installed").touch()
        done = subprocess.run([script, "4.0.5"], env=given, capture_output=True, text=True)
        assert (done.returncode, folder.exists()) == (code, not code), done.stderr
    assert "There is no PySpark 4.0.5 at the package index" in done.stderr


@pytest.mark.full
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("route", ["here", "here-there-here", "there-here-there"])
def test_killed_queries_continue(route: str, log_dir: Path, tmp_path: Path) -> None:
    releases = pythons(route)
    with isolog.connect(path=log_dir) as log:

        def reached(copied: int) -> bool:
            if len(values(log, COPIED)) < copied:
                return False
            full = values(log, COUNTED, "count").count(100)
            return copied < ROWS or (len(values(log, JOINED)) >= ROWS and full >= ROWS // 100)

        for topic in (LEFT, RIGHT, COPIED, JOINED):
            log.create_topic(topic, partitions=2, schema=NUMBERS)
        log.create_topic(COUNTED, schema=COUNTS)
        for topic in (LEFT, RIGHT):
            add(log, topic, range(ROWS // 2))
            add(log, topic, range(ROWS // 2, ROWS), partition=1)
        for python, copied in zip(itertools.cycle(releases), (300, 900, ROWS), strict=False):
            given = (python, str(log_dir))
            run(given, tmp_path / "checkpoints", functools.partial(reached, copied))
        assert sorted(values(log, COPIED)) == list(range(ROWS))
        assert sorted(values(log, JOINED)) == list(range(ROWS))
        rows = log.read(COUNTED, isolation="read_committed")
        counts = sorted(zip(rows["start"].to_pylist(), rows["count"].to_pylist(), strict=True))
        assert len(counts) == len(set(counts))  # a window's count grows in each of its batches
        assert dict(counts) == dict.fromkeys(range(0, ROWS, 100), 100)


@pytest.mark.full
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("route", ["here-there-here", "there-here-there"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not-committed"])
def test_a_pinned_start_is_kept(route: str, committed: bool, log_dir: Path, tmp_path: Path) -> None:
    """A query from ``latest`` is killed in its first micro-batch, which pins its start."""
    checkpoints = tmp_path / "checkpoints"
    first = checkpoints / COPIED / "commits" / "0"
    releases = pythons(route)
    with isolog.connect(path=log_dir) as log:

        def reached(copied: int) -> bool:
            return first.exists() and len(values(log, COPIED)) >= copied

        for topic in (LEFT, COPIED):
            log.create_topic(topic, schema=NUMBERS)
        for turn, python in enumerate(releases):
            add(log, LEFT, range(10 * turn, 10 * turn + 10))
            given = (python, str(log_dir), LATEST)
            run(given, checkpoints, functools.partial(reached, 10 * turn))
            if turn == 0 and not committed:
                first.unlink()
                (first.parent / ".0.crc").unlink(missing_ok=True)
        assert sorted(values(log, COPIED)) == list(range(10, 30))
