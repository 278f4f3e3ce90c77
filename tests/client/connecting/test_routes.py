"""A client's cache of leaders after answers of brokers: tables of answers."""

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


# Answers in this order: the leader and its epoch. Then: the leader in the cache.
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
def test_leader_after_a_sequence_of_answers(case):
    answers, expected = TABLE[case]
    routes = Routes("t", "id")
    for leader, epoch in answers:
        routes.record_leader(said(leader, epoch))
    assert seen(routes) == expected


def test_a_failed_route_is_not_used_before_a_look_up():
    routes = Routes("t", "id")
    routes.record_leader(said("a", 1))
    routes.record_leader(said("a", 1, partition=1))
    failed = routes.get(0)
    routes.on_failed(failed)
    assert seen(routes, 0) is None
    assert seen(routes, 1) == ("a", 1)
    assert not routes.record_leader(said("a", 0))  # outdated: it does not confirm the route
    assert seen(routes) is None
    assert routes.record_leader(said("a", 1))
    assert seen(routes) == ("a", 1)


def test_a_late_failure_of_an_earlier_route_keeps_the_present_one():
    routes = Routes("t", "id")
    routes.record_leader(said("a", 1))
    before = routes.get(0)
    routes.record_leader(said("b", 2))
    routes.on_failed(before)
    assert seen(routes) == ("b", 2)
    assert routes.replaced(before)
    assert not routes.replaced(routes.get(0))


def test_an_answer_in_an_older_epoch_comes_from_a_replaced_leader():
    routes = Routes("t", "id")
    routes.record_leader(said("a", None))
    route = routes.get(0)
    assert routes.on_answer(route, 3)
    assert seen(routes) == ("a", 3)
    assert not routes.record_epoch(0, 2)
    assert not routes.on_answer(route, 2)
    assert seen(routes) == ("a", 3)


def test_the_same_leader_in_a_later_epoch_is_another_route():
    routes = Routes("t", "id")
    routes.record_leader(said("a", 1))
    before = routes.get(0)
    routes.record_leader(said("a", 2))
    assert routes.replaced(before)


@pytest.mark.rule(
    "a client's route to a partition's leader",
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
def test_leader_epochs_of_routes_never_decrease(steps):
    """After any answers and failures the epochs of the used routes never decrease."""
    routes = Routes("t", "id")
    greatest = 0
    for step, leader, epoch in steps:
        if step == "told":
            routes.record_leader(said(leader, epoch))
        elif (route := routes.get(0)) is not None:
            routes.on_failed(route)
        found = routes.get(0)
        if found is not None:
            assert found.epoch is not None
            assert found.epoch >= greatest
            greatest = found.epoch


def test_a_wait_for_another_threads_look_up_has_a_timeout():
    asked = Router(ClusterConnection("127.0.0.1:1"))
    with ThreadPoolExecutor(1) as other, asked._asking("t", "id", time.monotonic() + 1):
        with pytest.raises(RequestTimeout, match="another thread"):
            other.submit(asked.refresh, "t", "id", 0.01).result(20)
        with pytest.raises(RequestTimeout, match="another thread"):
            other.submit(asked.route, "t", "id", 0, 0.01).result(20)


NEAR = BrokerAddress(id="f", address="f:1")


@pytest.fixture
def near() -> Router:
    """A router with a cached leader and a nearer follower."""
    found = Router(ClusterConnection("127.0.0.1:1", rack="west"))
    assert found.record_leader("t", "id", said("a", 1))
    found._place("t", "id").routes.record_near(replace(said("a", 1), near=NEAR))
    return found


def test_a_silent_follower_is_avoided_and_keeps_the_leader(near, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(router, "time", SimpleNamespace(monotonic=lambda: now))
    route = near.route("t", "id", 0)
    assert near.near(route) == NEAR
    near.on_failed(route, BrokerUnavailable("dead"), NEAR)
    assert near.near(route) is None
    assert near.known("t", "id", 0) == route
    now += router.AVOIDED_S
    assert near.near(route) == NEAR


def test_a_refusal_of_a_follower_leads_to_a_new_look_up(near):
    route = near.route("t", "id", 0)
    near.on_failed(route, NotLeader("not in sync", leader=route.leader, address="x"), NEAR)
    assert near.known("t", "id", 0) is None


def test_near_followers_are_looked_up_again_once_a_minute(near, monkeypatch):
    near._place("t", "id").asked_at = now = 1_000.0  # exact, so the difference is exact too
    monkeypatch.setattr(router, "time", SimpleNamespace(monotonic=lambda: now))
    assert not near.claim_look_up("t", "id")
    now += router.OLD_S
    assert near.claim_look_up("t", "id")
    assert not near.claim_look_up("t", "id")


@pytest.mark.parametrize(
    ("given", "variable", "rack"),
    [("a", "b", "a"), (None, "b", "b"), (None, "", None), (None, None, None)],
)
def test_the_rack_comes_from_the_option_or_the_environment(given, variable, rack):
    environment = {} if variable is None else {"ISOLOG_RACK": variable}
    assert rack_of(given, environment) == rack


@pytest.mark.parametrize("rack", ["", "x" * 256, 7, "\udcff"])
def test_an_invalid_rack_is_refused(rack):
    with pytest.raises(InvalidOption, match="rack"):
        rack_of(rack, {})
