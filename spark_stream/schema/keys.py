"""Key columns of typed topics: valid columns and types, and types that hash alike.

A topic's setting ``partition.by`` names its key columns. A topic with Kafka's columns has one, its
column ``key``. :mod:`spark_stream.client.writing.partitioner` makes bytes of the values.

A key column may be a field of a struct: ``user.id``. As in Spark, backquotes enclose a name with a
dot or a comma: ```first.name```. A name that equals a column's name means that column.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch, UnsupportedType
from spark_stream.schema.schemas import is_default, meant
from spark_stream.schema.types import type_name

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


_COMMA: Final = re.compile(r",(?=(?:[^`]*`[^`]*`)*[^`]*$)")
_PART: Final = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_PATH: Final = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")
_PLAIN: Final = re.compile(r"[^`.,\s]+")


def split_names(text: str) -> tuple[str, ...]:
    """Split column names at the commas outside backquotes. An empty text names none."""
    return tuple(each.strip() for each in _COMMA.split(text)) if text.strip() else ()


def path_of(schema: pa.Schema, name: str, *, folded: bool = False) -> tuple[str, ...] | None:
    """Return the path to which a name refers: a column, then fields within it. None without one.

    ``folded``: ignore case, if only one column or field fits.
    """
    if name in schema.names:
        return (name,)
    if not _PATH.fullmatch(name):
        return None
    parts = [plain or quoted.replace("``", "`") for quoted, plain in _PART.findall(name)]
    for asked in ([name], parts) if folded else (parts,):
        found = _found(list(schema), asked, folded=folded)
        if found is not None:
            return found
    return None


def _found(
    fields: Sequence[pa.Field], parts: Sequence[str], *, folded: bool
) -> tuple[str, ...] | None:
    """Return the names of the fields on the path, from the outermost on."""
    path: list[str] = []
    for part in parts:
        same = [each for each in fields if each.name == part]
        if folded and not same:
            same = [each for each in fields if each.name.lower() == part.lower()]
        if len(same) != 1:
            return None
        path.append(same[0].name)
        fields = list(same[0].type) if pt.is_struct(same[0].type) else []
    return tuple(path)


def path_text(path: Sequence[str]) -> str:
    """Return the name for a path, with backquotes where they are needed."""
    if len(path) == 1 and "," not in path[0] and "`" not in path[0]:
        return path[0]
    quoted = (each if _PLAIN.fullmatch(each) else f"`{each.replace('`', '``')}`" for each in path)
    return ".".join(quoted)


def _type_at(schema: pa.Schema, path: Sequence[str]) -> pa.DataType:
    kind = schema.field(path[0]).type
    for name in path[1:]:
        kind = kind.field(name).type
    return kind


def same_columns(schema: pa.Schema, one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two lists of names refer to the same columns."""
    if tuple(one) == tuple(other):
        return True
    paths = [[path_of(schema, name) for name in names] for names in (one, other)]
    return None not in paths[0] and paths[0] == paths[1]


def form_of(kind: pa.DataType) -> str | None:
    """Return the name of the type's byte form, or None if its values cannot be keys.

    Equal values of two types with the same form have equal bytes.
    """
    if pt.is_decimal128(kind):
        return f"decimal of scale {kind.scale}"
    return next((form for holds, form in _FORMS if holds(kind)), None)


def check_key(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Check that these columns can choose the partition of a record of this schema.

    Raises:
        SchemaMismatch: a column is missing, or named twice.
        UnsupportedType: a column has a type without a byte form.
    """
    paths: list[tuple[str, ...]] = []
    for name in columns:
        path = path_of(schema, name)
        if path is None:
            raise SchemaMismatch(
                f"column {name!r} is not one of the topic's{meant(name, schema.names)}",
                column=name,
                hint=f"The topic has {', '.join(schema.names)}.",
            )
        if path in paths:
            raise SchemaMismatch(
                f"column {name!r} is named twice", column=name, hint="Name it once."
            )
        paths.append(path)
        kind = _type_at(schema, path)
        if form_of(kind) is None:
            raise UnsupportedType(
                f"column {name!r} ({type_name(kind)}) cannot be a key",
                column=name,
                got=str(kind),
                hint="Choose columns, or fields of structs (user.id), of plain types. A nested"
                " value has no byte form.",
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
        path = path_of(present, name)
        assert path is not None  # checked when the topic was created
        have, want = _type_at(present, path), _type_at(asked, path)
        if form_of(have) != form_of(want):
            raise SchemaMismatch(
                f"column {name!r} from {type_name(have)} to {type_name(want)}: the topic is"
                f" partitioned by it ({PARTITION_BY}), and equal values would go to other"
                " partitions",
                column=name,
                have=str(have),
                want=str(want),
                hint="Widen integers to integers and float to double. For another change, make"
                " another topic.",
            )


def key_columns(schema: pa.Schema, own: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Return a writer's key columns: ``own``, those of the topic, or else ``asked``, the writer's.

    Raises:
        SchemaMismatch: the topic is partitioned by other columns than ``asked``, or as
            :func:`check_key`.
        UnsupportedType: as :func:`check_key`.
    """
    asked, own = tuple(asked), tuple(own)
    if not asked or same_columns(schema, asked, own):
        return own
    if own:
        raise SchemaMismatch(
            f"the topic is partitioned by {', '.join(map(repr, own))}, not by"
            f" {', '.join(map(repr, asked))}",
            column=asked[0],
            hint=f"Leave the columns out: those of the topic's {PARTITION_BY} are used then.",
        )
    check_key(schema, asked)
    return asked
