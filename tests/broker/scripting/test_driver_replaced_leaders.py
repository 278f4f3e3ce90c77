"""A leader that has not seen its replacement answers no step with an outdated log."""

from __future__ import annotations

from contextlib import closing
from random import Random

import pytest
from msgspec.structs import replace

from isolog.errors import NotLeader
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId, put_of
from spark_stream.cluster.stores.store import MetadataStore
from spark_stream.cluster.transactions import PREFIX, encode
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.ids import BrokerId, LeaderEpoch
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined, State, Transaction
from spark_stream.scripts.readers import find_cut
from spark_stream.scripts.steps import IsReplicated, Refresh, Script, Seal
from spark_stream.scripts.transactions.deciding import force_partitions
from spark_stream.scripts.transactions.finishing import seal_partitions, write_markers
from spark_stream.scripts.transactions.records import read, record_joins
from spark_stream.wire.topic_messages import CutTopic
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.simulation.store import MortalStore, Outage
from tests.support import numbers

__all__ = ["around"]

PRODUCER, NUMBER = 1, 7


@pytest.fixture
def three(around: Surroundings) -> list[LocalBroker]:
    """Broker c leads ``t/0`` and ``t/1``. In the view of a and b, b still leads ``t/0``."""
    a, b, c = (around.start(each) for each in "abc")
    make(a, "t", "b", "c")
    move(a, c)
    return [a, b, c]


def move(asked: LocalBroker, leader: LocalBroker) -> None:
    """Put on record that ``t/0`` is on this broker alone. Only this broker sees it."""
    stored = asked.host.view_of(PartitionId(asked.host.find("t").id, 0))
    assert stored is not None
    me = Member(leader.id, leader.generation)
    epoch = LeaderEpoch(stored.record.leader_epoch + 1)
    moved = replace(
        stored.record, replicas=(leader.id,), leader=leader.id, leader_epoch=epoch, isr=(me,)
    )
    asked.store.put_many([put_of(stored.id, moved, stored.version)])
    leader.host.refresh()


def at(broker: LocalBroker, number: int) -> Joined:
    return Joined("t", broker.host.find("t").id, number)


def write(partition: Partition) -> None:
    """Three records of a transaction."""
    pending = partition.transactions.open_join(NUMBER, PRODUCER)
    assert pending is not None
    partition.transactions.close_join(pending, on_record=True)
    partition.append(numbers(0, 3), Stamp(PRODUCER, 0, 0, NUMBER))


def decided(broker: LocalBroker, place: Joined) -> Transaction:
    """A commit, with the partition that has joined on record."""
    broker.driver.run(record_joins("loader", NUMBER, [place]))
    return Transaction(
        "loader", state=State.COMMITTING, number=NUMBER, producer_id=PRODUCER, taken=(PRODUCER,)
    )


@pytest.mark.parametrize("asked", [0, 1])
def test_a_transaction_is_sealed_and_marked_at_the_present_leader(three, asked):
    broker, leader = three[asked], three[2].partition("t", 0)
    write(leader)
    commit = decided(broker, at(broker, 0))
    assert broker.driver.run(seal_partitions(commit)) == ([at(broker, 0)], None)
    assert not leader.transactions.has_joined(NUMBER, PRODUCER)
    assert broker.driver.run(write_markers(commit, [at(broker, 0)])) is None
    assert leader.bounds().last_stable_offset == 3
    assert leader.transactions.open() == []


class LateWatch(Outage):
    """The watch announces no change."""

    def seen_upto(self, seen: int, last: int) -> int:
        return seen


class LateSurroundings(Surroundings):
    def store(self) -> MetadataStore:
        return MortalStore(self.records, lambda: None, LateWatch(Random()))


