"""Elections and ends of moves on records in a store: all that are due, and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs
from msgspec.structs import replace

from spark_stream.cluster.partitions import PartitionId, Partitions, StoredPartition, put_of
from spark_stream.consistency.control.election import LogEnd
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.partition_records import (
    Changed,
    Placed,
    elect_leaders,
    finish_moves,
    is_moving,
    needs_leader,
    resume,
)
from spark_stream.scripts.steps import ForceReplica, PutMany, ReadLogEnd, Refresh, Together
from tests.scripts.on_store import OnStore
from tests.simulation.store import MemoryRecords, MemoryStore

A, B, C = (BrokerId(each) for each in "abc")
FIRST = {each: Generation(f"{each}1") for each in (A, B, C)}
SECOND = {each: Generation(f"{each}2") for each in (A, B, C)}
AT = Joined("t", "id", 0)


def members(*brokers: BrokerId) -> tuple[Member, ...]:
    """These brokers in their first generation."""
    return tuple(Member(each, FIRST[each]) for each in brokers)


LED_BY_A = PartitionRecord((A, B, C), A, LeaderEpoch(5), members(A, B, C))


class Clustered:
    """A store with partitions, and a broker that changes their records."""

    def __init__(self) -> None:
        self.on = OnStore(MemoryStore(MemoryRecords()))
        self.partitions = Partitions(self.on.store)

    def write(self, record: PartitionRecord, number: int = 0, *, unclean: bool = False) -> Placed:
        found = self.partitions.get(PartitionId("id", number))
        version = 0 if found is None else found.version
        put = put_of(PartitionId("id", number), record, version)
        (new,) = self.on.store.put_many([put])
        assert new is not None
        stored = StoredPartition(PartitionId("id", number), record, new)
        return Placed(structs.replace(AT, partition=number), stored, unclean)

    def record(self, number: int = 0) -> PartitionRecord:
        found = self.partitions.get(PartitionId("id", number))
        assert found is not None
        return found.record

    def elect_leaders(
        self, *placed: Placed, alive: dict, registered: dict | None = None
    ) -> list[Changed]:
        return self.on.run(
            elect_leaders(placed, alive, alive if registered is None else registered)
        )

    def finish(self, *placed: Placed) -> list[Changed]:
        return self.on.run(finish_moves(placed, FIRST))

    def says(self, broker: BrokerId, generation: Generation, epoch: int, entries: int) -> None:
        """The broker's answers about the ends of its logs."""
        self.on.log_ends[broker] = LogEnd(generation, epoch, EntryIndex(entries))


@pytest.fixture
def cluster() -> Iterator[Clustered]:
    found = Clustered()
    yield found
    found.on.store.close()


def alive(*brokers: BrokerId) -> dict[BrokerId, Generation]:
    return {each: FIRST[each] for each in brokers}


# -- what is due ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "is_due", "moves"),
    [
        (LED_BY_A, False, False),
        (replace(LED_BY_A, isr=members(A)), False, False),
        (replace(LED_BY_A, leader=None), True, False),
        (replace(LED_BY_A, leader=C), True, False),
        (replace(LED_BY_A, leader=B, isr=(Member(B, SECOND[B]), *members(A))), True, False),
        (replace(LED_BY_A, adding=(B,)), False, True),
        (replace(LED_BY_A, removing=(B,)), False, True),
    ],
)
def test_partitions_without_a_live_leader_or_with_a_move_are_due(record, is_due, moves):
    assert needs_leader(record, alive(A, B)) is is_due
    assert is_moving(record) is moves


# -- elections ------------------------------------------------------------------------------------


def test_the_next_in_sync_replicas_lead_after_a_death(cluster):
    placed = [cluster.write(LED_BY_A), cluster.write(replace(LED_BY_A, replicas=(C, A, B)), 1)]
    changes = cluster.elect_leaders(*placed, alive=alive(B, C))
    assert [each.after.leader for each in changes] == [B, C]
    assert [cluster.record(number).leader for number in (0, 1)] == [B, C]
    assert {each.after.leader_epoch for each in changes} == {6}
    assert cluster.record().isr == members(B, C)
    assert not any(each.risky for each in changes)


