"""A broker leads only while its own clock says that its lease lasts."""

from __future__ import annotations

import logging

import pytest

from isolog.errors import LeaderUnavailable, MetadataUnavailable, NotLeader
from spark_stream.broker.node.members import LeaseKeeper
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LEASE_S, LocalBroker, Surroundings
from tests.simulation.leases import MemoryBoard
from tests.support import numbers

__all__ = ["around"]


def stand_still(around: Surroundings, seconds: float) -> None:
    around.clock.pass_us(int(seconds * 1_000_000))


@pytest.fixture
def pair(around: Surroundings) -> tuple[LocalBroker, LocalBroker]:
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    return a, b


def test_while_it_renews_its_lease_it_leads(pair):
    a, b = pair
    for _ in range(10):
        stand_still(a.around, LEASE_S / 2)
        a.lease_keeper.renew()
        assert a.partition("t").append(numbers(0, 1)).count == 1
    assert b.replica("t").follows


def test_before_others_may_find_its_lease_over_it_leads_no_more(pair):
    """So nothing is appended, and nothing told, that another leader does not know."""
    a, b = pair
    assert b.members.is_alive("a")
    partition = a.partition("t")
    stand_still(a.around, LEASE_S * 0.95)
    assert b.members.is_alive("a")
    with pytest.raises(NotLeader):
        partition.append(numbers(0, 1))
    with pytest.raises(LeaderUnavailable):
        a.partition("t")


@pytest.mark.rule(
    "until when a broker may lead without a look at the records", "broker/node/members.py"
)
def test_a_renewal_that_comes_late_gives_back_no_leadership_without_a_look(pair, caplog):
    """Another broker was elected meanwhile: it knows that before it leads again."""
    a, b = pair
    assert b.members.is_alive("a")
    stand_still(a.around, LEASE_S * 0.6)
    b.lease_keeper.renew()
    stand_still(a.around, LEASE_S * 0.6)
    b.control_once()
    b.control_once()  # the first round takes the controller's seat
    assert b.record("t").leader == "b"
    with caplog.at_level(logging.WARNING):
        a.lease_keeper.renew()
    assert "lease expired" in caplog.text
    assert a.lease_keeper.serves()
    assert a.links.followed == {"t/0": ("b", 1)}
    assert b.partition("t").leader_epoch == 1


def test_while_it_looks_at_the_records_again_it_does_not_lead(pair):
    """What it led before may be led by another broker, and it does not know that yet."""
    a, _ = pair
    serving: list[bool] = []
    lease_keeper = LeaseKeeper(
        a.leases, a.id, a.incarnation, lambda: serving.append(lease_keeper.serves())
    )
    stand_still(a.around, 3 * LEASE_S)
    lease_keeper.renew()
    assert serving == [False]
    assert lease_keeper.serves()


@pytest.mark.rule("when a broker whose lease was over takes a new one", "cluster/stores/leases.py")
@pytest.mark.parametrize("step", ["the new lease", "the look"])
def test_a_renewal_that_failed_halfway_is_begun_again(pair, monkeypatch, step):
    """Otherwise the broker renewed a lease by which it never leads again, and nobody else could."""
    a, _ = pair

    def fail(*_: object) -> None:
        raise MetadataUnavailable("etcd has no quorum")

    stand_still(a.around, 3 * LEASE_S)
    with monkeypatch.context() as failing:
        if step == "the new lease":
            failing.setattr(MemoryBoard, "take_place", fail)
        else:
            failing.setattr(a.lease_keeper, "_refresh", fail)
        for _ in range(2):
            with pytest.raises(MetadataUnavailable):
                a.lease_keeper.renew()
            assert not a.lease_keeper.serves()
    a.lease_keeper.renew()
    assert a.lease_keeper.serves()
    assert a.partition("t").append(numbers(0, 1)).count == 1


def test_where_nobody_took_its_place_it_leads_on(pair):
    a, _ = pair
    stand_still(a.around, 3 * LEASE_S)
    a.lease_keeper.renew()
    assert a.partition("t").append(numbers(0, 1)).count == 1


def test_who_ended_is_dead_at_once(pair):
    a, b = pair
    assert b.members.is_alive("a")
    a.lease_keeper.end()
    assert not b.members.is_alive("a")
    see(a.around)


@pytest.mark.rule("when a broker that has promised not to lead may lead", "broker/host/host.py")
def test_a_broker_that_has_promised_not_to_lead_waits_until_its_promise_is_over(pair):
    """Its predecessor may lead until then, although others have found its lease over."""
    a, b = pair
    assert b.members.is_alive("a")
    b.links.waits_until = b.around.clock.monotonic() + 2 * LEASE_S
    stand_still(a.around, LEASE_S * 0.6)
    b.lease_keeper.renew()
    stand_still(a.around, LEASE_S * 0.6)
    b.control_once()
    b.control_once()
    assert b.record("t").leader == "b"
    with pytest.raises(LeaderUnavailable):
        b.partition("t")
    b.lease_keeper.renew()
    stand_still(a.around, LEASE_S * 0.9)
    b.lease_keeper.renew()
    b.host.follow_store()
    assert b.partition("t").append(numbers(0, 1)).count == 1


def test_a_broker_that_is_cut_off_alone_tells_nobody_who_leads(pair, monkeypatch):
    """Others lead by now, perhaps. If others are cut off too, it tells what it has seen last."""
    a, _ = pair
    a.host.contact.check_may_answer()
    stand_still(a.around, 2 * LEASE_S)
    with pytest.raises(MetadataUnavailable, match="broker a cannot reach the metadata store"):
        a.host.contact.check_may_answer()
    a.promising.promise(LEASE_S, lambda _: None)
    a.host.contact.check_may_answer()
    stand_still(a.around, 2 * LEASE_S)
    with pytest.raises(MetadataUnavailable):
        a.host.contact.check_may_answer()
