"""A replica's core as a leader of followers, and as a follower of a leader."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.effects import (
    Abandon,
    Answer,
    Effects,
    HighWatermarkMoved,
    ProposeIsr,
    WaitBound,
    Wake,
)
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.partition.progress import IsrSettings
from spark_stream.consistency.partition.replica import Replica, ReplicaLookups
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import Agreement, LeaderAnswer, Refusal
from tests.consistency.histories import AGE, START, Leader, end_of, table_of

A, B, C = (Member(broker, "1") for broker in "abc")
ALIVE = {"a": "1", "b": "1", "c": "1"}
NOTHING = EpochHistory(0, 0, ())


def led(*members: Member, replicas: str = "abc", epoch: int = 1) -> PartitionRecord:
    return PartitionRecord(tuple(replicas), "a", epoch, members)


class Partition(Leader):
    """A leader with the entries of its log, its followers' sessions, and its effects."""

    def __init__(self, record: PartitionRecord | None = None, **settings: Any) -> None:
        super().__init__(followers=1)
        lookups = ReplicaLookups(lambda entry: end_of(self.entries[:entry]), ALIVE.get)
        self.replica = Replica([], START, START, 0, AGE, 1, lookups=lookups)
        self.replica.configure(IsrSettings(**settings), 0)
        if record is not None:
            self.replica.lead_replicas(A, record, 1, 0)

    def follow(self, member: Member, history: EpochHistory = NOTHING) -> int:
        agreed, _ = self.replica.follower_started(
            member, self.replica.leader_epoch, history, self.now
        )
        assert isinstance(agreed, LeaderAnswer)
        return agreed.session

    @property
    def high(self) -> int:
        return self.replica.bounds_state.high_watermark.entry


def without_isr(effects: Effects) -> Effects:
    return [each for each in effects if not isinstance(each, ProposeIsr)]


# -- leading --------------------------------------------------------------------------------------


def test_an_append_is_acknowledged_once_the_slowest_in_sync_replica_has_it():
    leader = Partition(led(A, B, C))
    sessions = [leader.follow(each) for each in (B, C)]
    leader.append(3)
    replica = leader.replica
    assert not replica.acknowledge(7, None, Isolation.READ_COMMITTED, 2)
    assert replica.follower_acked(sessions[0], 1, 1) == []
    assert replica.follower_acked(sessions[1], 1, 1) == [HighWatermarkMoved(1), Answer((7,))]
    assert replica.bounds_state.bounds().high_watermark == 3


def test_the_high_watermark_between_two_entries_is_found_in_the_log():
    leader = Partition(led(A, B))
    session = leader.follow(B)
    for count in (2, 3, 4):
        leader.append(count)
    leader.replica.follower_acked(session, 2, 1)
    assert leader.replica.bounds_state.high_watermark == Boundary(2, 5)


def test_an_only_member_replicates_an_append_immediately():
    leader = Partition(led(A))
    assert leader.append(3) == [HighWatermarkMoved(1)]
    assert leader.high == 1


@pytest.mark.rule(
    "appends that wait for the ISR, and refusals with too few in-sync replicas",
    "consistency/partition/replica.py",
)
def test_too_few_in_sync_replicas_refuse_only_appends_that_wait_for_replication():
    leader = Partition(led(A), min_insync=2)
    replica = leader.replica
    inside = Stamp(1, 0, 0, 10)
    assert replica.has_enough_replicas(None, Isolation.READ_UNCOMMITTED)
    assert not replica.has_enough_replicas(None, Isolation.READ_COMMITTED)
    assert not replica.has_enough_replicas(inside, Isolation.READ_UNCOMMITTED)
    leader.append(3)
    assert leader.high == 0
    assert replica.isr_changed(led(A, B), 2, 1) == []
    assert replica.has_enough_replicas(inside, Isolation.READ_COMMITTED)


def test_a_setting_that_allows_fewer_replicas_moves_the_high_watermark():
    leader = Partition(led(A), min_insync=2)
    leader.append(3)
    assert leader.replica.configure(IsrSettings(min_insync=1), 1) == [HighWatermarkMoved(1)]


def test_high_watermark_waits_for_a_follower_once_it_is_proposed():
    leader = Partition(led(A))
    leader.append(3)
    session = leader.follow(B)
    assert leader.replica.follower_acked(session, 1, 1) == [ProposeIsr((A, B), 1)]
    leader.append(1)
    assert leader.high == 1
    leader.replica.isr_changed(led(A, B), 2, 1)
    assert leader.replica.follower_acked(session, 2, 1) == [HighWatermarkMoved(2)]


