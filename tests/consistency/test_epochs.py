"""Where leader epochs begin and end in a log, and that this tells what was cut off."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Table
from spark_stream.consistency.epochs import EpochStarts
from spark_stream.consistency.ids import LeaderEpoch, Offset


def table(entries: list[tuple[int, int]]) -> Table:
    """Of (epoch, records) of each entry; a marker has no records."""
    found = np.zeros(len(entries), ENTRY)
    found["leader_epoch"] = [epoch for epoch, _ in entries]
    found["count"] = [count for _, count in entries]
    found["base_offset"] = np.cumsum(found["count"], dtype=np.int64) - found["count"]
    return found


def test_an_epoch_ends_where_the_next_one_with_an_entry_begins():
    starts = EpochStarts.derived([table([(0, 5), (0, 0), (2, 3), (2, 1), (5, 7)])])
    ends = [starts.end_of(epoch, Offset(16)) for epoch in range(7)]
    assert ends == [5, 5, 9, 9, 9, 16, 16]
    assert starts.last == 5


def test_an_empty_log_has_no_epoch_yet():
    assert EpochStarts.derived([table([])]).last is None
    assert EpochStarts().end_of(3, Offset(0)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=30),
    st.lists(st.integers(0, 30), max_size=5),
)
def test_what_was_kept_entry_by_entry_is_what_a_log_says_when_it_opens(steps, cuts):
    epoch, entries = 0, []
    for rise, count in steps:
        epoch += rise
        entries.append((epoch, count))
    whole = table(entries)
    starts = EpochStarts()
    for row in whole:
        starts.appended(LeaderEpoch(int(row["leader_epoch"])), Offset(int(row["base_offset"])))
    end = Offset(int(whole["count"].sum()))
    bounds = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    parts = [whole[one:two] for one, two in itertools.pairwise(bounds)]
    derived = EpochStarts.derived(parts)
    asked = range(epoch + 2)
    assert [starts.end_of(each, end) for each in asked] == [
        derived.end_of(each, end) for each in asked
    ]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_a_reader_lost_something_exactly_if_it_was_above_the_end_of_its_epoch(rounds):
    """Each round: the log grows in its epoch, a reader reads it all, then some of it is cut off."""
    entries: list[tuple[int, int]] = []  # (epoch, number of the record), one record an entry
    readers = []
    number = 0
    for epoch, (grows, cut) in enumerate(rounds):
        for _ in range(grows):
            entries.append((epoch, number))
            number += 1
        readers.append((epoch, list(entries)))
        del entries[len(entries) - min(cut, len(entries)) :]
    starts = EpochStarts.derived([table([(epoch, 1) for epoch, _ in entries])])
    for epoch, read in readers:
        same = 0
        while same < min(len(read), len(entries)) and read[same] == entries[same]:
            same += 1
        end = starts.end_of(epoch, Offset(len(entries)))
        assert (len(read) > end) == (same < len(read))
        assert min(len(read), end) == same
