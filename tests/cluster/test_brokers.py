"""The registry of brokers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_stream.cluster.brokers import Brokers, RegisteredBroker

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
