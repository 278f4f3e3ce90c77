"""Sharing out a limit: exact, in proportion, and without starvation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.datasource.values.limits import limited_records, share_bytes, share_records
from spark_stream.datasource.values.offsets import TopicOffsets

backlogs = st.dictionaries(st.integers(0, 20), st.integers(0, 10**9), max_size=20)
limits = st.integers(1, 10**9) | st.integers(1, 30)


def test_small_partitions_get_the_share_of_kafkas_source() -> None:
    assert share_records({"a": 101, "b": 11, "c": 1}, 10) == {"a": 8, "b": 1, "c": 1}
    assert share_records({"a": 100, "b": 1, "c": 1}, 3) == {"a": 1, "b": 1, "c": 1}
    assert share_records({"a": 900, "b": 100, "c": 0}, 100) == {"a": 90, "b": 10, "c": 0}


@given(backlogs, limits, st.integers(0, 1 << 62))
def test_the_sum_is_the_limit_or_the_whole_backlog(
    backlog: dict[int, int], limit: int, turn: int
) -> None:
    taken = share_records(backlog, limit, turn)
    assert list(taken) == list(backlog)
    assert all(0 <= share <= backlog[key] for key, share in taken.items())
    assert sum(taken.values()) == min(limit, sum(backlog.values()))


@given(backlogs, limits)
def test_every_partition_with_a_backlog_gets_a_share_if_the_limit_allows(
    backlog: dict[int, int], limit: int
) -> None:
    waiting = [key for key, size in backlog.items() if size]
    if limit >= len(waiting):
        taken = share_records(backlog, limit)
        assert all(taken[key] for key in waiting)
        # In proportion otherwise: no partition gets more than that, rounded up, or less for more.
        total = sum(backlog.values())
        for key in waiting:
            assert (taken[key] - 1) * total < backlog[key] * max(limit, 1) or total <= limit
            assert all(
                taken[key] >= taken[each] for each in waiting if backlog[each] < backlog[key]
            )


@pytest.mark.rule("the division of a micro-batch's limit", "datasource/values/limits.py")
@given(st.data(), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_no_partition_starves_where_the_limit_is_smaller_than_their_number(
    data: st.DataObject, partitions: int, limit: int, turn: int
) -> None:
    """Records arrive at any time. A partition that waits for a whole round of turns gets one."""
    patience = -(-partitions // limit)
    left = dict.fromkeys(range(partitions), 0)
    waited = dict.fromkeys(left, 0)
    for _ in range(20):
        for key in left:
            left[key] += data.draw(st.integers(0, 2))
        taken = share_records(left, limit, turn)
        turn += sum(taken.values())
        if sum(taken.values()) < limit:
            waited = dict.fromkeys(left, 0)
        for key in left:
            waited[key] = 0 if taken[key] or not left[key] else waited[key] + 1
            left[key] -= taken[key]
        assert max(waited.values()) < patience, (left, taken)


def test_a_batch_that_is_planned_again_comes_out_the_same_and_the_next_one_moves_on() -> None:
    """Three partitions, two topics, one record per batch: the turn depends on offsets alone."""

    def at(*offsets: int) -> TopicOffsets:
        return TopicOffsets("id", dict(enumerate(offsets)), {})

    ends = {"a": at(50, 40), "b": at(30)}
    begin, seen = {"a": at(7, 3), "b": at(0)}, []
    for _ in range(6):
        following = limited_records(begin, ends, 1)
        assert limited_records(begin, ends, 1) == following
        seen.append((*following["a"].offsets.values(), *following["b"].offsets.values()))
        begin = following
    assert seen[2] == (8, 4, 1)
    assert seen[5] == (9, 5, 2)


@given(st.dictionaries(st.integers(0, 8), st.integers(1, 50), min_size=1), st.integers(1, 5))
def test_every_backlog_is_drained_in_the_end(backlog: dict[int, int], limit: int) -> None:
    left, rounds = dict(backlog), 0
    while any(left.values()):
        taken = share_records(left, limit, rounds * limit)
        left = {key: left[key] - share for key, share in taken.items()}
        rounds += 1
    assert rounds == -(-sum(backlog.values()) // limit)


sizes = st.dictionaries(
    st.integers(0, 20),
    st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)).map(lambda pair: (max(pair), min(pair)))
    | st.just((0, 0)),
    max_size=20,
)


@given(sizes, limits, st.integers(0, 1 << 62))
def test_bytes_stay_below_their_limit_unless_one_record_alone_is_larger(
    backlog: dict[int, tuple[int, int]], limit: int, turn: int
) -> None:
    given_ = share_bytes(backlog, limit, turn)
    assert list(given_) == list(backlog)
    assert share_bytes(backlog, limit, turn) == given_
    assert all(0 <= share <= backlog[key][0] for key, share in given_.items())
    served = {key: share for key, share in given_.items() if share}
    assert all(share >= backlog[key][1] for key, share in served.items())
    if any(size for size, _ in backlog.values()):
        assert served
    if sum(given_.values()) > limit:
        ((key, share),) = served.items()
        assert share == backlog[key][1]
    for key, (size, first) in backlog.items():
        if size and not given_[key]:
            assert first > limit - sum(backlog[each][1] for each in served)


def test_a_record_above_the_limit_gets_its_turn_though_others_never_end() -> None:
    """With batches of two records, a turn by their number would never reach partition 2."""
    turns = (share_bytes({0: (10**6, 10), 1: (500, 500)}, 100, 2 * n)[1] for n in range(1000))
    assert any(turns)
