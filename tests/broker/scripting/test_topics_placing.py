"""The brokers of new replicas, and refused requests of operators."""

from __future__ import annotations

from collections import Counter

import pytest

from isolog.errors import InvalidAssignment, InvalidTopic
from spark_stream.broker.scripting.topics import missing_replicas_warning
from spark_stream.cluster.brokers import Brokers, BrokerState
from spark_stream.cluster.partitions import PARTITIONS
from spark_stream.cluster.topics import TOPICS
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, to_alter, to_create
from tests.support import NUMBERS

__all__ = ["around"]


@pytest.fixture
def a(around: Surroundings) -> LocalBroker:
    """Of brokers a, b and c."""
    brokers = [around.start(each) for each in "abc"]
    see(around)
    return brokers[0]


def replicas(broker: LocalBroker, topic: str) -> list[str]:
    partitions = range(broker.host.find(topic).partitions)
    return ["".join(broker.record(topic, each).replicas) for each in partitions]


def create(
    asked: LocalBroker, partitions: int, factor: int | None, assignment=None, name="t", **config
) -> None:
    asked.topics.create(to_create(name, partitions, factor, NUMBERS, config, assignment))


@pytest.mark.rule(
    "the placement of new replicas",
    "consistency/control/assignment.py",
    "broker/scripting/topics.py",
)
def test_replicas_and_leaders_are_spread(a):
    create(a, 6, 2)
    found = replicas(a, "t")
    assert all(len(set(each)) == 2 for each in found)
    assert sorted(each[0] for each in found) == list("aabbcc")
    assert sorted("".join(found)) == list("aaaabbbbcccc")
    for number, each in enumerate(found):
        record = a.record("t", number)
        assert (record.leader, record.leader_epoch) == (each[0], 0)
        assert [member.broker for member in record.isr] == list(each)


def test_existing_replicas_count_for_the_placement(a):
    make(a, "old", "a", "a", "b", "b")
    create(a, 2, 1)
    assert replicas(a, "t") == ["c", "c"]


def test_the_default_factor_is_the_number_of_brokers_up_to_three(around):
    found = []
    for name in "abcd":
        broker = around.start(name)
        see(around)
        found.append(broker.topics.plan(to_create("t", 1, None, NUMBERS, {}))[0].replication_factor)
    assert found == [1, 2, 3, 3]


@pytest.mark.rule("the replication factor of a topic that names none", "broker/scripting/topics.py")
def test_a_topic_with_the_default_factor_is_created_while_a_broker_is_dead(a):
    a.around.up["c"].die()
    create(a, 1, None)
    assert sorted(*replicas(a, "t")) == ["a", "b"]
    warning = missing_replicas_warning(a.host.find("t"), a.members)
    assert "2 of the usual 3 replicas" in warning
    assert "broker 'c' is not alive" in warning
    assert "isolog topic move" in warning


def test_the_default_factor_is_at_least_min_insync_replicas(a):
    a.around.up["c"].die()
    with pytest.raises(InvalidAssignment, match=r"factor of 3 .* broker 'c' is not alive"):
        create(a, 1, None, **{"min.insync.replicas": "3"})
    create(a, 1, None, **{"min.insync.replicas": "2"})
    assert sorted(*replicas(a, "t")) == ["a", "b"]


def test_the_default_factor_does_not_count_leaving_brokers(a):
    Brokers(a.store).mark("c", BrokerState.LEAVING)
    create(a, 1, None)
    assert sorted(*replicas(a, "t")) == ["a", "b"]
    assert missing_replicas_warning(a.host.find("t"), a.members) is None


def test_only_live_brokers_get_replicas(a):
    a.around.up["c"].die()
    create(a, 4, 2)
    assert set("".join(replicas(a, "t"))) == {"a", "b"}


def test_an_error_about_too_few_brokers_names_the_dead(a):
    a.around.up["c"].die()
    with pytest.raises(
        InvalidAssignment, match=r"factor of 3 .* broker 'c' is not alive"
    ) as caught:
        create(a, 1, 3)
    assert caught.value.details["broker"] == "c"
    assert "Start it again" in caught.value.hint
    a.around.up["b"].die()
    with pytest.raises(InvalidAssignment, match="brokers 'b', 'c' are not alive"):
        create(a, 1, 2)
    with pytest.raises(InvalidAssignment) as caught:
        create(a, 1, 4)
    assert "alive" not in str(caught.value)  # with them there would be too few, too
    assert caught.value.hint == "Start more brokers, or ask for fewer replicas."
    assert a.store.list(TOPICS) == a.store.list(PARTITIONS) == []


def test_an_error_about_too_few_brokers_names_the_leaving(a):
    Brokers(a.store).mark("c", BrokerState.LEAVING)
    a.host.refresh()
    with pytest.raises(InvalidAssignment, match=r"factor of 3 .* broker 'c' is leaving") as caught:
        create(a, 1, 3)
    assert "recommission" in caught.value.hint
    a.around.up["b"].die()
    with pytest.raises(InvalidAssignment, match="broker 'b' is not alive; broker 'c' is leaving"):
        create(a, 1, 3)


@pytest.mark.rule(
    "the placement of new replicas",
    "consistency/control/assignment.py",
    "broker/scripting/topics.py",
)
@pytest.mark.parametrize(
    ("partitions", "factor", "assignment", "message"),
    [
        (1, 4, None, "a replication factor of 4 needs as many brokers"),
        (1, 0, None, "the replication factor is 1 at least, not 0"),
        (1, 1, [["a", "x"]], "there is no broker 'x'; there are a, b, c"),
        (1, 1, [["a", "b", "a"]], "names broker 'a' twice"),
        (
            1,
            1,
            [["a", "b"], ["a"]],
            r"partitions 0 and 1 differ in their number of replicas \(2 and 1\)",
        ),
        (1, 1, [["a"], []], "partition 1 gets no replica"),
        (1, 1, [[]], "partition 0 gets no replica"),
        (1, 1, [["c"]], "broker 'c' is not alive"),
    ],
)
def test_impossible_requests_are_refused_and_change_nothing(
    a, partitions, factor, assignment, message
):
    a.around.up["c"].die() if assignment == [["c"]] else None
    with pytest.raises(InvalidAssignment, match=message):
        create(a, partitions, factor, assignment)
    assert a.store.list(TOPICS) == a.store.list(PARTITIONS) == []
    assert list(a.path.glob("topics/*/*")) == []


def test_an_empty_assignment_is_refused(a):
    with pytest.raises((InvalidAssignment, InvalidTopic)):
        create(a, 1, 1, [])


def test_added_partitions_are_spread_too(a):
    make(a, "t", "ab", "bc")
    a.topics.alter(to_alter("t", 5, {}))
    found = replicas(a, "t")
    assert found[:2] == ["ab", "bc"]
    leaders = Counter(each[0] for each in found)
    assert sorted(leaders.values()) == [1, 2, 2]


def test_an_assignment_covers_exactly_the_added_partitions(a):
    make(a, "t", "ab")
    with pytest.raises(InvalidTopic, match="the assignment has 1 new partitions, but 2 are added"):
        a.topics.alter(to_alter("t", 3, {}, [["b", "c"]]))
    with pytest.raises(InvalidAssignment, match="partition 2: there is no broker 'x'"):
        a.topics.alter(to_alter("t", 3, {}, [["b", "c"], ["x", "a"]]))
    a.topics.alter(to_alter("t", 3, {}, [["b", "c"], ["c", "a"]]))
    assert replicas(a, "t") == ["ab", "bc", "ca"]
