"""Schema evolution: changes after which old and new readers can read every record.

Columns keep their names and their order, and so do the fields of structs. New ones come last and
take nulls. A type may become a wider one, which has all of its values, or the one that a topic
stores in its place. NOT NULL may be dropped. So an older batch is read in the newer schema without
a look at its values, and writers with the older schema can continue.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch
from spark_stream.schema.schemas import is_default, stored_schema
from spark_stream.schema.types import converts, distinct_names, inner_fields, type_name, with_inner

VERSIONS_MAX: Final = 256
"""The version of its schema takes one byte in an entry."""

_HINT: Final = (
    "You can add columns and fields of structs at the end, widen numbers, and drop NOT NULL."
    " For another change, make another topic."
)
_IN_DOUBLE: Final = 32  # bits of the widest integer type that a double has exactly


def check_evolution(topic: str, present: pa.Schema, asked: pa.Schema) -> pa.Schema:
    """Return the topic's next schema, or refuse a change that is not allowed.

    Fields keep the metadata that is not given: comments, and declared types of Spark. An empty
    value removes an entry.

    Raises:
        SchemaMismatch: the change is not allowed. The error has the column and its types.
        UnsupportedType: a topic cannot store the type of a new column.
    """
    if is_default(present):
        raise SchemaMismatch(
            f"topic {topic!r} has Kafka's columns (key, value, headers, timestamp), which cannot"
            " change",
            hint="Make a typed topic: give it a schema.",
            topic=topic,
        )
    asked = stored_schema(asked)
    wrong = misfit(present, asked)
    if wrong is not None:
        raise SchemaMismatch(
            f"topic {topic!r}: {wrong.message}", hint=_HINT, **wrong.details, topic=topic
        )
    there = {field.name: field for field in present}
    fields = [_with_metadata(field, there.get(field.name, field)) for field in asked]
    made = pa.schema(fields, asked.metadata or present.metadata)
    if made.equals(present, check_metadata=True):
        raise SchemaMismatch(
            f"topic {topic!r} has this schema already: there is nothing to change",
            hint="`isolog topic describe` shows it.",
            topic=topic,
            already_done=True,
        )
    return made


def _with_metadata(field: pa.Field, present: pa.Field) -> pa.Field:
    """Add the metadata of the present field that the new one lacks, at any depth."""
    there = iter(inner_fields(present.type))  # new fields come last
    kind = with_inner(field.type, lambda inner: _with_metadata(inner, next(there, inner)))
    given = {**(present.metadata or {}), **(field.metadata or {})}
    metadata = {key: value for key, value in given.items() if value}
    return field.with_type(kind or field.type).with_metadata(metadata or None)


def evolves(older: pa.Schema, newer: pa.Schema) -> bool:
    """Return whether the older schema is the newer one, or may become it."""
    return misfit(older, newer) is None


def misfit(present: pa.Schema, asked: pa.Schema) -> SchemaMismatch | None:
    """Return the reason why ``present`` may not become ``asked``, or None if it may."""
    added = [name for name in asked.names if name not in present.names]
    for field in present:
        if field.name not in asked.names:
            return _dropped(field, [asked.field(name) for name in added])
    kept = [name for name in asked.names if name in present.names]
    for name, had in zip(kept, present.names, strict=True):
        if name != had:
            orders = f"from {', '.join(present.names)} to {', '.join(kept)}"
            return _refused(name, f": the columns would change their order, {orders}")
    if asked.names[: len(kept)] != kept:
        return _refused(added[0], ": a new column must come after the existing ones")
    for have in present:
        want = asked.field(have.name)
        reason = _change(have, want)
        if reason is not None:
            change = f" ({type_name(have.type)})"
            if have.type != want.type:
                change = " from {} to {}".format(*distinct_names(have.type, want.type))
            details = {"have": str(have.type), "want": str(want.type)}
            return _refused(have.name, f"{change}: {reason}", **details)
    for name in added:
        field = asked.field(name)
        if not field.nullable:
            why = "a new column takes nulls, because existing records have no value in it"
            return _refused(name, f" ({type_name(field.type)}): {why}", want=str(field.type))
    return None


def widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether a column of type ``have`` may become one of type ``want``."""
    return _widening(have, want) is None


