"""Which replica a reader asks, and which follower may answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, Generation, LeaderEpoch
from spark_stream.consistency.replication.follower import Spot, may_answer, nearest
from tests.examples import examples

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
        (A, (A, B, C), Spot(None, "machine-2"), None),  # who names no rack asks leaders
        (A, (A, C), Spot("west", "machine-2"), C),  # who is not in sync is not asked
        (None, (B, C), Spot("west"), None),
    ],
)
def test_a_reader_asks_a_member_of_the_isr_in_its_rack(leader, isr, reader, found):
    assert nearest(record(leader, *isr), SPOTS, reader) == found


@pytest.mark.rule(
    "which follower may answer a reader, and which one a reader asks",
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
