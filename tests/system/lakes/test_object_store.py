"""A lake in S3: processes of a worker are killed while the store refuses, and loses answers.

The keys are in the environment of the worker and of the reader, and nowhere else.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from isolog.errors import LakeIncomplete
from spark_stream.lake.storage.stores import open_store
from tests.examples import is_quick
from tests.lake.storage.conftest import objects, running_objects
from tests.lake.storage.object_server import Faults
from tests.support import BrokerProcess, eventually

__all__ = ["objects", "running_objects"]
pytestmark = pytest.mark.slow
pytest.importorskip("obstore")
pytest.importorskip("moto")

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
CONFIG = {"segment.bytes": "65536", "local.retention.bytes": "1"}
KILLS = 4 if is_quick() else 12


def worker_of(broker: BrokerProcess, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "isolog", "lake", "run", "shop"]
    environment = {**os.environ, "ISOLOG_BOOTSTRAP": broker.address}
    with said.open("ab") as errors:
        return subprocess.Popen(command, stderr=errors, env=environment)


def append(log: isolog.Log, transaction: int) -> None:
    """Append a transaction over both topics. Every third is aborted."""
    rows = pa.table({"n": [transaction] * 500, "text": ["x" * 20] * 500}, schema=SCHEMA)
    with log.producer(transactional_id="writer") as producer:
        producer.begin_transaction()
        for name in ("orders", "audit"):
            producer.append(name, rows, partition=transaction % 2).result(60)
        if transaction % 3 == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


@pytest.mark.full  # faults of the store alone: tests/lake/storage/test_objects.py
@pytest.mark.timeout(300)
def test_tables_in_s3_are_exact_after_kills_and_faults(objects, tmp_path):
    chance, said = random.Random(5), tmp_path / "said"
    conf = "housekeeping_seconds = 0.1"
    with BrokerProcess(tmp_path / "log", conf=conf) as broker, broker.connect() as log:
        for name in ("orders", "audit"):
            log.create_topic(name, partitions=2, schema=SCHEMA, config=CONFIG)
        location = f"s3://lake/{chance.getrandbits(32):08x}"
        made = log.create_lake("shop", ["orders", "audit"], location, freshness=1)
        assert made.location == location
        objects.faults = Faults(refused=0.15, lost=0.15, slow_s=0.01, seed=5)
        worker = worker_of(broker, said)
        count = 0
        try:
            for _ in range(KILLS):
                before = log.describe_lake("shop").recorded_ms
                append(log, count)
                count += 1
                eventually(lambda b=before: log.describe_lake("shop").recorded_ms != b, 60)
                until = time.monotonic() + chance.uniform(0.0, 2.5)
                while time.monotonic() < until:
                    append(log, count)
                    count += 1
                worker.kill()
                worker.wait()
                worker = worker_of(broker, said)
        finally:
            worker.kill()
            worker.wait()
        assert objects.faults.count > 10
        # An operation is repeated three times. So that four faults in a row are unlikely:
        objects.faults = Faults(refused=0.01, lost=0.01, seed=6)
        isolog.LakeWorker(log, "shop").run_once()
        assert "key" not in str(log.describe_lake("shop"))
        eventually(lambda: log_start(log) > 0, 60)
        for name in ("orders", "audit"):
            _check(log, name, count)


def test_a_lake_moves_from_a_folder_to_s3(objects, tmp_path):
    """The log has none of the first records any more."""
    with BrokerProcess(tmp_path / "log") as broker, broker.connect() as log:
        for name in ("orders", "audit"):
            log.create_topic(name, partitions=2, schema=SCHEMA)
        for count in range(4):
            append(log, count)
        log.create_lake("shop", ["orders", "audit"], tmp_path / "tables")
        isolog.LakeWorker(log, "shop").run_once()
        for name in ("orders", "audit"):
            log.trim(name, dict.fromkeys(range(2), 500))
        location = "s3://lake/moved"
        with pytest.raises(LakeIncomplete, match="is missing at s3://lake/moved"):
            log.alter_lake("shop", location=location)
        store = open_store(location)
        for file in (tmp_path / "tables").rglob("*"):
            if file.is_file():
                store.put(file.relative_to(tmp_path / "tables").as_posix(), file.read_bytes())
        assert log.alter_lake("shop", location=f"{location}/").location == location
        shutil.rmtree(tmp_path / "tables")
        append(log, 4)
        isolog.LakeWorker(log, "shop").run_once()
        for name in ("orders", "audit"):
            _check(log, name, 5)
        assert not (tmp_path / "tables").exists()


def log_start(log: isolog.Log) -> int:
    return sum(each.log_start_offset or 0 for each in log.describe("orders").partitions)


def _check(log: isolog.Log, name: str, count: int) -> None:
    """Compare the table, and a read that spans table and log, with the committed transactions."""
    committed = [n for n in range(count) if n % 3 != 2]
    whole = log.read(name, isolation="read_committed", metadata=True)
    table = log.read(name, isolation="read_committed", metadata=True, lake="only")
    wanted = sorted(n for n in committed for _ in range(500))
    for found in (whole, table):
        assert sorted(found["n"].to_pylist()) == wanted
        columns = (found[each].to_pylist() for each in ("_partition", "_offset"))
        assert len(set(zip(*columns, strict=True))) == found.num_rows
    kept = log.read(name, isolation="read_committed", metadata=True, lake="never")
    assert kept.num_rows < whole.num_rows  # the rest came from S3
