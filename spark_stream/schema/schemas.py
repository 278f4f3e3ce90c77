"""Schemas of topics: the default schema, the check of a new schema, and the fit of a batch.

A *default-schema topic* has Kafka's record: key, value, headers, timestamp. Any other schema is a
*typed topic*: its columns are the user's.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import InvalidRequest, SchemaMismatch
from spark_stream.schema.types import (
    check_levels,
    converted,
    converts,
    distinct_names,
    inner_fields,
    stored_type,
    type_name,
)
from spark_stream.schema.values import cast

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

OFFSET: Final = pa.field("_offset", pa.int64(), nullable=False)
TIMESTAMP: Final = pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False)
TOPIC: Final = pa.field("_topic", pa.string(), nullable=False)
PARTITION: Final = pa.field("_partition", pa.int32(), nullable=False)
LEADER_COLUMNS: Final = {field.name: field for field in (OFFSET, TIMESTAMP)}
"""Metadata columns that the leader adds to a fetch on request."""

METADATA: Final = (TOPIC, PARTITION, OFFSET, TIMESTAMP)
"""The columns that ``includeMetadata`` (Spark) and ``metadata=True`` (Python) add."""


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows. (``from_pylist`` would import pandas for it.)"""
    arrays = [pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def is_default(schema: pa.Schema) -> bool:
    """Return whether a topic of this schema is a default-schema topic."""
    return bool(schema.equals(DEFAULT_SCHEMA, check_metadata=False))


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which a topic stores these columns: types that Spark reads.

    Raises:
        SchemaMismatch: no columns, or two names that are equal for Spark, which ignores case.
        UnsupportedType: a topic cannot store the type of a column, or it is nested too deep.
    """
    if len(schema) == 0:
        raise SchemaMismatch("a topic needs at least one column", hint="Give it one.")
    seen: dict[str, str] = {}
    for field in schema:
        folded = field.name.lower()
        if not field.name or folded in seen:
            clash = f"columns {seen.get(folded)!r} and {field.name!r} are equal, ignoring case"
            raise SchemaMismatch(
                clash if field.name else "a column has no name",
                column=field.name,
                hint="Give each column a unique name. Spark ignores case.",
            )
        seen[folded] = field.name
        if folded in {each.name for each in METADATA} and not is_default(schema):
            raise SchemaMismatch(
                f"column {field.name!r}: the name is reserved for a record's metadata",
                column=field.name,
                hint="Rename the column.",
            )
        check_levels(field)
    fields = [field.with_type(stored_type(field.type, field.name)) for field in schema]
    found = pa.schema(fields, schema.metadata)
    return schema if found.equals(schema) else found


@contextmanager
def of_topic(topic: str) -> Iterator[None]:
    """Add the topic to a SchemaMismatch that the block raises."""
    try:
        yield
    except SchemaMismatch as error:
        if "topic" in error.details or repr(topic) in error.message:
            raise
        named = f"topic {topic!r}: {error.message}"
        raise SchemaMismatch(named, hint=error.hint, **error.details, topic=topic) from None


def mismatch(expected: pa.Schema, got: pa.Schema) -> SchemaMismatch | None:
    """Return the first difference of ``got`` from ``expected`` in names, order or types."""
    if got.equals(expected):
        return None
    wanted, there = Counter(expected.names), Counter(got.names)
    for name, times in there.items():
        if times > 1:
            return SchemaMismatch(f"column {name!r} occurs more than once", column=name)
    foreign = [name for name in there if name not in wanted]
    may_lack = is_default(expected)  # missing columns of Kafka's record are filled in
    for name in wanted:
        near = meant(name, foreign)
        if name not in there and (near or not foreign or not may_lack):
            kind = expected.field(name).type
            return SchemaMismatch(
                f"column {name!r} ({type_name(kind)}) is missing{near}",
                column=name,
                expected=str(kind),
                got=None,
            )
    for name in foreign:
        kind = got.field(name).type
        return SchemaMismatch(
            f"column {name!r} ({type_name(kind)}) is not one of the topic's columns"
            f" ({', '.join(expected.names)})",
            column=name,
            expected=None,
            got=str(kind),
        )
    for name in wanted:
        want, have = expected.field(name).type, got.field(name).type
        if not have.equals(want):
            expected_name, got_name = distinct_names(want, have)
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


def fitted(batch: pa.RecordBatch, schema: pa.Schema, *, altered: bool = False) -> pa.RecordBatch:
    """Convert the batch to the topic's order of columns and types, if no value changes.

    Numbers widen where that is exact, a date becomes a timestamp without a zone, time zones of
    timestamps are renamed, and all-null columns take any type. Types that no topic stores become
    stored ones: dictionaries are decoded, and nanoseconds become microseconds unless a value would
    change. ``altered``: structs may lack fields at their end.

    Raises:
        SchemaMismatch: names the column, the type expected and the type got.
    """
    have = batch.schema
    if have.equals(schema):
        return batch
    if have.names == schema.names and have.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    if set(batch.schema.names) == set(schema.names) and len(batch.schema) == len(schema):
        arrays = [_fitted(batch.column(field.name), field, altered) for field in schema]
        got = pa.schema([pa.field(f.name, a.type) for f, a in zip(schema, arrays, strict=True)])
    else:
        arrays, got = [], batch.schema
    wrong = mismatch(schema, got)
    if wrong is not None:
        raise wrong
    try:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except pa.ArrowInvalid as error:  # Arrow's cast made an array that Arrow's validation rejects
        raise SchemaMismatch(f"the batch cannot be cast to the topic's types: {error}") from None


def _fitted(array: pa.Array, field: pa.Field, altered: bool) -> pa.Array:
    want = field.type
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type.equals(want) or not _widens(array.type, want, altered):
        return array
    try:
        return cast(array, want)
    except pa.ArrowInvalid as error:  # a moment that is too fine or too far away, a null
        expected, got = distinct_names(want, array.type)
        raise SchemaMismatch(
            f"column {field.name!r}: expected {expected}, got {got}, and not every value fits"
            f" ({error})",
            column=field.name,
            expected=str(want),
            got=str(array.type),
            hint="Change the values first. Timestamps have microseconds, as in Spark: round finer"
            " ones (in pandas .dt.floor('us')).",
        ) from None
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return array


def _widens(have: pa.DataType, want: pa.DataType, altered: bool) -> bool:
    """Return whether Arrow's cast from ``have`` to ``want`` keeps each value or fails."""
    if pt.is_null(have) or converts(have, want):
        return True
    if _is_number(have) and _is_number(want):
        return _number_widens(have, want)
    if pt.is_timestamp(have) and pt.is_timestamp(want):
        return (have.tz is None) == (want.tz is None)
    if pt.is_date(have) and pt.is_timestamp(want):
        return want.tz is None  # a date has no zone in which its day begins
    if pt.is_fixed_size_binary(have):
        return bool(pt.is_binary(want))
    found = converted(have)
    if not found.equals(have) and not pt.is_nested(have):
        return _widens(found, want, altered)
    pairs = zip(inner_fields(have), inner_fields(want), strict=False)  # new fields come last
    return _shaped_alike(have, want, altered) and all(
        inner.type.equals(wanted.type) or _widens(inner.type, wanted.type, altered)
        for inner, wanted in pairs
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


_EXACT_BITS: Final = {16: 11, 32: 24, 64: 53}
"""The width of a float → the bits of the widest integers that it has exactly."""


def _number_widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether ``want`` has every number of ``have`` exactly."""
    if pt.is_integer(have):
        signed = pt.is_signed_integer(have)
        bits = have.bit_width - signed
        if pt.is_floating(want):
            return bool(bits <= _EXACT_BITS[want.bit_width])
        if pt.is_decimal(want):
            return bool(len(str((1 << bits) - 1)) <= want.precision - want.scale)
        if signed == pt.is_signed_integer(want):
            return bool(have.bit_width <= want.bit_width)
        return bool(not signed and have.bit_width < want.bit_width)
    if pt.is_floating(have):
        return bool(pt.is_floating(want) and have.bit_width <= want.bit_width)
    whole = want.precision - want.scale if pt.is_decimal(want) else -1
    return whole >= have.precision - have.scale and bool(want.scale >= have.scale)


def _shaped_alike(have: pa.DataType, want: pa.DataType, altered: bool) -> bool:
    """Return whether nested types differ only in inner types, nullability and names in lists.

    ``altered``: also in fields that were added to a struct.

    Names of struct fields must be equal: Arrow's cast drops the values of a field that the wanted
    type does not name.
    """
    if pt.is_struct(have) and pt.is_struct(want):
        names, added = [each.name for each in have], list(want)[have.num_fields :]
        if added and not (altered and all(each.nullable for each in added)):
            return False
        return [each.name for each in want][: len(names)] == names
    if pt.is_fixed_size_list(have) and pt.is_fixed_size_list(want):
        return bool(have.list_size == want.list_size)
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)
    if any(is_of(have) for is_of in lists):
        return bool(pt.is_list(want))
    return bool(pt.is_map(have) and pt.is_map(want))


def schema_to_text(schema: pa.Schema) -> str:
    """Encode a schema as base64 of its Arrow IPC message."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Decode the text of :func:`schema_to_text`, or raise InvalidRequest."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidRequest(f"schema_ipc is not an Arrow IPC schema: {error}") from None
    return received_schema(data, "schema_ipc")


def received_schema(data: bytes | bytearray | memoryview, name: str) -> pa.Schema:
    """Return the schema in an Arrow IPC message from a caller. ``name`` is for the error.

    Raises:
        InvalidRequest: the bytes are not a schema, or a text in it is not UTF-8.
    """
    try:
        found = pa.ipc.read_schema(pa.py_buffer(data))
    except (ValueError, OSError, EOFError, pa.ArrowException) as error:
        raise InvalidRequest(f"{name} is not an Arrow IPC schema: {error}") from None
    check_texts(found)
    return found


def check_texts(schema: pa.Schema) -> None:
    """Check that all texts of a caller's schema are UTF-8, which Arrow does not check.

    Raises:
        InvalidRequest: a text is not UTF-8.
    """
    try:
        list(_texts(schema))
    except UnicodeDecodeError:
        raise InvalidRequest("a name in the schema is not UTF-8") from None


def _texts(fields: Iterable[pa.Field]) -> Iterator[str | None]:
    """Yield the names and time zones. Access to one decodes it."""
    for field in fields:
        yield field.name
        kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
        if pt.is_timestamp(kind):
            yield kind.tz
        if pt.is_nested(kind):
            yield from _texts(kind.field(index) for index in range(kind.num_fields))


def meant(name: str, names: Iterable[str]) -> str:
    """Return a suggestion to append to a wrong name: the nearest right one, or an empty text."""
    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f" (is {by_lower[near[0]]!r} meant?)" if near else ""
