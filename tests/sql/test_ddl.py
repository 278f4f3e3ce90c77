"""Spark's DDL as Arrow schemas: the same types as in Spark, and errors that name the column."""

from __future__ import annotations

import pyarrow as pa
import pyspark.sql.types as st
import pytest

from isolog.errors import InvalidOption
from spark_stream.datasource.spark.types import to_arrow
from spark_stream.schema.schemas import stored_schema
from spark_stream.sql.ddl import parse_schema, schema_text

EVERY_TYPE = """
    b boolean, i8 tinyint, i16 SMALLINT, i32 int, i64 bigint NOT NULL, f float, d double,
    p decimal(10,2), p0 decimal, s string, v varchar(20), x binary, day date, ts timestamp,
    ntz timestamp_ntz, t time, t0 time(0), i interval day to second, h INTERVAL HOUR,
    dm array<interval day to minute>, tags array<char(3)>, m map<string, array<int>>,
    st struct<a: int NOT NULL, `b c`: struct<d date>>, n void
"""


def test_types_equal_those_of_sparks_arrow_columns():
    spark = st.StructType(
        [
            st.StructField("b", st.BooleanType()),
            st.StructField("i8", st.ByteType()),
            st.StructField("i16", st.ShortType()),
            st.StructField("i32", st.IntegerType()),
            st.StructField("i64", st.LongType(), False),
            st.StructField("f", st.FloatType()),
            st.StructField("d", st.DoubleType()),
            st.StructField("p", st.DecimalType(10, 2)),
            st.StructField("p0", st.DecimalType(10, 0)),
            st.StructField("s", st.StringType()),
            st.StructField("v", st.VarcharType(20)),
            st.StructField("x", st.BinaryType()),
            st.StructField("day", st.DateType()),
            st.StructField("ts", st.TimestampType()),
            st.StructField("ntz", st.TimestampNTZType()),
            st.StructField("t", st.TimeType()),
            st.StructField("t0", st.TimeType(0)),
            st.StructField("i", st.DayTimeIntervalType()),
            st.StructField("h", st.DayTimeIntervalType(1, 1)),
            st.StructField("dm", st.ArrayType(st.DayTimeIntervalType(0, 2))),
            st.StructField("tags", st.ArrayType(st.CharType(3))),
            st.StructField("m", st.MapType(st.StringType(), st.ArrayType(st.IntegerType()))),
            st.StructField(
                "st",
                st.StructType(
                    [
                        st.StructField("a", st.IntegerType(), False),
                        st.StructField("b c", st.StructType([st.StructField("d", st.DateType())])),
                    ]
                ),
            ),
            st.StructField("n", st.NullType()),
        ]
    )
    assert parse_schema(EVERY_TYPE).equals(to_arrow(spark), check_metadata=True)


def test_schema_survives_a_round_trip_through_its_text():
    schema = parse_schema(EVERY_TYPE)
    assert parse_schema(schema_text(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("long", pa.int64()),
        ("real", pa.float32()),
        ("numeric(5)", pa.decimal128(5, 0)),
        ("char(3)", pa.string()),
        ("timestamp_ltz", pa.timestamp("us", "UTC")),
        ("time(6)", pa.time64("ns")),
        ("struct<>", pa.struct([])),
        ("int COMMENT 'of a day, in minutes'", pa.int32()),
    ],
)
def test_synonyms_of_types_are_accepted(text, kind):
    assert parse_schema(f"c {text}").field("c").type.equals(kind)


def test_comments_and_escapes_follow_sql():
    text = "a int COMMENT 'it\\'s, so' -- , b int\n, /* c */ c array<array<struct<>>>"
    nested = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.struct([])))))
    assert parse_schema(text).equals(pa.schema([("a", pa.int32()), ("c", nested)]))


def test_names_may_be_quoted_and_a_colon_may_follow_them():
    assert parse_schema("`a ``b``, c`: int, d : string").names == ["a `b`, c", "d"]


def test_types_may_be_nested_to_the_limit_of_topics():
    assert stored_schema(parse_schema("a " + "array<" * 63 + "int" + ">" * 63))


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", None, "no columns"),
        ("id", "id", "expected a type"),
        ("id int,", None, "name of a column"),
        ("id itn", "id", "unknown type 'itn'"),
        ("id int name string", "id", "expected ','"),
        ("p decimal(40,2)", "p", "precision is 1 to 38"),
        ("p decimal(2,3)", "p", "scale 0 to the precision"),
        ("p decimal(x)", "p", "whole number"),
        ("t time(10)", "t", "precision is 0 to 9"),
        ("i interval", "i", "units day, hour, minute and second"),
        ("i interval second to day", "i", "units day, hour, minute and second"),
        ("i interval year to month", "i", "Store an interval of years"),
        ("v varchar", "v", "'('"),
        ("a array", "a", "'<'"),
        ("a array<array<foo>>", "a.element.element", "unknown type 'foo'"),
        ("m map<string>", "m", "','"),
        ("m map<void, int>", "m", "keys of a map"),
        ("s struct<a:int, b:array<bar>>", "s.b.element", "unknown type 'bar'"),
        ("s struct<a:int", "s.a", "'>'"),
        ("id int NOT", "id", "expected ','"),
        ("id int COMMENT 3", "id", "COMMENT"),
        ("id int; name string", "id", "';'"),
        ("id bigint, name string, id bigint", "id", "defined twice"),
        ("id bigint, ID int", "ID", "'id' and 'ID' are equal, ignoring case"),
        ("s struct<a:int, b:int, A:int>", "s.A", "'a' and 'A' are equal, ignoring case"),
        ("`id int", None, "a quote is not closed"),
        ("id int COMMENT 'x", None, "a quote is not closed"),
        ("'id' int", None, "name of a column"),
        ("id int `,` name string", "id", "expected ','"),
        ("a " + "array<" * 64 + "int" + ">" * 64, None, "nested more than 63 levels deep"),
    ],
)
def test_error_names_the_column_and_the_fault(text, column, problem):
    with pytest.raises(InvalidOption, match="schema: ") as raised:
        parse_schema(text)
    assert problem in raised.value.message
    if column:
        assert raised.value.details["column"] == column
