"""The view of other brokers: registered, alive, and able to get replicas."""

from __future__ import annotations

from spark_stream.broker.node.members import Members
from spark_stream.cluster.brokers import Brokers, BrokerState, RegisteredBroker
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import Generation
from tests.broker.clusters import around, make, see
from tests.clocks import FakeClock
from tests.simulation.leases import MemoryBoard
from tests.simulation.store import MemoryRecords, MemoryStore

__all__ = ["around"]


def test_a_dead_broker_is_registered_and_not_alive(around):
    a, b = around.start("a"), around.start("b")
    see(around)
    assert a.members.registered() == {"a": "a-logs", "b": "b-logs"}
    assert a.members.alive() == {"a": "a-logs", "b": "b-logs"}
    b.die()
    assert a.members.registered() == {"a": "a-logs", "b": "b-logs"}
    assert a.members.alive() == {"a": "a-logs"}
    assert a.members.get("b").address == "b:1"
    assert a.members.get("c") is None


def test_a_check_returns_whether_live_brokers_changed(around):
    a = around.start("a")
    a.members.check_alive()
    assert not a.members.check_alive()
    b = around.start("b")
    a.host.refresh()
    assert a.members.check_alive()
    assert not a.members.check_alive()
    b.die()
    assert a.members.check_alive()


def test_a_generation_is_that_of_the_last_check(around):
    """Leaders read it while they hold their locks, so the read must be cheap."""
    a, b = around.start("a"), around.start("b")
    see(around)
    b.die()
    assert a.members.generation_of("b") == "b-logs"
    a.members.check_alive()
    assert a.members.generation_of("b") is None


def test_a_broker_that_started_since_the_last_check_counts_as_alive(around):
    """Otherwise a leader would immediately drop it from the ISR of a new topic."""
    a = around.start("a")
    b = around.start("b")
    make(a, "t", "ab")
    assert not a.proposals.noted.is_set()
    b.die()
    a.members.check_alive()
    assert a.members.generation_of("b") is None
    around.start("b", "new logs").die()
    a.host.refresh()
    assert a.members.generation_of("b") == "new logs"
    a.members.check_alive()
    assert a.members.generation_of("b") is None


def test_only_live_brokers_that_stay_get_replicas(around):
    a, b, _ = (around.start(each) for each in "abc")
    Brokers(a.store).mark("c", BrokerState.LEAVING)
    b.die()
    a.host.refresh()
    assert a.members.takers(a.members.alive()) == {"a": None}


def test_a_broker_is_alive_only_in_the_generation_of_its_leases_start():
    store, board = MemoryStore(MemoryRecords()), MemoryBoard()
    view = ClusterView(store)
    members = Members(view, Leases(board, FakeClock(), 3.0))

    def start(incarnation: str, generation: str) -> None:
        known = RegisteredBroker("b", "address", incarnation, "1", Generation(generation))
        Brokers(store).register(known)
        board.take_place("b", incarnation, 10.0)

    assert members.alive() == {}
    start("first", "g1")
    assert members.alive() == {}, "it is not seen that it is registered"
    view.refresh()
    assert members.alive() == {"b": "g1"}
    start("second", "g2")
    assert members.alive() == {}, "the lease is of a start of which nothing is known here"
    assert members.takers(members.alive()) == {}
    view.refresh()
    assert members.alive() == {"b": "g2"}
