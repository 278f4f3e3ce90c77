"""The registry of brokers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_stream.cluster.brokers import (
    Brokers,
    BrokerState,
    RegisteredBroker,
    alive,
    decode,
    encode,
)
from spark_stream.cluster.stores.leases import Leases
from spark_stream.cluster.view import ClusterView
from spark_stream.consistency.ids import BrokerId, Generation
from spark_stream.environment import SystemClock
from tests.simulation.leases import MemoryBoard

ONE = RegisteredBroker("b1", "127.0.0.1:9092", "start-1", "0.1.0")
TWO = RegisteredBroker("b2", "unix:/somewhere/socket", "start-7", "0.2.0")


@pytest.fixture
def brokers(store) -> Brokers:
    return Brokers(store)


def test_brokers_are_found_as_they_registered(brokers):
    assert brokers.all() == []
    assert brokers.get("b1") is None
    brokers.register(TWO)
    brokers.register(ONE)
    assert brokers.all() == [ONE, TWO]
    assert brokers.get("b2") == TWO


def test_a_later_incarnation_takes_the_place_of_the_earlier_one(brokers):
    brokers.register(ONE)
    later = replace(ONE, address="127.0.0.1:9999", incarnation="start-2")
    brokers.register(later)
    assert brokers.all() == [later]


def test_a_broker_leaves_but_never_a_later_incarnation(brokers):
    brokers.register(ONE)
    brokers.register(TWO)
    brokers.register(replace(TWO, incarnation="start-8"))
    brokers.leave("b1", "start-1")
    brokers.leave("b2", "start-7")
    brokers.leave("b3", "start-1")
    assert [each.incarnation for each in brokers.all()] == ["start-8"]


def test_a_broker_is_known_with_its_generation_and_its_rack(brokers):
    made = replace(ONE, generation=Generation("g7"), rack="cellar")
    assert brokers.register(made) == made
    assert brokers.get("b1") == made
    assert decode("b1", encode(made)) == made


def test_a_broker_that_is_leaving_is_told_so_when_it_starts_again(brokers):
    brokers.register(ONE)
    leaving = replace(ONE, state=BrokerState.LEAVING)
    assert brokers.mark("b1", BrokerState.LEAVING) == leaving
    later = replace(ONE, incarnation="start-2")
    assert brokers.register(later) == replace(later, state=BrokerState.LEAVING)
    assert brokers.mark("b1", BrokerState.ACTIVE) == later
    assert brokers.mark("b3", BrokerState.LEAVING) is None
    assert brokers.get("b3") is None


def test_a_mark_and_a_start_at_the_same_time_are_both_kept(store, another):
    """The start reads, then somebody marks the broker, then the start writes."""
    marking = Brokers(another())
    marking.register(ONE)

    class MarksInBetween:
        def __getattr__(self, name):
            return getattr(store, name)

        def put(self, *arguments):
            if marking.get("b1").state is BrokerState.ACTIVE:
                marking.mark("b1", BrokerState.LEAVING)
            return store.put(*arguments)

    later = replace(ONE, incarnation="start-2")
    assert Brokers(MarksInBetween()).register(later).state is BrokerState.LEAVING
    assert marking.get("b1") == replace(later, state=BrokerState.LEAVING)


def test_a_broker_that_started_again_is_not_alive_in_the_generation_that_it_had(store, brokers):
    """Its new lease is seen before its new record is: elected as it was, it would lose records."""
    board = MemoryBoard()
    leases, view = Leases(board, SystemClock(), 3.0), ClusterView(store)
    first = replace(ONE, generation=Generation("g1"))
    brokers.register(first)
    lease = leases.hold("b1", first.incarnation)
    view.refresh()
    assert alive(view.now.brokers, leases.holder) == {BrokerId("b1"): "g1"}
    lease.release()
    later = replace(ONE, incarnation="start-2", generation=Generation("g2"))
    brokers.register(later)
    leases.hold("b1", later.incarnation)
    assert alive(view.now.brokers, leases.holder) == {}, "the view is a moment old"
    view.refresh()
    assert alive(view.now.brokers, leases.holder) == {BrokerId("b1"): "g2"}
