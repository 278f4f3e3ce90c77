"""Spark's types as Arrow's, and back. The error for a type that has no match names the column.

Spark compares the schema of a reader's batches with its own, to the letter: list items are called
``element``, timestamps are ``us`` with the zone ``UTC`` or none. So the mapping is defined here,
and does not depend on the (internal) one of the Spark release.

A query may declare a column NOT NULL only if the topic does so too. Spark trusts a reader's schema:
it drops ``is null`` from a query over a NOT NULL column, and reads memory that a null does not
have.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
import pyspark.sql.types as st

from spark_stream.datasource.spark.releases import TimeType
from spark_stream.errors import InvalidOption, SchemaMismatch, UnsupportedType
from spark_stream.schema.types import (
    INTERVALS,
    LEVELS_MAX,
    SPARK_TYPE,
    check_levels,
    declared_type,
    field_type_name,
    inner_fields,
)
from spark_stream.sql.ddl import parse_schema

CHAR_OR_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The key in a column's metadata under which Spark keeps its type if that has a char or varchar."""

_UDT: Final = b"isolog.udt"
"""The key of a field's metadata with the class of a user-defined type."""

_STORED_UDTS: Final = ("pyspark.ml.linalg.VectorUDT", "pyspark.ml.linalg.MatrixUDT")
"""Only these: a reader imports the class, and any client can write its name."""

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
    TimeType: pa.time64("ns"),
    st.NullType: pa.null(),
}


def to_arrow(schema: st.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark's batches of this schema have.

    Raises:
        UnsupportedType: The error names the column (with its path, if it is nested) and its type,
            or its depth: Spark's tasks exchange Arrow messages, which have a limit.
        SchemaMismatch: duplicate column.
    """
    fields = _arrow_fields(schema, "")
    for field in fields:
        check_levels(field, LEVELS_MAX - 1)  # a task's rows are within one more struct
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
    """Return the type by whose rules Spark compares a column's texts, or None if by their bytes.

    A collation may ignore case. Values of ``char(n)`` are compared as if all were padded.
    """
    kind: st.DataType = schema
    declared = ""
    first, *within = path
    for name in (first, *within):
        fields = kind.fields if isinstance(kind, st.StructType) else []
        found = next((each for each in fields if each.name.lower() == name.lower()), None)
        if found is None:
            return None
        declared = declared or (found.metadata or {}).get(CHAR_OR_VARCHAR, "")
        kind = found.dataType
    if isinstance(kind, st.StringType) and kind == st.StringType():
        padded = _CHAR.search(_declared_within(declared, within))
        return None if padded is None else padded[0]
    return kind.simpleString() if isinstance(kind, (st.StringType, st.CharType)) else None


def _declared_within(text: str, path: Iterable[str]) -> str:
    """Return the declared type of a column's field, or of the column if it cannot be parsed."""
    if not text.startswith("struct"):
        return text
    try:
        field = parse_schema(f"declared {text}").field(0)
    except InvalidOption:
        return text
    for name in path:
        inner = inner_fields(field.type)
        found = next((each for each in inner if each.name.lower() == name.lower()), None)
        if found is None:
            return text
        field = found
    return field_type_name(field)


def _arrow_fields(struct: st.StructType, path: str) -> list[pa.Field]:
    names = struct.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        where = f"{path}.{twice}" if path else twice
        raise SchemaMismatch(
            f"duplicate column {where!r}",
            column=where,
            hint="Rename one of the columns.",
        )
    return [
        _arrow_field(field, f"{path}.{field.name}" if path else field.name)
        for field in struct.fields
    ]


def _arrow_field(field: st.StructField, path: str) -> pa.Field:
    found = _field(field.name, field.dataType, field.nullable, path)
    declared = (field.metadata or {}).get(CHAR_OR_VARCHAR)
    if declared is None or not pt.is_string(found.type):
        return found
    return found.with_metadata({SPARK_TYPE: declared})


def _field(name: str, kind: st.DataType, nullable: bool, path: str) -> pa.Field:
    found = _arrow_type(kind, path)
    # The items of Spark's array() are of type void and "not null", which Arrow refuses.
    return pa.field(name, found, nullable or pt.is_null(found), metadata=_metadata(kind))


def _metadata(kind: st.DataType) -> dict[bytes, str] | None:
    """Return the metadata of a field for the part of a type that Arrow lacks."""
    if isinstance(kind, st.UserDefinedType):
        return {_UDT: _class_name(kind)}
    if isinstance(kind, (TimeType, st.DayTimeIntervalType)):
        whole = kind == type(kind)()
        return None if whole else {SPARK_TYPE: kind.simpleString()}
    if isinstance(kind, (st.CharType, st.VarcharType)):
        return {SPARK_TYPE: kind.simpleString()}
    return None


def _class_name(kind: st.UserDefinedType) -> str:
    return f"{kind.module()}.{type(kind).__name__}"


def _arrow_type(kind: st.DataType, path: str) -> pa.DataType:
    simple = _SIMPLE.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return pa.list_(_field("element", kind.elementType, kind.containsNull, f"{path}.element"))
    if isinstance(kind, st.MapType):
        key = _field("key", kind.keyType, False, f"{path}.key")
        if pt.is_null(key.type):
            raise UnsupportedType(
                f"column {path!r}: the keys of a map cannot be of type void",
                column=path,
                got=kind.simpleString(),
                hint="Cast the map, for example to map<string,string>.",
            )
        return pa.map_(
            key, _field("value", kind.valueType, kind.valueContainsNull, f"{path}.value")
        )
    if isinstance(kind, st.StructType):
        return pa.struct(_arrow_fields(kind, path))
    if isinstance(kind, st.UserDefinedType) and _class_name(kind) in _STORED_UDTS:
        return _arrow_type(kind.sqlType(), path)
    raise UnsupportedType(
        f"column {path!r}: isolog does not carry Spark's {kind.simpleString()}",
        column=path,
        got=kind.simpleString(),
        hint=next((advice for refused, advice in _ADVICE if isinstance(kind, refused)), None),
    )


_ADVICE: Final[tuple[tuple[type[st.DataType], str], ...]] = (
    (
        st.UserDefinedType,
        "Convert its values to a type of Spark's own: vector_to_array makes an array of a vector,"
        " and a UDF converts others.",
    ),
    (
        st.YearMonthIntervalType,
        "Store its months: extract(YEAR FROM i) * 12 + extract(MONTH FROM i). make_ym_interval(0,"
        " months) makes the interval again.",
    ),
    (
        st.CalendarIntervalType,
        "Store columns of its months, days and seconds (extract), or an interval of days and times"
        " (make_dt_interval).",
    ),
    (st.VariantType, "Store its text: to_json(v). parse_json makes the variant again."),
)


def to_spark(schema: pa.Schema) -> st.StructType:
    """Return the Spark schema of a topic with this Arrow schema.

    Raises:
        UnsupportedType: Spark has no type for a column.
    """
    return st.StructType([_spark_column(field) for field in schema])


def _spark_column(field: pa.Field) -> st.StructField:
    """Return a column. A char or varchar is in its metadata, as Spark expects it."""
    kind = _spark_type(field, field.name)
    declared = declared_type(field) if isinstance(kind, st.StringType) else None
    metadata = None if declared is None else {CHAR_OR_VARCHAR: declared}
    return st.StructField(field.name, kind, field.nullable, metadata)


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
    (pt.is_null, st.NullType()),
)


