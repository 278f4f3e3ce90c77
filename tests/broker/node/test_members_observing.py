"""A broker's observation of the others, in and after an outage of the metadata store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from isolog.errors import MetadataUnavailable
from spark_stream.broker.actions.cluster import known_cluster
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.wire.cluster_messages import ClusterDescription
from tests.broker.clusters import around, make
from tests.broker.local_broker import LEASE_S, LocalBroker, Surroundings
from tests.simulation.leases import MemoryBoard, MemoryPlace

__all__ = ["around"]

FULL = MetadataUnavailable("database space exceeded", takes_no_changes=True)


def refuse(*_: object) -> None:
    raise FULL.again()


def renew_all(around: Surroundings) -> None:
    """Renew the lease of every running broker, or fail to, and probe the others."""
    for each in list(around.up.values()):
        try:
            each.lease_keeper.renew()
        except MetadataUnavailable:
            assert each.lease_keeper.failure is not None
        each.driver.run(each.observer.probing())


def pass_time(around: Surroundings, leases: float) -> None:
    """Move the clock in steps, and run the tasks of all running brokers after each."""
    for _ in range(int(leases * 4)):
        around.clock.pass_us(int(LEASE_S / 4 * 1_000_000))
        renew_all(around)
        for each in around.up.values():
            each.observer.observe()


def crash(broker: LocalBroker) -> None:
    """End its process. The board does not show that, so its lease ends with its duration."""
    broker.around.up.pop(broker.id)
    broker.host.close()


@pytest.fixture
def trio(around: Surroundings) -> tuple[LocalBroker, LocalBroker, LocalBroker]:
    a, b, c = (around.start(each) for each in "abc")
    make(a, "t", "abc", "bca", "cab")
    renew_all(around)
    return a, b, c


def known_to(broker: LocalBroker) -> ClusterDescription:
    """The cluster in every view of this broker."""
    context = SimpleNamespace(
        host=broker.host,
        members=broker.members,
        observer=broker.observer,
        store=SimpleNamespace(write_failure=None, lost=None),
        may_describe=lambda *_: True,
        facts=SimpleNamespace(cluster_id="c"),
    )
    return known_cluster(cast(BrokerContext, context))


def led(broker: LocalBroker) -> set[int]:
    """The partitions that have a leader, in the broker's view."""
    found = broker.observer.observe()
    topic = broker.host.find("t")
    return {
        number for number in range(3) if found.leads(topic.id, number, broker.record("t", number))
    }


def test_all_brokers_are_alive_and_lead_while_they_renew_their_leases(trio, around):
    a, _, _ = trio
    pass_time(around, 3)
    found = a.observer.observe()
    assert found.alive.keys() == set("abc")
    assert led(a) == {0, 1, 2}
    assert found.failure is None


def test_a_crashed_broker_is_dead_when_its_lease_was_not_renewed_for_its_duration(trio, around):
    a, _, c = trio
    crash(c)
    assert known_to(a).under_replicated == 0
    pass_time(around, 2)
    assert a.observer.observe().alive.keys() == set("ab")
    assert led(a) == {0, 1}
    assert a.record("t", 0).member("c") is not None
    known = known_to(a)
    assert [each.in_sync for each in known.brokers] == [3, 3, 0]
    assert known.under_replicated == 2, "the third has no leader, which is worse"
    kinds = [each.kind.value for each in known.problems]
    assert kinds == ["dead_broker", "no_leader", "under_replicated"]


def test_a_crashed_broker_is_dead_while_the_store_takes_no_renewals(trio, around, monkeypatch):
    """No election may count it as dead: this observer's own lease has expired too."""
    a, b, c = trio
    monkeypatch.setattr(MemoryPlace, "write", refuse)
    monkeypatch.setattr(MemoryBoard, "take_place", refuse)
    crash(c)
    pass_time(around, 3)
    assert a.members.is_alive("c")
    for each in (a, b):
        found = each.observer.observe()
        assert found.alive.keys() == set("ab")
        assert "database space exceeded" in found.failure.message
        known = known_to(each)
        assert [one.in_sync for one in known.brokers] == [3, 3, 0], "the record has all three"


def test_a_leader_whose_lease_expired_leads_in_no_view(trio, around, monkeypatch):
    """It answers, so it is alive. Without promises it leads no partition, and lists none."""
    a, b, _ = trio
    monkeypatch.setattr(MemoryPlace, "write", refuse)
    monkeypatch.setattr(MemoryBoard, "take_place", refuse)
    pass_time(around, 3)
    for each in (a, b):
        assert each.observer.observe().alive.keys() == set("abc")
        assert led(each) == set()


def test_a_leader_with_promises_leads_in_all_views(trio, around, monkeypatch):
    a, b, _ = trio
    monkeypatch.setattr(b.host, "led_numbers", lambda: {b.host.find("t").id: frozenset([1])})
    monkeypatch.setattr(MemoryPlace, "write", refuse)
    monkeypatch.setattr(MemoryBoard, "take_place", refuse)
    pass_time(around, 3)
    assert led(a) == led(b) == {1}


def test_a_dead_broker_stays_dead_and_the_others_alive_after_the_store_takes_changes_again(
    trio, around, monkeypatch
):
    a, b, c = trio
    with monkeypatch.context() as full:
        full.setattr(MemoryPlace, "write", refuse)
        full.setattr(MemoryBoard, "take_place", refuse)
        crash(c)
        pass_time(around, 3)
    a.lease_keeper.renew()
    a.driver.run(a.observer.probing())
    assert a.observer.observe().alive.keys() == set("ab"), (
        "b answers, and has not renewed its lease yet"
    )
    pass_time(around, 3)
    assert a.observer.observe().alive.keys() == b.observer.observe().alive.keys() == set("ab")
    assert a.observer.observe().failure is None
    assert led(a) == {0, 1}


def test_a_board_that_cannot_be_read_is_the_failure_of_the_store(trio, around, monkeypatch):
    a, _, _ = trio
    monkeypatch.setattr(MemoryBoard, "read", refuse)
    found = a.observer.observe()
    assert "database space exceeded" in found.failure.message
    assert found.alive.keys() == set("abc"), "their leases were seen to change a moment ago"
