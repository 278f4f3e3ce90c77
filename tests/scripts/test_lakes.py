"""Scripts of lakes on a store: concurrent creations."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from isolog.errors import InvalidRequest, LakeExists, LakeUnavailable, UnknownTopic
from spark_stream.cluster.lakes import LAKES, decode
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.lakes import LakeDescription, LakeTopic
from spark_stream.scripts.lakes import (
    alter,
    create,
    drop,
    record_progress,
    relation_to_others,
)
from spark_stream.scripts.steps import FindTopic
from tests.scripts.on_store import OnStore
from tests.simulation.broker import SCHEMA
from tests.simulation.store import MemoryRecords, MemoryStore


class WithTopic(OnStore):
    """A broker with the topic ``t``."""

    def carry_out(self, step):
        if isinstance(step, FindTopic):
            if step.name != "t":
                raise UnknownTopic(step.name)
            return Topic("t", "id", SCHEMA, 1, {})
        return super().carry_out(step)


def lake(name: str, location: str, lake_id: str = "") -> LakeDescription:
    return LakeDescription(name, lake_id or name, location, (LakeTopic("t", ""),))


def on_record(on: OnStore) -> list[LakeDescription]:
    return [decode(each.value) for each in on.store.list(LAKES)]


@pytest.fixture
def on() -> WithTopic:
    return WithTopic(MemoryStore(MemoryRecords()))


def test_a_lake_with_the_location_of_another_is_refused_without_its_name(on):
    on.run(create(lake("first", "/data/lakes")))
    with pytest.raises(InvalidRequest, match="/data/lakes/x is inside the location of another"):
        on.run(create(lake("second", "/data/lakes/x")))
    assert [each.name for each in on_record(on)] == ["first"]


def test_a_retry_of_a_creation_returns_the_lake_and_another_one_is_refused(on):
    made = on.run(create(lake("a", "/a")))
    assert on.run(create(lake("a", "/a"))) == made
    with pytest.raises(LakeExists):
        on.run(create(lake("a", "/b", "other")))


def test_an_alteration_and_recorded_progress_lose_nothing_of_each_other(on):
    """Each order of the steps of two brokers."""
    for order in itertools.product((0, 1), repeat=5):
        world = WithTopic(MemoryStore(MemoryRecords()))
        world.run(create(lake("a", "/a")))
        running = [
            world.start(alter("a", "a", ["t"], 5_000, None)),
            world.start(record_progress("a", "a", {"id": {0: 9}}, 1)),
        ]
        for place in order:
            running[place].advance()
        for each in running:
            each.end()
        [found] = on_record(world)
        assert (found.freshness_ms, found.topics[0].tiered) == (5_000, {0: 9})


@pytest.mark.rule(
    "the location of a lake changes only to tables with all recorded offsets", "scripts/lakes.py"
)
def test_a_lake_moves_only_to_tables_with_all_recorded_offsets(on):
    """A report of the worker at the earlier location comes before the move, or is refused."""
    outcomes = set()
    for order in itertools.product((0, 1), repeat=6):
        world = WithTopic(MemoryStore(MemoryRecords()))
        world.run(create(lake("a", "/a")))
        world.run(record_progress("a", "a", {"id": {0: 5}}, 1, location="/a"))
        running = [
            world.start(alter("a", "a", None, None, None, "/b", {"id": {0: 5}})),
            world.start(record_progress("a", "a", {"id": {0: 9}}, 1, location="/a")),
        ]
        refused = []
        for place in (*order, 0, 0, 0, 0, 1, 1, 1, 1):
            try:
                running[place].advance()
            except (InvalidRequest, LakeUnavailable) as error:
                refused.append(type(error))
        [found] = on_record(world)
        outcomes.add((found.location, found.topics[0].tiered[0], *refused))
    assert outcomes == {("/a", 9, InvalidRequest), ("/b", 5, LakeUnavailable)}


def test_a_lake_does_not_move_into_another_one(on):
    on.run(create(lake("a", "/a")))
    on.run(create(lake("b", "/b")))
    with pytest.raises(InvalidRequest, match="/b/x is inside the location of another"):
        on.run(alter("a", "a", None, None, None, "/b/x", {}))
    assert on.run(alter("a", "a", None, None, None, "/a", {})).location == "/a"


def test_two_creations_that_crash_leave_lakes_that_are_detected(on):
    """Each crashes between its record and its second check."""
    running = [on.start(create(each)) for each in (lake("a", "/data"), lake("b", "/data/x"))]
    for _ in range(3):  # the first check, the id of the topic, and the record
        for each in running:
            each.advance()
    both = on_record(on)
    assert [relation_to_others(each, both) for each in both] == ["contains", "is inside"]
    on.run(drop("a", "a"))
    assert relation_to_others(both[1], on_record(on)) is None


@pytest.mark.parametrize("other", ["/data", "/data/x", "/"])
def test_two_concurrent_creations_never_leave_overlapping_locations(other):
    """Each order of the steps of two brokers. A crash may end one of them, which is repeated."""
    outcomes = set()
    for order in itertools.product((0, 1), repeat=8):
        world = WithTopic(MemoryStore(MemoryRecords()))
        wanted = [lake("a", "/data"), lake("b", other)]
        running = [world.start(create(each)) for each in wanted]
        for place in order:
            with suppress(InvalidRequest):
                running[place].advance()
        for each in wanted:  # the callers try again with the same ids
            with suppress(InvalidRequest):
                world.run(create(each))
        found = on_record(world)
        assert len(found) <= 1
        outcomes.add(tuple(each.name for each in found))
    assert {("a",), ("b",)} <= outcomes