def test_all_elections_of_a_round_are_one_write(cluster):
    placed = [cluster.write(LED_BY_A, number) for number in range(50)]
    assert len(cluster.elect_leaders(*placed, alive=alive(B, C))) == 50
    assert [type(each) for each in cluster.on.steps] == [PutMany, Refresh]


def test_a_live_leader_stays_and_no_record_is_written(cluster):
    assert cluster.elect_leaders(cluster.write(LED_BY_A), alive=alive(A)) == []
    assert cluster.on.steps == []
    assert cluster.record() == LED_BY_A


def test_an_election_by_an_old_view_changes_nothing(cluster):
    old = cluster.write(LED_BY_A)
    by_another = replace(LED_BY_A, leader=C, leader_epoch=LeaderEpoch(6), isr=members(B, C))
    cluster.write(by_another)
    assert cluster.elect_leaders(old, alive=alive(B, C)) == []
    assert cluster.record() == by_another


def test_a_loser_of_one_election_wins_the_others(cluster):
    old, other = cluster.write(LED_BY_A), cluster.write(LED_BY_A, 1)
    cluster.write(replace(LED_BY_A, leader=C, leader_epoch=LeaderEpoch(6)))
    (change,) = cluster.elect_leaders(old, other, alive=alive(B, C))
    assert (change.at.partition, cluster.record(1).leader) == (1, B)


# -- no live replica in sync ----------------------------------------------------------------------


def test_no_leader_is_elected_while_an_isr_member_may_come_back(cluster):
    placed = cluster.write(replace(LED_BY_A, isr=members(A)))
    assert cluster.elect_leaders(placed, alive=alive(B, C), registered=FIRST) == []
    assert cluster.on.steps == []


def test_the_longest_log_leads_if_all_members_lost_entries(cluster):
    placed = cluster.write(LED_BY_A)
    cluster.says(A, SECOND[A], 5, 10)
    cluster.says(B, SECOND[B], 5, 12)
    cluster.says(C, SECOND[C], 4, 99)
    (change,) = cluster.elect_leaders(placed, alive=SECOND)
    assert change.risky
    assert (change.after.leader, change.after.isr) == (B, (Member(B, SECOND[B]),))
    assert cluster.record() == change.after
    asked = [each.steps for each in cluster.on.steps if isinstance(each, Together)]
    assert asked == [tuple(ReadLogEnd(each, AT) for each in (A, B, C))]


def test_an_unreachable_replica_is_no_candidate(cluster):
    placed = cluster.write(LED_BY_A)
    cluster.says(A, SECOND[A], 5, 10)
    cluster.says(C, SECOND[C], 5, 9)
    cluster.on.down = {B}
    (change,) = cluster.elect_leaders(placed, alive=SECOND)
    assert change.after.leader == A


def test_without_an_answering_replica_the_partition_has_no_leader(cluster):
    placed = cluster.write(LED_BY_A)
    cluster.on.down = {A, B, C}
    assert cluster.elect_leaders(placed, alive=SECOND) == []


@pytest.mark.parametrize(("unclean", "leader"), [(False, None), (True, C)])
def test_unclean_election_elects_a_replica_outside_the_isr(cluster, unclean, leader):
    """The election does not wait for a member that may still return."""
    record = replace(LED_BY_A, isr=members(A, B))
    placed = cluster.write(record, unclean=unclean)
    cluster.says(C, FIRST[C], 3, 7)
    changes = cluster.elect_leaders(placed, alive=alive(C), registered=FIRST)
    assert [each.after.leader for each in changes] == ([] if leader is None else [leader])
    assert all(each.risky for each in changes)


# -- moves ----------------------------------------------------------------------------------------


def test_a_move_is_finished_once_the_target_is_in_sync(cluster):
    moving = replace(LED_BY_A, replicas=(B, C, A), adding=(C,), removing=(A,))
    placed = cluster.write(replace(moving, isr=members(A, B)))
    assert cluster.finish(placed) == []
    placed = cluster.write(moving)
    (change,) = cluster.finish(placed)
    assert change.after == PartitionRecord((B, C), B, LeaderEpoch(6), members(B, C))
    assert not change.risky


