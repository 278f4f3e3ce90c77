"""Convert what a caller appends to Arrow: batches, tables, and data frames of any library.

Frames are read by the Arrow C interface (``__arrow_c_stream__``, ``__arrow_c_array__``), so no
library is imported for them. If their types differ from the topic's, columns are cast unless a
value would change: pandas has no integers with nulls, and frames have types that topics do not
have.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.errors import SchemaMismatch


class ArrowStream(Protocol):
    """A data frame, a reader, a query's result: columns through Arrow's C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowArray(Protocol):
    """One batch through Arrow's C interface."""

    def __arrow_c_array__(
        self, requested_schema: object | None = None
    ) -> tuple[object, object]: ...


ArrowData = pa.RecordBatch | pa.Table | ArrowStream | ArrowArray
"""What can be appended."""

# The name of a frame's unnamed index: a topic has no use for it.
_UNNAMED_INDEX: Final = re.compile(r"__index_level_\d+__")


def is_arrow(data: object) -> bool:
    """Return whether this is Arrow data, whose types the caller has chosen, not a library."""
    return isinstance(data, pa.RecordBatch | pa.Table)


def table_of(data: Any) -> pa.Table:
    """Convert a data frame, or anything with Arrow's C interface, to a table of plain types.

    Raises:
        TypeError: it has no such interface.
        SchemaMismatch: a column cannot become Arrow.
    """
    try:
        if hasattr(data, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(data).read_all()
        elif hasattr(data, "__arrow_c_array__"):
            table = pa.Table.from_batches([pa.record_batch(data)])
        else:
            raise TypeError(
                "a batch is a RecordBatch or a Table of Arrow, or a data frame (pandas, polars, …),"
                f" not a {type(data).__name__}; pa.Table.from_pylist(rows, schema=…) makes one"
                " of dicts"
            )
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatch(
            f"this {type(data).__name__} cannot become Arrow columns: {error}"
        ) from error
    columns = [name for name in table.column_names if not _UNNAMED_INDEX.fullmatch(name)]
    plain = [_decoded(table.column(name)) for name in columns]
    found = pa.Table.from_arrays(plain, names=columns)
    return found.cast(pa.schema([_plain(field) for field in found.schema]))


def eased(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast columns to the schema's types if each of their values has that type.

    Other columns stay as they are: fitting the batch to its topic then names the column.
    """
    for index, name in enumerate(table.column_names):
        if name in schema.names and table.column_names.count(name) == 1:
            column, want = table.column(index), schema.field(name).type
            if _may_fit(column.type, want):
                table = table.set_column(index, name, _cast(column, want))
    return table


def _cast(column: pa.ChunkedArray, want: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(want)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return column


def _may_fit(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether Arrow's cast between the two refuses each value that it would change."""
    if have.equals(want):
        return False
    if pt.is_integer(want):
        return bool(pt.is_integer(have) or pt.is_floating(have))
    if pt.is_float64(want):
        return bool(pt.is_integer(have))
    if pt.is_timestamp(want):
        return bool(pt.is_timestamp(have) and (have.tz is None) == (want.tz is None))
    same = (pt.is_duration, pt.is_time, pt.is_decimal)
    return any(is_of(have) and is_of(want) for is_of in same)


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column without its dictionary. Arrow cannot take from views: cast them first."""
    if not pt.is_dictionary(column.type):
        return column
    plain = _plain_type(column.type.value_type)
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(plain))
        for chunk in column.chunks
    ]
    return pa.chunked_array([chunk.dictionary_decode() for chunk in chunks], plain)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without views, which the log does not store."""
    if pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_large_list(kind):
        return pa.large_list(_plain(kind.value_field))
    if pt.is_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pt.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_field), kind.list_size)
    if pt.is_struct(kind):
        return pa.struct([_plain(kind.field(index)) for index in range(kind.num_fields)])
    return kind
