"""Spark's types that a topic cannot store are refused with the name of their column."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.ml.linalg import MatrixUDT, VectorUDT
from pyspark.mllib.linalg import VectorUDT as OldVectorUDT
from pyspark.sql import types as st

import isolog
from isolog.errors import IsologError, SchemaMismatch, UnsupportedType
from spark_stream.datasource.options.catalog_tables import TableOptions
from spark_stream.datasource.source import IsologDataSource
from spark_stream.datasource.spark.types import (
    CHAR_OR_VARCHAR,
    check_collations,
    to_arrow,
    to_spark,
)
from spark_stream.schema.schemas import schema_from_text, schema_to_text, stored_schema
from spark_stream.schema.types import SPARK_TYPE
from tests.support import BrokerProcess

TIMES = [st.TimeType(0), st.TimeType(9)] if hasattr(st, "TimeType") else []  # Spark 4.0 has none

CASELESS = st.StringType("UNICODE_CI")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (st.MapType(st.NullType(), st.NullType()), "m"),
        (st.StructType([st.StructField("n", st.MapType(st.NullType(), st.LongType()))]), "m.n"),
        (st.ArrayType(st.MapType(st.NullType(), st.LongType())), "m.element"),
    ],
)
def test_a_map_without_a_type_of_keys_is_refused(kind: st.DataType, path: str) -> None:
    """Spark makes such a map for ``select map()``."""
    with pytest.raises(UnsupportedType, match=f"column '{path}': the keys of a map") as caught:
        to_arrow(st.StructType([st.StructField("m", kind)]))
    assert caught.value.details["column"] == path


def test_duplicate_column_is_refused() -> None:
    twice = st.StructType([st.StructField(name, st.LongType()) for name in ("id", "n", "id")])
    for schema, path in ((twice, "id"), (st.StructType().add("s", twice), "s.id")):
        with pytest.raises(SchemaMismatch, match=f"duplicate column '{path}'"):
            to_arrow(schema)


@pytest.mark.parametrize(
    ("nest", "most"),
    [
        (lambda kind: st.StructType().add("f", kind), 62),
        (st.ArrayType, 62),
        (lambda kind: st.MapType(st.StringType(), kind), 31),
    ],
    ids=["struct", "array", "map"],
)
def test_type_nested_too_deep_is_refused_when_a_query_is_planned(
    nest: Callable[[st.DataType], st.DataType], most: int
) -> None:
    """Spark wraps the rows of a Python source in one more struct, so its limit is lower by one."""
    kind: st.DataType = st.LongType()
    for _ in range(most):
        kind = nest(kind)
    to_arrow(st.StructType().add("c", kind))
    with pytest.raises(UnsupportedType, match=r"'c': .* levels deep, and 62 are the limit"):
        to_arrow(st.StructType().add("c", nest(kind)))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (CASELESS, "c"),
        (st.ArrayType(CASELESS), "c.element"),
        (st.MapType(CASELESS, st.LongType()), "c.key"),
        (st.MapType(st.StringType(), CASELESS), "c.value"),
        (st.StructType([st.StructField("s", CASELESS)]), "c.s"),
    ],
)
def test_collation_is_refused_in_a_sink(kind: st.DataType, path: str) -> None:
    with pytest.raises(IsologError, match=f"column '{path}' is string collate UNICODE_CI"):
        check_collations(st.StructType([st.StructField("c", kind)]))


def test_string_without_a_collation_is_accepted() -> None:
    check_collations(st.StructType().add("a", "string").add("b", st.ArrayType(st.StringType())))


# -- types that Arrow does not have ----------------------------------------------------------------


def read_back(schema: st.StructType) -> st.StructType:
    """Return the columns that Spark shows of a topic that was created for these."""
    return to_spark(schema_from_text(schema_to_text(stored_schema(to_arrow(schema)))))


@pytest.mark.rule("declared types of Spark in a field's metadata", "datasource/spark/types.py")
@pytest.mark.parametrize(
    "kind",
    [
        *TIMES,
        st.DayTimeIntervalType(1),
        st.DayTimeIntervalType(0, 2),
        VectorUDT(),
        MatrixUDT(),
    ],
    ids=str,
)
def test_declared_type_is_read_back_in_any_nest(kind: st.DataType) -> None:
    nests = [
        kind,
        st.ArrayType(kind, False),
        st.MapType(kind, kind),
        st.StructType().add("before", "integer").add("c", kind, False),
        st.ArrayType(st.StructType().add("c", st.ArrayType(kind))),
    ]
    schema = st.StructType([st.StructField(f"c{n}", nest) for n, nest in enumerate(nests)])
    assert read_back(schema) == schema


@pytest.mark.parametrize("declared", ["char(5)", "varchar(7)"])
def test_char_and_varchar_are_read_back_as_spark_keeps_them(declared: str) -> None:
    """Spark's planner has a string, and the declared type in the metadata of the column."""
    schema = st.StructType().add("c", "string", True, {CHAR_OR_VARCHAR: declared})
    assert read_back(schema) == schema
    kind = st.CharType(5) if declared.startswith("char") else st.VarcharType(7)
    assert read_back(st.StructType().add("c", kind)) == schema
    within = st.StructType().add("c", st.ArrayType(kind))
    assert read_back(within) == st.StructType().add("c", st.ArrayType(st.StringType()))
    assert "(" in str(to_arrow(within).field("c").type.value_field.metadata)


