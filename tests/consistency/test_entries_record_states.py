"""The states of records, against a plain walk over single records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.entries import (
    ENTRY,
    Kind,
    RecordState,
    Table,
    aborted_rows,
    appended_at,
    record_states,
)
from spark_stream.consistency.ids import NO_TRANSACTION, Offset

entry = st.one_of(
    st.tuples(
        st.just("data"), st.integers(NO_TRANSACTION, 2), st.integers(0, 1), st.integers(1, 4)
    ),
    st.tuples(
        st.sampled_from(["commit", "abort"]), st.integers(0, 2), st.integers(0, 1), st.just(0)
    ),
)
logs = st.lists(st.lists(entry, max_size=8), max_size=3)
KINDS = {"data": Kind.DATA, "commit": Kind.COMMIT, "abort": Kind.ABORT}


def tables_of(segments: Sequence[Sequence[tuple[str, int, int, int]]]) -> list[Table]:
    tables, index, offset, ended = [], 0, 0, set()
    for segment in segments:
        rows = []
        for kind, transaction, producer, count in segment:
            if transaction != NO_TRANSACTION:
                if (transaction, producer) in ended:
                    continue  # a part ends once, and nothing follows
                if kind != "data":
                    ended.add((transaction, producer))
            rows.append((kind, transaction, producer, count))
        table = np.zeros(len(rows), ENTRY)
        for row, (kind, transaction, producer, count) in enumerate(rows):
            table[row]["entry_index"], table[row]["base_offset"] = index, offset
            table[row]["kind"], table[row]["count"] = KINDS[kind], count
            table[row]["transaction"], table[row]["producer_id"] = transaction, producer
            table[row]["appended"] = 100 * index
            index, offset = index + 1, offset + count
        tables.append(table)
    return tables


def plain(tables: Sequence[Table], high_watermark: int) -> list[tuple[RecordState, int | None]]:
    """The state and the transaction of each record."""
    rows = [row for table in tables for row in table]
    ended = {
        (int(row["transaction"]), int(row["producer_id"])): Kind(row["kind"])
        for row in rows
        if row["kind"] != Kind.DATA
    }
    found = []
    for row in rows:
        number = int(row["transaction"])
        fate = ended.get((number, int(row["producer_id"])))
        for offset in range(int(row["base_offset"]), int(row["base_offset"]) + int(row["count"])):
            if number != NO_TRANSACTION and fate is Kind.ABORT:
                state = RecordState.ABORTED
            elif offset >= high_watermark:
                state = RecordState.NOT_REPLICATED
            elif number != NO_TRANSACTION and fate is None:
                state = RecordState.OPEN
            else:
                state = RecordState.COMMITTED
            found.append((state, None if number == NO_TRANSACTION else number))
    return found


def open_parts(tables: Sequence[Table]) -> set[tuple[int, int]]:
    rows = [row for table in tables for row in table if row["transaction"] != NO_TRANSACTION]
    keys = {(int(row["transaction"]), int(row["producer_id"])) for row in rows}
    return keys - {
        (int(row["transaction"]), int(row["producer_id"]))
        for row in rows
        if row["kind"] != Kind.DATA
    }


@pytest.mark.rule("the state of a record", "consistency/entries.py")
@given(logs, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_each_record_has_the_state_that_a_walk_over_the_log_finds(segments, high, start, length):
    tables = tables_of(segments)
    judged = list(zip(tables, aborted_rows(tables), strict=True))
    runs = record_states(judged, start, start + length, Offset(high), open_parts(tables))
    found = [
        (offset, run.state, run.transaction) for run in runs for offset in range(run.first, run.end)
    ]
    every = plain(tables, high)
    assert found == [
        (offset, *every[offset]) for offset in range(start, min(start + length, len(every)))
    ]
    for one, other in itertools.pairwise(runs):  # no two runs could be one
        assert (one.end, one.state, one.transaction) != (
            other.first,
            other.state,
            other.transaction,
        )


@given(logs, st.integers(-1, 30))
def test_appended_at_returns_the_time_in_the_entrys_row(segments, index):
    tables = tables_of(segments)
    count = sum(map(len, tables))
    assert appended_at(tables, index) == (100 * index if 0 <= index < count else None)
