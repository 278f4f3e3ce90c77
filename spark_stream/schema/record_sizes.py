"""How many bytes records have: of whole batches at once. ``max.record.bytes`` limits that."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Sizes = npt.NDArray[np.int64]


def bytes_at_most(batch: pa.RecordBatch) -> int:
    """Return an upper bound of any record's bytes: the sum of each column's largest value."""
    return sum(map(_at_most, batch.columns))


def _at_most(array: pa.Array) -> int:
    kind, rows = array.type, len(array)
    if not rows or pt.is_null(kind):
        return 0
    if pt.is_struct(kind):
        return sum(_at_most(array.field(index)) for index in range(kind.num_fields))
    if pt.is_map(kind) or pt.is_list(kind) or pt.is_large_list(kind):
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        first, last = int(offsets[0]), int(offsets[-1])
        return int(np.diff(offsets).max()) * _at_most(array.values.slice(first, last - first))
    if pt.is_fixed_size_list(kind):
        start, width = array.offset * kind.list_size, kind.list_size
        return int(width) * _at_most(array.values.slice(start, rows * width))
    if _has_one_size(kind):
        return _bytes_of(kind)
    longest = pc.max(pc.binary_length(array)).as_py()
    return 0 if longest is None else int(longest)


def record_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the bytes of each record's values, shape (rows,): what ``max.record.bytes`` limits."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        total += _sizes(column)
    return total


def _sizes(array: pa.Array) -> Sizes:
    kind, rows = array.type, len(array)
    if pt.is_null(kind):
        return np.zeros(rows, np.int64)
    if pt.is_struct(kind):
        total = np.zeros(rows, np.int64)
        for index in range(kind.num_fields):
            total += _sizes(array.field(index))
        return total
    if pt.is_map(kind) or pt.is_list(kind) or pt.is_large_list(kind):
        return _list_sizes(array)
    if pt.is_fixed_size_list(kind):
        start, width = array.offset * kind.list_size, kind.list_size
        values = _sizes(array.values.slice(start, rows * width))
        return values.reshape(rows, width).sum(axis=1) if width else np.zeros(rows, np.int64)
    if _has_one_size(kind):
        return np.full(rows, _bytes_of(kind), np.int64)
    return np.asarray(
        pc.fill_null(pc.binary_length(array).cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    )


def _has_one_size(kind: pa.DataType) -> bool:
    return bool(pt.is_primitive(kind) or pt.is_fixed_size_binary(kind) or pt.is_decimal(kind))


def _bytes_of(kind: pa.DataType) -> int:
    return max(1, int(kind.bit_width) // 8)


def _list_sizes(array: pa.Array) -> Sizes:
    """Return for each list the sum of its values' sizes, without values that no list has."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    values = _sizes(array.values.slice(first, last - first))
    edges = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(edges[offsets[1:] - first] - edges[offsets[:-1] - first], np.int64)
