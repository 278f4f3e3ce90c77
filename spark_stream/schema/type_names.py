"""Types by Spark's names, which are ours everywhere that a user looks: ``bigint``, ``array<…>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

SIMPLE_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
    "interval day to second": pa.duration("us"),
    "void": pa.null(),
}
"""If a type has several names, the first one is shown."""

SPARK_TYPE: Final = b"isolog.type"
"""The key of a field's metadata with Spark's declared type, if Arrow has no such type."""

_UNITS: Final = ("day", "hour", "minute", "second")
INTERVALS: Final[Mapping[str, tuple[int, int]]] = {
    f"interval {first}" + (f" to {last}" if start < end else ""): (start, end)
    for start, first in enumerate(_UNITS)
    for end, last in enumerate(_UNITS)
    if start <= end
}
"""Spark's intervals of days and times: name → the places of the greatest and the least unit."""

_DECLARED: Final = (
    (pt.is_time64, re.compile(r"time\(\d\)")),
    (pt.is_duration, re.compile("|".join(INTERVALS))),
    (pt.is_string, re.compile(r"(var)?char\([1-9]\d*\)")),
)
_NAMES: Final = {kind: name for name, kind in reversed(list(SIMPLE_TYPES.items()))}


def declared_type(field: pa.Field) -> str | None:
    """Return the type that Spark declared for a field, or None if its Arrow type has all of it.

    Metadata that does not fit the field is ignored: any client can write it.
    """
    text = (field.metadata or {}).get(SPARK_TYPE, b"").decode(errors="replace")
    fits = any(holds(field.type) and form.fullmatch(text) for holds, form in _DECLARED)
    return text if fits else None


def may_be_declared(kind: pa.DataType) -> bool:
    """Return whether Spark may declare another type for fields of this Arrow type."""
    return any(holds(kind) for holds, _ in _DECLARED)


def field_type_name(field: pa.Field) -> str:
    """Return the name of a field's type: Spark's declared type, or else that of the Arrow type."""
    return declared_type(field) or type_name(field.type)


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type, or Arrow's where Spark has none."""
    if pt.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_map(kind):
        return f"map<{field_type_name(kind.key_field)},{field_type_name(kind.item_field)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"array<{field_type_name(kind.value_field)}>"
    if pt.is_struct(kind):
        fields = [column_text(kind.field(i), ":") for i in range(kind.num_fields)]
        return f"struct<{','.join(fields)}>"
    return _NAMES.get(kind) or str(kind)


def told_apart(want: pa.DataType, have: pa.DataType) -> tuple[str, str]:
    """Name two types that differ; by Arrow's names too if Spark has one name for both."""
    names = type_name(want), type_name(have)
    if names[0] != names[1]:
        return names
    return f"{names[0]} ({want})", f"{names[1]} ({have})"


def column_text(field: pa.Field, between: str) -> str:
    """Write a column as DDL: its name, ``between``, its type, and NOT NULL if it takes no nulls."""
    name = field.name
    if not re.fullmatch(r"\w+", name):
        name = "`" + name.replace("`", "``") + "`"
    return f"{name}{between}{field_type_name(field)}{'' if field.nullable else ' NOT NULL'}"
