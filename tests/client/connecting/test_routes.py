"""What a client believes of what brokers say about leaders: tables of answers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from isolog.errors import BrokerUnavailable, InvalidOption, NotLeader, RequestTimeout
from spark_stream.client.connecting import router
from spark_stream.client.connecting.connection import ClusterConnection, rack_of
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.routes import Routes
from spark_stream.wire.cluster_messages import BrokerAddress
from spark_stream.wire.topic_messages import LeaderFacts


def said(leader: str | None, epoch: int | None, partition: int = 0) -> LeaderFacts:
    address = "" if leader is None else f"{leader}:1"
    return LeaderFacts(partition=partition, leader=leader, address=address, leader_epoch=epoch)


def seen(routes: Routes, partition: int = 0) -> tuple[str, int | None] | None:
    found = routes.get(partition)
    return None if found is None else (found.leader, found.epoch)


# What was said, in this order: who leads, in which epoch. Then: who is believed to lead.
TABLE = {
    "the first answer": ([("a", 1)], ("a", 1)),
    "a later epoch wins": ([("a", 1), ("b", 2)], ("b", 2)),
    "an older epoch is not believed": ([("b", 2), ("a", 1)], ("b", 2)),
    "no leader, in a later epoch": ([("a", 1), (None, 2)], None),
    "no leader, in an older epoch": ([("b", 2), (None, 1)], ("b", 2)),
    "after no leader, not the one before": ([("a", 1), (None, 2), ("a", 1)], None),
    "after no leader, the next": ([("a", 1), (None, 2), ("b", 3)], ("b", 3)),
    "who does not know the epoch is believed": ([("a", 1), ("b", None)], ("b", None)),
    "but hides no epoch that was seen": ([("b", 2), ("b", None), ("a", 1)], ("b", None)),
    "the same again": ([("a", 1), ("a", 1)], ("a", 1)),
}


@pytest.mark.parametrize("case", TABLE)
def test_who_is_believed(case):
    answers, expected = TABLE[case]
    routes = Routes("t", "id")
    for leader, epoch in answers:
        routes.learn_leader(said(leader, epoch))
    assert seen(routes) == expected


def test_a_route_that_failed_is_not_used_before_somebody_was_asked():
    routes = Routes("t", "id")
    routes.learn_leader(said("a", 1))
    routes.learn_leader(said("a", 1, partition=1))
    failed = routes.get(0)
    routes.on_failed(failed)
    assert seen(routes, 0) is None
    assert seen(routes, 1) == ("a", 1)
    assert not routes.learn_leader(said("a", 0))  # out of date: it confirms nothing
    assert seen(routes) is None
    assert routes.learn_leader(said("a", 1))
    assert seen(routes) == ("a", 1)


def test_a_late_failure_of_an_earlier_route_does_not_touch_the_present_one():
    routes = Routes("t", "id")
    routes.learn_leader(said("a", 1))
    before = routes.get(0)
    routes.learn_leader(said("b", 2))
    routes.on_failed(before)
    assert seen(routes) == ("b", 2)
    assert routes.replaced(before)
    assert not routes.replaced(routes.get(0))


def test_a_leader_that_answers_in_an_older_epoch_was_replaced():
    routes = Routes("t", "id")
    routes.learn_leader(said("a", None))
    route = routes.get(0)
    assert routes.on_answer(route, 3)
    assert seen(routes) == ("a", 3)
    assert not routes.note_epoch(0, 2)
    assert not routes.on_answer(route, 2)
    assert seen(routes) == ("a", 3)


def test_the_same_leader_in_a_later_epoch_is_another_route():
    routes = Routes("t", "id")
    routes.learn_leader(said("a", 1))
    before = routes.get(0)
    routes.learn_leader(said("a", 2))
    assert routes.replaced(before)


@pytest.mark.rule(
    "which broker a client takes for a partition's leader",
    "client/connecting/routes.py",
    "client/connecting/router.py",
)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("told"), st.sampled_from(["a", "b", "c", None]), st.integers(0, 5)),
            st.tuples(st.just("failed"), st.none(), st.just(0)),
        ),
        max_size=30,
    )
)
def test_a_client_never_goes_back_to_a_leader_of_an_older_epoch(steps):
    """Whatever brokers say and whatever fails: the epochs of the routes in use never fall."""
    routes = Routes("t", "id")
    greatest = 0
    for step, leader, epoch in steps:
        if step == "told":
            routes.learn_leader(said(leader, epoch))
        elif (route := routes.get(0)) is not None:
            routes.on_failed(route)
        found = routes.get(0)
        if found is not None:
            assert found.epoch is not None
            assert found.epoch >= greatest
            greatest = found.epoch


def test_nobody_waits_longer_than_its_time_for_another_thread_that_asks():
    asked = Router(ClusterConnection("127.0.0.1:1"))
    with ThreadPoolExecutor(1) as other, asked._asking("t", "id", time.monotonic() + 1):
        with pytest.raises(RequestTimeout, match="another thread"):
            other.submit(asked.refresh, "t", "id", 0.01).result(20)
        with pytest.raises(RequestTimeout, match="another thread"):
            other.submit(asked.route, "t", "id", 0, 0.01).result(20)


NEAR = BrokerAddress(id="f", address="f:1")


@pytest.fixture
def near() -> Router:
    """A router that knows a leader, and a follower that is nearer."""
    found = Router(ClusterConnection("127.0.0.1:1", rack="west"))
    assert found.learn_leader("t", "id", said("a", 1))
    found._place("t", "id").routes.learn_near(replace(said("a", 1), near=NEAR))
    return found


def test_a_follower_that_does_not_answer_is_left_alone_and_says_nothing_of_the_leader(
    near, monkeypatch
):
    now = 1_000.0
    monkeypatch.setattr(router, "time", SimpleNamespace(monotonic=lambda: now))
    route = near.route("t", "id", 0)
    assert near.near(route) == NEAR
    near.on_failed(route, BrokerUnavailable("dead"), NEAR)
    assert near.near(route) is None
    assert near.known("t", "id", 0) == route
    now += router.LEFT_ALONE_S
    assert near.near(route) == NEAR


def test_if_a_follower_refuses_who_is_near_is_looked_up_again(near):
    route = near.route("t", "id", 0)
    near.on_failed(route, NotLeader("not in sync", leader=route.leader, address="x"), NEAR)
    assert near.known("t", "id", 0) is None


def test_who_is_near_is_looked_up_again_after_a_while_once(near, monkeypatch):
    near._place("t", "id").asked_at = now = 1_000.0  # exact, so the difference is exact too
    monkeypatch.setattr(router, "time", SimpleNamespace(monotonic=lambda: now))
    assert not near.take_look_up("t", "id")
    now += router.OLD_S
    assert near.take_look_up("t", "id")
    assert not near.take_look_up("t", "id")


@pytest.mark.parametrize(
    ("given", "variable", "rack"),
    [("a", "b", "a"), (None, "b", "b"), (None, "", None), (None, None, None)],
)
def test_a_rack_is_given_or_the_environments(given, variable, rack):
    environment = {} if variable is None else {"ISOLOG_RACK": variable}
    assert rack_of(given, environment) == rack


@pytest.mark.parametrize("rack", ["", "x" * 256, 7, "\udcff"])
def test_a_rack_is_a_text(rack):
    with pytest.raises(InvalidOption, match="rack"):
        rack_of(rack, {})
