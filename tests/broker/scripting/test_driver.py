"""A step of a script is carried out at the right broker, by any driver."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from isolog.errors import IsologError, LeaderUnavailable, NotLeader, UnknownTopic
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.consistency.control.election import prefer
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.steps import MakeFolder, ReadBounds, ReadLogEnd, Script, Step, together
from tests.broker.clusters import around, make
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]


@pytest.fixture
def three(around: Surroundings) -> list[LocalBroker]:
    """``t/0`` and ``t/1`` are led by b and c, and a has no replica of them."""
    brokers = [around.start(each) for each in "abc"]
    make(brokers[0], "t", "bc", "cb")
    return brokers


def at(broker: LocalBroker, number: int) -> Joined:
    return Joined("t", broker.host.find("t").id, number)


def single(step: Step) -> Script[object]:
    return (yield step)


def test_steps_go_to_the_leaders_of_their_partitions(three):
    a, b, c = three
    b.partition("t", 0).append(numbers(0, 2))
    c.partition("t", 1).append(numbers(0, 3))
    for asked in three:
        found = asked.driver.run(together(ReadBounds(at(a, number)) for number in (0, 1)))
        assert [each.log_end_offset for each in found] == [2, 3]


def test_steps_go_to_the_broker_that_they_name(three):
    a, b, _ = three
    b.partition("t", 0).append(numbers(0, 2))
    found = a.driver.run(single(ReadLogEnd(BrokerId("b"), at(a, 0))))
    assert (found.generation, found.last_epoch, found.entries) == ("b-logs", 0, 1)
    assert a.driver.run(single(ReadLogEnd(BrokerId("a"), at(a, 0)))) is None
    a.driver.run(single(MakeFolder(BrokerId("c"), "u", "id")))
    assert [each.name for each in (three[2].path / "topics" / "u").iterdir()] == ["id"]


def test_the_driver_repeats_a_step_at_the_new_leader(three):
    """In its view b is the leader. Then b names the new leader, or the driver reads it."""
    a, b, c = three
    b.partition("t", 0).append(numbers(0, 2))
    replicate(b, c, "t")
    stored = a.host.view_of(PartitionId(at(a, 0).topic_id, 0))
    moved = prefer(replace(stored.record, replicas=("c", "b")), a.members.alive())
    a.store.put_many([put_of(stored.id, moved, stored.version)])
    for each in (b, c):
        each.host.refresh()
    replicate(c, b, "t")
    assert a.driver.run(single(ReadBounds(at(a, 0)))).log_end_offset == 2


def test_a_dead_broker_fails_only_its_own_steps(three):
    a, b, _ = three
    b.die()
    first, second = a.driver.run(together(ReadBounds(at(a, number)) for number in (0, 1)))
    assert isinstance(first, LeaderUnavailable)
    assert second.log_end_offset == 0
    with pytest.raises(LeaderUnavailable):
        a.driver.run(single(ReadBounds(at(a, 0))))


def test_a_broker_forwards_no_step_of_another_broker(three):
    """Otherwise two brokers that call each other could wait for each other."""
    _, b, _ = three
    found = b.tried(ReadBounds(at(b, 1)))
    assert isinstance(found, NotLeader)
    assert found.details["leader"] == "c"


def test_a_script_gets_the_error_of_a_step_and_may_continue(three):
    a = three[0]

    def careful() -> Script[str]:
        try:
            yield ReadBounds(Joined("gone", "id", 0))
        except IsologError as error:
            return type(error).__name__
        return "answered"

    assert a.driver.run(careful()) == UnknownTopic.__name__
