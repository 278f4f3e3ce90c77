"""The offsets that a consumer sees: every level against a model that checks each offset."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import (
    CONSUMER_LEVELS,
    PRODUCER_LEVELS,
    STALLED_S,
    Bounds,
    Evicted,
    Isolation,
    Lag,
    OutOfRange,
    ReaderEnding,
    ReaderState,
    VisibleRange,
    lag_of,
    state_of,
    upper_bound,
    visible_range,
)
from tests.examples import examples

OFFSETS = st.integers(0, 40)


def bounds_of(start: int, stable: int, replicated: int, end: int, cut: int | None = None) -> Bounds:
    at = stable if cut is None else cut
    return Bounds(Offset(start), Offset(stable), Offset(replicated), Offset(end), Offset(at))


@st.composite
def any_bounds(draw) -> Bounds:
    start, *rest = sorted(draw(st.tuples(OFFSETS, OFFSETS, OFFSETS, OFFSETS)))
    return bounds_of(start, *rest, cut=draw(st.integers(0, rest[0])))


def may_see(bounds: Bounds, isolation: Isolation, offset: int) -> bool:
    """The table of docs/vocabulary.md, read aloud for one record that is in the log."""
    match isolation:
        case Isolation.READ_UNCOMMITTED:
            return offset < bounds.log_end_offset
        case Isolation.READ_REPLICATED:
            return offset < bounds.high_watermark
        case Isolation.READ_COMMITTED:
            return offset < bounds.last_stable_offset
        case Isolation.READ_ATOMIC:
            assert bounds.atomic_cut is not None
            return offset < bounds.atomic_cut


@pytest.mark.rule("the visible offsets of each isolation level", "consistency/isolation.py")
@settings(max_examples=examples(250))
@given(any_bounds(), st.sampled_from(CONSUMER_LEVELS), st.integers(0, 45), st.none() | OFFSETS)
def test_a_range_shows_what_the_model_shows(bounds, isolation, start, end):
    found = visible_range(bounds, isolation, Offset(start), None if end is None else Offset(end))
    if start > bounds.log_end_offset:
        assert found == OutOfRange(start, bounds.log_end_offset)
    elif start < bounds.log_start_offset:
        assert found == Evicted(start, bounds.log_start_offset)
    else:
        seen = set(range(found.start, found.end))
        assert seen == {
            offset
            for offset in range(start, 45 if end is None else end)
            if may_see(bounds, isolation, offset)
        }
        assert found.start == start
        assert found.count == len(seen)


@given(any_bounds())
def test_each_level_sees_no_more_than_the_one_before(bounds):
    ladder = [
        upper_bound(bounds, isolation)
        for isolation in (
            Isolation.READ_UNCOMMITTED,
            Isolation.READ_REPLICATED,
            Isolation.READ_COMMITTED,
            Isolation.READ_ATOMIC,
        )
    ]
    assert ladder == sorted(ladder, reverse=True)


def test_each_level_has_its_own_bound():
    bounds = bounds_of(2, 5, 7, 9, cut=4)
    assert {level: upper_bound(bounds, level) for level in CONSUMER_LEVELS} == {
        "read_uncommitted": 9,
        "read_replicated": 7,
        "read_committed": 5,
        "read_atomic": 4,
    }


@pytest.mark.parametrize("isolation", CONSUMER_LEVELS)
def test_a_start_above_the_bound_is_an_empty_range(isolation):
    bounds = bounds_of(0, 3, 5, 9)
    for start in range(upper_bound(bounds, isolation), 10):
        assert visible_range(bounds, isolation, Offset(start)) == VisibleRange(start, start)


@pytest.mark.parametrize("isolation", CONSUMER_LEVELS)
def test_above_leo_is_out_of_range_naming_both_numbers(isolation):
    assert visible_range(bounds_of(0, 3, 5, 9), isolation, Offset(10)) == OutOfRange(10, 9)


def test_below_the_log_start_is_evicted_naming_the_log_start():
    found = visible_range(bounds_of(4, 5, 5, 9), Isolation.READ_UNCOMMITTED, Offset(3))
    assert found == Evicted(3, 4)


def test_an_end_before_the_start_is_an_empty_range():
    found = visible_range(bounds_of(0, 9, 9, 9), Isolation.READ_COMMITTED, Offset(6), Offset(2))
    assert found == VisibleRange(6, 6)


@pytest.mark.parametrize(
    "disorder",
    [(-1, 0, 0, 0), (3, 2, 4, 5), (1, 4, 3, 5), (1, 2, 6, 5)],
    ids=["start below 0", "LSO below start", "HW below LSO", "LEO below HW"],
)
def test_bounds_out_of_order_are_a_programmers_error(disorder):
    with pytest.raises(ValueError, match="out of order"):
        bounds_of(*disorder)


def test_level_names_are_those_of_the_options():
    assert [str(each) for each in CONSUMER_LEVELS] == [
        "read_uncommitted",
        "read_replicated",
        "read_committed",
        "read_atomic",
    ]
    assert [str(each) for each in PRODUCER_LEVELS] == ["read_uncommitted", "read_committed"]


@pytest.mark.rule("the lag of a reader, and the part that is held back", "consistency/isolation.py")
@settings(max_examples=examples(250))
@given(any_bounds(), st.sampled_from(CONSUMER_LEVELS), st.integers(0, 45))
def test_lag_counts_the_records_that_the_level_shows_now_or_after_open_transactions(
    bounds, isolation, position
):
    cut_at_stable = replace(bounds, atomic_cut=bounds.last_stable_offset)
    end, high, stable = bounds.log_end_offset, bounds.high_watermark, bounds.last_stable_offset
    unread = range(position, end if isolation is Isolation.READ_UNCOMMITTED else high)
    shown = [each for each in unread if may_see(cut_at_stable, isolation, each)]
    found = lag_of(position, isolation, end, high, stable)
    assert found is not None
    assert (found.records, found.readable) == (len(unread), len(shown))


def test_lag_of_an_unknown_level_is_counted_to_the_log_end():
    assert lag_of(4, None, 15, None, None) == Lag(15, 11, 0)
    assert lag_of(4, Isolation.READ_COMMITTED, 15, None, None) is None


NONE, CLEAN, LOST = ReaderEnding
LONG = STALLED_S

TABLE = [
    # ending, members, idle, readable, held back
    (NONE, None, 0, 0, 0, ReaderState.RUNNING),
    (NONE, None, LONG, 0, 0, ReaderState.RUNNING),  # nothing to read
    (NONE, None, 0, 9, 0, ReaderState.CATCHING_UP),
    (NONE, None, LONG - 1, 9, 0, ReaderState.CATCHING_UP),  # a slow batch
    (NONE, None, LONG, 9, 0, ReaderState.STALLED),
    (NONE, None, LONG, 0, 9, ReaderState.WAITING_AT_LSO),
    (NONE, None, 0, 9, 9, ReaderState.CATCHING_UP),
    (CLEAN, None, 0, 9, 0, ReaderState.STOPPED),  # a scheduled job between two runs
    (LOST, None, 0, 0, 0, ReaderState.GONE),
    (NONE, 2, 0, 0, 0, ReaderState.RUNNING),
    (NONE, 2, LONG, 9, 0, ReaderState.STALLED),
    (NONE, 0, 0, 9, 0, ReaderState.EMPTY),
    (CLEAN, 0, LONG, 9, 0, ReaderState.EMPTY),
    (LOST, 0, 0, 9, 0, ReaderState.GONE),
    (LOST, 1, 0, 0, 0, ReaderState.RUNNING),  # another member reads its partitions
    (CLEAN, 1, 0, 9, 0, ReaderState.CATCHING_UP),
]


@pytest.mark.rule("the state of a reader", "consistency/isolation.py")
@pytest.mark.parametrize(("ending", "members", "idle_s", "readable", "held", "expected"), TABLE)
def test_state_is_the_one_of_the_table(ending, members, idle_s, readable, held, expected):
    assert state_of(ending, members, idle_s, readable, held) is expected


ANY = {
    "ending": st.sampled_from(ReaderEnding),
    "members": st.none() | st.integers(0, 3),
    "idle_s": st.floats(0, 10 * STALLED_S),
    "readable": st.integers(0, 5),
    "held_back": st.integers(0, 5),
}


@given(**ANY)
def test_states_that_need_an_operator_have_a_cause(ending, members, idle_s, readable, held_back):
    found = state_of(ending, members, idle_s, readable, held_back)
    if found is ReaderState.GONE:
        assert ending is ReaderEnding.LOST
        assert not members
    if found is ReaderState.STALLED:
        assert readable > 0
        assert idle_s >= STALLED_S
    if ending is ReaderEnding.CLEAN and not members:
        assert found in (ReaderState.STOPPED, ReaderState.EMPTY)
    assert (found is ReaderState.EMPTY) <= (members == 0)


@given(**ANY)
def test_a_reader_that_requests_records_is_never_stalled(
    ending, members, idle_s, readable, held_back
):
    found = state_of(ending, members, min(idle_s, STALLED_S - 1), readable, held_back)
    assert found is not ReaderState.STALLED
