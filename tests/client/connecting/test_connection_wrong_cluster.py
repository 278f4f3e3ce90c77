"""A connection belongs to one log: brokers of another one are refused before any call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from isolog.errors import UnknownLog, WrongCluster
from isolog.testing import LocalCluster
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.wire.topic_messages import ListTopics
from tests.conftest import stop_broker
from tests.support import BrokerProcess, values
from tests.system.replication.clusters import CONF, WAIT_S

# Each test uses a broker.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Two brokers of different clusters."""
    with BrokerProcess(tmp_path / "a") as first, BrokerProcess(tmp_path / "b") as second:
        yield first, second


def cluster_id(broker: BrokerProcess) -> str:
    return str(json.loads((broker.directory / "isolog.json").read_text())["cluster_id"])


def test_a_bootstrap_with_brokers_of_two_clusters_is_refused_at_the_second(two):
    first, second = two
    for broker in two:
        with broker.connect() as log:
            log.create_topic("t")
    with isolog.connect(f"{first.address},{second.address}", timeout=5) as log:
        producer = log.producer(timeout_ms=3000)
        producer.append("t", values("a")).result(20)
        first.kill()
        with pytest.raises(WrongCluster) as refused:
            log.read("t")
        assert refused.value.details == {
            "address": second.address,
            "expected": cluster_id(first),
            "found": cluster_id(second),
        }
        assert not refused.value.retriable
        assert isinstance(producer.append("t", values("b")).exception(20), WrongCluster)
        producer.close()
    with second.connect() as log:
        assert log.read("t").num_rows == 0


def test_writes_go_on_when_another_log_gets_the_address_of_a_dead_leader(tmp_path):
    """Kubernetes may give the address of a dead pod to a pod of another log."""
    with LocalCluster(2, conf=CONF, cuttable=False, folder=tmp_path / "ours") as cluster:
        with cluster.connect() as log:
            log.create_topic("t", 1, 2)
        leader = cluster.broker(cluster.leader("t"))
        (follower,) = (each for each in cluster.brokers.values() if each is not leader)
        with isolog.connect(follower.address) as log:
            with log.producer() as producer:  # caches the address of the leader
                producer.append("t", values("a"))
            cluster.kill(leader.number)
            with BrokerProcess(tmp_path / "theirs", leader.address), log.producer() as producer:
                producer.append("t", values("b")).result(WAIT_S)
                assert log.read("t")["value"].to_pylist() == [b"a", b"b"]


@pytest.mark.rule("a client connection belongs to one cluster", "client/connecting/link.py")
def test_a_connection_sends_no_call_to_a_broker_of_another_cluster(two):
    first, second = two
    connection = ClusterConnection(first.address, cluster_id=cluster_id(second))
    with pytest.raises(WrongCluster, match=f"{first.address} .*{cluster_id(first)}"):
        connection.call(ListTopics())
    connection = ClusterConnection(first.address, cluster_id=cluster_id(first))
    assert connection.call(ListTopics()).topics == []
    assert connection.cluster_id == cluster_id(first)


def test_no_broker_is_started_for_the_directory_of_another_log(tmp_path):
    directory = tmp_path / "log"
    with BrokerProcess(directory) as broker:
        broker.terminate()
    before = sorted(os.listdir(directory))
    connection = ClusterConnection(path=directory, cluster_id="0" * 32)
    with pytest.raises(WrongCluster, match=str(directory)):
        connection.connect()
    assert sorted(os.listdir(directory)) == before


def test_a_removed_log_is_not_created_again_for_running_clients(log_dir):
    """A client with the id of a log uses only that log. An empty new one would hide the loss."""
    with pytest.raises(UnknownLog):
        ClusterConnection(path=log_dir, cluster_id="0" * 32).connect()
    with isolog.connect(path=log_dir) as log:
        log.create_topic("t")
        stop_broker(log_dir)
        log_dir.rename(log_dir.with_name("elsewhere"))
        with pytest.raises(UnknownLog):
            log.topics()
    assert not log_dir.exists()


def test_a_moved_log_is_not_confused_with_the_log_at_its_old_path(tmp_path):
    """Its broker still runs, and the recorded address is at the path of the other log."""
    here, there, other = (tmp_path / name for name in ("here", "there", "other"))
    for directory in (other, here):
        with isolog.connect(path=directory) as log:
            log.create_topic(directory.name)
    stop_broker(other)
    here.rename(there)
    other.rename(here)
    try:
        with isolog.connect(path=here) as log:
            assert log.topics() == ["other"]
        with pytest.raises(WrongCluster):
            isolog.connect(path=there, timeout=10)
    finally:
        for directory in (here, there):
            stop_broker(directory)


def test_a_retargeted_symbolic_link_does_not_change_the_log(tmp_path):
    first, second, link = (tmp_path / name for name in ("first", "second", "link"))
    first.mkdir()
    link.symlink_to(first)
    try:
        with isolog.connect(path=link) as log:
            log.create_topic("t")
            link.unlink()
            link.symlink_to(second)
            with log.producer() as producer:
                producer.append("t", values("a"))
            assert log.read("t").num_rows == 1
        assert list(first.glob("topics/t/*/0/*.arrow"))
        assert not second.exists()
    finally:
        stop_broker(first)


def test_a_connection_has_the_id_of_its_log(two):
    connection = ClusterConnection(two[0].address)
    assert connection.cluster_id is None
    connection.connect()
    assert connection.cluster_id == cluster_id(two[0])
