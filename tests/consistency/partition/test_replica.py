"""A replica's core: one fold on every replica, acknowledgements, and wake-ups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import Kind
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.effects import (
    Answer,
    Disown,
    HighWatermarkMoved,
    WaitBound,
    Wake,
    offset_of,
)
from spark_stream.consistency.partition.producers import (
    Duplicate,
    RefusalReason,
    RefusedBatch,
    Stamp,
)
from spark_stream.consistency.partition.replica import Replica
from tests.consistency.histories import STEPS, Leader, end_of, history, replica_of, table_of


def derived_state(replica: Replica) -> dict[str, Any]:
    """All that is derived from a log, in a form that can be compared."""
    extents = {}
    for block in replica.spans.snapshot().blocks:
        rows = zip(block.transactions, block.producers, block.firsts, block.lasts, strict=True)
        for number, producer_id, first, last in rows:
            known = extents.get((int(number), int(producer_id)), (int(first), int(last)))
            extents[int(number), int(producer_id)] = (
                min(known[0], int(first)),
                max(known[1], int(last)),
            )
    ends = [replica.epochs.end_of(each, replica.bounds_state.log_end) for each in range(8)]
    return {
        "producers": replica.producers,
        "open": list(replica.undecided.open()),
        "first undecided": replica.undecided.first(),
        "extents": extents,
        "epochs": ends,
    }


# -- one fold -------------------------------------------------------------------------------------


@given(STEPS, st.booleans(), st.data())
def test_a_fold_entry_by_entry_equals_derivation_from_the_tables(steps, alone, data):
    """At a leader, at a follower that takes its entries, and at a replica that opens their log."""
    leader = history(steps, followers=0 if alone else 1)
    known = derived_state(leader.replica)
    mark = leader.replica.bounds_state.high_watermark
    opened = replica_of(leader.entries, leader.now, followers=0 if alone else 1)
    opened.learn_high_watermark(mark.entry)
    assert derived_state(opened) == known
    start = data.draw(st.integers(0, len(leader.entries)))
    follower = replica_of(leader.entries[:start], leader.now, 1, leader.entries[start:])
    for entry in leader.entries[start:]:
        follower.apply(entry)
    follower.learn_high_watermark(mark.entry)
    assert derived_state(follower) == known
    assert follower.bounds_state.bounds() == leader.replica.bounds_state.bounds()


@given(STEPS, st.data())
def test_a_truncation_undoes_the_effects_of_the_removed_entries(steps, data):
    leader = history(steps, followers=1)
    low = leader.replica.bounds_state.high_watermark.entry
    kept = leader.entries[: data.draw(st.integers(low, len(leader.entries)))]
    cut = replica_of(leader.entries, leader.now, followers=1)
    cut.learn_high_watermark(low)
    cut.truncate([table_of(kept)], end_of(kept), leader.now)
    never = replica_of(kept, leader.now, followers=1)
    never.learn_high_watermark(low)
    assert derived_state(cut) == derived_state(never)
    assert cut.bounds_state.bounds() == never.bounds_state.bounds()


def test_a_truncation_below_the_high_watermark_is_a_programmers_error():
    leader = Leader()
    leader.append(3)
    with pytest.raises(ValueError, match="below the high watermark"):
        leader.replica.truncate([], end_of([]), 0)


def test_an_entry_that_does_not_follow_the_log_end_is_a_programmers_error():
    leader = Leader()
    leader.append(3)
    with pytest.raises(ValueError, match="does not follow"):
        leader.replica.apply(leader.entries[0])


def test_a_late_marker_does_not_move_a_producer_back():
    """Recovery writes it in the epoch of its branch. The producer has a later epoch by then."""
    leader = Leader()
    leader.join(10, 1)
    leader.append(1, Stamp(1, 0, 0, 10))
    leader.replica.producers.clear()  # as where damage took the marker, and the producer moved on
    leader.append(1, Stamp(1, 4, 0))
    leader.end(10, committed=True)
    assert leader.entries[-1].kind is Kind.COMMIT
    assert leader.entries[-1].producer_epoch == 0
    assert leader.replica.producers[1].epoch == 4
    assert replica_of(leader.entries, leader.now).producers == leader.replica.producers


# -- the last stable offset -----------------------------------------------------------------------


@pytest.mark.parametrize("follows", [False, True], ids=["at the leader", "at a follower"])
def test_a_transaction_is_undecided_until_its_marker_is_below_the_high_watermark(follows):
    leader = Leader(followers=1)
    leader.append(5)
    leader.join(10, 1)
    leader.append(2, Stamp(1, 0, 0, 10))
    leader.append(3)
    leader.end(10, committed=True)
    follower = replica_of(leader.entries, leader.now, followers=1)
    assert len(leader.entries) == 4
    for replicated, stable in ((1, 5), (2, 5), (3, 5), (4, 10)):
        if follows:
            follower.learn_high_watermark(EntryIndex(replicated))
        else:
            leader.replicate(replicated)
        bounds = (follower if follows else leader.replica).bounds_state.bounds()
        assert bounds.high_watermark == end_of(leader.entries[:replicated]).offset
        assert bounds.last_stable_offset == stable


def test_the_parts_of_a_transaction_end_together():
    """No reader sees one branch of it decided and another not."""
    leader = Leader()
    for producer_id in (1, 2):
        leader.join(10, producer_id)
        leader.append(1, Stamp(producer_id, 0, 0, 10))
    replica = leader.replica
    assert replica.wait(7, WaitBound.LAST_STABLE, 0)
    assert leader.end(10, committed=True) == [HighWatermarkMoved(EntryIndex(4)), Wake((7,))]
    assert replica.bounds_state.bounds().last_stable_offset == 2


# -- acknowledgements -----------------------------------------------------------------------------

OUTSIDE = Stamp(1, 0, 0)
INSIDE = Stamp(1, 0, 0, 10)


@pytest.mark.parametrize(
    ("stamp", "level", "at_once"),
    [
        (None, Isolation.READ_UNCOMMITTED, True),
        (OUTSIDE, Isolation.READ_UNCOMMITTED, True),
        (None, Isolation.READ_COMMITTED, False),
        (OUTSIDE, Isolation.READ_COMMITTED, False),
        (INSIDE, Isolation.READ_UNCOMMITTED, False),
        (INSIDE, Isolation.READ_COMMITTED, False),
    ],
)
def test_an_append_is_acknowledged_by_its_isolation_and_transaction(stamp, level, at_once):
    leader = Leader(followers=1)
    leader.join(10, 1)
    leader.append(3, stamp)
    replica = leader.replica
    assert replica.acknowledge(1, stamp, level, last_offset=2) is at_once
    if stamp is not None:  # sent again: the same rule as for the first
        verdict = replica.judge(stamp, 3)
        assert verdict == Duplicate(0, 3)
        assert replica.acknowledge(2, stamp, level, last_offset=2) is at_once
    waiting = () if at_once else (1, 2) if stamp is not None else (1,)
    expected = [Answer(waiting)] if waiting else []
    assert leader.replicate(1) == [HighWatermarkMoved(EntryIndex(1)), *expected]
    assert replica.acknowledge(3, stamp, level, last_offset=2)


@pytest.mark.parametrize("level", [Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED])
def test_a_lone_leader_acknowledges_every_append_immediately(level):
    leader = Leader()
    leader.join(10, 1)
    leader.append(3, INSIDE)
    assert leader.replica.acknowledge(1, INSIDE, level, last_offset=2)


def test_a_truncated_append_is_disowned_and_a_cancelled_one_is_never_answered():
    leader = Leader(followers=1)
    for number in range(3):
        leader.append(2)
        leader.replica.acknowledge(number, None, Isolation.READ_COMMITTED, 2 * number + 1)
    leader.replica.give_up(0)
    kept = leader.entries[:2]
    effects = leader.replica.truncate([table_of(kept)], end_of(kept), leader.now)
    assert effects == [Disown((2,))]
    assert leader.replicate(2) == [HighWatermarkMoved(EntryIndex(2)), Answer((1,))]


# -- waiting --------------------------------------------------------------------------------------

WAITS = st.lists(st.tuples(st.sampled_from(list(WaitBound)), st.integers(0, 60)), max_size=20)


@given(STEPS, WAITS, st.data())
def test_a_step_wakes_exactly_the_reads_that_it_satisfies(steps, waits, data):
    leader = Leader(followers=data.draw(st.integers(0, 1)))
    waiting: dict[int, tuple[WaitBound, int]] = {}
    woken: list[int] = []

    real = Replica._publish

    def publish(state):
        effects = real(leader.replica, state)
        for effect in effects:
            if isinstance(effect, Wake):
                woken.extend(effect.waiters)
        return effects

    leader.replica._publish = publish  # type: ignore[method-assign]
    asked = iter(enumerate(waits))
    for step in steps:
        number, (bound, offset) = next(asked, (None, (None, 0)))
        if number is not None:
            waits_now = leader.replica.wait(number, bound, offset)
            passed = offset_of(leader.replica.bounds_state.bounds(), bound) > offset
            assert waits_now is not passed
            if waits_now:
                waiting[number] = (bound, offset)
        if waiting and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(waiting)))
            leader.replica.stop_waiting(gone)
            del waiting[gone]
        woken.clear()
        leader.do(step)
        bounds = leader.replica.bounds_state.bounds()
        satisfied = {
            each for each, (bound, offset) in waiting.items() if offset_of(bounds, bound) > offset
        }
        assert sorted(woken) == sorted(satisfied)
        for each in satisfied:
            del waiting[each]


# -- joins and epochs -----------------------------------------------------------------------------


def test_a_batch_in_a_transaction_needs_a_join_of_the_present_epoch():
    leader = Leader()
    ended = RefusedBatch(RefusalReason.ENDED, 0)
    assert leader.replica.judge(INSIDE, 1) == ended
    leader.join(10, 1)
    leader.append(1, INSIDE)
    leader.lead()
    assert leader.replica.judge(Stamp(1, 0, 1, 10), 1) == ended
    leader.join(10, 1)
    assert leader.append(1, Stamp(1, 0, 1, 10)) is not None
    assert leader.replica.epochs.start_of(1) == (leader.replica.epochs.end_of(0, end_of([])))
    assert leader.replica.epochs.start_of(1).entry == EntryIndex(1)
