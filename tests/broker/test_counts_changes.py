"""Counts of elections and ISR changes, and lags of followers."""

from __future__ import annotations

from spark_stream.broker.counts import CLEAN, EXPAND, SHRINK, UNCLEAN, ChangeCounter
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]


def listening(broker: LocalBroker) -> LocalBroker:
    """The broker, with a count of all further changes."""
    host = broker.host
    host.view.subscribe(ChangeCounter(host.broker_id, host.view.now, host.counts).take)
    return broker


def test_the_new_leader_counts_an_election_and_the_smaller_isr(around: Surroundings) -> None:
    a, b, c = (listening(around.start(name)) for name in "abc")
    make(a, "t", "abc")
    a.die()
    see(around)
    b.control_once()
    see(around)
    assert b.record("t").leader == "b"
    assert b.host.counts.elections.read() == {CLEAN: 1, UNCLEAN: 0}
    assert b.host.counts.isr_changes.read() == {SHRINK: 1, EXPAND: 0}
    assert c.host.counts.elections.read() == {CLEAN: 0, UNCLEAN: 0}
    assert c.host.counts.isr_changes.read() == {SHRINK: 0, EXPAND: 0}


def test_lag_counts_entries_and_the_age_of_the_first_missing_one(around: Surroundings) -> None:
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    leader = a.partition("t")
    leader.append(numbers(0, 3))
    replicate(a, b, "t")
    assert leader.lags() == {"b": (0, 0.0)}
    around.clock.pass_us(1_000_000)
    leader.append(numbers(3, 3))
    around.clock.pass_us(4_000_000)
    leader.append(numbers(6, 3))
    around.clock.pass_us(500_000)
    assert leader.lags() == {"b": (2, 4.5)}
    assert b.replica("t").lags() == {}
    replicate(a, b, "t")
    assert leader.lags() == {"b": (0, 0.0)}
    traffic = b.replica("t").traffic.read()
    assert (traffic.replicated.batches, traffic.replicated.records) == (3, 9)
    assert leader.traffic.read().appended.records == 9
    assert traffic.appended.records == 0
