"""Queries that need only some rows succeed, and the workers that read print no traceback.

Spark's own workers for planning may print one on a busy machine: Spark closes their sockets before
their last flush.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from tests.conftest import ROOT, stop_broker

DRIVER = """
import json
import sys
from tests.spark.conftest import session_builder

builder = session_builder("local[2]")
spark = builder.config("spark.python.daemon.module", "tests.spark.labelled_daemon").getOrCreate()
frame = spark.read.format("isolog").option("path", sys.argv[1]).option("subscribe", "t").load()
print(json.dumps([len(frame.limit(5).collect()), len(frame.take(3)), frame.isEmpty()]))
"""


# tests/datasource/spark/test_workers.py is quicker.
@pytest.mark.full
def test_queries_with_a_limit_print_no_broken_pipe(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with isolog.connect(path=path) as log:
        log.create_topic("t", partitions=2, schema="text string")
        with log.producer() as producer:
            for number in (0, 1) * 10:
                producer.append("t", pa.record_batch({"text": ["x" * 100] * 20_000}), number)
    try:
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=280,
        )
    finally:
        stop_broker(path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [5, 3, False]
    assert "worker of pyspark.worker" not in done.stderr, done.stderr
