"""``append`` with data frames of libraries that have Arrow's C interface."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from isolog.errors import SchemaMismatch
from spark_stream.client.writing.batches import one_batch
from spark_stream.schema.schemas import fitted

FLIGHTS = pa.schema(
    [
        ("carrier", pa.string()),
        ("delay", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
AT = datetime(2013, 1, 1, 5, tzinfo=UTC)
ROWS = {
    "carrier": ["UA", None],
    "delay": [3, None],
    "at": [AT, None],
    "price": [Decimal("1.25"), None],
    "tags": [["a", "b"], None],
}


class OneArray:
    """An object with only the C interface for one array."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


class Columns(OneArray):
    """A batch whose attribute ``columns`` has the values, as in arro3's tables."""

    @property
    def columns(self) -> list[pa.Array]:
        return list(self._batch.columns)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(ROWS),  # its delays are floats, its times have nanoseconds
        pd.DataFrame(ROWS, index=[7, 3])[["at", "delay", "tags", "carrier", "price"]],
        pl.DataFrame(ROWS),  # its text is string_view
        pl.DataFrame(ROWS).with_columns(pl.col("carrier").cast(pl.Categorical)),
        pa.RecordBatchReader.from_batches(
            FLIGHTS, pa.Table.from_pydict(ROWS, schema=FLIGHTS).to_batches()
        ),
        OneArray(pa.RecordBatch.from_pydict(ROWS, schema=FLIGHTS)),
        pa.Table.from_pydict(ROWS, schema=FLIGHTS),
    ],
    ids=["pandas", "pandas-index", "polars", "polars-categorical", "reader", "array", "table"],
)
def test_a_frame_is_stored_with_the_types_of_the_topic(log, topic, frame):
    log.create_topic(topic, schema=FLIGHTS)
    with log.producer() as producer:
        assert producer.append(topic, frame).result(20).count == 2
    found = log.read(topic)
    assert found.schema == FLIGHTS
    assert found.to_pydict() == ROWS


@pytest.mark.parametrize("library", [pd, pl])
def test_a_frame_is_appended_to_a_topic_with_kafkas_columns(log, topic, library):
    log.create_topic(topic, partitions=3)
    with log.producer() as producer:
        frame = library.DataFrame({"key": ["k", "k"], "value": ["a", "ü"]})
        assert producer.append(topic, frame).result(20).count == 2
    assert log.read(topic)["value"].to_pylist() == [b"a", "ü".encode()]


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (pd.DataFrame({"n": [1.5]}), "column 'n': expected int, got double"),
        (pl.DataFrame({"n": [1 << 40]}), "column 'n': expected int, got bigint"),
        (pd.DataFrame({"n": ["1"]}), "column 'n': expected int, got string"),
        (pd.DataFrame({"n": [1], "m": [2]}), "column 'm'"),
        (pl.DataFrame({"m": [2]}), "column 'n' .* is missing"),
        (pd.DataFrame({"n": [1, "a"]}), "column 'n' of type object, row 1"),
    ],
)
def test_a_cast_that_changes_values_is_refused_by_name(log, topic, frame, named):
    log.create_topic(topic, schema=pa.schema([("n", pa.int32())]))
    with log.producer() as producer, pytest.raises(SchemaMismatch, match=named):
        producer.append(topic, frame).result(20)
    assert log.read(topic).num_rows == 0


def test_a_frame_without_rows_appends_no_batch(log, topic):
    log.create_topic(topic, schema=FLIGHTS)
    with log.producer() as producer:
        assert producer.append(topic, pl.DataFrame(ROWS).clear()).result(20).count == 0


LISTS = pa.schema([("n", pa.list_(pa.string()))])
STRUCTS = pa.schema([("n", pa.struct([("a", pa.string())]))])
WHOLE = pa.schema([("n", pa.int64())])
TEXT = pa.schema([("n", pa.string())])


def of_duckdb(values: str) -> duckdb.DuckDBPyRelation:
    return duckdb.connect().sql(f"select {values}")


