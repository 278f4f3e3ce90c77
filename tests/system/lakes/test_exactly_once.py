"""A lake is exact while workers are killed, leaders die, and topics are altered."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.testing import LocalCluster
from spark_stream.lake_worker.iceberg import VERSION
from tests.lake_worker.lake_tables import rows_of, table_of

catalogs = pytest.importorskip("pyiceberg.catalog")

ROWS = pa.schema([("tx", pa.int32()), ("text", pa.string())])
TOPICS = ("orders", "audit")


class Writer(threading.Thread):
    """Transactions over two topics. Every third is aborted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.stop = threading.Event()
        self.begun = 0
        self.more = False

    def run(self) -> None:
        with (
            isolog.connect(self.bootstrap, timeout=60) as log,
            log.producer(transactional_id="writer", linger_ms=0) as producer,
        ):
            while not self.stop.is_set():
                producer.begin_transaction()
                for name in TOPICS:
                    producer.append(name, self.rows(), partition=self.begun % 2)
                producer.flush()
                if self.begun % 3 == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                self.begun += 1
                time.sleep(0.02)

    def rows(self) -> pa.Table:
        rows = pa.table({"tx": pa.array([self.begun] * 5, pa.int32()), "text": ["x"] * 5})
        return rows.append_column("more", pa.array([1.5] * 5)) if self.more else rows


def worker_of(bootstrap: str, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "isolog", "lake", "run", "shop", "--bootstrap", bootstrap]
    with said.open("ab") as errors:
        return subprocess.Popen(command, stderr=errors)


@pytest.mark.full  # simulated kills: tests/lake/test_rounds.py
@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1])
def test_no_row_is_lost_or_duplicated(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKES__URI", uri)  # of the workers
    monkeypatch.setattr(catalogs._ENV_CONFIG, "config", {"catalog": {"lakes": {"uri": uri}}})
    chance = random.Random(seed)
    root, said = tmp_path / "lake", tmp_path / "said"
    with LocalCluster(3) as cluster, isolog.connect(cluster.bootstrap, timeout=60) as log:
        for name in TOPICS:
            log.create_topic(name, partitions=2, replication_factor=3, schema=ROWS)
        log.create_lake(
            "shop", list(TOPICS), root, freshness=1, file_bytes=1 << 16, iceberg="lakes"
        )
        writer = Writer(cluster.bootstrap)
        writer.start()
        workers = [worker_of(cluster.bootstrap, said) for _ in range(2)]
        try:
            for at in range(12):
                time.sleep(chance.uniform(1.0, 3.0))
                dead = chance.randrange(2)
                workers[dead].kill()
                workers[dead].wait()
                assert workers[1 - dead].poll() is None, said.read_text()
                workers[dead] = worker_of(cluster.bootstrap, said)
                if at == 3:
                    leader = log.describe("orders").partitions[0].leader
                    cluster.kill(leader)
                    cluster.restart(leader)
                if at == 6:
                    log.alter_topic("audit", partitions=3)
                if at == 8:
                    altered = ROWS.append(pa.field("more", pa.float64()))
                    for name in TOPICS:
                        log.alter_topic(name, schema=altered)
                    writer.more = True
        finally:
            writer.stop.set()
            writer.join(120)
            for each in workers:
                each.send_signal(signal.SIGTERM)
            codes = [each.wait(60) for each in workers]
        assert set(codes) <= {0, -signal.SIGTERM}, said.read_text()  # one may not be ready yet
        isolog.LakeWorker(log, "shop").run_once()
        _check(log, root, writer.begun)
        _check_iceberg(root, catalogs.load_catalog("lakes"))


def _check_iceberg(root: Path, catalog: Any) -> None:
    """Check that each snapshot has the rows of its Delta version."""
    for name in TOPICS:
        table = catalog.load_table(("shop", name))
        seen = []
        for snapshot in table.snapshots():
            version = int(snapshot.summary.additional_properties[VERSION])
            rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            if table_of(root, name, version).files:
                rows = rows.sort_by([("_topic_partition", "ascending"), ("_offset", "ascending")])
                want = rows_of(root, name, version)
                for column in ("_offset", "tx", "text"):
                    assert rows[column].to_pylist() == want[column].to_pylist(), (name, version)
            seen.append(version)
        assert seen == sorted(set(seen))
        assert seen[-1] == table_of(root, name).version


def _check(log: isolog.Log, root: Path, begun: int) -> None:
    for name in TOPICS:
        in_log = log.read(name, isolation="read_committed", metadata=True)
        in_table = rows_of(root, name)
        for column in ("_partition", "_offset", "_timestamp", "tx", "text", "more"):
            assert in_table[column].to_pylist() == in_log[column].to_pylist(), column
        assert set(in_log["tx"].to_pylist()) == {n for n in range(begun) if n % 3 != 2}
        for version in range(table_of(root, name).version + 1):
            if not table_of(root, name, version).files:
                continue
            counts: dict[int, int] = {}
            for each in rows_of(root, name, version)["tx"].to_pylist():
                counts[each] = counts.get(each, 0) + 1
            assert set(counts.values()) == {5}, f"{name}@{version}"
    for topic in log.describe_lake("shop").topics:
        bounds = log._topics.offsets(topic.name, isolation="read_committed").offsets
        assert topic.tiered == bounds
