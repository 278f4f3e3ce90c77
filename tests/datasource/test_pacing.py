"""Sharing out a limit: exact, in proportion, and no partition starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_stream.datasource.pacing import shared_out

backlogs = st.dictionaries(st.integers(0, 20), st.integers(0, 10**9), max_size=20)


@given(backlogs, st.integers(1, 10**9))
def test_the_sum_is_the_limit_or_the_whole_backlog(backlog: dict[int, int], limit: int) -> None:
    taken = shared_out(backlog, limit)
    assert taken.keys() == backlog.keys()
    assert sum(taken.values()) == min(limit, sum(backlog.values()))


@given(backlogs, st.integers(1, 10**9))
def test_each_share_is_within_one_record_of_its_proportion(
    backlog: dict[int, int], limit: int
) -> None:
    total = sum(backlog.values())
    for key, share in shared_out(backlog, limit).items():
        assert 0 <= share <= backlog[key]
        if total > limit:
            assert abs(share * total - backlog[key] * limit) < total


@given(st.dictionaries(st.integers(0, 8), st.integers(1, 50), min_size=1), st.integers(1, 5))
def test_every_backlog_is_drained_in_the_end(backlog: dict[int, int], limit: int) -> None:
    left = dict(backlog)
    rounds = 0
    while any(left.values()):
        left = {key: left[key] - share for key, share in shared_out(left, limit).items()}
        rounds += 1
    assert rounds == -(-sum(backlog.values()) // limit)
