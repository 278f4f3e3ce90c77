"""Schemas of Delta tables: the columns of a topic, and the columns that isolog adds.

A topic's types may become wider (``schema.evolution``), but few readers support wider types in a
Delta table. So a new table has the widest types: ``long`` for whole numbers, ``double`` for
floating-point numbers, and 38 digits for decimals. Later changes of a topic add columns only, or
change nothing in the table.

Delta has no counterpart for times of a day, intervals and the type of nulls. Column names may not
contain the characters that Parquet reserved for its schemas, and are compared without case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import LakeStopped, SchemaMismatch, UnsupportedType
from spark_stream.schema.types import field_type_name

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
ADDED: Final = pa.schema(
    [
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
)
"""The columns that each table has behind those of its topic.

They have no nulls. But all columns of the table take nulls, so its files have the same schema, also
those that a merge or another program writes from the table's schema.
"""

_RESERVED: Final = set(" ,;{}()\n\t=")
_DIGITS_MAX: Final = 38


def table_schema(topic: str, columns: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a topic's table: its columns with the widest types, and isolog's.

    Raises:
        UnsupportedType: Delta has no type for a column.
        SchemaMismatch: Delta does not accept a column's name.
    """
    _check_names(topic, [field.name for field in columns])
    return pa.schema([*(_wide_field(topic, field) for field in columns), *ADDED])


def _check_names(topic: str, names: Iterable[str]) -> None:
    seen = {name.lower(): name for name in ADDED.names}
    for name in names:
        if bad := sorted(_RESERVED.intersection(name)):
            raise SchemaMismatch(
                f"topic {topic!r}: a Delta table has no column named {name!r}, because of"
                f" {bad[0]!r}",
                hint="Copy the records into a topic with other names of columns.",
                topic=topic,
                column=name,
            )
        if (other := seen.get(name.lower())) is not None:
            raise SchemaMismatch(
                f"topic {topic!r}: the columns {other!r} and {name!r} have the same name in a"
                " Delta table, which ignores case",
                hint="Copy the records into a topic with other names of columns.",
                topic=topic,
                column=name,
            )
        seen[name.lower()] = name


def _wide_field(topic: str, field: pa.Field) -> pa.Field:
    return pa.field(field.name, _wide_type(topic, field.name, field))


def _wide_type(topic: str, column: str, field: pa.Field) -> pa.DataType:
    kind = field.type
    if pt.is_integer(kind):
        return pa.int64()
    if pt.is_floating(kind):
        return pa.float64()
    if pt.is_decimal(kind):
        return pa.decimal128(_DIGITS_MAX, kind.scale)
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_boolean(kind) or pt.is_date32(kind):
        return kind
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_list(kind):
        return pa.list_(_inner(topic, column, kind.value_field))
    if pt.is_map(kind):
        key = _inner(topic, column, kind.key_field).with_nullable(False)
        return pa.map_(key, _inner(topic, column, kind.item_field))
    if pt.is_struct(kind):
        return pa.struct([_inner(topic, column, field) for field in kind.fields])
    raise UnsupportedType(
        f"topic {topic!r}: column {column!r} has the type {field_type_name(field)}, which a Delta"
        " table does not have",
        hint="Copy the records into a topic without it, or leave the topic out of the lake.",
        topic=topic,
        column=column,
    )


def _inner(topic: str, column: str, field: pa.Field) -> pa.Field:
    return pa.field(field.name, _wide_type(topic, column, field))


def is_zoneless(schema: pa.Schema) -> bool:
    """Return whether a column, at any depth, has timestamps without a zone."""
    return any(_has_zoneless(field.type) for field in schema)


def _has_zoneless(kind: pa.DataType) -> bool:
    if pt.is_timestamp(kind):
        return kind.tz is None
    if pt.is_map(kind):
        return _has_zoneless(kind.key_type) or _has_zoneless(kind.item_type)
    if pt.is_list(kind):
        return _has_zoneless(kind.value_type)
    return pt.is_struct(kind) and any(_has_zoneless(field.type) for field in kind.fields)


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as JSON of a Delta log. All columns take nulls, so that they can evolve."""
    return json.dumps({"type": "struct", "fields": [_field(each) for each in schema]})


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}}


_NAMES: Final = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def _type(kind: pa.DataType) -> str | dict[str, Any]:
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_list(kind):
        return {"type": "array", "elementType": _type(kind.value_type), "containsNull": True}
    if pt.is_map(kind):
        key, item = _type(kind.key_type), _type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": item, "valueContainsNull": True}
    if pt.is_struct(kind):
        return {"type": "struct", "fields": [_field(each) for each in kind.fields]}
    return _NAMES[kind]


def arrow_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of a table's schema, which is JSON of a Delta log.

    Raises:
        UnsupportedType: Another program added a column of an unknown type.
    """
    return pa.schema(_arrow_fields(json.loads(text)["fields"]))


def _arrow_fields(fields: list[dict[str, Any]]) -> list[pa.Field]:
    return [pa.field(each["name"], _arrow_type(each["type"])) for each in fields]


_ARROW_TYPES: Final = {name: kind for kind, name in _NAMES.items()} | {
    "byte": pa.int8(),
    "short": pa.int16(),
    "float": pa.float32(),
}


def _arrow_type(kind: str | dict[str, Any]) -> pa.DataType:
    if isinstance(kind, str):
        if digits := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
            return pa.decimal128(int(digits[1]), int(digits[2]))
        if kind in _ARROW_TYPES:
            return _ARROW_TYPES[kind]
    elif kind["type"] == "struct":
        return pa.struct(_arrow_fields(kind["fields"]))
    elif kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    elif kind["type"] == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    raise UnsupportedType(f"a Delta table has a column of the unknown type {kind!r}")


def widened(table: str, present: str, wanted: pa.Schema) -> str | None:
    """Return the table's next schema with the new columns of ``wanted``, or None without any.

    ``present``: the table's schema, as JSON. Columns that only the table has are kept.

    Raises:
        LakeStopped: A column has another type in the table.
    """
    fields = json.loads(present)["fields"]
    added = _add_fields(table, "", fields, json.loads(schema_text(wanted))["fields"])
    return json.dumps({"type": "struct", "fields": fields}) if added else None


def _add_fields(
    table: str, path: str, present: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> bool:
    """Add the wanted fields that are missing, at any depth. Return whether one was."""
    added = False
    there = {field["name"].lower(): field for field in present}
    for field in wanted:
        known = there.get(field["name"].lower())
        if known is None:
            present.append(field)
            added = True
            continue
        added |= _add_inner(table, f"{path}{field['name']}", known, field, "type")
    return added


def _add_inner(
    table: str, column: str, present: dict[str, Any], wanted: dict[str, Any], of: str
) -> bool:
    have, want = present[of], wanted[of]
    if isinstance(have, dict) and isinstance(want, dict) and have["type"] == want["type"]:
        if want["type"] == "struct":
            return _add_fields(table, f"{column}.", have["fields"], want["fields"])
        inner = ("elementType",) if want["type"] == "array" else ("keyType", "valueType")
        added = [_add_inner(table, column, have, want, each) for each in inner]
        return any(added)
    if have != want:
        raise LakeStopped(
            f"the column {column!r} of the table {table} has the type {json.dumps(have)}, and the"
            f" topic needs {json.dumps(want)}",
            hint="Somebody changed the table, or the topic got a wider decimal."
            " Drop the lake, move the table away, and create the lake again.",
            table=table,
            column=column,
        )
    return False
