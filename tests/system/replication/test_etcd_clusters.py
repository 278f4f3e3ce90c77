"""Brokers with their metadata in etcd: failures of etcd cause delays, but lose no record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolog.errors import IsologError
from isolog.testing import LocalCluster, LocalEtcd
from spark_stream.client.log import Log, connect
from spark_stream.client.writing.producer import Producer
from spark_stream.cluster.stores.backends import ETCD_LEASE_S
from tests.cli.conftest import run
from tests.etcd import needs_etcd
from tests.support import NUMBERS, eventually, numbers

pytestmark = [pytest.mark.slow, pytest.mark.full, *needs_etcd]


@pytest.fixture
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEtcd]:
    with LocalEtcd(3, tmp_path_factory.mktemp("etcd")) as found:
        yield found


def _is_created(log: Log, name: str) -> bool:
    try:
        return bool(log.create_topic(name, 1, schema=NUMBERS, if_not_exists=True))
    except IsologError:
        return False


def _is_appended(producer: Producer, number: int) -> bool:
    try:
        return bool(producer.append("t", numbers(number, 1), partition=0).result(30))
    except IsologError:
        return False


def test_metadata_of_a_cluster_migrates_to_etcd_and_back(etcd: LocalEtcd, tmp_path: Path):
    url, file = etcd.url("moved"), tmp_path / "metadata" / "metadata.sqlite"
    with LocalCluster(3, folder=tmp_path, cuttable=False) as cluster:
        with cluster.connect() as log, log.producer(transactional_id="t") as producer:
            log.create_topic("t", 2, schema=NUMBERS, replication_factor=3)
            with producer.transaction():
                producer.append("t", numbers(0, 100), partition=0)
        refused = run("cluster", "migrate-metadata", str(file), url)
        assert "brokers run on" in refused.err
        for count, (source, target) in enumerate([(str(file), url), (url, str(file))], 1):
            for number in cluster.brokers:
                cluster.stop(number)
            moved = run("cluster", "migrate-metadata", source, target)
            assert moved.code == 0, moved.err
            if count == 1:
                again = run("broker", "start", "--dir", str(tmp_path / "1"), "--metadata", source)
                assert f"--metadata {target}" in again.err
            for number in cluster.brokers:
                cluster.restart(number, conf={"metadata": target})
            with cluster.connect() as log, log.producer(transactional_id="t") as producer:
                with producer.transaction():
                    producer.append("t", numbers(100 * count, 100), partition=0)
                table = log.read("t", isolation="read_committed")
                assert table["n"].to_pylist() == list(range(100 * (count + 1)))


def test_lost_quorum_of_etcd_loses_no_record(etcd: LocalEtcd):
    conf = {"metadata": etcd.url("quorum")}
    with LocalCluster(3, conf=conf, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic("t", 1, schema=NUMBERS, replication_factor=3)
        with log.producer(isolation="read_committed", timeout_ms=120_000) as producer:
            producer.append("t", numbers(0, 10), partition=0).result(30)
            for each in etcd.members[:2]:
                each.pause()
            waiting = producer.append("t", numbers(10, 10), partition=0)
            with pytest.raises(IsologError):
                log.create_topic("u", 1, schema=NUMBERS)
            for each in etcd.members[:2]:
                each.resume()
            waiting.result(120)
        eventually(lambda: log.describe("t").partitions[0].leader is not None)
        assert log.read("t", isolation="read_replicated")["n"].to_pylist() == list(range(20))


def test_appends_and_reads_continue_during_an_outage_of_etcd(etcd: LocalEtcd):
    """The outage exceeds the duration of a lease. New clients are served as before."""
    conf = {"metadata": etcd.url("failsafe")}
    with LocalCluster(3, conf=conf, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic("t", 3, schema=NUMBERS, replication_factor=3)
        led = [each.leader for each in log.describe("t").partitions]
        with log.producer(isolation="read_committed") as producer:
            producer.append("t", numbers(0, 1), partition=0).result(30)
            for each in etcd.members:
                each.pause()
            until, count = time.monotonic() + 2 * ETCD_LEASE_S, 1
            while time.monotonic() < until:
                producer.append("t", numbers(count, 1), partition=count % 3).result(10)
                count += 1
                time.sleep(0.05)
        with cluster.connect() as late, late.producer(isolation="read_committed") as producer:
            producer.append("t", numbers(count, 1), partition=0).result(10)
            found = late.read("t", isolation="read_committed")["n"].to_pylist()
            assert sorted(found) == list(range(count + 1))
            with pytest.raises(IsologError):
                late.create_topic("u", 1, schema=NUMBERS)
        for each in etcd.members:
            each.resume()
        eventually(lambda: _is_created(log, "u"))
        assert [each.leader for each in log.describe("t").partitions] == led


def test_leader_stops_after_the_loss_of_a_follower_in_an_outage_of_etcd(etcd: LocalEtcd):
    """The dead follower was in sync, so the leader cannot exclude another leader."""
    conf = {"metadata": etcd.url("follower")}
    with LocalCluster(2, conf=conf, cuttable=False) as cluster, cluster.connect() as log:
        log.create_topic("t", 1, schema=NUMBERS, assignment=[["1", "2"]])
        with log.producer(isolation="read_uncommitted", timeout_ms=2_000) as producer:
            producer.append("t", numbers(0, 1), partition=0).result(30)
            for each in etcd.members:
                each.pause()
            cluster.kill(2)
            count = 1
            while _is_appended(producer, count):
                count += 1
                time.sleep(0.05)
        for each in etcd.members:
            each.resume()
        # The records are replicated as soon as the follower has left the ISR.
        eventually(lambda: len(log.read("t", isolation="read_replicated")) >= count)
        found = log.read("t", isolation="read_replicated")["n"].to_pylist()
        assert found[:count] == list(range(count))


def test_clients_of_a_broker_partitioned_from_etcd_find_the_new_leader(etcd: LocalEtcd):
    leader = etcd.leader()
    alone = next(each for each in etcd.members if each is not leader)
    others = ",".join(each.endpoint for each in etcd.members if each is not alone)
    conf = {"metadata": f"etcd://{alone.endpoint}/alone", "leader_balance_seconds": 0}
    with LocalCluster(3, conf=conf, cuttable=False) as cluster:
        for number in (2, 3):
            cluster.restart(number, {"metadata": f"etcd://{others}/alone"})
        with cluster.connect() as log:
            log.create_topic("t", 1, schema=NUMBERS, assignment=[["1", "2", "3"]])
        with connect(cluster.broker(1).address) as log:
            with log.producer(isolation="read_committed", timeout_ms=60_000) as producer:
                producer.append("t", numbers(0, 1), partition=0).result(30)
                alone.pause()
                until, count = time.monotonic() + 2 * ETCD_LEASE_S, 1
                while time.monotonic() < until:
                    producer.append("t", numbers(count, 1), partition=0).result(30)
                    count += 1
                    time.sleep(0.05)
            assert log.describe("t").partitions[0].leader != "1"
            found = log.read("t", isolation="read_committed")["n"].to_pylist()
            assert found == list(range(count))
        alone.resume()


def test_second_broker_of_an_id_on_another_host_does_not_start(etcd: LocalEtcd, tmp_path: Path):
    url = etcd.url("ids")
    with LocalCluster(1, conf={"metadata": url}, cuttable=False) as cluster:
        other = run(
            *("broker", "start", "--dir", str(tmp_path / "other"), "--metadata", url),
            *("--id", "1", "--listen", "127.0.0.1:0"),
        )
        assert "broker 1 of this store runs already" in other.err
        assert cluster.broker(1).alive


def test_broker_paused_during_a_restore_stops_with_its_reason(etcd: LocalEtcd, tmp_path: Path):
    """Other hosts cannot detect that it is only paused, so the restore revokes its id."""
    url, backup = etcd.url("restored"), tmp_path / "metadata.backup"
    with LocalCluster(2, conf={"metadata": url}, cuttable=False) as cluster:
        with cluster.connect() as log:
            log.create_topic("t", 1, schema=NUMBERS, replication_factor=2)
        saved = run("cluster", "backup", str(backup), "--metadata", url)
        assert saved.code == 0, saved.err
        cluster.stop(1)
        cluster.pause(2)
        restored = run("cluster", "restore", str(backup), "--metadata", url, "--force")
        assert restored.code == 0, restored.err
        assert "broker 2 did not shut down cleanly" in restored.err
        paused = cluster.broker(2)
        cluster.resume(2)
        eventually(lambda: not paused.alive, 60)
        assert "stopping the broker: it lost its id" in paused.log_text()
        assert "the metadata was restored or migrated" in paused.log_text()
        assert paused.exit_code == 1
