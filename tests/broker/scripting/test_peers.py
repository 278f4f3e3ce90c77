"""Calls to a broker that does not answer, or was replaced."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolog.errors import LeaderUnavailable
from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.scripting import peers as peers_module
from spark_stream.broker.scripting.peers import ConnectedPeers
from spark_stream.cluster.brokers import Brokers, ClusterSecret, RegisteredBroker, cluster_identity
from spark_stream.cluster.stores.sqlite import SqliteStore
from spark_stream.consistency.ids import BrokerId, EntryIndex, LeaderEpoch
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.environment import SystemIds
from spark_stream.scripts.steps import IsReplicated, Marked, ProbeReplica, Seal, WriteMarkers
from tests.clocks import FakeClock
from tests.support import NUMBERS, BrokerProcess


def test_errors_about_a_replaced_broker_have_a_constant_text(tmp_path: Path, shared: BrokerProcess):
    """Each sweep calls again: other words each time would fill the log file."""
    store, clock = SqliteStore(tmp_path / "store"), FakeClock()
    brokers = Brokers(store)
    brokers.register(RegisteredBroker("gone", "", "i", "1", peer_address=shared.peer_address))
    me = BrokerIdentity("cluster", BrokerId("me"), "start", ClusterSecret(b"no cluster's"))
    refreshed = []
    peers = ConnectedPeers(me, brokers, clock, lambda: refreshed.append(clock.monotonic()))
    said = set()
    for _ in range(6):
        with pytest.raises(LeaderUnavailable) as caught:
            peers.run_steps("gone", [Seal(Joined("t", "id", 0), 1)])
        said.add(caught.value.message)
        clock.pass_us(400_000)
    assert len(said) == 1
    assert "present run of broker" in said.pop()
    assert len(refreshed) == 2  # only when it was called: calls pause for a second
    store.close()


def test_an_error_names_the_last_address_of_the_broker(tmp_path: Path, shared: BrokerProcess):
    store = SqliteStore(tmp_path / "store")
    brokers = Brokers(store)
    brokers.register(RegisteredBroker("gone", "", "i", "1", peer_address=shared.peer_address))
    there = shared.peer_address.replace("127.0.0.1", "localhost")
    me = BrokerIdentity("cluster", BrokerId("me"), "start", ClusterSecret(b"no cluster's"))
    locked = []

    def refresh() -> None:
        brokers.register(RegisteredBroker("gone", "", "j", "1", peer_address=there))
        locked.append(peers._peers["gone"].lock.locked())

    peers = ConnectedPeers(me, brokers, FakeClock(), refresh)
    with pytest.raises(LeaderUnavailable, match=f"broker gone at {there}:"):
        peers.run_steps("gone", [Seal(Joined("t", "id", 0), 1)])
    assert locked == [False, False]  # other threads may call the broker concurrently
    store.close()


def test_a_probe_has_a_short_timeout(tmp_path: Path, monkeypatch):
    """A broker that hands over probes replicas before it ends."""
    monkeypatch.setattr(peers_module, "_PROBE_S", 0.2)
    store = SqliteStore(tmp_path / "store")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        brokers = Brokers(store)
        brokers.register(RegisteredBroker("silent", "", "i", "1", peer_address=address))
        me = BrokerIdentity("cluster", BrokerId("me"), "start", ClusterSecret(b"the cluster's"))
        peers = ConnectedPeers(me, brokers, FakeClock(), lambda: None)
        began = time.monotonic()
        with pytest.raises(LeaderUnavailable):
            peers.run_steps("silent", [ProbeReplica(BrokerId("silent"), Joined("t", "id", 0))])
        assert time.monotonic() - began < peers_module._CALL_S / 2
    store.close()


@pytest.fixture
def of_the_cluster(shared: BrokerProcess) -> Iterator[tuple[ConnectedPeers, str]]:
    """The peers of another broker of the shared broker's cluster, and the shared broker's id."""
    store = SqliteStore(shared.directory / "metadata.sqlite")
    brokers = Brokers(store)
    cluster, secret = cluster_identity(store, SystemIds(), None)
    me = BrokerIdentity(cluster, BrokerId("another"), "start", secret)
    (known,) = brokers.all()
    yield ConnectedPeers(me, brokers, FakeClock(), lambda: None), known.id
    store.close()


def test_steps_beyond_one_message_are_all_carried_out(of_the_cluster, log, topic):
    peers, broker = of_the_cluster
    log.create_topic(topic, schema=NUMBERS, partitions=4)
    places = [Joined(topic, log.describe(topic).id, number) for number in range(4)]
    taken = tuple(range(1 << 40, (1 << 40) + 500_000))  # nine bytes each
    answers = peers.run_steps(broker, [WriteMarkers(at, 1 << 40, taken) for at in places])
    assert [type(each) for each in answers] == [Marked] * 4


def test_a_refused_step_does_not_pause_calls_to_the_broker(of_the_cluster, log, topic):
    peers, broker = of_the_cluster
    log.create_topic(topic, schema=NUMBERS)
    at = Joined(topic, log.describe(topic).id, 0)
    with pytest.raises(LeaderUnavailable, match="transaction: Expected `int`"):
        peers.run_steps(broker, [Seal(at, "none")])  # type: ignore[arg-type]
    assert peers.run_steps(broker, [IsReplicated(at, EntryIndex(0), LeaderEpoch(0))]) == [True]
