"""The begin and end of leader epochs in a log, and the common part of two replicas."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Table
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochHistory, EpochStarts, agreement


def at(entry: int, offset: int) -> Boundary:
    return Boundary(EntryIndex(entry), Offset(offset))


def table(entries: list[tuple[int, int]]) -> Table:
    """Of (epoch, records) of each entry. A marker has no records."""
    found = np.zeros(len(entries), ENTRY)
    found["leader_epoch"] = [epoch for epoch, _ in entries]
    found["count"] = [count for _, count in entries]
    found["entry_index"] = np.arange(len(entries))
    found["base_offset"] = np.cumsum(found["count"], dtype=np.int64) - found["count"]
    return found


def test_an_epoch_ends_where_the_next_one_with_an_entry_begins():
    starts = EpochStarts.derived([table([(0, 5), (0, 0), (2, 3), (2, 1), (5, 7)])])
    ends = [starts.end_of(epoch, at(5, 16)) for epoch in range(7)]
    assert ends == [at(2, 5), at(2, 5), *[at(4, 9)] * 3, *[at(5, 16)] * 2]
    assert starts.last == 5


def test_an_epoch_starts_at_its_first_entry_or_nowhere():
    starts = EpochStarts.derived([table([(0, 5), (0, 0), (2, 3), (2, 1), (5, 7)])])
    assert [starts.start_of(epoch) for epoch in (0, 2, 5)] == [at(0, 0), at(2, 5), at(4, 9)]
    assert [starts.start_of(epoch) for epoch in (1, 3, 4, 6)] == [None] * 4


def test_an_empty_log_has_no_epoch_yet():
    assert EpochStarts.derived([table([])]).last is None
    assert EpochStarts().end_of(3, at(0, 0)) == at(0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    st.lists(st.integers(0, 30), max_size=5),
)
def test_epochs_kept_entry_by_entry_equal_derived_ones(steps, cuts):
    epoch, entries = 0, []
    for rise, count in steps:
        epoch += rise
        entries.append((epoch, count))
    whole = table(entries)
    starts = EpochStarts()
    for row in whole:
        place = at(int(row["entry_index"]), int(row["base_offset"]))
        starts.on_appended(LeaderEpoch(int(row["leader_epoch"])), place)
    end = at(len(whole), int(whole["count"].sum()))
    bounds = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    parts = [whole[one:two] for one, two in itertools.pairwise(bounds)]
    derived = EpochStarts.derived(parts)
    asked = range(epoch + 2)
    assert [starts.end_of(each, end) for each in asked] == [
        derived.end_of(each, end) for each in asked
    ]


def test_a_record_is_of_the_last_epoch_that_begins_below_its_end():
    starts = EpochStarts.derived([table([(0, 5), (1, 0), (2, 3), (2, 1), (5, 7)])])
    found = [starts.before(Offset(offset)) for offset in (0, 1, 5, 6, 9, 10, 16, 99)]
    first, third, fifth = (0, at(0, 0)), (2, at(2, 5)), (5, at(4, 9))
    assert found == [None, first, first, third, third, fifth, fifth, fifth]


# -- what two replicas share ----------------------------------------------------------------------

Log = list[tuple[int, int]]
"""Of each entry its epoch, and a number that no other entry has."""


def shared(one: Log, other: Log) -> int:
    """The number of equal first entries."""
    both = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in both if a != b), min(len(one), len(other)))


def told(log: Log, start: int) -> EpochHistory:
    starts = EpochStarts.derived([table([(epoch, 1) for epoch, _ in log])])
    return starts.history(EntryIndex(start), EntryIndex(len(log)))


TERM = st.tuples(
    st.integers(0, 2),  # the leader
    st.integers(0, 3),  # the number of its entries
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=3),  # replicas
)


@given(st.lists(TERM, max_size=8), st.tuples(st.integers(0, 2), st.integers(0, 2)), st.data())
def test_agreement_is_the_end_of_equal_entries(terms, pair, data):
    """Leaders come and go, some epochs reach one replica only, and retention takes the starts.

    A leader may be behind here: the agreement must hold nevertheless.
    """
    logs: list[Log] = [[], [], []]
    number = 0
    for epoch, (who, appends, takes) in enumerate(terms):
        above = max((entry[0] for entry in logs[who]), default=-1)
        if above >= epoch:
            continue
        for _ in range(appends):
            logs[who].append((epoch, number))
            number += 1
        for follower, most in takes:
            if follower == who:
                continue
            same = shared(logs[follower], logs[who])
            logs[follower] = logs[who][: max(same, min(most, len(logs[who])))]
    one, other = (logs[each] for each in pair)
    starts = [data.draw(st.integers(0, len(log))) for log in (one, other)]
    same, low = shared(one, other), max(starts)
    expected = same if same > low or low == 0 else None
    assert agreement(told(one, starts[0]), told(other, starts[1])) == expected
    assert agreement(told(other, starts[1]), told(one, starts[0])) == expected


def test_epochs_of_only_one_log_do_not_hide_the_common_part():
    """The follower led epoch 2 alone, the leader epochs 1 and 3: they share epoch 0's start."""
    follower = EpochHistory(0, 7, [(0, 0), (2, 5)])
    leader = EpochHistory(0, 9, [(0, 0), (1, 3), (3, 6)])
    assert agreement(follower, leader) == 3


def test_a_common_epoch_ends_where_it_ends_in_the_first_log():
    follower = EpochHistory(0, 8, [(0, 0), (1, 4)])
    leader = EpochHistory(0, 9, [(0, 0), (1, 4), (2, 6)])
    assert agreement(follower, leader) == 6


def test_an_epoch_at_other_indexes_is_not_shared():
    """Retention removed any common part: its follower begins at the leader's start."""
    follower = EpochHistory(0, 3, [(0, 0)])
    leader = EpochHistory(5, 9, [(0, 5), (1, 7)])
    assert agreement(follower, leader) is None


def test_empty_logs_share_their_start():
    assert agreement(EpochHistory(0, 0, []), EpochHistory(0, 4, [(1, 0)])) == 0
