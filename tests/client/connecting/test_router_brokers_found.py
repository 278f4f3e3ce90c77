"""Addresses of brokers in answers. A client uses them when its bootstrap brokers are dead."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isolog.errors import BrokerUnavailable, NotLeader, TlsFailed
from spark_stream.client.connecting import connection as module
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.client.connecting.router import Router
from spark_stream.wire.cluster_messages import (
    BrokerAddress,
    BrokerList,
    DescribeCluster,
    GetStatus,
    ListBrokers,
)
from spark_stream.wire.messages import Call
from spark_stream.wire.topic_messages import FindLeaders, LeaderFacts, Leaders


class Cluster:
    """Fake brokers at addresses, whose list of brokers is ``listed``."""

    def __init__(self, *listed: str) -> None:
        self.listed = listed
        self.alive = set(listed)
        self.now = 1_000.0
        self.fails: BaseException | None = None
        self.answers: dict[type[Call[Any]], Callable[[str], Any]] = {GetStatus: lambda _: None}
        self.asked: list[str] = []

    def connect(self, link: BrokerLink, _: float) -> None:
        if link.address not in self.alive:
            raise BrokerUnavailable(f"no broker answers at {link.address}")

    def call(self, link: BrokerLink, call: Call[Any], *_: object) -> Any:
        self.connect(link, 1.0)
        if isinstance(call, ListBrokers):
            self.asked.append(link.address)
            if self.fails is not None:
                raise self.fails
            return BrokerList(
                brokers=[BrokerAddress(id=each, address=each) for each in self.listed]
            )
        return self.answers[type(call)](link.address)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Its clock does not advance, and background calls run on the caller's thread."""
    found = Cluster("a:1", "b:1")
    clock = SimpleNamespace(
        monotonic=lambda: found.now,
        sleep=lambda seconds: setattr(found, "now", found.now + seconds),
    )
    monkeypatch.setattr(BrokerLink, "connect", lambda link, within: found.connect(link, within))
    monkeypatch.setattr(BrokerLink, "call", lambda link, *asked: found.call(link, *asked))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "call_elsewhere", lambda _, call: call(), raising=False)
    return found


def status(connection: ClusterConnection) -> str:
    """Make a call. Return the address of the broker that answered it."""
    connection.call(GetStatus())
    return connection.address


def test_a_client_survives_the_loss_of_all_bootstrap_brokers(cluster):
    connection = ClusterConnection("a:1")
    assert status(connection) == "a:1"
    cluster.listed, cluster.alive = ("c:1", "d:1"), {"a:1", "c:1"}
    cluster.now += 60
    assert status(connection) == "a:1"
    cluster.alive = {"c:1"}
    assert status(connection) == "c:1"


def test_the_list_of_brokers_is_not_fetched_for_each_call(cluster):
    connection = ClusterConnection("a:1")
    for _ in range(10):
        status(connection)
    assert cluster.asked == ["a:1"]


def test_a_failed_list_of_brokers_is_fetched_again(cluster):
    connection = ClusterConnection("a:1")
    cluster.fails = BrokerUnavailable("a broker that has just started")
    assert status(connection) == "a:1"
    cluster.fails = None
    cluster.now += 2
    assert status(connection) == "a:1"
    cluster.alive = {"b:1"}
    assert status(connection) == "b:1"


def test_leaders_and_followers_in_answers_are_used_as_addresses(cluster):
    cluster.listed = ("a:1",)
    connection = ClusterConnection("a:1", rack="west")
    leader = LeaderFacts(partition=0, leader="l", address="l:1", leader_epoch=1)
    near = LeaderFacts(
        partition=1,
        leader="l",
        address="l:1",
        leader_epoch=1,
        near=BrokerAddress(id="f", address="f:1"),
    )
    cluster.answers[FindLeaders] = lambda _: Leaders(topic_id="id", partitions=[leader, near])
    Router(connection).refresh("t", "id", 1.0)
    cluster.alive = {"f:1"}
    assert status(connection) == "f:1"
    cluster.alive = {"f:1", "n:1"}

    def redirect(address: str) -> None:
        if address == "n:1":
            return
        raise NotLeader("another broker leads", leader="n", address="n:1")

    cluster.answers[DescribeCluster] = redirect
    connection.call(DescribeCluster())
    cluster.alive = {"n:1"}
    assert status(connection) == "n:1"


def test_a_received_address_with_another_certificate_is_ignored(cluster, monkeypatch):
    connection = ClusterConnection("a:1")
    assert status(connection) == "a:1"

    def connect(link: BrokerLink, within: float) -> None:
        if link.address == "b:1":  # another system uses the address now
            raise TlsFailed("b:1: certificate verify failed")
        cluster.connect(link, within)

    cluster.listed, cluster.alive = ("a:1", "b:1", "c:1"), {"a:1", "b:1", "c:1"}
    cluster.now += 60
    assert status(connection) == "a:1"
    monkeypatch.setattr(BrokerLink, "connect", connect)
    cluster.alive = {"b:1", "c:1"}
    assert status(connection) == "c:1"


def test_only_the_latest_addresses_are_kept(cluster):
    connection = ClusterConnection("a:1", brokers=["old:1"])
    connection.add_brokers(f"h{number}:1" for number in range(1_000))
    assert len(connection.brokers) == module.BROKERS_MAX
    assert connection.brokers[0] == "h999:1"


def test_a_connection_starts_with_the_addresses_of_another_connection(cluster):
    connection = ClusterConnection("dead:1", brokers=["b:1"])
    cluster.alive = {"b:1"}
    assert status(connection) == "b:1"


@pytest.mark.parametrize("bootstrap", ["dead:1", "dead:1,dead:2"])
def test_the_error_for_unreachable_addresses_has_the_remedy(cluster, bootstrap):
    """A restarted program has only these, and the brokers may have moved."""
    with pytest.raises(BrokerUnavailable, match="no broker answers at dead:1") as caught:
        ClusterConnection(bootstrap).call(GetStatus(), 1.0)
    assert "their new addresses in bootstrap" in caught.value.hint
    assert caught.value.details["address"] == bootstrap.replace(",", ", ")