def test_a_lagging_member_is_removed_and_appends_are_acknowledged_without_it():
    leader = Partition(led(A, B), lag_max_us=640)
    leader.follow(B)
    leader.append(3)
    replica = leader.replica
    assert not replica.acknowledge(7, None, Isolation.READ_COMMITTED, 2)
    due = replica.tick_due()
    assert due is not None
    assert replica.tick(due - 20) == []
    assert replica.tick(due) == [ProposeIsr((A,), 1)]
    assert replica.isr_changed(led(A), 2, due) == [HighWatermarkMoved(1), Answer((7,))]


def test_a_refused_proposal_is_repeated_on_the_present_record():
    leader = Partition(led(A, B), lag_max_us=640)
    leader.append(3)
    assert leader.replica.tick(10_000) == [ProposeIsr((A,), 1)]
    assert leader.replica.isr_refused(1, led(A, B, C), 5, 10_000) == [ProposeIsr((A,), 5)]


@pytest.mark.rule("the high watermark of a new leader", "consistency/partition/replica.py")
def test_a_new_leaders_high_watermark_is_unknown_until_its_inherited_entries_are_replicated():
    leader = Partition()
    for _ in range(3):
        leader.append(2)
    replica = leader.replica
    replica.learn_high_watermark(1)
    replica.lead_replicas(A, led(A, B), 1, 0)
    session = leader.follow(B)
    assert (leader.high, replica.hw_known) == (1, False)
    leader.append(1)
    replica.follower_acked(session, 2, 1)
    assert (leader.high, replica.hw_known) == (2, False)
    replica.follower_acked(session, 3, 1)
    assert (leader.high, replica.hw_known) == (3, True)


def test_a_lone_leaders_high_watermark_is_known_immediately():
    leader = Partition()
    leader.append(2)
    effects = leader.replica.lead_replicas(A, led(A), 1, 0)
    assert without_isr(effects) == [HighWatermarkMoved(1)]
    assert leader.replica.hw_known


@pytest.mark.parametrize(
    ("epoch", "member", "refusal"),
    [
        (0, B, Refusal.FENCED),
        (2, B, Refusal.UNKNOWN_EPOCH),
        (1, Member("z", "1"), Refusal.NOT_A_REPLICA),
        (1, A, Refusal.NOT_A_REPLICA),
    ],
)
def test_a_follower_of_another_epoch_and_a_broker_without_a_replica_are_refused(
    epoch, member, refusal
):
    leader = Partition(led(A, B))
    assert leader.replica.follower_started(member, epoch, NOTHING, 0) == (refusal, [])


def test_a_broker_that_does_not_lead_refuses_followers():
    other = Partition()
    assert other.replica.follower_started(B, 0, NOTHING, 0) == (Refusal.NOT_LEADING, [])


def test_a_follower_gets_the_end_of_the_common_part_and_the_high_watermark():
    leader = Partition(led(A, B))
    for _ in range(4):
        leader.append(1)
    longer = EpochHistory(0, 9, ((0, 0),))
    agreed, _ = leader.replica.follower_started(B, 1, longer, 0)
    assert agreed == LeaderAnswer(0, Agreement(1, 0, 0))
    same = EpochHistory(0, 2, ((1, 0),))
    agreed, effects = leader.replica.follower_started(B, 1, same, 0)
    assert agreed == LeaderAnswer(1, Agreement(1, 2, 0))
    assert effects == [HighWatermarkMoved(2)]


def test_a_follower_behind_the_log_start_begins_there_without_progress():
    leader = Partition(led(A))
    for _ in range(4):
        leader.append(1)
    leader.replica.evict(Boundary(3, 3))
    agreed, effects = leader.replica.follower_started(B, 1, EpochHistory(0, 2, ((1, 0),)), 0)
    assert agreed == LeaderAnswer(0, Agreement(1, 3, 4, begin=Boundary(3, 3)))
    assert effects == []
    assert leader.replica.progress.acked(B) == 0


@pytest.mark.parametrize(
    ("in_sync", "begin"),
    [
        (True, None),  # it has all that is committed
        (False, Boundary(2, 2)),  # it may have something else
    ],
)
def test_an_in_sync_follower_that_ends_at_its_leaders_log_start_keeps_its_log(in_sync, begin):
    others = [B, C] if in_sync else [C]
    leader = Partition(led(A, *others))
    same = EpochHistory(0, 2, ((1, 0),))
    for _ in range(2):
        leader.append(1)
    for member in others:
        session = leader.follow(member, same)
        leader.replica.follower_acked(session, 2, 0)
    leader.replica.evict(Boundary(2, 2))
    for _ in range(2):
        leader.append(1)
    agreed, _ = leader.replica.follower_started(B, 1, same, 0)
    assert agreed == LeaderAnswer(len(others), Agreement(1, 2, 2, begin=begin))
    assert leader.high == 2


