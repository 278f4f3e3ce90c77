"""A broker leads only while its own clock says that its lease lasts."""

from __future__ import annotations

import logging
import threading

import pytest

from isolog.errors import LeaderUnavailable, MetadataUnavailable, NotLeader
from spark_stream.broker.node.members import LeaseKeeper
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Isolation
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


def test_a_broker_that_renews_its_lease_leads(pair):
    a, b = pair
    for _ in range(10):
        stand_still(a.around, LEASE_S / 2)
        a.lease_keeper.renew()
        assert a.partition("t").append(numbers(0, 1)).count == 1
    assert b.replica("t").follows


def test_a_broker_stops_leading_before_others_see_its_lease_expire(pair):
    """So it appends no record, and returns none, that conflicts with another leader's."""
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
    "the time for which a broker may lead without a read of the records", "broker/node/members.py"
)
def test_a_late_renewal_requires_a_read_of_the_records_before_leading(pair, caplog):
    """Another broker was elected in the meantime. This one reads that before it leads again."""
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


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_pending_read_ends_if_an_expired_lease_is_renewed_after_an_election(pair, is_replaced):
    """No task has seen the expired lease. A read at a leader that was not replaced continues."""
    a, b = pair
    woken, level = threading.Event(), Isolation.READ_UNCOMMITTED
    a.partition("t").wait_beyond(Offset(0), level, woken.set)
    assert b.members.is_alive("a")
    stand_still(a.around, LEASE_S * 0.6)
    b.lease_keeper.renew()
    stand_still(a.around, LEASE_S * 0.6)
    if is_replaced:
        b.control_once()
        b.control_once()  # the first round takes the controller's seat
    a.lease_keeper.renew()
    assert woken.is_set() is is_replaced
    if is_replaced:
        with pytest.raises(NotLeader):
            a.replica("t").wait_beyond(Offset(0), level, woken.set)
    else:
        a.partition("t").append(numbers(0, 1))
        assert woken.is_set()


def test_a_broker_that_reads_the_records_again_does_not_lead(pair):
    """Another broker may lead its partitions, and it has not seen that yet."""
    a, _ = pair
    serving: list[bool] = []
    lease_keeper = LeaseKeeper(
        a.leases, a.id, a.incarnation, lambda: serving.append(lease_keeper.serves())
    )
    stand_still(a.around, 3 * LEASE_S)
    lease_keeper.renew()
    assert serving == [False]
    assert lease_keeper.serves()


@pytest.mark.rule("a new lease after an expired one", "cluster/stores/leases.py")
@pytest.mark.parametrize("step", ["the new lease", "the look"])
def test_a_renewal_that_failed_halfway_starts_over(pair, monkeypatch, step):
    """Otherwise it would renew a lease by which it never leads, and block the others."""
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


def test_a_broker_that_was_not_replaced_continues_to_lead(pair):
    a, _ = pair
    stand_still(a.around, 3 * LEASE_S)
    a.lease_keeper.renew()
    assert a.partition("t").append(numbers(0, 1)).count == 1


def test_a_broker_is_dead_immediately_after_a_clean_shutdown(pair):
    a, b = pair
    assert b.members.is_alive("a")
    a.lease_keeper.end()
    assert not b.members.is_alive("a")
    see(a.around)


@pytest.mark.rule("leadership of a broker after its promise not to lead", "broker/host/host.py")
def test_a_broker_leads_only_after_its_promise_not_to_lead_ended(pair):
    """The earlier leader may lead until then, although others have seen its lease expire."""
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


def test_a_broker_that_is_cut_off_alone_names_no_leader(pair, monkeypatch):
    """Others may have been elected. If they are cut off too, it answers from its last view."""
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
