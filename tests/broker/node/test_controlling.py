"""The controller elects leaders for partitions without a live one, and idle rounds cost little."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from isolog.errors import LeaderUnavailable
from spark_stream.broker.node import controlling, pending
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.consistency.control.election import begin_move
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId, LeaderEpoch
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.partition_records import Changed
from spark_stream.scripts.steps import ReadBounds, Script
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LEASE_S, LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]


@pytest.fixture
def three(around: Surroundings) -> list[LocalBroker]:
    """Brokers a, b and c, of which a is the controller."""
    brokers = [around.start(each) for each in "abc"]
    rounds(around)
    return brokers


def rounds(around: Surroundings, count: int = 2) -> None:
    """So many rounds at all running brokers."""
    for _ in range(count):
        for each in list(around.up.values()):
            each.host.refresh()
            each.control_once()
            each.put_proposals()


def controller(broker: LocalBroker) -> str:
    broker.host.refresh()
    return broker.host.view.now.controller.broker


def write(broker: LocalBroker, topic: str, record: PartitionRecord) -> None:
    stored = broker.host.view_of(PartitionId(broker.host.find(topic).id, 0))
    (done,) = broker.store.put_many([put_of(stored.id, record, stored.version)])
    assert done is not None


def test_one_broker_is_the_controller_while_it_lives(three):
    a, b, c = three
    assert {controller(each) for each in three} == {"a"}
    rounds(a.around, 5)
    assert controller(b) == "a"
    a.die()
    rounds(b.around)
    assert controller(b) == controller(c) != "a"
    assert b.host.view.now.controller.term == 1


def test_a_restarted_broker_is_another_controller(three):
    """It has no state of its predecessor."""
    a = three[0]
    a.die()
    again = a.around.start("a")
    again.control_once()
    assert (controller(again), again.host.view.now.controller.term) == ("a", 1)


def test_a_stalled_controller_is_replaced_and_does_no_harm(three):
    a, b, c = three
    make(a, "t", "cb")
    for each in three:
        each.members.check_alive()
    a.around.clock.pass_us(int(LEASE_S * 0.6 * 1e6))
    b.lease_keeper.renew()
    c.lease_keeper.renew()
    c.die()
    a.around.clock.pass_us(int(LEASE_S * 0.6 * 1e6))
    b.lease_keeper.renew()
    b.host.refresh()
    b.control_once()
    assert controller(b) == "b"
    assert b.record("t").leader == "b"
    elected = b.record("t")
    a.control_once()  # in its view, c led
    assert b.record("t") == elected


@pytest.mark.rule(
    "the replacement of a dead leader, and the end of a move",
    "broker/node/controlling.py",
    "scripts/partition_records.py",
)
def test_one_round_replaces_all_dead_leaders(three):
    a, b, c = three
    make(a, "t", *["cab", "cba"] * 10)
    partition = c.partition("t", 0)
    partition.append(numbers(0, 3))
    for other in (a, b):
        replicate(c, other, "t", 0)
    c.die()
    a.control_once()
    see(a.around)
    assert a.partition("t", 0).leader_epoch == 1
    assert b.partition("t", 1).leader_epoch == 1
    assert all(a.record("t", each).leader in ("a", "b") for each in range(20))
    assert a.partition("t", 0).append(numbers(3, 1)).offset == 3


def test_a_brokers_death_is_logged_in_one_line(three, caplog):
    a, _, c = three
    make(a, "t", *["cab", "cba"] * 10)
    c.die()
    with caplog.at_level(logging.INFO, logger=controlling.logger.name):
        a.control_once()
    assert [each.getMessage() for each in caplog.records] == [
        "new leaders of 20 partitions (t/0, t/1, t/2, and 17 more): broker a (10), broker b (10),"
        " after broker c"
    ]


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ((None, 1), ("a", 2), "new leaders of t/0: broker a (1), after no leader"),
        (("a", 1), ("a", 2), "leaders of t/0 re-elected in a new epoch: broker a (1)"),
        (("a", 1), ("a", 1), "replicas of t/0 moved; they are on broker a (1), broker b (1)"),
    ],
)
def test_log_lines_name_new_leaders_and_the_cause(caplog, before, after, line):
    records = [
        PartitionRecord((BrokerId("a"), BrokerId("b")), leader, LeaderEpoch(epoch), ())
        for leader, epoch in (before, after)
    ]
    with caplog.at_level(logging.INFO, logger=controlling.logger.name):
        controlling.log_changes([Changed(Joined("t", "id", 0), *records, risky=False)])
    assert [each.getMessage() for each in caplog.records] == [line]


def test_an_unclean_election_is_logged(three, caplog):
    """Both replicas start on logs that they cannot vouch for, and one of them has to lead."""
    a, b, _ = three
    make(a, "t", "ba")
    b.die()
    a.die()
    for name in "ab":
        a.around.start(name, f"{name}'s new logs")
    with caplog.at_level(logging.ERROR):
        rounds(a.around, 2)
    assert "unclean election for t/0: no in-sync replica has all records" in caplog.text


@pytest.mark.rule(
    "the replacement of a dead leader, and the end of a move",
    "broker/node/controlling.py",
    "scripts/partition_records.py",
)
def test_a_move_is_finished_when_the_new_replica_is_in_sync(three):
    a, b, c = three
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 3))
    moving = begin_move(a.record("t"), ("c", "b"))
    write(a, "t", moving)
    rounds(a.around)
    assert a.record("t") == moving
    for other in (b, c):
        replicate(a, other, "t")
    a.put_proposals()
    rounds(a.around)
    moved = c.record("t")
    assert (moved.replicas, moved.leader, moved.leader_epoch) == (("c", "b"), "c", 1)
    assert (moved.adding, moved.removing) == ((), ())
    assert a.replica("t") is None
    assert list(a.path.glob("topics/t/*/0")) == []
    assert c.partition("t").bounds().log_end_offset == 3


# -- what it costs --------------------------------------------------------------------------------


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[PartitionRecord]:
    """The records that controllers have checked."""
    found: list[PartitionRecord] = []
    real = pending.needs_leader

    def note(record, alive):
        found.append(record)
        return real(record, alive)

    monkeypatch.setattr(pending, "needs_leader", note)
    return found


def test_a_round_without_changes_checks_no_partition(three, looked_at):
    a, b, _ = three
    make(a, "t", *["ab", "ba"] * 10)
    rounds(a.around)
    looked_at.clear()
    rounds(a.around, 20)
    assert looked_at == []
    b.die()
    a.control_once()
    assert [each.leader for each in looked_at] == ["b"] * 10


def test_a_partition_without_a_possible_leader_is_retried_seldom(three, looked_at):
    a, b, _ = three
    make(a, "t", "b")
    b.die()
    rounds(a.around)
    looked_at.clear()
    rounds(a.around, 30)
    assert 1 <= len(looked_at) <= 4
    with pytest.raises(LeaderUnavailable):
        a.driver.run(read_bounds(a))
    again = a.around.start("b", "b's new logs")
    rounds(a.around, 1)
    see(a.around)
    assert again.partition("t").append(numbers(0, 1)).count == 1


def read_bounds(asked: LocalBroker) -> Script[None]:
    """The bounds of ``t/0``, as any broker reads them."""
    yield ReadBounds(Joined("t", asked.host.find("t").id, 0))


def test_the_log_end_of_an_unreachable_replica_is_requested_again(three):
    """Its broker did not answer. No record changes when it does."""
    a, b, c = three
    make(a, "t", "bc")
    b.die()
    c.die()
    for name in "bc":
        a.around.start(name, f"{name}'s new logs")
    silent = dict(a.around.up)
    a.around.up = {"a": a}
    rounds(a.around)
    assert a.record("t").leader == "b"
    assert replace(a.record("t"), isr=()).leader_epoch == 0
    a.around.up = silent
    for _ in range(12):
        a.control_once()
    assert a.record("t").leader_epoch == 1