@pytest.mark.parametrize(
    ("in_sync", "begin"),
    [
        (True, None),
        (False, Boundary(0, 0)),  # committed entries may have been lost here, and others written
    ],
)
def test_an_in_sync_follower_keeps_its_log_after_it_evicted_the_common_part(in_sync, begin):
    others = [B, C] if in_sync else [C]
    leader = Partition(led(A, *others))
    for _ in range(3):
        leader.append(1)
    for member in others:
        session = leader.follow(member, EpochHistory(0, 3, ((1, 0),)))
        leader.replica.follower_acked(session, 3, 0)
    agreed, _ = leader.replica.follower_started(B, 1, EpochHistory(2, 2, ()), 0)
    assert agreed == LeaderAnswer(len(others), Agreement(1, 0 if begin else 2, 3, begin=begin))


def test_an_acknowledgement_past_the_log_end_is_an_error():
    leader = Partition(led(A, B))
    session = leader.follow(B)
    with pytest.raises(ValueError, match="past the log end"):
        leader.replica.follower_acked(session, 1, 0)


# -- ceasing to lead ------------------------------------------------------------------------------


def test_a_leader_that_steps_down_abandons_appends_and_wakes_reads():
    leader = Partition(led(A, B))
    leader.append(3)
    leader.join(10, 1)
    replica = leader.replica
    replica.acknowledge(7, None, Isolation.READ_COMMITTED, 2)
    assert replica.wait(8, WaitBound.HIGH_WATERMARK, 0)
    assert replica.follow(2) == [Abandon((7,)), Wake((8,))]
    assert (10, 1) not in replica.joins
    assert replica.follower_acked(0, 1, 0) == replica.tick(10**9) == []
    assert not replica.hw_known
    leader.append(1)
    assert leader.high == 0


def test_reports_of_an_earlier_epochs_session_move_nothing():
    leader = Partition(led(A, B))
    session = leader.follow(B)
    leader.append(3)
    leader.replica.lead_replicas(A, led(A, B, epoch=3), 5, 0)
    assert leader.replica.follower_acked(session, 1, 0) == []
    assert leader.high == 0


def test_epochs_never_fall():
    leader = Partition(led(A, B, epoch=4))
    with pytest.raises(ValueError, match="never fall"):
        leader.replica.follow(3)
    with pytest.raises(ValueError, match="never fall"):
        leader.replica.lead_replicas(A, led(A, B, epoch=3), 9, 0)


# -- following ------------------------------------------------------------------------------------


def test_a_followers_high_watermark_is_its_leaders_up_to_its_log_end():
    leader, taker = Partition(led(A)), Partition()
    for _ in range(3):
        leader.append(2)
    taker.replica.follow(1)
    taker.entries = leader.entries[:2]
    taker.replica.append_replicated(taker.entries, 3)
    assert taker.replica.bounds_state.high_watermark == Boundary(2, 4)
    taker.replica.learn_high_watermark(1)
    assert taker.high == 2


def test_a_follower_accepts_the_leaders_decisions_on_producers():
    """A follower checks no sequence: it folds the leader's entries."""
    leader, taker = Partition(led(A)), Partition()
    for sequence in (0, 1, 2):
        leader.append(1, Stamp(1, 0, sequence))
    taker.entries = [leader.entries[0], *leader.entries[1:]]
    taker.replica.append_replicated(taker.entries, 3)
    assert taker.replica.producers == leader.replica.producers


def test_a_truncation_below_the_high_watermark_needs_lost_records():
    taker = Partition()
    for _ in range(3):
        taker.append(2)
    taker.replica.learn_high_watermark(3)
    kept = taker.entries[:1]
    with pytest.raises(ValueError, match="below the high watermark"):
        taker.replica.truncate([table_of(kept)], end_of(kept), 0)
    taker.replica.truncate([table_of(kept)], end_of(kept), 0, lost=True)
    assert taker.replica.bounds_state.bounds().high_watermark == 2


def test_a_follower_with_an_emptied_log_drops_its_derived_state():
    taker = Partition()
    taker.append(1, Stamp(1, 0, 0))
    taker.replica.reset(Boundary(40, 90), 0)
    bounds = taker.replica.bounds_state.bounds()
    assert (bounds.log_start_offset, bounds.log_end_offset) == (90, 90)
    assert taker.replica.producers == {}
    assert taker.replica.history().epochs == ()
    entry = replace(taker.entries[0], entry_index=40, base_offset=90)
    taker.replica.append_replicated([entry], 0)
    assert taker.replica.bounds_state.log_end == Boundary(41, 91)
