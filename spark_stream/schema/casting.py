"""Arrow's cast, for nested values that Arrow refuses or should have refused.

Even a struct that is null has values in its fields, as a rule nulls. If a field is declared NOT
NULL, Arrow's cast of the whole calls these nulls invalid, though nobody can see them. So what Arrow
refuses is cast part by part. In lists and maps Arrow accepts nulls where none are allowed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt


def cast(array: pa.Array, kind: pa.DataType, *, cut: bool = False) -> pa.Array:
    """Return the array in another type. The fields of structs are found by their names.

    A field that the array lacks is null, and one that the type lacks is left out.

    ``cut``: nanoseconds that have no place in microseconds are cut off rather than refused.

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
    """Return a field of the structs, found by its name; nulls where they lack it."""
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
