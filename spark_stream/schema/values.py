"""Values of whole columns, nested ones included: casts, forbidden nulls, and sizes of records.

:func:`cast` is Arrow's cast, for nested values that Arrow refuses or should have refused.
Even a struct that is null has values in its fields, usually nulls. If a field is declared NOT NULL,
Arrow's cast of the whole rejects these nulls, although they are invisible. So a refused array is
cast part by part. In lists and maps, Arrow accepts nulls that the type does not allow.

The setting ``max.record.bytes`` limits the sizes of :func:`record_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def cast(array: pa.Array, kind: pa.DataType, *, cut: bool = False) -> pa.Array:
    """Cast the array to another type. Fields of structs are matched by name.

    A field that the array lacks is null, and one that the type lacks is left out.

    ``cut``: truncate nanoseconds to microseconds rather than refuse them.

    Raises:
        pa.ArrowInvalid: a value, or a null, does not fit the type.
        pa.ArrowNotImplementedError, pa.ArrowTypeError: there is no cast between the types.
    """
    if not pt.is_nested(kind):
        return array.cast(kind, safe=not (cut and _in_nanoseconds(array.type)))
    try:
        found = array.cast(kind)
    except pa.ArrowInvalid:
        if array.type.id != kind.id:
            raise
        found = _cast_parts(array, kind, cut)
    _check_nulls(found)
    return found


def _in_nanoseconds(kind: pa.DataType) -> bool:
    return bool((pt.is_timestamp(kind) or pt.is_duration(kind)) and kind.unit == "ns")


def _cast_parts(array: pa.Array, kind: pa.DataType, cut: bool) -> pa.Array:
    mask = array.is_null()
    if pt.is_struct(kind):
        parts = [_field(array, place, field, cut) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    array = _compact(array)
    if pt.is_map(kind):
        keys = cast(array.keys, kind.key_type, cut=cut)
        items = cast(array.items, kind.item_type, cut=cut)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)
    values = cast(array.values, kind.value_type, cut=cut)
    if pt.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    made = pa.LargeListArray if pt.is_large_list(kind) else pa.ListArray
    return made.from_arrays(array.offsets, values, type=kind, mask=mask)


def _field(array: pa.Array, place: int, field: pa.Field, cut: bool) -> pa.Array:
    """Cast a field of the structs, matched by its name. Without such a field, return nulls."""
    have = array.type
    if place >= have.num_fields or have.field(place).name != field.name:
        place = have.get_field_index(field.name)
    if place < 0:
        return pa.nulls(len(array), field.type)
    return cast(array.field(place), field.type, cut=cut)


def _compact(array: pa.Array) -> pa.Array:
    """Copy the array into buffers that hold only its values."""
    return array.take(pa.array(np.arange(len(array))))


def _check_nulls(array: pa.Array) -> None:
    """Raise ArrowInvalid for a visible null, at any depth, in a field that takes none."""
    kind = array.type
    if pt.is_struct(kind):
        within = zip(kind, array.drop_null().flatten(), strict=True)
    elif pt.is_map(kind):
        there = _compact(array.drop_null())
        within = zip((kind.key_field, kind.item_field), (there.keys, there.items), strict=True)
    elif pt.is_nested(kind):
        within = zip((kind.value_field,), (array.flatten(),), strict=True)
    else:
        return
    for field, seen in within:
        if seen.null_count and not field.nullable:
            raise pa.ArrowInvalid(f"field {field.name!r} of {kind} takes no nulls")
        _check_nulls(seen)


def takes_all_nulls(field: pa.Field) -> bool:
    """Return whether neither the field nor a field within it is declared NOT NULL."""
    return bool(field.nullable) and all(takes_all_nulls(each) for _, each in _within(field.type))


def first_null(array: pa.Array, field: pa.Field, path: str) -> tuple[int, str] | None:
    """Return the first row with a null that ``field`` does not allow, and the path to it, or None.

    ``path`` is the column's name. The array may lack fields at the end of structs. Values in the
    fields of a null struct do not count.
    """
    return min(
        ((int(rows[0]), where) for rows, where in null_rows(array, field, path)), default=None
    )


def null_rows(
    array: pa.Array, field: pa.Field, path: str
) -> Iterator[tuple[npt.NDArray[np.integer], str]]:
    """Yield each path to nulls that ``field`` does not allow, with the rows that have them.

    Arguments are as for :func:`first_null`. Rows are in ascending order. One row may occur twice.
    """
    if array.null_count and not field.nullable:
        yield np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)), path
    if not pt.is_nested(array.type) or takes_all_nulls(field.with_nullable(True)):
        return
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    # A copy: the values of a slice's lists include those before and after the slice.
    there = array.take(pa.array(rows))
    if not pt.is_struct(array.type):
        rows = np.repeat(rows, _lengths(there))
    for values, (name, inner) in zip(_values(there), _within(field.type), strict=False):
        for found, where in null_rows(values, inner, f"{path}.{name}"):
            yield rows[found], where


def same_values(one: pa.Array, other: pa.Array) -> bool:
    """Return whether arrays of one type have the same values, in any layout.

    A NaN equals another one. A double equals the float to which it is rounded, because its column
    may have been widened.
    """
    if one.equals(other):
        return True
    if not one.is_valid().equals(other.is_valid()):
        return False
    one, other = one.drop_null(), other.drop_null()
    if pt.is_floating(one.type):
        return _same_floats(one.to_numpy(), other.to_numpy())
    if not pt.is_nested(one.type):
        return False
    if not pt.is_struct(one.type) and not np.array_equal(_lengths(one), _lengths(other)):
        return False
    return all(map(same_values, _values(one), _values(other)))


def _same_floats(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> bool:
    if np.array_equal(one, other, equal_nan=True):
        return True
    if not np.array_equal(np.isinf(one), np.isinf(other)):
        return False
    with np.errstate(over="ignore"):  # beyond the range of floats
        floats = one.astype(np.float32), other.astype(np.float32)
    are_floats = np.array_equal(floats[0], one, equal_nan=True)
    are_floats |= np.array_equal(floats[1], other, equal_nan=True)
    return are_floats and np.array_equal(*floats, equal_nan=True)


def _within(kind: pa.DataType) -> list[tuple[str, Any]]:
    """Return the fields of a nested type with Spark's names for them, or an empty list."""
    if pt.is_struct(kind):
        return [(each.name, each) for each in kind]
    if pt.is_map(kind):
        # Arrow's validation refuses null keys.
        return [("key", kind.key_field.with_nullable(True)), ("value", kind.item_field)]
    return [("element", kind.value_field)] if pt.is_nested(kind) else []


def _values(array: pa.Array) -> list[pa.Array]:
    """Return the values of each field of :func:`_within`, for an array without nulls."""
    if pt.is_map(array.type):
        return [array.keys, array.items]
    found = array.flatten()
    return found if pt.is_struct(array.type) else [found]


def _lengths(array: pa.Array) -> npt.NDArray[np.integer]:
    """Return the number of values in each list or map, for an array without nulls."""
    lengths: npt.NDArray[np.integer]
    if pt.is_map(array.type):
        lengths = np.diff(array.offsets.to_numpy())
    else:
        lengths = pc.list_value_length(array).to_numpy()
    return lengths


Sizes = npt.NDArray[np.int64]


def bytes_at_most(batch: pa.RecordBatch) -> int:
    """Return an upper bound of any record's size: the sum of each column's largest value."""
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
    """Return the size of each record's values in bytes, shape (rows,)."""
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
    """Return the sum of the values' sizes for each list. Values outside all lists do not count."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    first, last = int(offsets[0]), int(offsets[-1])
    values = _sizes(array.values.slice(first, last - first))
    edges = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(edges[offsets[1:] - first] - edges[offsets[:-1] - first], np.int64)
