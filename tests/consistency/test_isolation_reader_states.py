"""The state of a reader, by a table: no clock, no broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.isolation import STALLED_S, ReaderEnding, ReaderState, state_of

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