def test_table_keeps_the_declared_type_of_its_first_column() -> None:
    schema = st.StructType().add("c", "string", True, {CHAR_OR_VARCHAR: "char(5)"})
    kept = TableOptions({"topic": "t"}).kept_in(schema)
    assert kept["c"].metadata == {CHAR_OR_VARCHAR: "char(5)", "comment": 'isolog {"topic": "t"}'}


def test_query_of_topics_with_other_declared_types_shows_the_wider_type(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    names = [f"{topic}-{length}" for length in ("short", "long")]
    for name, length in zip(names, (5, 7), strict=True):
        schema = f"c varchar({length}), same varchar(3), t array<time({length - 5})>"
        log.create_topic(name, schema=schema)
    given = {"bootstrap": shared.address, "subscribe": ",".join(names)}
    assert IsologDataSource(given).schema() == (
        st.StructType()
        .add("c", st.StringType())
        .add("same", st.StringType(), True, {CHAR_OR_VARCHAR: "varchar(3)"})
        .add("t", st.ArrayType(st.TimeType()))
    )


@pytest.mark.parametrize(
    ("kind", "key", "text"),
    [
        (pa.int64(), SPARK_TYPE, b"time(0)"),
        (pa.time64("ns"), SPARK_TYPE, b"time(77)"),
        (pa.duration("us"), SPARK_TYPE, b"interval minute to hour"),
        (pa.duration("us"), SPARK_TYPE, b"interval year"),
        (pa.string(), SPARK_TYPE, b"char(0)"),
        (pa.string(), SPARK_TYPE, b"\xff"),
        (pa.struct([("type", pa.int8())]), b"isolog.udt", b"pyspark.ml.linalg.VectorUDT"),
        (to_arrow(st.StructType().add("c", VectorUDT())).field("c").type, b"isolog.udt", b"os.x"),
    ],
)
def test_metadata_that_does_not_fit_its_column_is_ignored(
    kind: pa.DataType, key: bytes, text: bytes
) -> None:
    """Any client can write it. So a class is never imported by a name in it."""
    plain = pa.schema([("c", kind)])
    marked = pa.schema([pa.field("c", kind, metadata={key: text})])
    assert to_spark(marked) == to_spark(plain)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (OldVectorUDT(), "vector_to_array"),
        (st.YearMonthIntervalType(), "make_ym_interval"),
        (st.CalendarIntervalType(), "make_dt_interval"),
        (st.VariantType(), "to_json"),
    ],
    ids=str,
)
def test_type_that_a_topic_cannot_store_is_refused_with_advice(
    kind: st.DataType, advice: str
) -> None:
    schema = st.StructType().add("s", st.StructType().add("c", kind))
    with pytest.raises(UnsupportedType, match=r"column 's\.c'") as caught:
        to_arrow(schema)
    assert advice in caught.value.hint
