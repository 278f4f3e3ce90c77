"""Schemas on the wire: the default one, which types a topic may have, how a batch is made to fit.

A *default-schema topic* has Kafka's record: key, value, headers, timestamp. Any other schema is a
*typed topic*: its columns are the user's.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import InvalidRequest, SchemaMismatch, UnsupportedType
from spark_stream.wire.casting import cast
from spark_stream.wire.nearest import meant
from spark_stream.wire.type_names import told_apart, type_name

TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)
DEFAULT_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
    ]
)
TIMESTAMP_COLUMN: Final = "timestamp"
_UNITS: Final = ("s", "ms", "us", "ns")

OFFSET: Final = pa.field("_offset", pa.int64(), nullable=False)
TIMESTAMP: Final = pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False)
TOPIC: Final = pa.field("_topic", pa.string(), nullable=False)
PARTITION: Final = pa.field("_partition", pa.int32(), nullable=False)
LEADER_COLUMNS: Final = {field.name: field for field in (OFFSET, TIMESTAMP)}
"""Metadata columns that a fetch may ask the leader for, beside the topic's own."""

METADATA: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
"""What ``includeMetadata`` (Spark) and ``metadata=True`` (Python) add to a typed topic."""


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows. (``from_pylist`` would import pandas for it.)"""
    arrays = [pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def is_default(schema: pa.Schema) -> bool:
    """Whether a topic of this schema is a default-schema topic."""
    return bool(schema.equals(DEFAULT_SCHEMA, check_metadata=False))


def check_topic_schema(schema: pa.Schema) -> pa.Schema:
    """The schema, if a topic may have it.

    Raises:
        SchemaMismatch: no columns, or two of one name (in any case: Spark does not tell them
        apart). UnsupportedType: a column (named) whose type the log does not carry.
    """
    if len(schema) == 0:
        raise SchemaMismatch("a topic needs at least one column", hint="Give it one.")
    seen: dict[str, str] = {}
    for field in schema:
        folded = field.name.lower()
        if not field.name or folded in seen:
            clash = f"columns {seen.get(folded)!r} and {field.name!r} cannot be told apart"
            raise SchemaMismatch(
                clash if field.name else "a column has no name",
                column=field.name,
                hint="Give each column a name of its own; capitals make no difference.",
            )
        seen[folded] = field.name
        if folded in {each.name for each in METADATA} and not is_default(schema):
            raise SchemaMismatch(
                f"column {field.name!r}: the name is isolog's own, for a record's metadata",
                column=field.name,
                hint="Rename the column.",
            )
        _check_type(field.type, field.name)
    return schema


def _check_type(kind: pa.DataType, path: str) -> None:
    nests = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_struct, pt.is_map)
    if any(is_of(kind) for is_of in nests):
        for index in range(kind.num_fields):
            child = kind.field(index)
            _check_type(child.type, f"{path}.{child.name}")
        return
    carried = (
        pt.is_null(kind)
        or pt.is_boolean(kind)
        or pt.is_integer(kind)
        or pt.is_floating(kind)
        or pt.is_decimal(kind)
        or pt.is_temporal(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_fixed_size_binary(kind)
    )
    if not carried or isinstance(kind, pa.BaseExtensionType):
        raise _unsupported(kind, path)


def _unsupported(kind: pa.DataType, path: str) -> UnsupportedType:
    return UnsupportedType(
        f"column {path!r}: the log does not carry Arrow's {kind}", column=path, got=str(kind)
    )


@contextmanager
def of_topic(topic: str) -> Iterator[None]:
    """A SchemaMismatch from within names the topic too."""
    try:
        yield
    except SchemaMismatch as error:
        if "topic" in error.details or repr(topic) in error.message:
            raise
        named = f"topic {topic!r}: {error.message}"
        raise SchemaMismatch(named, hint=error.hint, **error.details, topic=topic) from None


def mismatch(expected: pa.Schema, got: pa.Schema) -> SchemaMismatch | None:
    """How ``got`` differs from ``expected`` in names, order or types; None where it does not."""
    if got.equals(expected):
        return None
    wanted, there = Counter(expected.names), Counter(got.names)
    for name, times in there.items():
        if times > 1:
            return SchemaMismatch(f"column {name!r} is there more than once", column=name)
    for name in wanted:
        if name not in there:
            kind = expected.field(name).type
            near = meant(name, there.keys() - wanted.keys())
            return SchemaMismatch(
                f"column {name!r} ({type_name(kind)}) is missing{near}",
                column=name,
                expected=str(kind),
                got=None,
            )
    for field in got:
        if field.name not in wanted:
            return SchemaMismatch(
                f"column {field.name!r} ({type_name(field.type)}) is not one of the topic's columns"
                f" ({', '.join(expected.names)})",
                column=field.name,
                expected=None,
                got=str(field.type),
            )
    for name in wanted:
        want, have = expected.field(name).type, got.field(name).type
        if not have.equals(want):
            expected_name, got_name = told_apart(want, have)
            return SchemaMismatch(
                f"column {name!r}: expected {expected_name}, got {got_name}",
                column=name,
                expected=str(want),
                got=str(have),
            )
    if got.names != expected.names:
        return SchemaMismatch(
            f"columns in the order {', '.join(got.names)}; expected {', '.join(expected.names)}"
        )
    return None


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its columns in the topic's order and types, where nothing is lost by that.

    Dictionary columns are decoded, all-null columns take any type, time zones of timestamps are
    renamed and their coarser units made finer, narrow integers and floats widen, and strings and
    binaries change their offset width.

    Raises:
        SchemaMismatch: names the column, the type expected and the type got.
    """
    have = batch.schema
    if have.equals(schema):
        return batch
    if have.names == schema.names and have.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if set(batch.schema.names) == set(schema.names) and len(batch.schema) == len(schema):
        arrays = [_fitted(batch.column(field.name), field) for field in schema]
        got = pa.schema([pa.field(f.name, a.type) for f, a in zip(schema, arrays, strict=True)])
    else:
        arrays, got = [], batch.schema
    wrong = mismatch(schema, got)
    if wrong is not None:
        raise wrong
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except pa.ArrowInvalid as error:  # Arrow's cast made an array that Arrow itself calls wrong
        raise SchemaMismatch(f"the batch cannot be cast to the topic's types: {error}") from None


