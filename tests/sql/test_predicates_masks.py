"""A filter's mask equals the verdict of plain Python for every row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.pruning import Batches, Extremes, Keys
from spark_stream.sql.filters import row_filter
from spark_stream.storage.format.min_max import Layout
from tests.sql.predicates import VALUES, predicates, rows_of, schema_of

NAMES = list(VALUES)
SCHEMA = schema_of(tuple(NAMES))


@pytest.mark.rule("filter semantics: types, nulls, NaN", "sql/comparisons.py", "sql/predicates.py")
@given(predicates(NAMES), rows_of(NAMES, 6))
def test_mask_equals_the_verdict_of_plain_python(said, rows):
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    mask = row_filter(said.sql, "t", SCHEMA).bound.mask(batch.column)
    found = [mask.as_py()] * len(rows) if isinstance(mask, pa.Scalar) else mask.to_pylist()
    assert found == [said.of(row) for row in rows]


@pytest.mark.rule("the batches that a filtered read skips by min/max", "consistency/pruning.py")
@given(predicates(NAMES), st.lists(rows_of(NAMES, 3), min_size=1, max_size=4))
def test_a_batch_with_a_match_is_never_skipped(said, batches):
    layout = Layout(SCHEMA)
    described = [
        layout.described(pa.RecordBatch.from_pylist(rows, SCHEMA), layout.names) for rows in batches
    ]
    extremes = _known(layout, described, [len(rows) for rows in batches])
    found = row_filter(said.sql, "t", SCHEMA).can_match(Batches(len(batches), extremes))
    for may, rows in zip(found.tolist(), batches, strict=True):
        assert may or not any(said.of(row) is True for row in rows)


def _known(layout, described, counts):
    """The statistics of each batch, by column."""
    rows = np.zeros(len(described), layout.row)
    rows["columns"], rows["records"] = np.stack(described), counts
    owners = np.arange(len(described))

    def of(name):
        if name not in layout.names:
            return Extremes.unknown(len(described))
        return layout.extremes(rows, owners, name)

    return of


NUMBERS = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.struct({"n": pa.int64()}))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 4", [False, True, False]),
        ("n < 3", [True, False, False]),
        ("n <= 3", [True, True, False]),
        ("n > 2", [False, True, False]),
        ("n != 2", [True, True, False]),
        ("n != 2.5", [True, True, False]),
        ("n < 1e30", [True, True, False]),
        ("n < 3.5D", [True, True, False]),  # as doubles: a rounded key is no exact key
        ("n > 4.5D", [False, True, False]),
        ("n is null", [False, False, True]),
        ("n is not null", [True, True, False]),
        ("n = 1 and n is null", [False, False, False]),
        ("n = 1 or n is null", [True, False, True]),
        ("s.n = 7 and n < 1", [False, False, False]),
        ("s.n = 7 or n < 1", [True, True, True]),
        ("null", [False, False, False]),
        ("n in (1, 5, 9)", [True, True, False]),
        ("n in (4, 7, 8, 9)", [False, True, False]),
        (f"n in (1, {', '.join(map(str, range(50, 90)))})", [True, True, False]),  # by its ends
        (f"n in ({', '.join(map(str, range(50, 90)))})", [False, False, False]),
    ],
)
def test_batches_that_cannot_match_are_skipped(text, expected):
    known = Extremes(
        Keys.of_whole(np.array([1, 3, 9])),
        Keys.of_whole(np.array([2, 5, -9])),
        np.array([False, False, True]),
        np.array([True, True, False]),
    )
    assert (
        row_filter(text, "t", NUMBERS).can_match(Batches(3, lambda _: known)).tolist() == expected
    )


@pytest.mark.parametrize(
    "text", ["n = 0", "n != 0", "n is null", "n is not null", "n = 0.5 or n = 1"]
)
def test_column_without_statistics_skips_no_batch(text):
    found = row_filter(text, "t", NUMBERS).can_match(Batches(2, lambda _: Extremes.unknown(2)))
    assert found.all()
