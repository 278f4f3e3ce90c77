"""Records change as operators ask, whoever else changes them; brokers that leave are emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from msgspec.structs import replace

from isolog.errors import UnknownBroker
from spark_stream.cluster.brokers import Brokers, BrokerState, RegisteredBroker
from spark_stream.cluster.partitions import PartitionId, Partitions, StoredPartition, put_of
from spark_stream.cluster.topics import Topic
from spark_stream.consistency.control import election
from spark_stream.consistency.control.assignment import load_of
from spark_stream.consistency.control.election import Obstacle, Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.scripts import partition_records
from spark_stream.scripts.partition_records import (
    change_records,
    mark_broker,
    remove_broker,
)
from spark_stream.scripts.steps import PutMany, Script
from spark_stream.scripts.topics import announce_removal, left_overs, remove_left_over
from tests.scripts.on_store import OnStore
from tests.simulation.store import MemoryRecords, MemoryStore

A, B, C = (BrokerId(each) for each in "abc")
GENERATIONS = {each: Generation(f"{each}1") for each in (A, B, C)}


def members(*brokers: BrokerId) -> tuple[Member, ...]:
    return tuple(Member(each, GENERATIONS[each]) for each in brokers)


LED_BY_A = PartitionRecord((A, B), A, LeaderEpoch(5), members(A, B))


def place(number: int = 0) -> PartitionId:
    return PartitionId("id", number)


class Clustered:
    """A store with two partitions and three brokers, and one that asks for changes."""

    def __init__(self) -> None:
        self.on = OnStore(MemoryStore(MemoryRecords()))
        self.find = Partitions(self.on.store).get
        for number in (0, 1):
            self.write(LED_BY_A, number)
        self.brokers = Brokers(self.on.store)
        for each in (A, B, C):
            self.brokers.register(RegisteredBroker(each, f"{each}:1", "i", "1", GENERATIONS[each]))

    def write(self, record: PartitionRecord, number: int = 0) -> None:
        found = self.find(place(number))
        version = 0 if found is None else found.version
        (done,) = self.on.store.put_many([put_of(place(number), record, version)])
        assert done is not None

    def record(self, number: int = 0) -> PartitionRecord:
        found = self.find(place(number))
        assert found is not None
        return found.record

    def stored(self) -> dict[PartitionId, StoredPartition]:
        return {each.id: each for each in Partitions(self.on.store).of_topic("id")}


@pytest.fixture
def cluster() -> Iterator[Clustered]:
    found = Clustered()
    yield found
    found.on.store.close()


def to_b_and_c(_: PartitionId, record: PartitionRecord) -> election.Outcome:
    return election.begin_move(record, (B, C))


# -- records that change --------------------------------------------------------------------------


def test_all_records_change_in_one_write(cluster):
    places = [place(0), place(1)]
    outcomes = cluster.on.run(change_records(places, cluster.find, to_b_and_c))
    assert outcomes == {each: cluster.record() for each in places}
    assert (cluster.record(1).replicas, cluster.record(1).adding) == ((B, C, A), (C,))
    assert sum(isinstance(each, PutMany) for each in cluster.on.steps) == 1


def test_what_would_change_nothing_is_not_written_and_is_told(cluster):
    same = change_records(
        [place()], cluster.find, lambda _, record: election.prefer(record, GENERATIONS)
    )
    outcomes = cluster.on.run(same)
    assert outcomes == {place(): Unchanged(Obstacle.SAME, LED_BY_A)}
    assert cluster.on.steps == []


def test_a_partition_that_is_not_there_is_left_out(cluster):
    asked = change_records([place(7), place(0)], cluster.find, to_b_and_c)
    assert list(cluster.on.run(asked)) == [place(0)]


def test_a_change_that_loses_a_race_is_made_of_the_record_as_it_is_then(cluster):
    """And only that one is tried again."""
    asked = cluster.on.start(change_records([place(0), place(1)], cluster.find, to_b_and_c))
    # The script stands before its write; a leader takes a replica out of sync meanwhile.
    script: Script[dict] = asked._script
    step = next(script)
    cluster.write(replace(LED_BY_A, isr=members(A)))
    answer = cluster.on.carry_out(step)
    assert [each is None for each in answer] == [True, False]
    writes = []
    while True:
        try:
            step = script.send(answer)
        except StopIteration as ended:
            outcomes = ended.value
            break
        writes += [step] if isinstance(step, PutMany) else []
        answer = cluster.on.carry_out(step)
    assert [len(each.puts) for each in writes] == [1]
    assert cluster.record().isr == members(A)
    assert cluster.record().adding == (C,)
    assert outcomes[place()] == cluster.record()


# -- brokers that leave ---------------------------------------------------------------------------


def test_a_broker_is_marked_once(cluster):
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.brokers.get(B).state is BrokerState.LEAVING
    steps = len(cluster.on.steps)
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert len(cluster.on.steps) == steps + 1  # it only looked


def test_a_broker_that_starts_while_it_is_marked_is_marked_all_the_same(cluster):
    asked = cluster.on.start(mark_broker(B, BrokerState.LEAVING))
    asked.advance()  # it has read
    again = RegisteredBroker(B, "b:2", "another start", "1", GENERATIONS[B])
    cluster.brokers.register(again)
    asked.end()
    found = cluster.brokers.get(B)
    assert (found.state, found.address) == (BrokerState.LEAVING, "b:2")


def test_a_broker_that_was_to_leave_may_stay(cluster):
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    cluster.on.run(mark_broker(B, BrokerState.ACTIVE))
    assert cluster.brokers.get(B).state is BrokerState.ACTIVE
    assert cluster.on.run(remove_broker(B, lives=True)) is False


def test_a_broker_that_is_not_there_cannot_leave(cluster):
    with pytest.raises(UnknownBroker, match="'x'"):
        cluster.on.run(mark_broker(BrokerId("x"), BrokerState.LEAVING))


def move_away(cluster: Clustered, leaving: BrokerId, *takers: BrokerId) -> bool:
    stored = cluster.stored()
    load = load_of(each.record.replicas for each in stored.values())
    racks = dict.fromkeys(takers)
    return bool(cluster.on.run(partition_records.move_away(stored, leaving, racks, load)))


def test_the_replicas_of_a_leaving_broker_move_to_those_that_stay(cluster):
    assert move_away(cluster, B, A, C) is False
    for number in (0, 1):
        record = cluster.record(number)
        assert (record.replicas, record.adding, record.removing) == ((A, C, B), (C,), (B,))


def test_a_move_that_is_under_way_is_not_begun_again(cluster):
    move_away(cluster, B, A, C)
    steps = len(cluster.on.steps)
    assert move_away(cluster, B, A, C) is False
    assert len(cluster.on.steps) == steps


def test_replicas_that_nobody_else_can_take_stay_and_that_is_told(cluster):
    assert move_away(cluster, B, A) is True
    assert cluster.record() == LED_BY_A


def test_only_a_broker_that_leaves_is_removed(cluster):
    assert cluster.on.run(remove_broker(B, lives=True)) is False
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=True)) is True
    assert cluster.brokers.get(B) is None
    assert cluster.on.run(remove_broker(B, lives=True)) is False


def test_a_broker_that_lives_is_removed_once_it_has_nothing_of_deleted_topics(cluster):
    """Else nobody would wait for it, and its files stayed for ever."""
    deleted = Topic("t", "id", pa.schema([]), 1, {})
    cluster.on.run(announce_removal(deleted, [A, B]))
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=True)) is False
    (left,) = cluster.on.run(left_overs())
    cluster.on.run(remove_left_over(left, B, ()))
    assert cluster.on.run(remove_broker(B, lives=True)) is True


def test_a_broker_that_is_dead_is_removed_whatever_it_has(cluster):
    cluster.on.run(announce_removal(Topic("t", "id", pa.schema([]), 1, {}), [B]))
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=False)) is True