@pytest.mark.parametrize(
    ("frame", "schema", "values"),
    [
        (pd.DataFrame({"n": pd.arrays.SparseArray([0, 1, 0])}), WHOLE, [0, 1, 0]),
        (pd.DataFrame({"n": pd.arrays.SparseArray([np.nan, 1.0])}), WHOLE, [None, 1]),
        (pd.DataFrame({"n": pd.Categorical(["a", None])}), TEXT, ["a", None]),
        (pd.DataFrame({"n": pd.Categorical([None, None])}), TEXT, [None, None]),
        (pd.DataFrame({"n": pd.Categorical([7, 8, 7])}), WHOLE, [7, 8, 7]),
        (pl.DataFrame({"n": ["a"]}, schema={"n": pl.Enum(["a"])}), TEXT, ["a"]),
        (pl.DataFrame({"n": [["a"]]}, schema={"n": pl.List(pl.Categorical)}), LISTS, [["a"]]),
        (
            pl.DataFrame({"n": [{"a": "x"}]}, schema={"n": pl.Struct({"a": pl.Categorical})}),
            STRUCTS,
            [{"a": "x"}],
        ),
        (of_duckdb("'a'::enum('a', 'b') n"), TEXT, ["a"]),
        (of_duckdb("['a'::enum('a', 'b')] n"), LISTS, [["a"]]),
        (of_duckdb("1::hugeint n"), WHOLE, [1]),
    ],
)
def test_categories_sparse_columns_and_small_128_bit_integers_are_converted(frame, schema, values):
    assert fitted(one_batch(frame, schema), schema)["n"].to_pylist() == values


def with_names(*names: str) -> pd.DataFrame:
    return pd.DataFrame([[1] * len(names)], columns=list(names))


OBJECTS = r"column 'n' of type object, row 1 \(counted from 0\) cannot become an Arrow column: "


@pytest.mark.parametrize(
    ("frame", "problem", "row"),
    [
        (with_names("n", "m", "n"), "duplicate column 'n'", None),
        (of_duckdb("1 n, 2 n"), "duplicate column 'n'", None),
        (pd.DataFrame({"m": [0, 0], "n": [1, "x"]}), OBJECTS + "Could not convert 'x'", 1),
        (pd.DataFrame({"n": ["a", 7]}), OBJECTS + "Expected bytes, got a 'int'", 1),
        (pd.DataFrame({"n": [1, {"a": 1}]}), OBJECTS + "cannot mix struct", 1),
        (pd.DataFrame({"n": [1, 2**100, 3]}), OBJECTS + "Python int too large", 1),
        (pd.DataFrame({"n": ["a", "\ud800"]}), OBJECTS + ".*surrogates not allowed", 1),
        (pd.DataFrame({"n": [1 + 2j]}), "column 'n' of type complex128 cannot", None),
        (pd.DataFrame({"n": pd.Categorical(["a", 1])}), "column 'n' of type category", None),
        (pl.DataFrame({"n": pl.Series([object()], dtype=pl.Object)}), "of type Object", None),
        (pl.DataFrame({"n": [1]}, schema={"n": pl.Int128}), "of type Int128 cannot", None),
        (pl.DataFrame({"n": [1]}, schema={"n": pl.UInt128}), "of type UInt128 cannot", None),
        (pd.DataFrame({"n": [1.0, np.inf]}), "got double, and row 1 .* has inf", 1),
        (pl.DataFrame({"n": [1.0, 2.0, -np.inf]}), "got double, and row 2 .* has -inf", 2),
        (of_duckdb("'inf'::double n"), "got double, and row 0 .* has inf", 0),
        (of_duckdb("(2::hugeint ** 100)::hugeint n"), r"decimal\(38,0\), and row 0 .* has 12", 0),
    ],
)
def test_a_column_without_an_arrow_type_is_refused_by_name_and_row(frame, problem, row):
    with pytest.raises(SchemaMismatch, match=problem) as refused:
        fitted(one_batch(frame, WHOLE), WHOLE)
    assert refused.value.details["column"] == "n"
    assert refused.value.details.get("row") == row
    assert refused.value.hint != SchemaMismatch.hint


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "timestamp_ns", "date"])
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_infinite_times_of_duckdb_are_refused_by_name_and_row(kind, value):
    frame = of_duckdb(f"unnest(['2024-01-01'::{kind}, null, '{value}'::{kind}]) n")
    with pytest.raises(SchemaMismatch, match=r"column 'n', row 2 .* infinite time") as refused:
        one_batch(frame, pa.schema([("n", pa.timestamp("us"))]))
    assert (refused.value.details["column"], refused.value.details["row"]) == ("n", 2)


def test_columns_with_equal_values_are_not_duplicates():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": [1]}, schema=schema)
    assert one_batch(Columns(batch), schema).equals(batch)


def test_the_error_of_an_invalid_index_names_no_column():
    frame = pd.DataFrame({"n": [1, 2]}, index=[1, "a"])
    with pytest.raises(SchemaMismatch, match="this DataFrame cannot become Arrow") as refused:
        one_batch(frame, WHOLE)
    assert "reset_index" in refused.value.hint
    assert "column" not in refused.value.details


def test_objects_of_polars_are_not_stored_as_their_addresses():
    binary = pa.schema([("n", pa.binary())])
    frame = pl.DataFrame({"n": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(SchemaMismatch, match="Python objects have no Arrow type"):
        one_batch(frame, binary)
