"""Spark Connect: a relative path means the same directory in every process, and outlives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spark_stream as isolog
from tests.conftest import stop_broker

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a client of Spark Connect saw, with its server started in a directory of its own."""
    folder = tmp_path_factory.mktemp("connect")
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(CLIENT)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    yield folder, json.loads(done.stdout.splitlines()[-1])
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
    assert "is deleted when Spark is done with it" in said["in_files"]
