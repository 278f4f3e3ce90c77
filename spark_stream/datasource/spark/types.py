"""Spark's types as Arrow's, and back. The error for a type that has no match names the column.

Spark compares the schema of what a reader yields with its own, to the letter: list items are called
``element``, timestamps are ``us`` with the zone ``UTC`` or none. So the mapping is written down
here, and does not depend on the (internal) one of the Spark release at hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st

from spark_stream.errors import SchemaMismatch, UnsupportedType
from spark_stream.schema.stored_types import check_levels

CHAR_OR_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata under which Spark keeps its type if that has a char or varchar."""

_CHAR: Final = re.compile(r"\bchar\(\d+\)")
_SIMPLE: Final[Mapping[type[st.DataType], pa.DataType]] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.CharType: pa.string(),
    st.VarcharType: pa.string(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
    st.TimeType: pa.time64("ns"),
    st.NullType: pa.null(),
}


def to_arrow(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark's batches of this schema have.

    Raises:
        UnsupportedType: naming the column (with its path, if it is nested) and its type, or its
            depth: Spark's tasks get and return Arrow's messages, which have a limit.
        SchemaMismatch: a name is there twice.
    """
    fields = _arrow_fields(schema, "")
    for field in fields:
        check_levels(field)
    return pa.schema(fields)


def check_collations(kind: st.DataType, path: str = "") -> None:
    """Raise UnsupportedType if a string has a collation, which a topic does not keep."""
    if isinstance(kind, st.StructType):
        for field in kind.fields:
            check_collations(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, st.ArrayType):
        check_collations(kind.elementType, f"{path}.element")
    elif isinstance(kind, st.MapType):
        check_collations(kind.keyType, f"{path}.key")
        check_collations(kind.valueType, f"{path}.value")
    elif type(kind) is st.StringType and kind != st.StringType():
        raise UnsupportedType(
            f"column {path!r} is {kind.simpleString()}: a topic does not keep collations",
            column=path,
            got=kind.simpleString(),
            hint="Cast it to string before it is written. A query that reads it may name the"
            " collation in its .schema(...).",
        )


def text_rule(schema: st.StructType, path: Iterable[str]) -> str | None:
    """Return the type by whose rules Spark compares a column's texts; None if by their bytes.

    A collation may ignore case. Values of ``char(n)`` are compared as if all were padded.
    """
    kind: st.DataType = schema
    declared = ""
    for name in path:
        fields = kind.fields if isinstance(kind, st.StructType) else []
        found = next((each for each in fields if each.name.lower() == name.lower()), None)
        if found is None:
            return None
        declared = declared or (found.metadata or {}).get(CHAR_OR_VARCHAR, "")
        kind = found.dataType
    if isinstance(kind, st.StringType) and kind == st.StringType():
        padded = _CHAR.search(declared)
        return None if padded is None else padded[0]
    return kind.simpleString() if isinstance(kind, (st.StringType, st.CharType)) else None


def _arrow_fields(struct: st.StructType, path: str) -> list[pa.Field]:
    names = struct.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        where = f"{path}.{twice}" if path else twice
        raise SchemaMismatch(
            f"column {where!r} is there twice",
            column=where,
            hint="Name each column once, or rename one of them.",
        )
    return [
        _arrow_field(field, f"{path}.{field.name}" if path else field.name)
        for field in struct.fields
    ]


def _arrow_field(field: st.StructField, path: str) -> pa.Field:
    return _field(field.name, _arrow_type(field.dataType, path), field.nullable)


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    # The items of Spark's array() are of type void and "not null"; Arrow calls that a
    # contradiction.
    return pa.field(name, kind, nullable=nullable or pt.is_null(kind))


def _arrow_type(kind: st.DataType, path: str) -> pa.DataType:
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        item = _arrow_type(kind.elementType, f"{path}.element")
        return pa.list_(_field("element", item, kind.containsNull))
    if isinstance(kind, st.MapType):
        key = _arrow_type(kind.keyType, f"{path}.key")
        if pt.is_null(key):
            raise UnsupportedType(
                f"column {path!r}: the keys of a map cannot be of type void",
                column=path,
                got=kind.simpleString(),
                hint="Cast the map, for example to map<string,string>.",
            )
        value = _arrow_type(kind.valueType, f"{path}.value")
        return pa.map_(
            pa.field("key", key, nullable=False),
            _field("value", value, kind.valueContainsNull),
        )
    if isinstance(kind, st.StructType):
        return pa.struct(_arrow_fields(kind, path))
    raise UnsupportedType(
        f"column {path!r}: isolog does not carry Spark's {kind.simpleString()}",
        column=path,
        got=kind.simpleString(),
    )


def to_spark(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema of a topic with this Arrow schema.

    Raises:
        UnsupportedType: a column has a type that Spark does not know.
    """
    return st.StructType([_spark_field(field, field.name) for field in schema])


def _spark_field(field: pa.Field, path: str) -> st.StructField:
    return st.StructField(field.name, _spark_type(field.type, path), field.nullable)


# The first test that holds decides. Unsigned integers take the next wider type.
_FROM_ARROW: Final[tuple[tuple[Callable[[pa.DataType], bool], st.DataType], ...]] = (
    (pt.is_boolean, st.BooleanType()),
    (pt.is_int8, st.ByteType()),
    (pt.is_int16, st.ShortType()),
    (pt.is_uint8, st.ShortType()),
    (pt.is_int32, st.IntegerType()),
    (pt.is_uint16, st.IntegerType()),
    (pt.is_int64, st.LongType()),
    (pt.is_uint32, st.LongType()),
    (pt.is_float16, st.FloatType()),
    (pt.is_float32, st.FloatType()),
    (pt.is_float64, st.DoubleType()),
    (pt.is_string, st.StringType()),
    (pt.is_binary, st.BinaryType()),
    (pt.is_fixed_size_binary, st.BinaryType()),
    (pt.is_date32, st.DateType()),
    (lambda kind: pt.is_timestamp(kind) and kind.unit == "us" and kind.tz, st.TimestampType()),
    (lambda kind: pt.is_timestamp(kind) and kind.unit == "us", st.TimestampNTZType()),
    (lambda kind: pt.is_duration(kind) and kind.unit == "us", st.DayTimeIntervalType()),
    (lambda kind: pt.is_time64(kind) and kind.unit == "ns", st.TimeType()),
    (pt.is_null, st.NullType()),
)


def _spark_type(kind: pa.DataType, path: str) -> st.DataType:
    for holds, spark in _FROM_ARROW:
        if holds(kind):
            return spark
    if pt.is_decimal(kind) and kind.precision <= 38:
        return st.DecimalType(kind.precision, kind.scale)
    if pt.is_map(kind):
        key = _spark_type(kind.key_type, f"{path}.key")
        value = _spark_type(kind.item_type, f"{path}.value")
        return st.MapType(key, value, kind.item_field.nullable)
    if pt.is_list(kind) or pt.is_fixed_size_list(kind):
        item = _spark_type(kind.value_type, f"{path}.element")
        return st.ArrayType(item, kind.value_field.nullable)
    if pt.is_struct(kind):
        fields: list[Any] = [kind.field(index) for index in range(kind.num_fields)]
        return st.StructType([_spark_field(each, f"{path}.{each.name}") for each in fields])
    raise UnsupportedType(
        f"column {path!r}: Spark has no type for Arrow's {kind}",
        column=path,
        got=str(kind),
        hint="Read it with the Python client, or leave the column out by .schema(...).",
    )
