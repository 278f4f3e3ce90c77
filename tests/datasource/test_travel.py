"""What Spark unpickles in a worker says there what that worker's Python lacks."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark import cloudpickle

from spark_stream.datasource import IsologDataSource

LOAD = "import pickle, sys; sys.path.append(sys.argv[1]); pickle.load(sys.stdin.buffer)"


@pytest.fixture(scope="module")
def pickled() -> bytes:
    return bytes(cloudpickle.dumps(IsologDataSource({"path": "/a", "subscribe": "b"})))


def test_it_arrives_as_it_was(pickled: bytes) -> None:
    arrived = pickle.loads(pickled)
    assert type(arrived) is IsologDataSource
    assert dict(arrived.options) == {"path": "/a", "subscribe": "b"}


def test_a_python_that_has_spark_alone_says_what_it_lacks(pickled: bytes, tmp_path: Path) -> None:
    for package in (pyspark, py4j):
        [place] = package.__path__
        (tmp_path / package.__name__).symlink_to(place)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOAD, tmp_path],
        input=pickled,
        capture_output=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: isolog: a Python worker of Spark on ")
    assert f" runs {sys.executable} (Python " in last
    assert "which lacks pyarrow, numpy, " in last
    assert ", isolog. Set PYSPARK_PYTHON, where the job is submitted" in last
