"""Which columns of a typed topic may be a record's key, and which types hash alike.

A topic's setting ``partition.by`` names its key columns. A topic with Kafka's columns has one, its
column ``key``. :mod:`spark_stream.client.writing.keys` makes bytes of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch, UnsupportedType
from spark_stream.schema.nearest import meant
from spark_stream.schema.schemas import is_default
from spark_stream.schema.type_names import type_name

PARTITION_BY: Final = "partition.by"
"""The setting that names the key columns of a topic."""

DEFAULT_KEY: Final = ("key",)
"""The key columns of a topic with Kafka's columns."""

_BYTES: Final = "bytes"
_INTEGER: Final = "integer"
_DOUBLE: Final = "double"
_FORMS: Final = (
    (pt.is_boolean, "boolean"),
    (pt.is_integer, _INTEGER),
    (pt.is_floating, _DOUBLE),
    (pt.is_date32, "date"),
    (pt.is_timestamp, "timestamp"),
    (pt.is_time64, "time"),
    (pt.is_duration, "duration"),
    (pt.is_string, _BYTES),
    (pt.is_large_string, _BYTES),
    (pt.is_binary, _BYTES),
    (pt.is_large_binary, _BYTES),
    (pt.is_fixed_size_binary, _BYTES),
)


def split_names(text: str) -> tuple[str, ...]:
    """Split column names at their commas; an empty text names none."""
    return tuple(each.strip() for each in text.split(",")) if text.strip() else ()


def form_of(kind: pa.DataType) -> str | None:
    """Return a name for how values of a type become bytes, or None if they cannot be keys.

    Equal values of two types with one form have equal bytes.
    """
    if pt.is_decimal128(kind):
        return f"decimal of scale {kind.scale}"
    return next((form for holds, form in _FORMS if holds(kind)), None)


def check_key(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Check that records of this schema can be placed by these columns.

    Raises:
        SchemaMismatch: a column is missing, or named twice.
        UnsupportedType: a column has a type without a byte form.
    """
    for place, name in enumerate(columns):
        if name not in schema.names:
            raise SchemaMismatch(
                f"column {name!r} is not one of the topic's{meant(name, schema.names)}",
                column=name,
                hint=f"The topic has {', '.join(schema.names)}.",
            )
        if name in columns[:place]:
            raise SchemaMismatch(
                f"column {name!r} is named twice", column=name, hint="Name it once."
            )
        kind = schema.field(name).type
        if form_of(kind) is None:
            raise UnsupportedType(
                f"column {name!r} ({type_name(kind)}) cannot be a key",
                column=name,
                got=str(kind),
                hint="Choose columns of plain types: a nested value has no bytes of its own.",
            )


def check_setting(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Check that a topic of this schema may have these columns as its ``partition.by``.

    Raises:
        SchemaMismatch, UnsupportedType: as :func:`check_key`.
    """
    if is_default(schema) and tuple(columns) not in ((), DEFAULT_KEY):
        raise SchemaMismatch(
            "a topic with Kafka's columns is always partitioned by its column 'key'",
            column=columns[0],
            hint="Leave the setting out, or make a typed topic.",
        )
    check_key(schema, columns)


def check_evolved_key(present: pa.Schema, asked: pa.Schema, columns: Sequence[str]) -> None:
    """Check that equal values of the key columns stay in their partitions in the next schema.

    Raises:
        SchemaMismatch: a key column would get a type whose values have other bytes.
    """
    for name in columns:
        have, want = present.field(name).type, asked.field(name).type
        if form_of(have) != form_of(want):
            raise SchemaMismatch(
                f"column {name!r} from {type_name(have)} to {type_name(want)}: the topic is"
                f" partitioned by it ({PARTITION_BY}), and equal values would go to other"
                " partitions",
                column=name,
                have=str(have),
                want=str(want),
                hint="Widen integers to integers and float to double; for another change, make"
                " another topic.",
            )


def key_columns(schema: pa.Schema, own: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that place a writer's records: the topic's ``own``, or those ``asked``.

    Raises:
        SchemaMismatch: the topic is partitioned by other columns than those asked for, or as
            :func:`check_key`.
        UnsupportedType: as :func:`check_key`.
    """
    asked, own = tuple(asked), tuple(own)
    if not asked or asked == own:
        return own
    if own:
        raise SchemaMismatch(
            f"the topic is partitioned by {', '.join(map(repr, own))}, not by"
            f" {', '.join(map(repr, asked))}",
            column=asked[0],
            hint=f"Leave them out: the columns of the topic's {PARTITION_BY} are used then.",
        )
    check_key(schema, asked)
    return asked
