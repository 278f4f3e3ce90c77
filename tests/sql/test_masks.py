"""A filter's mask says of every row what plain Python says of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.pruning import Extremes, can_match
from spark_stream.sql.filters import row_filter
from spark_stream.storage.extremes import Layout
from tests.sql.predicates import VALUES, predicates, rows_of, schema_of

NAMES = list(VALUES)
SCHEMA = schema_of(tuple(NAMES))


@given(predicates(NAMES), rows_of(NAMES, 6))
def test_a_mask_is_true_false_and_null_where_python_says_so(said, rows):
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    mask = row_filter(said.sql, "t", SCHEMA).bound.mask(batch.column)
    found = [mask.as_py()] * len(rows) if isinstance(mask, pa.Scalar) else mask.to_pylist()
    assert found == [said.of(row) for row in rows]


@given(predicates(NAMES), st.lists(rows_of(NAMES, 3), min_size=1, max_size=4))
def test_a_batch_with_a_match_is_never_skipped(said, batches):
    layout = Layout(SCHEMA)
    described = [
        layout.described(pa.RecordBatch.from_pylist(rows, SCHEMA), layout.names) for rows in batches
    ]
    extremes = _known(layout, described, [len(rows) for rows in batches])
    found = can_match(row_filter(said.sql, "t", SCHEMA).rule, extremes, len(batches))
    for may, rows in zip(found.tolist(), batches, strict=True):
        assert may or not any(said.of(row) is True for row in rows)


def _known(layout, described, counts):
    """What is known of each batch, by column."""
    rows = np.zeros(len(described), layout.row)
    rows["columns"], rows["records"] = np.stack(described), counts
    owners = np.arange(len(described))

    def of(name):
        if name not in layout.names:
            return Extremes.unknown(len(described))
        return layout.extremes(rows, owners, name)

    return of
