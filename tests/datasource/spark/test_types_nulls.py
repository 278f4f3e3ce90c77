"""NOT NULL in a query's schema is accepted only if the topic has it too."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from isolog.errors import SchemaMismatch
from spark_stream.datasource.spark.types import check_nullability, to_arrow


def schema(kind: DataType, nullable: bool = True) -> StructType:
    return StructType([StructField("c", kind, nullable)])


def struct(nullable: bool) -> DataType:
    return StructType([StructField("x", LongType(), nullable)])


CASES = [
    (schema(LongType()), schema(LongType(), False), "'c'"),
    (schema(struct(True)), schema(struct(False)), "'c.x'"),
    (schema(ArrayType(LongType())), schema(ArrayType(LongType(), False)), "'c.element'"),
    (
        schema(ArrayType(struct(True))),
        schema(ArrayType(struct(False))),
        "'c.element.x'",
    ),
    (
        schema(MapType(StringType(), LongType())),
        schema(MapType(StringType(), LongType(), False)),
        "'c.value'",
    ),
]


@pytest.mark.parametrize(("loose", "strict", "path"), CASES, ids=lambda value: str(value)[:20])
def test_not_null_is_refused_for_a_nullable_column(
    loose: StructType, strict: StructType, path: str
) -> None:
    with pytest.raises(SchemaMismatch, match=f"column {path} is NOT NULL in the query") as caught:
        check_nullability("t", to_arrow(loose), to_arrow(strict))
    assert "NOT NULL" in caught.value.hint
    check_nullability("t", to_arrow(strict), to_arrow(strict))
    check_nullability("t", to_arrow(strict), to_arrow(loose))
    check_nullability("t", to_arrow(loose), to_arrow(loose))
