"""Operators' requests to a cluster, at any of its brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import (
    InvalidAssignment,
    InvalidRequest,
    IsologError,
    UnknownBroker,
    UnknownPartition,
    UnknownTopic,
)
from tests.broker.stamped import refused
from tests.brokers import brokers_on, make_topic
from tests.support import BrokerProcess, act, eventually


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    """Brokers a and b. Each test makes its own topics."""
    with brokers_on(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def partition(channel: Any, topic: str, number: int = 0) -> dict[str, Any]:
    return dict(act(channel, "describe-topic", topic=topic)["partitions"][number])


def settled(channel: Any, topic: str, replicas: list[str]) -> bool:
    """Return whether the partition is on these brokers, in sync, and led by the first."""
    found = partition(channel, topic)
    where = (found["replicas"], sorted(found["isr"]), found["leader"])
    return where == (replicas, sorted(replicas), replicas[0])


def test_any_broker_describes_the_cluster(two):
    with two[0].channel() as a, two[1].channel() as b:
        make_topic(a, "described", [["a", "b"], ["b", "a"], ["b", "a"]])
        # they do not wait for the first
        eventually(lambda: act(a, "describe-cluster")["controller"])
        eventually(lambda: act(a, "describe-cluster") == act(b, "describe-cluster"))
        found = act(a, "describe-cluster")
        act(b, "delete-topic", topic="described")
    assert found["controller"] in ("a", "b")
    assert (found["topics"], found["partitions"], found["without_leader"]) == (1, 3, 0)
    assert (found["under_replicated"], found["moving"]) == (0, 0)
    counted = {
        each["id"]: (each["leaders"], each["replicas"], each["in_sync"], each["alive"])
        for each in found["brokers"]
    }
    assert counted == {"a": (1, 3, 3, True), "b": (2, 3, 3, True)}


def test_replicas_move_and_preferred_leaders_lead(two):
    with two[0].channel() as a, two[1].channel() as b:
        make_topic(a, "moves", [["a"]])
        act(b, "move-replicas", topic="moves", partitions={"0": ["b", "a"]})
        eventually(lambda: set(partition(a, "moves")["isr"]) == {"a", "b"})
        eventually(lambda: act(a, "describe-cluster")["moving"] == 0)
        act(a, "elect-preferred", topic="moves")
        eventually(lambda: settled(b, "moves", ["b", "a"]))
        assert act(a, "elect-preferred", topic="moves") == {"elected": 0, "not_in_sync": 0}
        act(a, "move-replicas", topic="moves", partitions={"0": ["a"]})
        eventually(lambda: settled(b, "moves", ["a"]))
        act(a, "delete-topic", topic="moves")


@pytest.mark.parametrize(
    ("action", "asked", "error"),
    [
        ("move-replicas", {"topic": "nowhere", "partitions": {"0": ["a"]}}, UnknownTopic),
        ("move-replicas", {"topic": "stays", "partitions": {"7": ["a"]}}, UnknownPartition),
        ("move-replicas", {"topic": "stays", "partitions": {"0": ["x"]}}, InvalidAssignment),
        ("move-replicas", {"topic": "stays", "partitions": {"0": ["a", "a"]}}, InvalidAssignment),
        ("move-replicas", {"topic": "stays", "partitions": {"0": []}}, InvalidAssignment),
        ("cancel-moves", {"topic": "nowhere"}, UnknownTopic),
        ("elect-preferred", {"topic": "nowhere"}, UnknownTopic),
        ("decommission", {"broker": "x"}, UnknownBroker),
        ("recommission", {"broker": "x"}, UnknownBroker),
    ],
)
def test_impossible_requests_are_refused_and_change_nothing(two, action, asked, error):
    with two[0].channel() as a:
        make_topic(a, "stays", [["a", "b"]])
        before = partition(a, "stays")
        found: IsologError = refused(lambda: act(a, action, **asked))
        assert type(found) is error
        assert partition(a, "stays") == before
        act(a, "delete-topic", topic="stays")


def test_a_move_to_a_dead_broker_can_be_cancelled(tmp_path: Path):
    with brokers_on(tmp_path) as (first, second), first.channel() as a:
        make_topic(a, "t", [["a"]])
        second.kill()
        act(a, "move-replicas", topic="t", partitions={"0": ["b"]})
        assert act(a, "describe-cluster")["moving"] == 1
        act(a, "cancel-moves", topic="t")
        assert act(a, "describe-cluster")["moving"] == 0
        assert settled(a, "t", ["a"])


def test_a_decommissioned_broker_loses_its_replicas_and_is_removed(tmp_path: Path):
    with brokers_on(tmp_path) as (first, _), first.channel() as a:
        make_topic(a, "t", [["b"], ["a"]])
        act(a, "decommission", broker="b")

        def left() -> list[str]:
            return [each["id"] for each in act(a, "describe-cluster")["brokers"]]

        eventually(lambda: left() == ["a"])
        assert settled(a, "t", ["a"])
        made = act(a, "create-topic", topic="u", partitions=3)
        assert {each["leader"] for each in made["partitions"]} == {"a"}
        assert isinstance(refused(lambda: act(a, "decommission", broker="a")), InvalidRequest)


def test_a_recommissioned_broker_gets_replicas_again(tmp_path: Path):
    with brokers_on(tmp_path) as (first, _), first.channel() as a:
        make_topic(a, "t", [["a", "b"]])
        act(a, "decommission", broker="b")

        def state() -> str:
            found = act(a, "describe-cluster")["brokers"]
            return next(each["state"] for each in found if each["id"] == "b")

        assert state() == "leaving"
        act(a, "recommission", broker="b")
        assert state() == "active"
        assert settled(a, "t", ["a", "b"])
        made = act(a, "create-topic", topic="u", replication_factor=2)
        assert sorted(made["partitions"][0]["replicas"]) == ["a", "b"]
