"""Conversion of a caller's data for a producer: bytes, headers, batches, data frames.

Data frames of any library are read by the Arrow C interface (``__arrow_c_stream__``,
``__arrow_c_array__``), so no library is imported for them. If their types differ from the topic's,
columns are cast unless a value would change: pandas has no integers with nulls, and frames have
types that topics do not have.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.client.values import timestamp_us
from spark_stream.errors import (
    BatchTooLarge,
    InvalidOption,
    InvalidRecord,
    InvalidRequest,
    SchemaMismatch,
    UnknownPartition,
)
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    TIMESTAMP_COLUMN,
    TIMESTAMP_TYPE,
    empty_batch,
    fitted,
    of_topic,
)
from spark_stream.schema.types import distinct_names
from spark_stream.wire.limits import BATCH_BYTES_MAX
from spark_stream.wire.topic_messages import TopicDescription


class ArrowStream(Protocol):
    """A data frame, a reader or a query's result, with Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """One batch, with Arrow's C array interface."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


ArrowData = pa.RecordBatch | pa.Table | ArrowStream | ArrowArray
"""The types that ``append`` accepts."""

AnyHeaders = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""A record's headers for ``send``. Only a list of pairs can repeat a name."""

UNSENDABLE: Final = (
    f"Split the value: no topic takes a record of more than {BATCH_BYTES_MAX} bytes."
)
"""The hint for a record that is too large for all settings."""

_JOINING_BYTES_MAX: Final = 1 << 18
ROWS_MAX: Final = (1 << 31) - 1  # the limit of an Arrow IPC message
_TYPES: Final = DEFAULT_SCHEMA.types
_LONG: Final = struct.Struct("<q")
_ONE_NULL: Final = {field.name: pa.nulls(1, field.type) for field in DEFAULT_SCHEMA}

# The name of a frame's unnamed index: a topic has no use for it.
_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")
_NOT_ARROW: Final = (
    pa.ArrowException,
    ValueError,
    TypeError,
    OverflowError,
    KeyError,
    NotImplementedError,
)
"""Errors of the libraries for a column that cannot become Arrow."""
_NO_CAST: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
_REMEDIES: Final = {
    "complex": "Give the real part and the imaginary part a column each.",
    "int128": "Cast it to Int64, or to a decimal of at most 38 digits.",
    "object": "Convert its values to one type, such as with astype(str) in pandas.",
    "category": "Give all categories one type, such as with astype(str) in pandas.",
}
"""Remedies by a part of the library's name of a type."""


def as_bytes(name: str, value: bytes | str | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidRecord(f"{name} is not text that UTF-8 can encode: {error}") from None
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"{name} is bytes, str or None, not {type(value).__name__}; append() takes batches of rows"
    )


def as_headers(headers: AnyHeaders | None) -> list[tuple[str, bytes | None]] | None:
    """Return a record's headers as a new list.

    Raises:
        InvalidRecord: The headers are neither a mapping nor pairs of a name and bytes.
    """
    if headers is None:
        return None
    given = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _bad_headers(f"headers must be a mapping or a list of pairs, not {headers!r}")
    listed = []
    for each in given:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise _bad_headers(f"a header is {each!r}")
        name, value = each
        if not isinstance(name, str):
            raise _bad_headers(f"a header's name is {name!r}, which is not a str")
        try:
            listed.append((name, as_bytes("", value)))
        except TypeError:
            raise _bad_headers(
                f"the value of header {name!r} is {value!r}, neither bytes, str nor None"
            ) from None
    return listed


def _bad_headers(problem: str) -> InvalidRecord:
    return InvalidRecord(problem, hint='Give {"name": b"value"}, or [("name", b"value")].')