def _fitted(array: pa.Array, field: pa.Field) -> pa.Array:
    want = field.type
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type.equals(want) or not _widens(array.type, want):
        return array
    try:
        return cast(array, want)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return array  # a moment too far away for the finer unit, a null within what takes none


def _widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of ``have`` is a value of ``want``."""
    if pt.is_null(have):
        return True
    if pt.is_integer(have) and pt.is_integer(want):
        if pt.is_signed_integer(have) == pt.is_signed_integer(want):
            return bool(have.bit_width <= want.bit_width)
        return bool(pt.is_signed_integer(want) and have.bit_width < want.bit_width)
    if pt.is_floating(have) and pt.is_floating(want):
        return bool(have.bit_width <= want.bit_width)
    if pt.is_timestamp(have) and pt.is_timestamp(want):
        finer = _UNITS.index(have.unit) <= _UNITS.index(want.unit)
        return finer and (have.tz is None) == (want.tz is None)
    text = (pt.is_string, pt.is_large_string)
    raw = (pt.is_binary, pt.is_large_binary)
    if pt.is_fixed_size_binary(have):
        return any(is_of(want) for is_of in raw)
    for family in (text, raw):
        if any(is_of(have) for is_of in family) and any(is_of(want) for is_of in family):
            return True
    return _shaped_alike(have, want) and all(
        inner.equals(wanted) or _widens(inner, wanted)
        for inner, wanted in zip(_inner(have), _inner(want), strict=True)
    )


def _shaped_alike(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether two nested types differ in nothing but the types within, nullability and list names.

    The fields of structs have names that mean something: Arrow's cast drops the values of a field
    whose name it does not find.
    """
    if pt.is_struct(have) and pt.is_struct(want):
        return [each.name for each in have] == [each.name for each in want]
    if pt.is_fixed_size_list(have) and pt.is_fixed_size_list(want):
        return bool(have.list_size == want.list_size)
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)
    if any(is_of(have) for is_of in lists):
        return bool(pt.is_list(want) or pt.is_large_list(want))
    return bool(pt.is_map(have) and pt.is_map(want))


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pt.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def schema_to_text(schema: pa.Schema) -> str:
    """A schema as base64 of its Arrow IPC message."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """The schema that :func:`schema_to_text` wrote, or InvalidRequest."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidRequest(f"schema_ipc is not an Arrow IPC schema: {error}") from None
