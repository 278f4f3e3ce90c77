"""The supported SQL of filters, and the errors for other SQL."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from isolog.errors import InvalidFilter
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.sql.filters import parsed, row_filter
from spark_stream.wire.limits import FILTER_CHARACTERS_MAX

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.uint64()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("s")),
        ("wide", pa.large_string()),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.struct([("a", pa.int64()), ("b c", pa.string())])),
        ("nothing", pa.null()),
    ]
)


def kept(text, batch, topic="t", partition=0):
    found = row_filter(text, topic, batch.schema, partition)
    return found.keeps(batch.column, batch.num_rows).to_pylist()


@pytest.mark.rule("the supported SQL of filters, and the errors for other SQL", "sql/grammar.py")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["it is empty"]),
        ("id = ", ["not valid SQL", "line 1, column 4"]),
        ("id = 1 2", ["not valid SQL", "'2'"]),
        ("id = 'x", ["not valid SQL"]),
        ("id = 1; drop table t", ["not valid SQL"]),
        ("id + 1 = 2", ["id + 1 (at character 1)", "a filter has comparisons"]),
        ("name = 'a' and upper(name) = 'A'", ["UPPER(name)", "(at character 16)"]),
        ("id in (select 1)", ["SELECT 1", "is not supported in a filter"]),
        ("name rlike 'a'", ["RLIKE"]),
        ("name ilike 'a'", ["ILIKE"]),
        ("id between symmetric 1 and 2", ["BETWEEN", "is not supported in a filter"]),
        ("name like any ('a', 'b')", ["ANY"]),
        ("try_cast(name as int) = 1", ["TRY_CAST"]),
        ("cast(id as string) = '1'", ["'id' is bigint", "only binary columns to string"]),
        ("at > current_timestamp()", ["CURRENT_TIMESTAMP"]),
        ("id = ?", ["?"]),
        ("tags[0] = 'a'", ["tags[0]"]),
        ("case when id = 1 then true end", ["CASE WHEN"]),
        ("nme = 'a'", ["no column 'nme'", "is 'name' meant?", "name string", "(at character 1)"]),
        ("id = 1 or deep.x = 1", ["'deep.x'", "no field 'x'", "struct<a:bigint", "character 11)"]),
        ("inner = 1", ["not valid SQL", "in backquotes"]),
        ("id.x = 1", ["'id.x'", "bigint has no field 'x'"]),
        ("_topic.x = 1", ["'_topic'", "no fields"]),
        ("id = 'one'", ["'id' (bigint)", "'one' is not a whole number"]),
        ("id = '1.5'", ["'1.5' is not a whole number"]),
        ("id in (1, 'one')", ["id IN", "'one' is not a whole number"]),
        ("deep.a in (id, 1D)", ["deep.a IN", "as doubles", "= and OR"]),
        ("id = true", ["'id' (bigint)", "TRUE, a boolean"]),
        ("name = 5", ["'name' (string)", "5, a bigint"]),
        ("tags = 'a'", ["'tags' (array<string>)", "'a', a string"]),
        ("at > 'yesterday'", ["'at'", "'yesterday' is not a date or timestamp"]),
        ("at > '2024-02-30'", ["2024-02-30", "day"]),
        ("at > '2024-01-01 25:00:00'", ["not a time of day"]),
        ("at > '2024-01-01 00:00:00 Mars/Base'", ["no time zone 'Mars/Base'"]),
        ("id = name", ["'id' (bigint) and 'name' (string)"]),
        ("id", ["'id' is bigint, not boolean"]),
        ("'a'", ["not boolean"]),
        ("id like '1%'", ["'id' is bigint", "LIKE takes a string"]),
        ("raw like 'a%'", ["'raw' is binary", "CAST it AS STRING"]),
        ("name like 'a\\\\bc'", ["escape character"]),
        ("name like 'a!' escape '!'", ["escape character"]),
        ("name like 'a' escape 'ab'", ["one character"]),
        ("startswith(id, '1')", ["'id' is bigint"]),
        ("startswith(name, id)", ["STARTSWITH"]),
        ("cast('300' as tinyint) = id", ["'300' does not fit tinyint"]),
        ("cast(1e10D as int) = id", ["does not fit int"]),
        ("id = X'0g'", ["no"]),
        ("isnan(name)", ["'name' is string"]),
        ("id = -name", ["-name"]),
        ("(" * 5000 + "id = 1" + ")" * 5000, ["nested too deep"]),
    ],
)
def test_unsupported_filter_is_refused_with_its_place(text, words):
    with pytest.raises(InvalidFilter) as raised:
        row_filter(text, "t", SCHEMA)
    for word in words:
        assert word in raised.value.message, raised.value.message
    assert raised.value.details["option"] == "filter"


def test_too_long_filter_is_refused_unparsed():
    with pytest.raises(InvalidFilter, match="characters"):
        parsed("id = 1 or " * FILTER_CHARACTERS_MAX)


def test_long_lists_and_long_chains_are_supported():
    batch = pa.record_batch({"id": [1, 4_999, 5_000, None]})
    assert kept(f"id in ({','.join(map(str, range(5000)))})", batch) == [True, True, False, False]
    chain = " or ".join(f"id = {number}" for number in range(3000))
    assert kept(chain, batch) == [True, False, False, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u64 > 9223372036854775807", [False, True, False]),
        ("u64 = 18446744073709551615", [False, True, False]),
        ("u64 > i64", [True, True, False]),
        ("i64 > -9223372036854775809", [True, True, False]),
        ("i64 < 99999999999999999999", [True, True, False]),
        ("i64 > 99999999999999999999", [False, False, False]),
        ("not i64 > 99999999999999999999", [True, True, False]),
        ("seconds > '1970-01-01 00:00:00.5'", [False, True, False]),
        ("seconds <= '1970-01-01 00:00:00.5'", [True, False, False]),
        ("seconds = '1970-01-01 00:00:00.5'", [False, False, False]),
        ("seconds < nanos", [True, False, False]),
        ("day32 = day64", [True, False, False]),
        ("day64 = '1970-01-01'", [True, False, False]),
        ("clock >= '12:00:00'", [False, True, False]),
        ("clock = time '12:00:00.000001'", [False, True, False]),
        ("fixed = 'ab'", [True, False, False]),
        ("large = 'ab'", [True, False, False]),
        ("large like 'c_'", [False, True, False]),
        ("large = fixed", [True, True, False]),
        ("half > 1", [False, True, False]),
        ("wide >= 1e20D", [False, True, False]),
        ("wide = 123456789012345678901234567890.12", [False, True, False]),
        ("nothing is null", [True, True, True]),
        ("nothing = 1 or true", [True, True, True]),
        ("nothing = 1", [False, False, False]),
        ("lists is null", [False, False, True]),
    ],
)
def test_types_unknown_to_spark_are_compared_exactly(text, expected):
    far = 2**62  # seconds: too far for microseconds
    batch = pa.record_batch(
        {
            "u64": pa.array([5, 2**64 - 1, None], pa.uint64()),
            "i64": pa.array([-(2**63), 5, None], pa.int64()),
            "seconds": pa.array([0, far, None], pa.timestamp("s")),
            "nanos": pa.array([1, 2, None], pa.timestamp("ns", "UTC")),
            "day32": pa.array([0, 2**31 - 1, None], pa.int32()).cast(pa.date32()),
            "day64": pa.array([0, 86_400_000, None], pa.int64()).cast(pa.date64()),
            "clock": pa.array([0, 43_200_000_001_000, None], pa.int64()).cast(pa.time64("ns")),
            "fixed": pa.array([b"ab", b"cd", None], pa.binary(2)),
            "large": pa.array(["ab", "cd", None], pa.large_string()),
            "half": pa.array([0.5, 1.5, None], pa.float32()).cast(pa.float16()),
            "wide": pa.array(["1.00", "123456789012345678901234567890.12", None]).cast(
                pa.decimal256(60, 2)
            ),
            "nothing": pa.nulls(3),
            "lists": pa.array([[1], [], None]),
        }
    )
    assert kept(text, batch) == expected


def test_names_match_in_any_case_and_in_backquotes():
    inner = pa.array([{"a": 1, "b c": "x"}, {"a": 2, "b c": None}, None])
    batch = pa.record_batch({"Id": [1, 2, 3], "deep": inner})
    assert kept("ID = 1 and DEEP.A = 1", batch) == [True, False, False]
    assert kept("deep.`b c` = 'x'", batch) == [True, False, False]
    assert kept("deep.`b c` is null", batch) == [False, True, True]


def test_topic_and_partition_are_constants_not_columns():
    batch = pa.record_batch({"id": [1, 2]})
    assert kept("_topic = 't' and _partition = 3", batch, partition=3) == [True, True]
    assert kept("_partition < 3 or id = 1", batch, partition=3) == [True, False]


def test_metadata_columns_have_kafkas_names_only_in_the_default_schema():
    compiled = row_filter("topic = 'x' or offset > 5 or partition = 0", "t", DEFAULT_SCHEMA, 1)
    assert compiled.names == ("_offset",)
    with pytest.raises(InvalidFilter, match="no column '_offset'"):
        row_filter("_offset > 5", "t", DEFAULT_SCHEMA)
    with pytest.raises(InvalidFilter, match="no column 'offset'"):
        row_filter("offset > 5", "t", SCHEMA)


def test_sqlglot_is_not_imported_without_a_filter():
    text = (
        "import sys, spark_stream, spark_stream.broker.process;"
        "import spark_stream.datasource.reading.reader;"
        "print('sqlglot' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout == "False\n"
