"""The types in which a query reads a topic that was altered before or after its plan."""

from __future__ import annotations

import pyarrow as pa
import pytest

from isolog.errors import SchemaMismatch
from spark_stream.datasource.reading.planning import planned_view
from spark_stream.schema.schemas import OFFSET
from spark_stream.wire.topic_messages import TopicDescription

FIRST = pa.schema([pa.field("id", pa.int32(), nullable=False), ("x", pa.int16())])
SECOND = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string())])


def described(schema: pa.Schema) -> TopicDescription:
    return TopicDescription("t", "id", schema, {}, ())


@pytest.mark.parametrize(
    ("known", "came"), [(FIRST, FIRST), (FIRST, SECOND), (SECOND, FIRST), (SECOND, SECOND)]
)
@pytest.mark.parametrize("planned", [FIRST, SECOND.remove(2)])
def test_query_keeps_its_types_after_the_topic_was_altered(
    known: pa.Schema, came: pa.Schema, planned: pa.Schema
) -> None:
    view = planned_view(described(known), planned, None)
    assert view.schema == planned
    assert view.requested == ["id", "x"]
    columns = [pa.array([1, 2], came.field(name).type) for name in planned.names]
    fields = [came.field(name) for name in planned.names]
    found = view.of_chunk(pa.record_batch(columns, schema=pa.schema(fields)), 0, 5)
    assert found.schema == planned
    assert found.to_pylist() == [{"id": 1, "x": 1}, {"id": 2, "x": 2}]


def test_value_that_does_not_fit_the_querys_type_is_reported() -> None:
    view = planned_view(described(SECOND), FIRST, None)
    for column, values, said in (
        ("id", pa.array([1, 1 << 40]), "values from 1 to 1099511627776"),
        ("id", pa.array([1, None]), "nulls"),
        ("x", pa.array([1, 0.5]), "values from 0.5 to 1.0"),
    ):
        columns = {"id": pa.array([1, 2]), "x": pa.array([1.0, 2.0])} | {column: values}
        with pytest.raises(SchemaMismatch, match=f"column '{column}'") as caught:
            view.of_chunk(pa.record_batch(columns), 0, 0)
        assert said in caught.value.message


def test_column_missing_in_the_cached_schema_causes_a_look_up() -> None:
    with pytest.raises(SchemaMismatch, match="'name'"):
        planned_view(described(FIRST), SECOND, None)
    wanted = pa.schema([OFFSET, pa.field("name", pa.string())])
    assert planned_view(described(SECOND), wanted, None).schema.names == ["_offset", "name"]
