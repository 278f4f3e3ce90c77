"""The number of entries in a segment before the next one begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, Table
from spark_stream.storage.log.retention import rows_that_fit
from spark_stream.storage.settings import LogSettings

SETTINGS = LogSettings(segment_bytes=100, segment_entries=5, segment_ms=1)
AGE_US = 1000


@dataclass(frozen=True)
class Row:
    length: int = 10
    count: int = 1
    appended: int = 0


MARKER = Row(length=0, count=0)


def table(rows: list[Row]) -> Table:
    found = np.zeros(len(rows), ENTRY)
    for name in ("length", "count", "appended"):
        found[name] = [getattr(row, name) for row in rows]
    return found


def fit(
    rows: list[Row],
    *,
    entries: int = 0,
    data_bytes: int = 0,
    first_appended: int | None = None,
    has_record: bool = False,
) -> int:
    return rows_that_fit(
        table(rows),
        SETTINGS,
        entries=entries,
        data_bytes=data_bytes,
        first_appended=first_appended,
        has_record=has_record,
    )


@given(
    rows=st.lists(
        st.builds(
            Row, st.sampled_from([0, 10, 50, 150]), st.integers(0, 2), st.integers(-1500, 2500)
        ),
        min_size=1,
        max_size=8,
    ),
    entries=st.integers(0, 6),
    data_bytes=st.sampled_from([0, 50, 90, 100, 200]),
    first_appended=st.none() | st.integers(-500, 500),
    has_record=st.booleans(),
)
@example([Row(50), Row(50)], 0, 0, None, True)
@example([Row(), Row()], 3, 0, None, True)
def test_rows_that_fit_equals_a_row_by_row_check(
    rows, entries, data_bytes, first_appended, has_record
):
    first = rows[0].appended if first_appended is None else first_appended
    took, size, records = 0, data_bytes, has_record
    for row in rows:
        size += row.length
        full = size > 100 or entries + took >= 5 or row.appended - first > AGE_US
        if full and records:
            break
        records = records or row.count > 0
        took += 1
    found = fit(
        rows,
        entries=entries,
        data_bytes=data_bytes,
        first_appended=first_appended,
        has_record=has_record,
    )
    assert found == took


def test_segment_may_reach_its_limits_exactly():
    assert fit([Row(50), Row(50), Row(1)]) == 2
    assert fit([Row()], data_bytes=90, has_record=True) == 1
    assert fit([Row()], data_bytes=91, has_record=True) == 0
    assert fit([Row()] * 7) == 5
    assert fit([Row()], entries=4, has_record=True) == 1
    assert fit([Row()], entries=5, has_record=True) == 0
    assert fit([Row(), Row(appended=AGE_US), Row(appended=AGE_US + 1)]) == 2
    assert fit([Row(appended=AGE_US)], first_appended=0, has_record=True) == 1
    assert fit([Row(appended=AGE_US + 1)], first_appended=0, has_record=True) == 0


@pytest.mark.parametrize("too_much", [Row(500), Row(appended=AGE_US + 1)], ids=["bytes", "age"])
def test_segment_without_records_accepts_a_record_beyond_its_limits(too_much):
    """The next segment would have the same base offset, and so the same name."""
    assert fit([too_much], first_appended=0) == 1
    assert fit([MARKER, too_much, too_much], first_appended=0) == 2
    assert fit([MARKER] * 7) == 7
