"""A clean shutdown hands partitions over, so that no client waits for the broker's lease."""

from __future__ import annotations

import pytest

from isolog.errors import IsologError, NotLeader
from spark_stream.broker.node.handover import handing_over
from spark_stream.scripts.steps import Pause, Script, Step, Together
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import numbers

__all__ = ["around"]


@pytest.fixture
def three(around: Surroundings) -> list[LocalBroker]:
    return [around.start(each) for each in "abc"]


def test_followers_lead_after_an_orderly_end(three):
    a, b, c = three
    make(a, "t", "abc", "bca", "acb")
    for number in (0, 2):
        a.partition("t", number).append(numbers(0, 2))
        for other in (b, c):
            replicate(a, other, "t", number)
    assert a.driver.run(handing_over(a.host, a.members)) == 2
    see(a.around)
    for number, leader in ((0, b), (2, c)):
        record = a.record("t", number)
        assert (record.leader, record.leader_epoch) == (leader.id, 1)
        assert [each.broker for each in record.isr] == [x for x in record.replicas if x != "a"]
        assert leader.partition("t", number).append(numbers(2, 1)).offset == 2
    assert a.record("t", 1).leader_epoch == 0


def test_a_lone_replica_is_led_until_its_broker_ends(three):
    a = three[0]
    make(a, "t", "a")
    assert a.driver.run(handing_over(a.host, a.members)) == 0
    assert a.partition("t").append(numbers(0, 1)).count == 1


def begun(broker: LocalBroker) -> tuple[Script[int], Step]:
    """The script after its heirs were probed, and its next step."""
    script = handing_over(broker.host, broker.members)
    probes = next(script)
    assert isinstance(probes, Together)
    return script, script.send(broker.driver._answer(probes))


def rest_of(broker: LocalBroker, script: Script[int], step: Step) -> int:
    """Carry out this step and all that follow. Return the script's result."""
    while True:
        try:
            step = script.send(broker.table.carry_out(step))
        except StopIteration as ended:
            return int(ended.value)


def test_appends_are_refused_while_followers_catch_up(three):
    """They do catch up, so acknowledged records are not truncated."""
    a, b, _ = three
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 3))
    script, step = begun(a)
    pauses = 0
    while isinstance(step, Pause):
        pauses += 1
        with pytest.raises(IsologError) as refused:
            a.host.topic("t").partition(0).append(numbers(3, 1))
        assert refused.value.retriable
        if pauses == 3:
            replicate(a, b, "t")
        step = script.send(None)
    assert (rest_of(a, script, step), pauses) == (1, 3)
    see(a.around)
    assert b.partition("t").bounds().log_end_offset == 3


def test_a_hand_over_does_not_wait_for_ever_for_a_slow_follower(three):
    a, b, _ = three
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 3))
    (script, step), paused_s = begun(a), 0.0
    while isinstance(step, Pause):
        paused_s += step.seconds
        step = script.send(None)
    assert 0.5 <= paused_s <= 2
    script.close()
    assert b.record("t").leader == "a"


def test_a_dead_follower_gets_no_leadership(three):
    a, b, c = three
    make(a, "t", "abc")
    b.die()
    assert a.driver.run(handing_over(a.host, a.members)) == 1
    assert a.record("t").leader == "c"
    see(a.around)
    with pytest.raises(NotLeader):
        a.partition("t")
    assert c.partition("t").leads


def test_a_follower_that_died_undetected_gets_no_leadership(three):
    """Its lease has not ended, so it counts as alive."""
    a, b, _ = three
    make(a, "t", "abc")
    a.around.up.pop(b.id)
    assert "b" in a.members.alive()
    assert a.driver.run(handing_over(a.host, a.members)) == 1
    assert a.record("t").leader == "c"
    b.host.close()


def test_a_leader_without_answering_followers_leads_until_it_ends(three):
    a, b, _ = three
    make(a, "t", "ab")
    a.around.up.pop(b.id)
    assert a.driver.run(handing_over(a.host, a.members)) == 0
    assert a.record("t").leader == "a"
    b.host.close()
