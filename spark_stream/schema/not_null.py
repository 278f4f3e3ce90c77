"""Find the nulls in values whose type takes none, however deep they are nested."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def takes_all_nulls(field: pa.Field) -> bool:
    """Return whether neither the field nor one within it is declared NOT NULL."""
    return bool(field.nullable) and all(takes_all_nulls(each) for _, each in _within(field.type))


def first_null(array: pa.Array, field: pa.Field, path: str) -> tuple[int, str] | None:
    """Return the first row with a null that ``field`` does not allow, and the path to it, or None.

    ``path`` names the column. The array may lack fields at the end of structs. Values in the
    fields of a struct that is null itself do not count.
    """
    return min(
        ((int(rows[0]), where) for rows, where in null_rows(array, field, path)), default=None
    )


def null_rows(
    array: pa.Array, field: pa.Field, path: str
) -> Iterator[tuple[npt.NDArray[np.integer], str]]:
    """Yield all rows with nulls that ``field`` does not allow, by the path to them.

    Arguments are as for :func:`first_null`. Rows rise; one with several such nulls may come twice.
    """
    if array.null_count and not field.nullable:
        yield np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)), path
    if not pt.is_nested(array.type) or takes_all_nulls(field.with_nullable(True)):
        return
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    # A copy: the lists of a slice would still have the values before and behind it.
    there = array.take(pa.array(rows))
    if not pt.is_struct(array.type):
        rows = np.repeat(rows, _lengths(there))
    for values, (name, inner) in zip(_values(there), _within(field.type), strict=False):
        for found, where in null_rows(values, inner, f"{path}.{name}"):
            yield rows[found], where


def _within(kind: pa.DataType) -> list[tuple[str, Any]]:
    """Return the fields of a nested type with Spark's names for them; none of another type."""
    if pt.is_struct(kind):
        return [(each.name, each) for each in kind]
    if pt.is_map(kind):
        # Arrow's own validation refuses a key that is null.
        return [("key", kind.key_field.with_nullable(True)), ("value", kind.item_field)]
    return [("element", kind.value_field)] if pt.is_nested(kind) else []


def _values(array: pa.Array) -> list[pa.Array]:
    """Return the values in the fields of :func:`_within`, for an array without nulls."""
    if pt.is_map(array.type):
        return [array.keys, array.items]
    found = array.flatten()
    return found if pt.is_struct(array.type) else [found]


def _lengths(array: pa.Array) -> npt.NDArray[np.integer]:
    """Return how many values each list or map has, for an array without nulls."""
    lengths: npt.NDArray[np.integer]
    if pt.is_map(array.type):
        lengths = np.diff(array.offsets.to_numpy())
    else:
        lengths = pc.list_value_length(array).to_numpy()
    return lengths
