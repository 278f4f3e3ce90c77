"""Types, names and changes of the schema of a topic's table."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_stream.errors import LakeStopped, SchemaMismatch, UnsupportedType
from spark_stream.lake.delta.schema import (
    arrow_schema,
    is_zoneless,
    schema_text,
    table_schema,
    widened,
)


def in_table(kind: pa.DataType) -> object:
    fields = json.loads(schema_text(table_schema("t", pa.schema([("a", kind)]))))["fields"]
    return fields[0]["type"]


@pytest.mark.parametrize(
    ("kind", "wide"),
    [
        (pa.int8(), "long"),
        (pa.float32(), "double"),
        (pa.decimal128(10, 2), "decimal(38,2)"),
        (pa.binary(4), "binary"),
        (pa.bool_(), "boolean"),
        (pa.date32(), "date"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (
            pa.list_(pa.int16()),
            {"type": "array", "elementType": "long", "containsNull": True},
        ),
        (
            pa.map_(pa.string(), pa.float32()),
            {"type": "map", "keyType": "string", "valueType": "double", "valueContainsNull": True},
        ),
        (
            pa.struct([("b", pa.int32())]),
            {
                "type": "struct",
                "fields": [{"name": "b", "type": "long", "nullable": True, "metadata": {}}],
            },
        ),
    ],
)
def test_a_new_table_has_the_widest_type(kind: pa.DataType, wide: object) -> None:
    assert in_table(kind) == wide
    schema = table_schema("t", pa.schema([("a", kind)]))
    assert arrow_schema(schema_text(schema)) == schema


def test_a_column_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="unknown type 'variant'"):
        arrow_schema('{"fields": [{"name": "a", "type": "variant"}]}')


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.time64("ns"), "time"),
        (pa.duration("us"), "interval day to second"),
        (pa.null(), "void"),
        (pa.list_(pa.time64("ns")), "time"),
    ],
)
def test_a_type_without_a_counterpart_is_refused_by_column(kind: pa.DataType, name: str) -> None:
    with pytest.raises(UnsupportedType, match=f"column 'a' has the type {name}"):
        in_table(kind)


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a{b", "a(b", "a\tb", "a=b"])
def test_a_name_that_parquet_reserves_is_refused(name: str) -> None:
    with pytest.raises(SchemaMismatch, match="has no column named"):
        table_schema("t", pa.schema([(name, pa.int64())]))


@pytest.mark.parametrize("names", [("a", "A"), ("_Offset",)])
def test_names_that_differ_by_case_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(SchemaMismatch, match="have the same name"):
        table_schema("t", pa.schema([(name, pa.int64()) for name in names]))


def test_zoneless_timestamps_are_found_at_any_depth() -> None:
    inner = pa.struct([("at", pa.list_(pa.timestamp("us")))])
    assert is_zoneless(pa.schema([("a", pa.map_(pa.string(), inner))]))
    assert not is_zoneless(pa.schema([("a", pa.timestamp("us", "UTC"))]))


def change(present: list[tuple[str, pa.DataType]], wanted: list[tuple[str, pa.DataType]]) -> object:
    text = widened("t", schema_text(pa.schema(present)), pa.schema(wanted))
    return None if text is None else [each["name"] for each in json.loads(text)["fields"]]


def test_new_columns_are_added_and_those_of_others_kept() -> None:
    present = [("a", pa.int64()), ("extra", pa.string())]
    assert change(present, [("a", pa.int64()), ("b", pa.string())]) == ["a", "extra", "b"]


def test_a_new_field_of_a_struct_changes_the_schema() -> None:
    one, two = pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("y", pa.int64())])
    assert change([("a", pa.list_(one))], [("a", pa.list_(two))]) == ["a"]
    assert change([("a", pa.list_(two))], [("a", pa.list_(one))]) is None


def test_another_type_stops_the_worker() -> None:
    with pytest.raises(LakeStopped, match="the column 'a' of the table t has the type"):
        change([("a", pa.int64())], [("a", pa.string())])
