"""Brokers as another one sees them: registered, alive, and fit to get replicas."""

from __future__ import annotations

from spark_stream.cluster.brokers import Brokers, BrokerState
from tests.broker.clusters import around, make, see

__all__ = ["around"]


def test_who_is_registered_and_who_is_alive(around):
    a, b = around.start("a"), around.start("b")
    see(around)
    assert a.members.registered() == {"a": "a-logs", "b": "b-logs"}
    assert a.members.alive() == {"a": "a-logs", "b": "b-logs"}
    b.die()
    assert a.members.registered() == {"a": "a-logs", "b": "b-logs"}
    assert a.members.alive() == {"a": "a-logs"}
    assert a.members.get("b").address == "b:1"
    assert a.members.get("c") is None


def test_a_look_tells_whether_somebody_came_or_went(around):
    a = around.start("a")
    a.members.look()
    assert not a.members.look()
    b = around.start("b")
    a.host.refresh()
    assert a.members.look()
    assert not a.members.look()
    b.die()
    assert a.members.look()


def test_a_generation_is_the_one_at_the_last_look(around):
    """Leaders ask for it under their locks: it must cost nothing."""
    a, b = around.start("a"), around.start("b")
    see(around)
    b.die()
    assert a.members.generation_of("b") == "b-logs"
    a.members.look()
    assert a.members.generation_of("b") is None


def test_a_broker_that_has_started_since_the_last_look_counts_as_alive(around):
    """Else a leader would at once put it out of the in-sync replicas of a topic that is made."""
    a = around.start("a")
    b = around.start("b")
    make(a, "t", "ab")
    assert not a.proposals.noted.is_set()
    b.die()
    a.members.look()
    assert a.members.generation_of("b") is None
    around.start("b", "new logs").die()
    a.host.refresh()
    assert a.members.generation_of("b") == "new logs"
    a.members.look()
    assert a.members.generation_of("b") is None


def test_replicas_are_given_to_those_that_are_alive_and_not_leaving(around):
    a, b, _ = (around.start(each) for each in "abc")
    Brokers(a.store).mark("c", BrokerState.LEAVING)
    b.die()
    a.host.refresh()
    assert a.members.takers() == {"a": None}