def _refused(column: str, problem: str, **details: str) -> SchemaMismatch:
    return SchemaMismatch(f"column {column!r}{problem}", column=column, **details)


def _dropped(field: pa.Field, added: list[pa.Field]) -> SchemaMismatch:
    like = [each.name for each in added if each.type.equals(field.type)]
    guess = f", nor renamed to {like[0]!r}" if like else ""
    problem = f" ({type_name(field.type)}): a column of a topic cannot be dropped{guess}"
    return _refused(field.name, problem, have=str(field.type))


def _change(have: pa.Field, want: pa.Field) -> str | None:
    """Return the reason why a field may not become the other, or None if it may."""
    reason = _widening(have.type, want.type)
    if reason is None and have.nullable and not want.nullable:
        return "a column that may have nulls cannot become NOT NULL"
    return reason


def _widening(have: pa.DataType, want: pa.DataType) -> str | None:
    """Return the reason why ``have`` cannot widen to ``want``, or None if it can."""
    if have.equals(want) or converts(have, want):
        return None
    if pt.is_nested(have) or pt.is_nested(want):
        return _nested(have, want)
    if pt.is_signed_integer(have) and pt.is_signed_integer(want):
        return None if have.bit_width < want.bit_width else _NARROWER
    if pt.is_float32(have) and pt.is_float64(want):
        return None
    if pt.is_floating(have) and pt.is_floating(want):
        return _NARROWER if have.bit_width > want.bit_width else _OTHER
    if pt.is_signed_integer(have) and pt.is_float64(want):
        exact = have.bit_width <= _IN_DOUBLE
        return None if exact else "not every bigint is exactly a double"
    if pt.is_decimal(have) and pt.is_decimal(want):
        return _decimals(have, want)
    return _OTHER


_NARROWER: Final = "a type cannot become a narrower one"
_OTHER: Final = "a type can become a wider one of its family, and no other"


def _decimals(have: pa.DataType, want: pa.DataType) -> str | None:
    if want.scale < have.scale:
        return f"that would lose {have.scale - want.scale} decimal places"
    lost = (have.precision - have.scale) - (want.precision - want.scale)
    if lost > 0:
        return f"that would lose {lost} digits before the point"
    return None if want.bit_width >= have.bit_width else _NARROWER


def _nested(have: pa.DataType, want: pa.DataType) -> str | None:
    if have.id != want.id:
        return _OTHER
    if pt.is_struct(have):
        names = [each.name for each in have]
        if [each.name for each in want][: len(names)] != names:
            return "the fields of a struct cannot be dropped, renamed or moved; new ones come last"
        for added in list(want)[len(names) :]:
            if not added.nullable:
                return f"its new field {added.name!r} must take nulls"
    elif pt.is_fixed_size_list(have) and have.list_size != want.list_size:
        return "the size of its lists cannot change"
    elif pt.is_map(have) and have.keys_sorted != want.keys_sorted:
        return _OTHER
    if pt.is_map(have) and _leaves(have.key_type) != _leaves(want.key_type):
        return "the keys of a map cannot get fields"  # without them, two keys could be the same
    for index in range(have.num_fields):
        inner, wanted = have.field(index), want.field(index)
        reason = _change(inner, wanted)
        if reason is not None:
            return f"{inner.name!r} within it: {reason}"
    try:
        pa.nulls(0, have).cast(want)
    except pa.ArrowException:
        return "Arrow cannot cast one to the other"
    return None


def _leaves(kind: pa.DataType) -> int:
    """Count the fields of a nested type that are not nested themselves."""
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1