def _spark_type(field: pa.Field, path: str) -> st.DataType:
    kind = field.type
    declared = _declared(field)
    if declared is not None:
        return declared
    for holds, spark in _FROM_ARROW:
        if holds(kind):
            return spark
    if pt.is_timestamp(kind) and kind.unit == "us":
        return st.TimestampType() if kind.tz else st.TimestampNTZType()
    if kind == pa.duration("us"):
        return st.DayTimeIntervalType()
    if kind == pa.time64("ns"):
        return TimeType()
    if pt.is_decimal(kind) and kind.precision <= 38:
        return st.DecimalType(kind.precision, kind.scale)
    if pt.is_map(kind):
        key = _spark_type(kind.key_field, f"{path}.key")
        value = _spark_type(kind.item_field, f"{path}.value")
        return st.MapType(key, value, kind.item_field.nullable)
    if pt.is_list(kind) or pt.is_fixed_size_list(kind):
        item = _spark_type(kind.value_field, f"{path}.element")
        return st.ArrayType(item, kind.value_field.nullable)
    if pt.is_struct(kind):
        return st.StructType(
            [
                st.StructField(each.name, _spark_type(each, f"{path}.{each.name}"), each.nullable)
                for each in kind
            ]
        )
    raise UnsupportedType(
        f"column {path!r}: Spark has no type for Arrow's {kind}",
        column=path,
        got=str(kind),
        hint="Read it with the Python client, or leave the column out by .schema(...).",
    )


def _declared(field: pa.Field) -> st.DataType | None:
    """Return the type in a field's metadata, or None if it has none or that is a text."""
    name = (field.metadata or {}).get(_UDT, b"").decode(errors="replace")
    if name in _STORED_UDTS:
        module, _, called = name.rpartition(".")
        found: st.UserDefinedType = getattr(importlib.import_module(module), called)()
        if _arrow_type(found.sqlType(), field.name).equals(field.type):
            return found
    declared = declared_type(field)
    if declared is None or pt.is_string(field.type):
        return None
    if declared in INTERVALS:
        return st.DayTimeIntervalType(*INTERVALS[declared])
    return TimeType(int(declared.removeprefix("time(").removesuffix(")")))


def check_nullability(topic: str, stored: pa.Schema, wanted: pa.Schema) -> None:
    """Raise SchemaMismatch for a column that is NOT NULL to the query and nullable in the topic.

    ``stored`` has the columns of ``wanted``, in types that fit.
    """
    for field in wanted:
        for path in _promised(field.name, stored.field(field.name), field):
            raise SchemaMismatch(
                f"column {path!r} is NOT NULL in the query's schema, and may be null in topic"
                f" {topic!r}",
                hint="Leave NOT NULL out of the schema; `where … is not null` drops the nulls.",
                column=path,
            )


def _promised(path: str, stored: pa.Field, wanted: pa.Field) -> Iterator[str]:
    """Yield this field and those within it, if declared NOT NULL though they may be null."""
    if stored.nullable and not wanted.nullable:
        yield path
    if pt.is_map(stored.type) and pt.is_map(wanted.type):
        yield from _promised(f"{path}.key", stored.type.key_field, wanted.type.key_field)
        yield from _promised(f"{path}.value", stored.type.item_field, wanted.type.item_field)
    elif pt.is_struct(stored.type) and pt.is_struct(wanted.type):
        for inner in wanted.type:
            yield from _promised(f"{path}.{inner.name}", stored.type.field(inner.name), inner)
    elif _is_list(stored.type) and _is_list(wanted.type):
        yield from _promised(f"{path}.element", stored.type.value_field, wanted.type.value_field)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_fixed_size_list(kind))
