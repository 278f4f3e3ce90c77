"""Changes of records by operators, concurrent with others, and decommissioned brokers."""

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
    """A store with two partitions and three brokers, and a broker that requests changes."""

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


# -- changes of records ---------------------------------------------------------------------------


def test_all_records_change_in_one_write(cluster):
    places = [place(0), place(1)]
    outcomes = cluster.on.run(change_records(places, cluster.find, to_b_and_c))
    assert outcomes == {each: cluster.record() for each in places}
    assert (cluster.record(1).replicas, cluster.record(1).adding) == ((B, C, A), (C,))
    assert sum(isinstance(each, PutMany) for each in cluster.on.steps) == 1


def test_a_change_without_effect_is_not_written_but_returned(cluster):
    same = change_records(
        [place()], cluster.find, lambda _, record: election.prefer(record, GENERATIONS)
    )
    outcomes = cluster.on.run(same)
    assert outcomes == {place(): Unchanged(Obstacle.SAME, LED_BY_A)}
    assert cluster.on.steps == []


def test_an_unknown_partition_is_left_out(cluster):
    asked = change_records([place(7), place(0)], cluster.find, to_b_and_c)
    assert list(cluster.on.run(asked)) == [place(0)]


def test_a_change_that_loses_a_race_is_repeated_on_the_new_record(cluster):
    """Only the losing change is retried."""
    asked = cluster.on.start(change_records([place(0), place(1)], cluster.find, to_b_and_c))
    # The script stands before its write. Then a leader takes a replica out of the ISR.
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


# -- leaving brokers ------------------------------------------------------------------------------


def test_a_broker_is_marked_once(cluster):
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.brokers.get(B).state is BrokerState.LEAVING
    steps = len(cluster.on.steps)
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert len(cluster.on.steps) == steps + 1  # one read, and no write


def test_a_broker_that_restarts_during_a_decommission_is_marked(cluster):
    asked = cluster.on.start(mark_broker(B, BrokerState.LEAVING))
    asked.advance()  # it has read
    again = RegisteredBroker(B, "b:2", "another start", "1", GENERATIONS[B])
    cluster.brokers.register(again)
    asked.end()
    found = cluster.brokers.get(B)
    assert (found.state, found.address) == (BrokerState.LEAVING, "b:2")


def test_a_decommission_can_be_cancelled(cluster):
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    cluster.on.run(mark_broker(B, BrokerState.ACTIVE))
    assert cluster.brokers.get(B).state is BrokerState.ACTIVE
    assert cluster.on.run(remove_broker(B, lives=True)) is False


def test_an_unknown_broker_cannot_be_decommissioned(cluster):
    with pytest.raises(UnknownBroker, match="'x'"):
        cluster.on.run(mark_broker(BrokerId("x"), BrokerState.LEAVING))


def move_away(cluster: Clustered, leaving: BrokerId, *takers: BrokerId) -> bool:
    stored = cluster.stored()
    load = load_of(each.record.replicas for each in stored.values())
    racks = dict.fromkeys(takers)
    return bool(cluster.on.run(partition_records.move_away(stored, leaving, racks, load)))


def test_replicas_of_a_leaving_broker_move_to_staying_ones(cluster):
    assert move_away(cluster, B, A, C) is False
    for number in (0, 1):
        record = cluster.record(number)
        assert (record.replicas, record.adding, record.removing) == ((A, C, B), (C,), (B,))


def test_a_running_move_is_not_begun_again(cluster):
    move_away(cluster, B, A, C)
    steps = len(cluster.on.steps)
    assert move_away(cluster, B, A, C) is False
    assert len(cluster.on.steps) == steps


def test_replicas_without_another_broker_stay_and_are_reported(cluster):
    assert move_away(cluster, B, A) is True
    assert cluster.record() == LED_BY_A


def test_only_a_leaving_broker_is_removed(cluster):
    assert cluster.on.run(remove_broker(B, lives=True)) is False
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=True)) is True
    assert cluster.brokers.get(B) is None
    assert cluster.on.run(remove_broker(B, lives=True)) is False


def test_a_live_broker_is_removed_without_files_of_deleted_topics(cluster):
    """Otherwise no broker would wait for it, and its files would stay for ever."""
    deleted = Topic("t", "id", pa.schema([]), 1, {})
    cluster.on.run(announce_removal(deleted, [A, B]))
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=True)) is False
    (left,) = cluster.on.run(left_overs())
    cluster.on.run(remove_left_over(left, B, ()))
    assert cluster.on.run(remove_broker(B, lives=True)) is True


def test_a_dead_broker_is_removed_with_its_files(cluster):
    cluster.on.run(announce_removal(Topic("t", "id", pa.schema([]), 1, {}), [B]))
    cluster.on.run(mark_broker(B, BrokerState.LEAVING))
    assert cluster.on.run(remove_broker(B, lives=False)) is True
