"""Users see Spark's names of types everywhere."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_stream.schema.schemas import mismatch
from spark_stream.schema.types import distinct_names, type_name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int64(), "bigint"),
        (pa.int32(), "int"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.timestamp("ns"), "timestamp[ns]"),
        (pa.list_(pa.int8()), "array<tinyint>"),
        (pa.map_(pa.string(), pa.decimal128(5, 2)), "map<string,decimal(5,2)>"),
        (pa.struct([("a b", pa.date32())]), "struct<`a b`:date>"),
        (pa.uint16(), "uint16"),
    ],
)
def test_types_have_sparks_names_and_arrows_where_spark_has_none(kind, name):
    assert type_name(kind) == name


def test_errors_name_types_as_spark_does():
    topic = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
    wrong = mismatch(topic, pa.schema([("n", pa.int32()), ("tags", pa.list_(pa.string()))]))
    assert wrong is not None
    assert wrong.message == "column 'n': expected bigint, got int"
    missing = mismatch(topic, topic.remove(1))
    assert missing is not None
    assert missing.message == "column 'tags' (array<string>) is missing"
    extra = mismatch(topic, topic.append(pa.field("x", pa.float64())))
    assert extra is not None
    assert extra.message.startswith("column 'x' (double) is not one of")


def test_types_of_one_name_get_arrows_names():
    small, large = distinct_names(pa.list_(pa.int64()), pa.large_list(pa.int64()))
    assert small.startswith("array<bigint> (list<")
    assert large.startswith("array<bigint> (large_list<")
