"""Spark's types that have no place in a topic are refused by the name of their column."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import types as st

from spark_stream.datasource.spark.types import check_collations, to_arrow
from spark_stream.errors import IsologError, SchemaMismatch, UnsupportedType

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
    """As of ``select map()``, where Spark makes empty maps so."""
    with pytest.raises(UnsupportedType, match=f"column '{path}': the keys of a map") as caught:
        to_arrow(st.StructType([st.StructField("m", kind)]))
    assert caught.value.details["column"] == path


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = st.StructType([st.StructField(name, st.LongType()) for name in ("id", "n", "id")])
    for schema, path in ((twice, "id"), (st.StructType().add("s", twice), "s.id")):
        with pytest.raises(SchemaMismatch, match=f"column '{path}' is there twice"):
            to_arrow(schema)


@pytest.mark.parametrize(
    ("nest", "most"),
    [
        (lambda kind: st.StructType().add("f", kind), 63),
        (st.ArrayType, 63),
        (lambda kind: st.MapType(st.StringType(), kind), 31),
    ],
    ids=["struct", "array", "map"],
)
def test_type_nested_too_deep_is_refused_when_a_query_is_planned(
    nest: Callable[[st.DataType], st.DataType], most: int
) -> None:
    """Spark's own messages between JVM and Python are Arrow's, and have the same limit."""
    kind: st.DataType = st.LongType()
    for _ in range(most):
        kind = nest(kind)
    to_arrow(st.StructType().add("c", kind))
    with pytest.raises(UnsupportedType, match=r"'c': .* levels deep, and 63 are the limit"):
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
def test_a_collation_is_not_lost_without_a_word(kind: st.DataType, path: str) -> None:
    with pytest.raises(IsologError, match=f"column '{path}' is string collate UNICODE_CI"):
        check_collations(st.StructType([st.StructField("c", kind)]))


def test_a_string_without_a_collation_is_taken() -> None:
    check_collations(st.StructType().add("a", "string").add("b", st.ArrayType(st.StringType())))
