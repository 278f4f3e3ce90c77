"""etcd restored from an older copy under three brokers, and the repair by an operator."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

import isolog
from isolog.errors import IsologError, MetadataLost
from isolog.testing import LocalCluster, LocalEtcd
from spark_stream.console.problems import of_cluster
from tests.cli.conftest import run
from tests.etcd import copy_data, needs_etcd, put_back_data
from tests.support import NUMBERS, eventually, numbers

pytestmark = [pytest.mark.chaos, *needs_etcd]

REPORTED = "has lost metadata. A key in it tells the other brokers"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    (tmp_path / "etcd").mkdir()
    with LocalEtcd(3, tmp_path / "etcd") as found:
        yield found


class Load:
    """A thread that writes numbers, one in each batch, until :meth:`end`."""

    def __init__(self, log: isolog.Log, start: int) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[IsologError] = []
        self._log = log
        self._next = start
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            try:  # a new producer for each record, so that each needs an id
                with self._log.producer(isolation="read_committed") as producer:
                    producer.append("t", numbers(self._next, 1), partition=0).result(30)
                self.acknowledged.append(self._next)
            except IsologError as error:
                self.errors.append(error)
            self._next += 1


def committed(log: isolog.Log, name: str, number: int) -> None:
    with log.producer(transactional_id=name) as producer, producer.transaction():
        producer.append("t", numbers(number, 1), partition=0)


def written(log: isolog.Log, start: int, count: int) -> list[int]:
    """Append numbers, one in each batch. Return them after all acknowledgements."""
    found = list(range(start, start + count))
    with log.producer(isolation="read_committed") as producer:
        for number in found:
            producer.append("t", numbers(number, 1), partition=0).result(60)
    return found


def read(log: isolog.Log) -> list[int]:
    return sorted(log.read("t", isolation="read_committed")["n"].to_pylist())


def restore_backup(cluster: LocalCluster, url: str, tmp_path: Path) -> None:
    """Stop the brokers, copy the metadata, restore the copy, and start the brokers."""
    for number in cluster.brokers:
        cluster.stop(number)
    backup = str(tmp_path / "backup")
    assert run("cluster", "backup", backup, "--metadata", url).code == 0
    back = run("cluster", "restore", backup, "--metadata", url, "--force")
    assert back.code == 0, back.err
    for number in cluster.brokers:
        cluster.restart(number)


@pytest.mark.full  # tests/cluster/stores/test_etcd_losses.py is quicker
def test_restore_of_etcd_under_brokers_is_reported_and_loses_nothing(
    etcd: LocalEtcd, tmp_path: Path
):
    url = etcd.url("restored")
    conf = {"metadata": url, "metrics_listen": "127.0.0.1:0"}
    with LocalCluster(3, conf=conf, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic("t", 1, 3, schema=NUMBERS)
        committed(log, "first", 1)
        copy_data(etcd, tmp_path / "copy")
        log.create_topic("later", 1, 3, schema=NUMBERS)
        for number in range(2, 5):
            committed(log, f"after-{number}", number)
        load = Load(log, 100)
        eventually(lambda: load.acknowledged)
        put_back_data(etcd, tmp_path / "copy")
        for broker in cluster.brokers.values():
            eventually(lambda b=broker: "METADATA_LOST" in b.log_text())
        with pytest.raises(MetadataLost, match="restored from an earlier state"):
            log.create_topic("more", 1, 3, schema=NUMBERS)
        with pytest.raises(MetadataLost):
            committed(log, "new", 5)
        count = len(load.acknowledged) + len(load.errors)
        eventually(lambda: len(load.acknowledged) + len(load.errors) > count + 20)
        load.end()
        problem = log.cluster().problems[0]
        assert problem.kind == "metadata_lost"
        (shown,) = list(of_cluster([msgspec.to_builtins(problem)]))
        assert "cluster restore" in shown.message
        status = run("cluster", "status", "--bootstrap", cluster.bootstrap)
        assert status.code != 0
        assert "restored from an earlier state" in status.out + status.err
        for broker in cluster.brokers.values():
            place = json.loads((broker.directory / "broker.json").read_text())["metrics_address"]
            with urlopen(f"http://{place}/metrics") as answer:
                assert "isolog_store_reachable 0" in answer.read().decode()
        written = [1, 2, 3, 4, *load.acknowledged]
        assert set(written) <= set(read(log))
        cluster.stop(1)
        with pytest.raises(MetadataLost):
            cluster.restart(1)

        restore_backup(cluster, url, tmp_path)
        eventually(lambda: not log.cluster().problems, 60)
        committed(log, "first", 6)
        committed(log, "new", 7)
        load = Load(log, 10_000)
        eventually(lambda: len(load.acknowledged) > 20)
        load.end()
        assert not load.errors
        assert {*written, 6, 7, *load.acknowledged} <= set(read(log))
        log.create_topic("more", 1, 3, schema=NUMBERS)


@pytest.mark.full  # tests/cluster/stores/test_etcd_losses.py is quicker
def test_broker_stopped_before_a_restore_of_etcd_does_not_lead_beside_another(
    etcd: LocalEtcd, tmp_path: Path
):
    """It has read no change after the snapshot, so its own state shows no loss."""
    url = etcd.url("split")
    with LocalCluster(3, conf={"metadata": url}, cuttable=False) as cluster:
        with cluster.connect(timeout=30) as log:
            log.create_topic("t", 1, 3, schema=NUMBERS)
            acknowledged = written(log, 1, 1)
            eventually(lambda: len(log.describe("t").partitions[0].isr) == 3)
            leader = int(log.describe("t").partitions[0].leader)
            stopped = next(number for number in cluster.brokers if number != leader)
            running = {
                number: each for number, each in cluster.brokers.items() if number != stopped
            }
            copy_data(etcd, tmp_path / "copy")
            cluster.kill(stopped)
            eventually(lambda: len(log.describe("t").partitions[0].isr) == 2)
            acknowledged += written(log, 100, 20)
            put_back_data(etcd, tmp_path / "copy")
            for broker in running.values():
                eventually(lambda b=broker: "METADATA_LOST" in b.log_text())
            eventually(lambda: any(REPORTED in each.log_text() for each in running.values()))
            with pytest.raises(MetadataLost, match="reported by broker"):
                cluster.restart(stopped)
            acknowledged += written(log, 200, 5)
            restore_backup(cluster, url, tmp_path)
        with cluster.connect(timeout=60) as log:
            acknowledged += written(log, 300, 1)
            assert read(log) == acknowledged
