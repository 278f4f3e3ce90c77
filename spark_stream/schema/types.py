"""Types of columns: their names, and the types that a topic stores.

Users see Spark's names of types everywhere: ``bigint``, ``array<…>``.

A topic stores the types that Spark reads. Libraries make schemas with other types: pandas counts
nanoseconds, polars has large strings. The broker applies one rule to every new schema: each type
becomes one that every reader has, or is refused. A batch whose columns have the original types is
accepted too, as long as no value changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import UnsupportedType

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
"""Names of types. If a type has several names, isolog writes the first one."""

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
    """Return the type that Spark declared for a field, or None if the Arrow type is equivalent.

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


def distinct_names(want: pa.DataType, have: pa.DataType) -> tuple[str, str]:
    """Return names for two different types. Add Arrow's names if Spark has one name for both."""
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


DIGITS_MAX: Final = 38
"""The digits of the widest decimal that Spark has."""

FIXED_BYTES_MAX: Final = 1 << 16
"""The greatest size of a value of a type with a fixed size."""

LEVELS_MAX: Final = 63
"""The greatest depth of a nested type: Arrow writes no deeper batch. A map has two levels."""

_Is = Callable[[pa.DataType], bool]

_STORED: Final[tuple[_Is, ...]] = (
    pt.is_null,
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_string,
    pt.is_binary,
    pt.is_fixed_size_binary,
    pt.is_date32,
)
_CONVERTED: Final[tuple[tuple[_Is, pa.DataType], ...]] = (
    (pt.is_uint64, pa.decimal128(20, 0)),  # has all of its values, unlike Spark's bigint
    (pt.is_large_string, pa.string()),
    (pt.is_string_view, pa.string()),
    (pt.is_large_binary, pa.binary()),
    (pt.is_binary_view, pa.binary()),
    (pt.is_date64, pa.date32()),
    (pt.is_time, pa.time64("ns")),
    (pt.is_duration, pa.duration("us")),
)
_HINTS: Final[tuple[tuple[_Is, str], ...]] = (
    (pt.is_decimal, f"Use decimal128({DIGITS_MAX}, …) if its values fit, or text."),
    (pt.is_interval, "Use duration('us'), or columns of months, days and microseconds."),
    (pt.is_list_view, "Use list_ of the same values."),
    (pt.is_large_list_view, "Use list_ of the same values."),
    (pt.is_run_end_encoded, "Decode the column (pyarrow.compute.run_end_decode)."),
    (pt.is_union, "Use a struct with a field for each type."),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "Use the type that it is stored in."),
)


def stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type that a topic stores for a column of this type.

    Raises:
        UnsupportedType: A topic stores no such type. ``path`` is the column, or the field inside
            it, for the message.
    """
    if isinstance(kind, pa.BaseExtensionType):
        raise _unsupported(kind, path)
    for holds, found in _CONVERTED:
        if holds(kind):
            return found
    if any(holds(kind) for holds in _STORED):
        _check_size(kind, path)
        return kind
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_decimal(kind):
        return _decimal(kind, path)
    if pt.is_dictionary(kind):
        return stored_type(kind.value_type, path)

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(stored_type(field.type, f"{path}.{field.name}"))

    found = with_inner(kind, inner)
    if found is None:
        raise _unsupported(kind, path)
    _check_size(found, path)
    return found


def check_levels(field: pa.Field, most: int = LEVELS_MAX) -> None:
    """Raise UnsupportedType if the column's type is nested deeper than Arrow can write."""
    levels = _levels(field.type)
    if levels > most:
        raise UnsupportedType(
            f"column {field.name!r}: its type is nested {levels} levels deep, and {most} are"
            " the limit (a map has two levels)",
            column=field.name,
            hint="Make columns of its inner fields, or store the inner part as text (in Spark"
            " to_json).",
        )


def _levels(kind: pa.DataType) -> int:
    """Return the depth of a type, without recursion. A plain type has depth 0."""
    found = -1
    level = [kind]
    while level:
        found += 1
        plain = [each.value_type if pt.is_dictionary(each) else each for each in level]
        level = [
            each.field(index).type
            for each in plain
            if pt.is_nested(each)
            for index in range(each.num_fields)
        ]
    return found


def converted(kind: pa.DataType) -> pa.DataType:
    """Return the type that a topic stores for this one, or the type itself if there is none."""
    try:
        return stored_type(kind, "")
    except UnsupportedType:
        return kind


def converts(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether a topic stores ``have`` as another type, and that type is ``want``."""
    return not have.equals(want) and converted(have).equals(want)


def with_inner(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType | None:
    """Return a nested type with its fields changed, or None if the type is not nested.

    A large list becomes a list.
    """
    if pt.is_struct(kind):
        return pa.struct([change(field) for field in kind])
    if pt.is_map(kind):
        keys, items = change(kind.key_field), change(kind.item_field)
        return pa.map_(keys, items, keys_sorted=kind.keys_sorted)
    if pt.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return pa.list_(change(kind.value_field))
    return None


def inner_fields(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type, in the order of :func:`with_inner`."""
    if pt.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(index) for index in range(kind.num_fields)]


def without_metadata(field: pa.Field) -> pa.Field:
    """Return the field without its metadata, and without that of all fields within it."""
    kind = with_inner(field.type, without_metadata) or field.type
    return field.with_type(kind).remove_metadata()


def _check_size(kind: pa.DataType, path: str) -> None:
    """Refuse a type whose values have no size, or a fixed size above the limit.

    Nulls take this size too, for example in the old records of a topic that gets such a column.
    """
    is_fixed = pt.is_fixed_size_list(kind) or pt.is_fixed_size_binary(kind)
    size = _fixed_bytes(kind)
    if pt.is_struct(kind) and not kind.num_fields:
        reason, hint = "it has no field", "Give the struct a field, or leave the column out."
    elif is_fixed and not size:
        reason, hint = "its values are empty", "Use a larger size, or leave the column out."
    elif is_fixed and size > FIXED_BYTES_MAX:
        reason = f"each value takes {size} bytes, and {FIXED_BYTES_MAX} are the limit"
        hint = "Use list_ or binary without a size: a null takes no space there."
    else:
        return
    raise UnsupportedType(
        f"column {path!r}: a topic cannot store Arrow's {kind}: {reason}",
        column=path,
        got=str(kind),
        hint=hint,
    )


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the least size of any value of the type in bytes, nulls included."""
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * max(1, _fixed_bytes(kind.value_type))
    if pt.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    if pt.is_struct(kind):
        return sum(_fixed_bytes(field.type) for field in kind)
    if pt.is_primitive(kind):
        return max(1, int(kind.bit_width) // 8)
    return 0 if pt.is_null(kind) else 4  # an offset


def _decimal(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the decimal type of Spark that has all values of this one.

    Spark's decimals have at most 38 digits. Any number of them may be after the decimal point.
    """
    scale = max(kind.scale, 0)
    digits = max(kind.precision - min(kind.scale, 0), scale)
    if digits > DIGITS_MAX:
        raise _unsupported(kind, path)
    return pa.decimal128(digits, scale)


def _unsupported(kind: pa.DataType, path: str) -> UnsupportedType:
    hint = next((hint for holds, hint in _HINTS if holds(kind)), None)
    return UnsupportedType(
        f"column {path!r}: a topic cannot store Arrow's {kind}: Spark has no such type",
        column=path,
        got=str(kind),
        hint=hint,
    )
