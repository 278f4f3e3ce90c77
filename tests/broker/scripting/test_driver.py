"""A step of a script is carried out where it has to be, whoever drives the script."""

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
    """``t/0`` and ``t/1`` are led by b and c; a has nothing of them."""
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


def test_where_a_leadership_has_moved_the_driver_looks_again_and_asks_the_new_leader(three):
    """It knew b as the leader; b says who leads now, or the driver sees it."""
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


def test_a_broker_that_is_down_makes_its_steps_fail_and_no_others(three):
    a, b, _ = three
    b.die()
    first, second = a.driver.run(together(ReadBounds(at(a, number)) for number in (0, 1)))
    assert isinstance(first, LeaderUnavailable)
    assert second.log_end_offset == 0
    with pytest.raises(LeaderUnavailable):
        a.driver.run(single(ReadBounds(at(a, 0))))


def test_a_broker_passes_nothing_on_that_another_asked_it(three):
    """Else two that call each other could wait for each other."""
    _, b, _ = three
    found = b.tried(ReadBounds(at(b, 1)))
    assert isinstance(found, NotLeader)
    assert found.details["leader"] == "c"


def test_a_script_hears_of_a_failed_step_and_may_go_on(three):
    a = three[0]

    def careful() -> Script[str]:
        try:
            yield ReadBounds(Joined("gone", "id", 0))
        except IsologError as error:
            return type(error).__name__
        return "answered"

    assert a.driver.run(careful()) == UnknownTopic.__name__
