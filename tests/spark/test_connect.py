"""Spark Connect: a relative path is the same directory in every process, and is not deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import isolog
from tests.conftest import stop_broker
from tests.spark.standalone import python_without

pytestmark = pytest.mark.full

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")


def run(folder: Path, client: str, *arguments: Path, python: str | Path = sys.executable) -> Any:
    """Return the last output of a client, whose server starts in the folder with that Python."""
    own = {"PYTHONPATH"} if python != sys.executable else set()
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in own and ("SPARK" not in name or name == "SPARK_SUBMIT_OPTS")
    }
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(client), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the output of a client of Spark Connect, with its server in another directory."""
    folder = tmp_path_factory.mktemp("connect")
    yield folder, run(folder, "connect_client.py")
    stop_broker(folder / "data")


@pytest.mark.timeout(300)
def test_a_relative_path_is_one_directory_in_batch_and_streaming_and_stays(told: Any) -> None:
    folder, said = told
    assert said["batch"] == said["stream"] == list(range(5))
    with isolog.connect(path=folder / "data", create=False) as log:
        assert sorted(log.read("written")["n"].to_pylist()) == list(range(5))
        assert sorted(log.read("copied")["n"].to_pylist()) == list(range(5))


@pytest.mark.timeout(300)
def test_a_path_in_the_sessions_files_is_refused(told: Any) -> None:
    _, said = told
    assert "[INVALID_OPTION]" in said["in_files"]
    assert "is deleted with Spark's session" in said["in_files"]


@pytest.mark.timeout(300)
def test_batches_run_with_isolog_sent_by_a_connect_client(
    tmp_path: Path, log_dir: Path, isolog_zip: Path
) -> None:
    """For batches. Spark gives its session's files to no stream: see docs/spark/cluster.md."""
    bare = python_without(tmp_path / "bare")
    said = run(tmp_path, "connect_artifacts_client.py", isolog_zip, log_dir, python=bare)
    assert "[DATA_SOURCE_NOT_FOUND]" in said["before"]
    assert said["batch"] == list(range(5))
    for stream in ("sink", "source"):
        assert f"runs {bare} " in said[stream]
        assert "which lacks isolog. Set PYSPARK_PYTHON" in said[stream]
