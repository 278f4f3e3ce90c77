"""Tasks of the source that Spark computes again: an executor died, or a batch is replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from isolog.testing import LocalCluster
from tests.conftest import ROOT
from tests.spark.standalone import environment
from tests.support import NUMBERS, numbers

PARTITIONS = 60
ROWS = 500
"""Of a partition: 15 of them are a task, with three leaders."""
PAD = pa.array([bytes(200)] * ROWS, pa.binary())
"""Makes a range too large to be sent in one piece with the next one."""
SCHEMA = pa.schema([*NUMBERS, ("pad", pa.binary())])


# tests/datasource/reading/test_reader_row_order.py has the order of the rows without Spark.
@pytest.mark.full
@pytest.mark.timeout(600)
def test_recomputed_task_returns_its_rows_in_the_same_order(tmp_path: Path) -> None:
    """Spark keeps the tasks that it has, so rows in another order are lost and doubled."""
    with LocalCluster(3) as cluster, cluster.connect() as log:
        leaders = [[str(1 + n % 3)] for n in range(PARTITIONS)]
        log.create_topic("t", schema=SCHEMA, assignment=leaders)
        log.create_topic("half", schema=SCHEMA)
        with log.producer() as producer:
            for n in range(PARTITIONS):
                rows = numbers(ROWS * n, ROWS).append_column("pad", PAD)
                producer.append("t", rows, partition=n)
        driver = [sys.executable, "-m", "tests.spark.recomputed_driver"]
        subprocess.run(
            [*driver, cluster.broker(1).address, str(tmp_path)],
            cwd=tmp_path,
            env=environment(PYTHONPATH=str(ROOT), PYSPARK_PYTHON=sys.executable),
            check=True,
            timeout=500,
        )
        told = json.loads((tmp_path / "told.json").read_text())
        half = log.read("half", isolation="read_committed").num_rows
    assert told["rows"] == list(range(PARTITIONS * ROWS))
    assert set(told["errors"]) == {None}
    assert 0.4 < half / (PARTITIONS * ROWS) < 0.6