@pytest.mark.parametrize("down", [None, B, C])
def test_a_move_ends_after_fsyncs_at_the_staying_replicas(cluster, down):
    placed = cluster.write(replace(LED_BY_A, replicas=(B, C, A), adding=(C,), removing=(A,)))
    cluster.on.down = {down}
    changes = cluster.finish(placed)
    asked = [each.steps for each in cluster.on.steps if isinstance(each, Together)]
    assert asked == [(ForceReplica(B, AT), ForceReplica(C, AT))]
    assert [each.after.replicas for each in changes] == ([(B, C)] if down is None else [])


def test_elections_wait_for_no_fsync_of_a_move(cluster):
    placed = cluster.write(replace(LED_BY_A, replicas=(B, C, A), adding=(C,), removing=(A,)))
    assert cluster.elect_leaders(placed, alive=FIRST) == []
    assert cluster.on.steps == []


def test_a_move_whose_leader_died_gets_a_leader_first(cluster):
    moving = replace(LED_BY_A, adding=(C,), removing=(A,), replicas=(B, C, A))
    (change,) = cluster.elect_leaders(cluster.write(moving), alive=alive(B, C))
    assert (change.after.leader, change.after.removing) == (B, (A,))


# -- a starting broker ----------------------------------------------------------------------------


def resumed(
    cluster: Clustered, record: PartitionRecord, me: Member, log: tuple[int, int] | None = (5, 10)
) -> list[Changed]:
    """The broker starts. ``log``: the last epoch and the number of entries of an open log."""
    placed = cluster.write(record)
    end = None if log is None else LogEnd(me.generation, log[0], EntryIndex(log[1]))
    return cluster.on.run(resume([placed], me, lambda _: end))


VOUCHES, CANNOT = Member(A, FIRST[A]), Member(A, SECOND[A])
ALONE = PartitionRecord((A,), A, LeaderEpoch(5), members(A))


@pytest.mark.rule(
    "the begin of a leader epoch", "consistency/control/election.py", "scripts/partition_records.py"
)
def test_a_broker_that_vouches_leads_again_in_a_new_epoch(cluster):
    (change,) = resumed(cluster, LED_BY_A, VOUCHES)
    assert (change.after, change.risky) == (replace(LED_BY_A, leader_epoch=LeaderEpoch(6)), False)
    assert cluster.record() == change.after


def test_a_lone_replica_that_vouches_leads_in_the_same_epoch(cluster):
    """Every write is in the kernel, and no follower waits for entries of an earlier process."""
    assert resumed(cluster, ALONE, VOUCHES) == []
    assert cluster.record() == ALONE


def test_a_broker_that_cannot_vouch_does_not_lead_if_others_are_in_sync(cluster):
    assert resumed(cluster, LED_BY_A, CANNOT) == []
    assert cluster.record() == LED_BY_A


@pytest.mark.parametrize("record", [replace(LED_BY_A, isr=members(A)), ALONE])
def test_a_broker_that_cannot_vouch_leads_its_lone_replicas_with_risk(cluster, record):
    (change,) = resumed(cluster, record, CANNOT, (7, 10))
    assert change.risky
    assert change.after.isr == (CANNOT,)
    assert change.after.leader_epoch == 8  # above every epoch in its log, too


@pytest.mark.rule(
    "the begin of a leader epoch", "consistency/control/election.py", "scripts/partition_records.py"
)
@pytest.mark.parametrize("record", [LED_BY_A, ALONE])
def test_epochs_never_fall_in_a_log_after_a_restore_of_the_store(cluster, record):
    (change,) = resumed(cluster, record, VOUCHES, (9, 10))
    assert (change.after.leader, change.after.leader_epoch) == (A, 10)


@pytest.mark.parametrize("me", [VOUCHES, CANNOT])
def test_a_broker_does_not_lead_a_replica_that_failed_to_open(cluster, me):
    assert resumed(cluster, replace(LED_BY_A, isr=members(A)), me, None) == []


def test_a_starting_broker_leaves_partitions_of_other_leaders(cluster):
    assert resumed(cluster, replace(LED_BY_A, leader=B), VOUCHES) == []


def test_the_only_isr_member_leads_after_its_leader_resigned(cluster):
    (change,) = resumed(cluster, replace(LED_BY_A, leader=None, isr=members(A)), VOUCHES)
    assert (change.after.leader, change.after.leader_epoch, change.risky) == (A, 6, False)


def test_partitions_with_other_isr_members_are_left_to_the_controller(cluster):
    assert resumed(cluster, replace(LED_BY_A, leader=None), VOUCHES) == []
