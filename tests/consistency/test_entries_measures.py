"""Stored bytes between offsets, against a plain count over records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Kind, Table, end_within, stored_bytes

batches = st.lists(
    st.lists(
        st.one_of(
            st.tuples(st.integers(1, 6), st.integers(1, 50)),  # records, units of 8 bytes
            st.just((0, 0)),  # a marker
        ),
        max_size=8,
    ),
    max_size=4,
)


def tables_of(segments: Sequence[Sequence[tuple[int, int]]], first: int) -> list[Table]:
    """Tables with these batches. The first record has the offset ``first``."""
    tables, entry, offset = [], 0, first
    for segment in segments:
        table, position = np.zeros(len(segment), ENTRY), 400
        for row, (count, units) in enumerate(segment):
            kind = Kind.DATA if count else Kind.COMMIT
            table[row]["entry_index"], table[row]["base_offset"] = entry, offset
            table[row]["position"], table[row]["length"] = position, 8 * units
            table[row]["count"], table[row]["kind"] = count, kind
            entry, offset, position = entry + 1, offset + count, position + 8 * units
        tables.append(table)
    return tables


def parts(segments: Sequence[Sequence[tuple[int, int]]]) -> list[int]:
    """The bytes of each record."""
    found = []
    for count, units in (batch for segment in segments for batch in segment):
        edges = [8 * units * n // count for n in range(count + 1)] if count else []
        found += [int(size) for size in np.diff(edges)]
    return found


@given(batches, st.integers(0, 5), st.integers(0, 60), st.integers(0, 60))
def test_stored_bytes_are_the_sum_of_the_records_parts(segments, first, start, length):
    sizes = [0] * first + parts(segments)
    end = start + length
    assert stored_bytes(tables_of(segments, first), start, end) == sum(sizes[start:end])


@pytest.mark.rule("the stored bytes of records", "consistency/entries.py")
@given(batches, st.integers(0, 5), st.integers(0, 60), st.integers(0, 60), st.integers(0, 2_000))
def test_a_budget_reaches_as_far_as_whole_records_fit(segments, first, start, length, budget):
    sizes = [0] * first + parts(segments)
    end = start + length
    found = end_within(tables_of(segments, first), start, end, budget)
    assert start <= found <= end
    assert sum(sizes[start:found]) <= budget
    assert found == end or sum(sizes[start : found + 1]) > budget


def test_an_empty_log_has_no_bytes_and_any_budget_reaches_the_end():
    assert stored_bytes([], 3, 9) == 0
    assert end_within([], 3, 9, 0) == 9
