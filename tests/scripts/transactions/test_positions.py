"""Positions of named consumers are merged, and stored for a name's owner only."""

from __future__ import annotations

import pytest

from isolog.errors import ConsumerFenced, UnknownTopic
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.scripts.steps import FindTopic
from spark_stream.scripts.transactions.positions import (
    check_owners,
    commit_positions,
    read_positions,
    store_positions,
    take_name,
)
from tests.scripts.on_store import OnStore
from tests.simulation.broker import SCHEMA
from tests.simulation.store import MemoryRecords, MemoryStore


@pytest.fixture
def on() -> OnStore:
    return OnStore(MemoryStore(MemoryRecords()))


def position(offset: int, partition: int = 0, consumer: str = "c") -> PositionOf:
    return PositionOf(consumer, "t", "id", partition, offset)


def test_positions_are_merged_by_partition(on):
    assert on.run(read_positions("c")) == []
    on.run(store_positions([position(5), position(6, 1), position(9, consumer="d")], {}))
    on.run(store_positions([position(7, 1)], {}))
    assert on.run(read_positions("c")) == [position(5), position(7, 1)]
    assert on.run(read_positions("d")) == [position(9, consumer="d")]


def test_positions_stored_concurrently_are_both_kept(on):
    late = on.start(store_positions([position(5)], {}))
    late.advance()  # it has read
    on.run(store_positions([position(6, 1)], {}))
    late.end()
    assert on.run(read_positions("c")) == [position(5), position(6, 1)]


@pytest.mark.rule(
    "a commit of positions in a deleted topic fails", "scripts/transactions/positions.py"
)
def test_positions_in_a_deleted_topic_are_not_committed():
    topics = {"t": "id"}

    class WithTopics(OnStore):
        def carry_out(self, step):
            if isinstance(step, FindTopic):
                if step.name not in topics:
                    raise UnknownTopic(step.name)
                return Topic(step.name, topics[step.name], SCHEMA, 2, {}, replication_factor=1)
            return super().carry_out(step)

    on = WithTopics(MemoryStore(MemoryRecords()))
    on.run(take_name("c", "mine"))
    on.run(commit_positions([position(5)], {"c": "mine"}))
    deleted = PositionOf("c", "u", "id-of-u", 0, 9)
    with pytest.raises(UnknownTopic, match="'u'"):
        on.run(commit_positions([deleted, position(6)], {"c": "mine"}))
    assert on.run(read_positions("c")) == [position(6)]
    topics["t"] = "id of the next one"
    with pytest.raises(UnknownTopic, match="'t'"):
        on.run(commit_positions([position(7)], {"c": "mine"}))
    with pytest.raises(ConsumerFenced):
        on.run(commit_positions([position(7)], {"c": "another"}))
    assert on.run(read_positions("c")) == [position(6)]


def test_a_fenced_instance_stores_no_position(on):
    on.run(take_name("c", "old"))
    on.run(store_positions([position(5)], {"c": "old"}))
    late = on.start(store_positions([position(6)], {"c": "old"}))
    late.advance()  # it has read
    on.run(take_name("c", "new"))
    with pytest.raises(ConsumerFenced, match="'c'"):
        late.end()
    with pytest.raises(ConsumerFenced, match="'c'"):
        on.run(check_owners({"c": "old"}))
    on.run(check_owners({"c": "new"}))
    assert on.run(read_positions("c")) == [position(5)]
