"""Record objects from the columns of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.reading.records import records_of
from spark_stream.client.values import Record
from spark_stream.schema.schemas import DEFAULT_SCHEMA

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "moments",
    [[], [5], [5] * 9, [5] * 8 + [6], [1] * 8 + [2] * 8 + [1] * 8, list(range(9)), [3, 1, 3, 1]],
    ids=str,
)
def test_each_record_has_the_values_of_its_row(moments: Sequence[int]) -> None:
    rows = len(moments)
    columns = {
        "key": pa.array([b"k%d" % n if n % 2 else None for n in range(rows)], pa.binary()),
        "value": pa.array([b"v%d" % n for n in range(rows)], pa.binary()),
        "headers": pa.nulls(rows, DEFAULT_SCHEMA.field("headers").type),
        "timestamp": pa.array(moments, DEFAULT_SCHEMA.field("timestamp").type),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    found = list(records_of(("t", 3), Fetched(3, 40, 40 + rows, batch)))
    assert found == [
        Record(
            "t",
            3,
            40 + n,
            EPOCH + timedelta(microseconds=moment),
            b"k%d" % n if n % 2 else None,
            b"v%d" % n,
            [],
        )
        for n, moment in enumerate(moments)
    ]
    assert all(type(each) is Record for each in found)
    assert len({id(each.headers) for each in found}) == rows  # no two share a list
