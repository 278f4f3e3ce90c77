"""A follower's reaction to its leader's answer, the frames that it takes, and its reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.replication.bounds import Boundary, BoundsState
from spark_stream.consistency.replication.follower import (
    Agreement,
    Continue,
    Refusal,
    Spot,
    StartOver,
    Take,
    Truncate,
    diverged,
    judge_frame,
    may_answer,
    nearest,
    preparation,
)
from tests.examples import examples

EPOCH = 5


def at(entry: int) -> Boundary:
    return Boundary(entry, 10 * entry)


def log(start: int, high: int, end: int) -> BoundsState:
    return BoundsState(EPOCH, at(start), at(end), at(high), followers=1)


def agreed(entry: int, begin: int | None = None, epoch: int = EPOCH) -> Agreement:
    return Agreement(epoch, entry, 0, None if begin is None else at(begin))


@pytest.mark.rule(
    "the truncation of a follower, and the frames that it takes",
    "consistency/replication/follower.py",
    "consistency/replication/epochs.py",
)
@pytest.mark.parametrize(
    ("state", "answer", "plan"),
    [
        (log(0, 3, 7), agreed(7), Continue()),
        (log(0, 3, 7), agreed(5), Truncate(5)),
        (log(0, 3, 7), agreed(3), Truncate(3)),
        (log(0, 3, 7), agreed(2), Truncate(2, lost_from=2)),
        (log(0, 3, 7), agreed(9, begin=9), StartOver(at(9))),
        (log(0, 3, 7), agreed(3, begin=3), StartOver(at(3))),
        (log(0, 3, 7), agreed(2, begin=2), StartOver(at(2), lost_from=2)),
        (log(4, 6, 7), agreed(0, begin=0), StartOver(at(0), lost_from=4)),
        (log(4, 4, 7), agreed(0, begin=0), StartOver(at(0))),
        (log(4, 4, 4), agreed(4, begin=4), Continue()),
        (log(4, 4, 4), agreed(0, begin=0), StartOver(at(0))),
        (log(0, 0, 0), agreed(0), Continue()),
        (log(0, 3, 7), agreed(7, epoch=4), Refusal.FENCED),
        (log(0, 3, 7), agreed(7, epoch=6), Refusal.UNKNOWN_EPOCH),
    ],
)
def test_a_follower_truncates_surplus_entries_and_reports_lost_ones(state, answer, plan):
    assert preparation(state, answer) == plan


def test_a_leader_cannot_share_more_than_the_follower_has():
    with pytest.raises(ValueError, match="past the log end"):
        preparation(log(0, 3, 7), agreed(8))


@pytest.mark.parametrize(
    ("epoch", "first", "count", "verdict"),
    [
        (5, 7, 3, Take()),
        (5, 7, 0, Take()),
        (5, 5, 4, Take(skip=2)),
        (5, 3, 2, Take(skip=2)),
        (5, 8, 1, Refusal.GAP),
        (4, 7, 3, Refusal.FENCED),
        (6, 7, 3, Refusal.UNKNOWN_EPOCH),
        (4, 8, 1, Refusal.FENCED),
    ],
)
def test_a_frame_is_taken_where_the_log_ends_and_in_its_own_epoch(epoch, first, count, verdict):
    assert judge_frame(EPOCH, 7, epoch, first, count) == verdict


def test_a_log_with_another_history_starts_again():
    """The same entry index has other offsets: other replicas lost the entries that it had
    evicted."""
    assert diverged(at(7), 70) is None
    assert diverged(at(7), 69) == StartOver(at(0), lost_from=0)


A, B, C, D = (BrokerId(name) for name in "abcd")
G = Generation("g")
SPOTS = {
    A: Spot("east", "machine-1"),
    B: Spot("west", "machine-2"),
    C: Spot("west", "machine-3"),
    D: Spot(),
}


def record(leader: BrokerId | None, *isr: BrokerId) -> PartitionRecord:
    return PartitionRecord((A, B, C, D), leader, LeaderEpoch(7), tuple(Member(b, G) for b in isr))


@pytest.mark.parametrize(
    ("leader", "isr", "reader", "found"),
    [
        (A, (A, B, C), Spot("west"), B),
        (A, (A, B, C), Spot("west", "machine-3"), C),
        (A, (A, B, C), Spot("west", "machine-1"), B),  # the rack counts first
        (B, (A, B, C), Spot("west", "machine-3"), C),
        (B, (A, B, C), Spot("west", "machine-2"), None),
        (B, (A, B, C), Spot("west"), None),  # the leader wins
        (A, (A, D), Spot("west"), None),
        (A, (A, B, C), Spot(None, "machine-2"), None),  # a reader without a rack reads at leaders
        (A, (A, C), Spot("west", "machine-2"), C),  # no reads at a replica outside the ISR
        (None, (B, C), Spot("west"), None),
    ],
)
def test_a_reader_reads_at_an_isr_member_in_its_rack(leader, isr, reader, found):
    assert nearest(record(leader, *isr), SPOTS, reader) == found


@pytest.mark.rule(
    "reads at a follower",
    "consistency/replication/follower.py",
)
@given(
    leader=st.sampled_from([A, B, C, None]),
    isr=st.sets(st.sampled_from([A, B, C]), min_size=1),
    me=st.builds(Member, st.sampled_from([A, B, C]), st.sampled_from([G, Generation("old")])),
    epoch=st.integers(6, 8),
    rack=st.sampled_from(["east", "west", None]),
)
@settings(max_examples=examples(300))
def test_only_a_follower_in_sync_and_in_the_epoch_on_record_answers(leader, isr, me, epoch, rack):
    found = record(leader, *isr)
    answers = may_answer(found, me, LeaderEpoch(epoch))
    in_sync = me.broker in isr and me.generation == G
    assert answers == (in_sync and epoch == 7 and me.broker != leader)
    asked = nearest(found, SPOTS, Spot(rack))
    assert asked is None or may_answer(found, Member(asked, G), LeaderEpoch(7))