def as_columns(key: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of key columns. Raise TypeError for one that is not text."""
    if key is None or isinstance(key, str):
        return () if key is None else (key,)
    names = tuple(key) if isinstance(key, Iterable) else (key,)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"key is a column's name or several, not {type(name).__name__}")
    return names


def checked_size(batch: pa.RecordBatch) -> int:
    """Return the batch's size in bytes. Raise BatchTooLarge if no message can carry it."""
    if batch.num_rows <= ROWS_MAX:
        size = int(pa.ipc.get_record_batch_size(batch))  # faster than nbytes, and never less
        if size <= BATCH_BYTES_MAX:
            return size
    size = int(batch.nbytes)
    if size > BATCH_BYTES_MAX or batch.num_rows > ROWS_MAX:
        raise BatchTooLarge(
            f"a batch has at most {BATCH_BYTES_MAX} bytes and {ROWS_MAX} rows, not {size}"
            f" and {batch.num_rows}",
            hint=UNSENDABLE if batch.num_rows == 1 else None,
        )
    return size


def joining_bytes(batch: pa.RecordBatch, known: TopicDescription) -> int:
    """Return the bytes of a small batch that the leader will accept completely, else 0.

    Such a batch may be joined with others, because none causes the refusal of another.
    """
    size = int(pa.ipc.get_record_batch_size(batch))
    if size > _JOINING_BYTES_MAX:
        return 0
    # A single record of this size must fit too. Its flags count for eight times their size.
    if 8 * size > int(known.config["max.record.bytes"]):
        return 0
    for field, column in zip(known.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            return 0
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return 0
    return size


def check_partition(known: TopicDescription, partition: int) -> None:
    """Check a requested partition.

    Raises:
        InvalidOption: The partition is not an integer.
        UnknownPartition: The topic does not have it.
    """
    # First the plain type: a check with an abstract class takes longer than the rest.
    if type(partition) is not int and (
        not isinstance(partition, Integral) or isinstance(partition, bool)
    ):
        raise InvalidOption(
            f"partition takes a whole number, not {partition!r}",
            hint=f"Topic {known.name!r} has partitions 0 to {len(known.partitions) - 1}.",
            option="partition",
        )
    if not 0 <= partition < len(known.partitions):
        raise UnknownPartition(
            f"topic {known.name!r} has partitions 0 to {len(known.partitions) - 1},"
            f" not {partition}",
            topic=known.name,
            partition=int(partition),
        )


def one_batch(data: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the appended data as one batch. Cast a data frame to the topic's types."""
    if isinstance(data, pa.RecordBatch):
        return data
    table = data if is_arrow(data) else cast_to_schema(table_of(data), schema)
    batches = table.combine_chunks().to_batches()
    if not batches:
        return empty_batch(table.schema)
    if len(batches) > 1:
        raise InvalidRequest("the table is too large for one batch", hint="Append its batches.")
    return batches[0]


def fitted_to(batch: pa.RecordBatch, known: TopicDescription) -> pa.RecordBatch:
    """Return the batch with the topic's columns, in their order and types, without loss.

    Batches for an earlier schema of the topic stay valid: added columns and struct fields may be
    missing, and widened ones may have their old types.

    Raises:
        SchemaMismatch: A column does not fit. The error names it, and both types.
    """
    if batch.schema.equals(known.schema):
        return batch
    lacking = [name for name in known.added if name not in batch.schema.names]
    for name in lacking:
        kind = known.schema.field(name).type
        batch = batch.append_column(name, pa.nulls(batch.num_rows, kind))
    with of_topic(known.name):
        return fitted(batch, known.schema, altered=known.schema_version > 0)


def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the missing columns of a batch for a default-schema topic."""
    names = batch.schema.names
    if not set(names) <= set(DEFAULT_SCHEMA.names) or len(set(names)) < len(names):
        return batch  # fitted() names the wrong column
    rows = batch.num_rows
    columns = []
    for field in DEFAULT_SCHEMA:
        if field.name in names:
            column = _as_binary(batch.column(field.name))
            if field.name == TIMESTAMP_COLUMN and column.null_count and column.type == field.type:
                column = pc.coalesce(column, _now(rows))
        elif field.name == TIMESTAMP_COLUMN:
            column = _now(rows)
        elif field.name != "value":
            column = _ONE_NULL[field.name] if rows == 1 else pa.nulls(rows, field.type)
        else:
            continue
        columns.append(column)
    if len(columns) == len(DEFAULT_SCHEMA) and [each.type for each in columns] == _TYPES:
        return pa.RecordBatch.from_arrays(columns, schema=DEFAULT_SCHEMA)
    given = [name for name in DEFAULT_SCHEMA.names if name in names or name != "value"]
    return pa.RecordBatch.from_arrays(columns, names=given)


def _as_binary(column: pa.Array) -> pa.Array:
    """Return text as UTF-8 bytes, as ``send`` does, without a loop over rows."""
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def _now(rows: int) -> pa.Array:
    moment = timestamp_us(None)
    moments = _LONG.pack(moment) if rows == 1 else np.full(rows, moment, np.int64)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, rows, [None, pa.py_buffer(moments)])


def is_arrow(data: object) -> bool:
    """Return whether this is Arrow data, with types that the caller has chosen."""
    return isinstance(data, pa.RecordBatch | pa.Table)


def table_of(data: Any) -> pa.Table:
    """Convert a data frame, or anything with Arrow's C interface, to a table of plain types.

    Raises:
        TypeError: The data has no such interface.
        SchemaMismatch: A column cannot be converted to Arrow. The error names the column, and the
            row if only some values are the cause.
    """
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise TypeError(
            "a batch is a RecordBatch or a Table of Arrow, or a data frame (pandas, polars, …),"
            f" not a {type(data).__name__}; pa.Table.from_pylist(rows, schema=…) makes one"
            " of dicts"
        )
    kinds: dict[Any, str] = {}
    if types := _listed(data, "dtypes"):  # without types ``columns`` may be values, as in arro3
        names = _listed(data, "columns")
        _check_unique([str(name) for name in names])
        kinds = dict(zip(names, map(str, types), strict=False))
    try:
        table = _converted(_dense(data, kinds))
    except _NOT_ARROW as error:
        raise _refused(data, kinds, error) from error
    _check_unique(table.column_names)
    _check_finite(table)
    return table


def _check_finite(table: pa.Table) -> None:
    """Refuse the infinite times of DuckDB. It exports them as the greatest numbers of the type."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        number = _infinity(column)
        if number is not None:
            row = pc.index(column, number).as_py()
            raise SchemaMismatch(
                f"column {name!r}, row {row} (counted from 0) is an infinite time, which a topic"
                " does not store",
                hint="Replace it by null or by a finite time, for example by CASE WHEN isfinite(c)"
                " THEN c END in DuckDB.",
                column=name,
                row=row,
            )


def _infinity(column: pa.ChunkedArray) -> pa.Scalar | None:
    """Return the value of a column that represents infinity, or None."""
    if not (pt.is_timestamp(column.type) or pt.is_date32(column.type)):
        return None
    most = (1 << column.type.bit_width - 1) - 1
    found = pc.min_max(column).values()
    return next((each for each in found if each.is_valid and abs(each.value) == most), None)


def _converted(data: Any) -> pa.Table:
    if hasattr(data, "__arrow_c_stream__"):
        table = pa.RecordBatchReader.from_stream(data).read_all()
    else:
        table = pa.Table.from_batches([pa.record_batch(data)])
    columns = [name for name in table.column_names if not _UNNAMED_INDEX.fullmatch(name)]
    plain = [_decoded(table.column(name)) for name in columns]
    found = pa.Table.from_arrays(plain, names=columns)
    for keep in (True, False):  # Arrow decodes no dictionary of views
        found = found.cast(pa.schema([_plain(field, keep) for field in found.schema]))
    return found


def _listed(data: Any, attribute: str) -> list[Any]:
    """List the values of a frame's attribute. The list is empty if there is no such attribute."""
    found = getattr(data, attribute, None)
    return list(found) if isinstance(found, Iterable) else []


def _check_unique(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SchemaMismatch(
                f"duplicate column {name!r}", hint="Rename one of the columns.", column=name
            )
        seen.add(name)


def _dense(data: Any, kinds: dict[Any, str]) -> Any:
    """Return the frame without the sparse columns of pandas, and refuse the objects of polars.

    polars exports its Python objects as their addresses.
    """
    for name, kind in kinds.items():
        if kind == "Object":
            raise _column_error(name, kind, "Python objects have no Arrow type")
    sparse = [name for name, kind in kinds.items() if kind.startswith("Sparse[")]
    if sparse:
        data = data.copy(deep=False)
        for name in sparse:
            data[name] = data[name].sparse.to_dense()
    return data


def _refused(data: Any, kinds: dict[Any, str], error: Exception) -> SchemaMismatch:
    """Return the error for a frame that cannot be converted. It names the first such column."""
    problem = f"this {type(data).__name__} cannot become Arrow columns: {error}"
    try:
        parts = {name: data[[name]] for name in kinds}
        index = data[[]] if hasattr(data, "index") else None
    except Exception:  # the library selects columns in another way
        return SchemaMismatch(problem)
    if index is not None and _fails(index):
        return SchemaMismatch(
            problem, hint="Remove the index of the frame: reset_index(drop=True) in pandas."
        )
    for name, part in parts.items():
        if not _fails(part):
            continue
        row = None
        if not _fails(part[:0]):
            row = _first_row(part, _fails)
            part = part[: row + 1]
        try:
            _converted(part)
        except _NOT_ARROW as found:
            error = found
        # The second argument of Arrow's error for pandas repeats the column and its type.
        problem = str(error.args[0]) if len(error.args) == 2 else str(error)
        return _column_error(name, kinds[name], problem, row)
    return SchemaMismatch(problem)


def _first_row(rows: Any, fails: Callable[[Any], bool]) -> int:
    """Return the first row of a column for which the rows up to it fail."""
    return bisect_left(range(len(rows)), True, key=lambda last: fails(rows[: last + 1]))


def _fails(part: Any) -> bool:
    try:
        _converted(part)
    except _NOT_ARROW:
        return True
    return False


def _column_error(name: Any, kind: str, problem: str, row: int | None = None) -> SchemaMismatch:
    remedies = (remedy for part, remedy in _REMEDIES.items() if part in kind.lower())
    place = "" if row is None else f", row {row} (counted from 0)"
    details = {} if row is None else {"row": row}
    return SchemaMismatch(
        f"column {str(name)!r} of type {kind}{place} cannot become an Arrow column: {problem}",
        hint=next(remedies, "Convert the column to a type that a topic stores."),
        column=str(name),
        **details,
    )


def cast_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast columns to the schema's types if no value changes.

    Other columns keep their types. :func:`fitted_to` then reports them.
    """
    for index, name in enumerate(table.column_names):
        if name in schema.names and table.column_names.count(name) == 1:
            column, want = table.column(index), schema.field(name).type
            if _may_fit(column.type, want):
                table = table.set_column(index, name, _cast(name, column, want))
    return table


def _cast(name: str, column: pa.ChunkedArray, want: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(want)
    except _NO_CAST:
        if not (pt.is_integer(want) or pt.is_floating(want)):
            return column
        row = _first_row(column, lambda rows: not _casts(rows, want))
        expected, got = distinct_names(want, column.type)
        raise SchemaMismatch(
            f"column {name!r}: expected {expected}, got {got}, and row {row} (counted from 0) has"
            f" {column[row].as_py()}",
            hint="Change the value first, or give the topic a column of a wider type.",
            column=name,
            expected=str(want),
            got=str(column.type),
            row=row,
        ) from None


def _casts(column: pa.ChunkedArray, want: pa.DataType) -> bool:
    try:
        column.cast(want)
    except _NO_CAST:
        return False
    return True


def _may_fit(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether Arrow's cast between the types refuses values that it would change."""
    if have.equals(want):
        return False
    if pt.is_integer(want):
        return bool(pt.is_integer(have) or pt.is_floating(have) or pt.is_decimal(have))
    if pt.is_float64(want):
        return bool(pt.is_integer(have))
    if pt.is_timestamp(want):
        return bool(pt.is_timestamp(have) and (have.tz is None) == (want.tz is None))
    same = (pt.is_duration, pt.is_time, pt.is_decimal)
    return any(is_of(have) and is_of(want) for is_of in same)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column without its dictionary. Cast views first: Arrow cannot take from them."""
    if not pt.is_dictionary(column.type):
        return column
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))])  # pandas has no type for no categories
    plain = _plain_type(column.type.value_type, False)
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(plain))
        for chunk in column.chunks
    ]
    return pa.chunked_array([chunk.dictionary_decode() for chunk in chunks], plain)


def _plain(field: pa.Field, keep: bool) -> pa.Field:
    return field.with_type(_plain_type(field.type, keep))


def _plain_type(kind: pa.DataType, keep: bool) -> pa.DataType:
    """Return the type without views, and without dictionaries unless ``keep`` is set."""
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_dictionary(kind):
        values = _plain_type(kind.value_type, keep)
        return pa.dictionary(kind.index_type, values, kind.ordered) if keep else values
    if pt.is_large_list(kind):
        return pa.large_list(_plain(kind.value_field, keep))
    if pt.is_list(kind):
        return pa.list_(_plain(kind.value_field, keep))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_field, keep), kind.list_size)
    if pt.is_struct(kind):
        return pa.struct([_plain(kind.field(index), keep) for index in range(kind.num_fields)])
    return kind
