"""Proposed in-sync replicas become the partition's record, or the leader gets the reason."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from isolog.errors import StorageFailure
from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PARTITIONS, PartitionId, Partitions, put_of
from spark_stream.cluster.stores.store import Put
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.scripts.steps import PutMany, Script
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LEASE_S, LocalBroker, Surroundings, replicate
from tests.simulation.store import MemoryStore
from tests.support import numbers

__all__ = ["around"]


class LossyStore(MemoryStore):
    """A store whose answer to changes of partitions is lost, after they are made or before."""

    loses: str | None = None

    def put_many(self, puts: Sequence[Put]) -> list[int | None]:
        lost, self.loses = self.loses, None
        if not any(each.key.startswith(PARTITIONS) for each in puts):
            lost = None
        if lost == "before":
            raise StorageFailure("the disk says no")
        versions = super().put_many(puts)
        if lost == "after":
            raise StorageFailure("the disk says no")
        return list(versions)


@pytest.fixture
def pair(around: Surroundings) -> tuple[LocalBroker, LocalBroker]:
    """``a`` leads ``t/0`` and has one record, and so has its follower ``b``."""
    a = around.start("a", store=LossyStore(around.records))
    b = around.start("b")
    make(a, "t", "ab")
    a.partition("t").append(numbers(0, 1))
    replicate(a, b, "t")
    return a, b


def hw(broker: LocalBroker) -> int:
    return int(broker.partition("t").bounds().high_watermark)


def dies(a: LocalBroker, b: LocalBroker) -> None:
    """The follower died, and the leader detects that."""
    b.die()
    a.control_once()


def write(a: LocalBroker, record: PartitionRecord) -> None:
    """Another broker changes the record of the partition. The leader has not seen it."""
    stored = Partitions(a.store).get(PartitionId(a.host.find("t").id, 0))
    assert stored is not None
    (done,) = MemoryStore(a.around.records).put_many([put_of(stored.id, record, stored.version)])
    assert done is not None


def isr(broker: LocalBroker) -> list[str]:
    return [each.broker for each in broker.record("t").isr]


def test_a_dead_follower_leaves_and_the_high_watermark_advances(pair):
    a, b = pair
    assert hw(a) == 1
    a.partition("t").append(numbers(1, 1))
    dies(a, b)
    assert (isr(a), hw(a)) == (["a", "b"], 1)  # proposed: it counts until that is on record
    a.put_proposals()
    assert (isr(a), hw(a)) == (["a"], 2)


def test_a_follower_that_caught_up_joins_again(pair):
    a, b = pair
    dies(a, b)
    a.put_proposals()
    a.partition("t").append(numbers(1, 1))
    again = a.around.start("b")
    see(a.around)
    a.control_once()
    replicate(a, again, "t")
    assert a.proposals.noted.is_set()
    a.put_proposals()
    assert isr(a) == ["a", "b"]


def test_without_a_proposal_no_record_is_written(pair):
    a, _ = pair
    steps = list(a.proposals.putting())
    assert steps == []


def test_the_last_proposal_of_a_partition_counts(pair):
    """It was made for the same record: the first would lose against it, or be undone."""
    a, b = pair
    dies(a, b)
    (first,) = a.proposals._noted
    a.proposals._noted.append(replace(first, after=first.before))
    puts = next(iter(a.proposals.putting()))
    assert isinstance(puts, PutMany)
    assert len(puts.puts) == 1


@pytest.mark.rule("the way of in-sync replicas to the record", "broker/host/proposals.py")
@pytest.mark.parametrize("loses", ["before", "after"])
def test_a_proposal_with_an_unknown_outcome_counts_until_it_is_known(pair, loses):
    a, b = pair
    a.partition("t").append(numbers(1, 1))
    dies(a, b)
    a.store.loses = loses
    with pytest.raises(StorageFailure):
        a.put_proposals()
    assert hw(a) == 1
    assert a.proposals.noted.is_set()  # so the next round comes without a pause
    a.put_proposals()
    assert (isr(a), hw(a)) == (["a"], 2)


def after_putting(a: LocalBroker, act) -> Script[None]:
    """The script of proposals. ``act`` happens right before the record is written."""
    script = a.proposals.putting()
    step = next(script)
    act()
    while True:
        answer = yield step
        try:
            step = script.send(answer)
        except StopIteration:
            return


def test_a_proposal_that_loses_a_race_is_repeated_for_the_new_record(pair):
    a, b = pair
    a.partition("t").append(numbers(1, 1))
    dies(a, b)
    moving = replace(a.record("t"), replicas=("a", "b", "c"), adding=("c",))
    a.driver.run(after_putting(a, lambda: write(a, moving)))
    assert a.record("t") == moving
    assert hw(a) == 1
    a.control_once()
    a.put_proposals()
    assert (isr(a), hw(a)) == (["a"], 2)
    assert a.record("t").adding == ("c",)


def test_a_replaced_leader_gets_the_new_record_by_its_proposal(pair):
    """Its high watermark does not move: b may have become the leader by then."""
    a, b = pair
    a.partition("t").append(numbers(1, 1))
    dies(a, b)
    elected = replace(a.record("t"), leader="b", leader_epoch=LeaderEpoch(1))
    a.driver.run(after_putting(a, lambda: write(a, elected)))
    assert a.record("t") == elected
    replica: Partition = a.replica("t")
    assert replica.bounds().high_watermark == 1
    a.host.refresh()
    assert not replica.leads
    assert a.links.followed == {"t/0": ("b", 1)}


def test_proposals_of_a_deleted_topic_have_no_effect(pair):
    a, b = pair
    dies(a, b)
    a.topics.delete("t")
    a.put_proposals()
    assert Partitions(a.store).of_topic("t") == []


def test_a_follower_that_lags_too_long_leaves_the_isr(around):
    a, b = around.start("a"), around.start("b")
    make(a, "t", "ab", **{"replica.lag.time.max.ms": "5000"})
    a.partition("t").append(numbers(0, 1))
    for _ in range(2):
        around.clock.pass_us(4_000_000)
        for each in (a, b):
            each.lease_keeper.renew()
        a.control_once()
        a.put_proposals()
    assert LEASE_S > 8
    assert (isr(a), hw(a)) == (["a"], 1)


def test_a_follower_joins_while_the_leader_may_not_serve(pair):
    a, b = pair
    dies(a, b)
    a.put_proposals()
    assert isr(a) == ["a"]
    b = a.around.start("b")
    a.around.board.gone("b")  # its lease is not seen yet
    a.host.refresh()
    a.members.check_alive()
    replicate(a, b, "t")
    a.put_proposals()
    assert isr(a) == ["a"]
    a.around.clock.pass_us(int(0.99 * LEASE_S * 1_000_000))  # the lease is nearly over
    b.lease_keeper.renew()
    a.control_once()
    a.lease_keeper.renew()
    a.control_once()
    a.put_proposals()
    assert isr(a) == ["a", "b"]
