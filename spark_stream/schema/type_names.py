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
    "void": pa.null(),
}
"""If a type has several names, the first one is shown."""

_NAMES: Final = {kind: name for name, kind in reversed(list(SIMPLE_TYPES.items()))}


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type, or Arrow's where Spark has none."""
    if pt.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"array<{type_name(kind.value_type)}>"
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
    return f"{name}{between}{type_name(field.type)}{'' if field.nullable else ' NOT NULL'}"
