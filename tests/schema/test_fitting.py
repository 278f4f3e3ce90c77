"""Lossless conversion of batches to a topic's schema, with errors that name column and record."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from isolog.errors import InvalidRecord, IsologError, SchemaMismatch
from spark_stream.schema.fitting import Fitting
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.sql.ddl import parse_schema


def fitted(ddl: str, column: pa.Array, *, text: bool = False) -> list[object]:
    schema = parse_schema(f"c {ddl}")
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    found = Fitting.of_topic(schema, text).fit(batch, 1)
    assert found.schema.equals(schema)
    found.validate(full=True)
    return found.column(0).to_pylist()


def utc(*parts: int) -> dt.datetime:
    return dt.datetime(*parts, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("ddl", "column", "values"),
    [
        ("tinyint", pa.array([1, None], pa.int64()), [1, None]),
        ("double", pa.array([1], pa.int32()), [1.0]),
        ("bigint", pa.array([2.0], pa.float64()), [2]),
        ("decimal(10,2)", pa.array([Decimal("1.5")], pa.decimal128(4, 1)), [Decimal("1.50")]),
        ("string", pa.array(["a"], pa.large_string()), ["a"]),
        ("string", pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
        ("int", pa.nulls(2), [None, None]),
        (
            "timestamp",
            pa.array([utc(2024, 1, 1)], pa.timestamp("ns", "Europe/Paris")),
            [utc(2024, 1, 1)],
        ),
        ("timestamp", pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("s")), [utc(2024, 1, 1)]),
        (
            "array<int>",
            pa.array([[1, None], None, []], pa.list_(pa.int64())),
            [[1, None], None, []],
        ),
        (
            "struct<a:int,b:string>",
            pa.array([{"b": "x", "a": 1}, None]),
            [{"a": 1, "b": "x"}, None],
        ),
        (
            "map<string,int>",
            pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            [[("k", 1)], None, []],
        ),
    ],
)
def test_values_are_converted_without_loss_to_the_topics_type(ddl, column, values):
    assert fitted(ddl, column) == values
    around = pa.concat_arrays(
        [column, column, column]
    )  # a slice has its own offset into the buffers
    assert fitted(ddl, around.slice(len(column), len(column))) == values


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("int", "-7", -7),
        ("boolean", "true", True),
        ("double", "1e3", 1000.0),
        ("decimal(5,2)", "1.5", Decimal("1.50")),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("time", "12:30:01", dt.time(12, 30, 1)),
        ("timestamp", "2024-01-01", utc(2024, 1, 1)),
        ("timestamp", "2024-01-01 10:00", utc(2024, 1, 1, 10)),
        ("timestamp", "2024-01-01T10:00:00.5Z", utc(2024, 1, 1, 10, 0, 0, 500_000)),
        ("timestamp", "2024-01-01T10:00:00+02:00", utc(2024, 1, 1, 8)),
        ("timestamp_ntz", "2024-01-01 10:00:00", dt.datetime(2024, 1, 1, 10)),
        ("binary", "aGk=", b"hi"),
        ("string", "007", "007"),
    ],
)
def test_text_is_parsed_by_the_topics_type(ddl, text, value):
    assert fitted(ddl, pa.array([text, None]), text=True) == [value, None]


@pytest.mark.parametrize(
    ("ddl", "column", "text"),
    [
        ("tinyint", pa.array([1, 2, 300, 4]), False),
        ("bigint", pa.array([1.0, 2.0, 2.5, 3.0]), False),
        ("int", pa.array(["1", "2", "x", "4"]), True),
        ("decimal(5,2)", pa.array(["1", "2", "1.234", "4"]), True),
        ("decimal(5,2)", pa.array(["1", "2", "12345", "4"]), True),
        ("date", pa.array(["2024-01-01", None, "2024-02-30", None]), True),
        ("binary", pa.array(["aGk=", "", "?", ""]), True),
        ("timestamp_ntz", pa.array([None, None, "2024-01-01T00:00:00Z", None]), True),
        ("array<tinyint>", pa.array([[1], None, [1, 300], []]), False),
    ],
)
def test_values_that_do_not_fit_name_column_and_record(ddl, column, text):
    with pytest.raises(InvalidRecord, match=r"record 3: column 'c': .* does not fit") as raised:
        fitted(ddl, column, text=text)
    assert raised.value.details["record"] == 3


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("int", pa.array(["1"])),
        ("string", pa.array([1])),
        ("float", pa.array([0.1], pa.float64())),
        ("timestamp_ntz", pa.array([utc(2024, 1, 1)], pa.timestamp("us", "UTC"))),
        ("array<int>", pa.array([1])),
        ("struct<a:int>", pa.array([{"b": 1}])),
        ("map<string,int>", pa.array([{"b": 1}])),
    ],
)
def test_lossy_conversions_are_refused(ddl, column):
    with pytest.raises(SchemaMismatch, match="column 'c': expected ") as raised:
        fitted(ddl, column)
    assert raised.value.details["column"] == "c"


def test_null_in_a_not_null_column_is_refused():
    with pytest.raises(InvalidRecord, match="record 2: column 'c' is null"):
        fitted("int NOT NULL", pa.array([1, None]))


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a"], "'b' (string) is missing"),
        (["a", "b", "z"], "'z' is not one of the topic's columns (a, b)"),
        (["a", "b", "b"], "duplicate column 'b'"),
    ],
)
def test_missing_unknown_and_duplicate_columns_are_refused(names, problem):
    fitting = Fitting.of_topic(parse_schema("a int, b string"), text=False)
    batch = pa.RecordBatch.from_arrays([pa.nulls(1)] * len(names), names=names)
    with pytest.raises(SchemaMismatch) as raised:
        fitting.fit(batch, 1)
    assert problem in raised.value.message


def test_the_order_of_columns_does_not_matter():
    fitting = Fitting.of_topic(parse_schema("a int, b string"), text=False)
    batch = pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]})
    assert fitting.fit(batch, 1).to_pylist() == [{"a": 1, "b": "x"}]


def test_default_schema_takes_text_and_requires_only_value():
    fitting = Fitting.of_topic(DEFAULT_SCHEMA, text=True)
    batch = pa.RecordBatch.from_pydict({"value": ["né"], "key": ["k"]})
    assert fitting.fit(batch, 1).to_pylist() == [
        {"key": b"k", "value": "né".encode(), "headers": None, "timestamp": None}
    ]
    with pytest.raises(IsologError, match="'value'"):
        fitting.fit(batch.select(["key"]), 1)