def test_a_finisher_reads_the_partitions_and_leaders_of_a_decision(tmp_path):
    """It has only read the decision: its watch has announced no change."""
    with closing(LateSurroundings(tmp_path)) as around:
        a, b, c = (around.start(each) for each in "abc")
        make(a, "t", "b", "c")
        move(b, c)
        write(c.partition("t"))
        commit = decided(c, at(c, 0))
        c.store.put(PREFIX + "loader", encode(commit), 0)
        known = a.driver.run(read("loader"))
        assert known is not None
        assert a.driver.run(seal_partitions(known)) == ([at(c, 0)], None)
        assert not c.partition("t").transactions.has_joined(NUMBER, PRODUCER)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_transaction_is_forced_at_the_present_leader(three, asked, monkeypatch):
    forced = []
    monkeypatch.setattr(Partition, "force", lambda self: forced.append((self.name, self.log)))

    def force() -> Script[None]:
        yield Refresh()
        yield from force_partitions([at(three[asked], 0)])

    three[asked].driver.run(force())
    assert forced == [("t/0", three[2].partition("t", 0).log)]


@pytest.mark.parametrize("asked", [0, 1])
def test_a_cut_splits_no_transaction_unknown_to_a_replaced_leader(three, asked):
    broker, c = three[asked], three[2]
    for number in (0, 1):
        write(c.partition("t", number))
        c.partition("t", number).transactions.end(NUMBER, lambda _: True)
    cut = broker.driver.run(find_cut([CutTopic(topic="t")]))
    assert cut["t"] in ({0: 0, 1: 0}, {0: 3, 1: 3})
    assert c.partition("t", 1).bounds(Isolation.READ_ATOMIC).atomic_cut == 3


def test_a_leader_reads_the_record_for_a_step_of_a_later_epoch(three):
    _, b, c = three
    place = at(b, 0)
    assert b.tried(Seal(place, NUMBER)) is None  # it leads, in its own view
    refusal = b.tried(Seal(place, NUMBER, least_epoch=c.partition("t", 0).leader_epoch))
    assert isinstance(refusal, NotLeader)
    assert refusal.details["leader"] == BrokerId("c")


def test_a_leader_refuses_a_step_of_an_unknown_epoch(three):
    _, _, c = three
    later = LeaderEpoch(c.partition("t", 0).leader_epoch + 1)
    refusal = c.tried(Seal(at(c, 0), NUMBER, least_epoch=later))
    assert isinstance(refusal, NotLeader)
    assert f"epoch {later}" in refusal.message


def test_a_replaced_leader_seals_no_transaction(three):
    """Its answer would mean that no more batches join, while its successor takes them."""
    before = three[2].partition("t", 1)
    write(before)
    three[2].host.topic("t").replicas[1].role.follow(LeaderEpoch(9))
    with pytest.raises(NotLeader):
        before.transactions.seal(NUMBER)


def lead(leader: LocalBroker) -> None:
    """Put on record that this broker leads ``t/0`` in the next epoch, for all to see."""
    stored = leader.host.view_of(PartitionId(leader.host.find("t").id, 0))
    assert stored is not None
    epoch = LeaderEpoch(stored.record.leader_epoch + 1)
    moved = replace(stored.record, leader=leader.id, leader_epoch=epoch)
    leader.store.put_many([put_of(stored.id, moved, stored.version)])
    see(leader.around)


def test_entries_of_an_earlier_epoch_do_not_count_as_replicated(around):
    """Their broker leads again, and its earlier entries there were truncated."""
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab")
    partition = a.partition("t")
    for number in range(2):
        partition.append(numbers(number, 1))
    asked = IsReplicated(at(a, 0), partition.log.end.entry, partition.leader_epoch)
    assert a.tried(asked) is False
    lead(b)
    b.partition("t").append(numbers(5, 2))
    b.partition("t").append(numbers(7, 2))
    replicate(b, a, "t")
    lead(a)
    replicate(a, b, "t")
    assert partition.core.bounds_state.high_watermark.entry == asked.entry
    assert isinstance(a.tried(asked), NotLeader)
