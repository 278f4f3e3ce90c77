"""Arrow's intervals of months, days and nanoseconds as structs of them, and back."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

INTERVAL_FIELDS: Final = [
    pa.field("months", pa.int32()),
    pa.field("days", pa.int32()),
    pa.field("nanoseconds", pa.int64()),
]
_LAYOUT: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def is_interval(kind: pa.DataType) -> bool:
    """Whether the type is Arrow's month_day_nano_interval."""
    return bool(pt.is_interval(kind))


def interval_parts(array: pa.Array) -> pa.StructArray:
    """Intervals as structs."""
    data = array.buffers()[1]
    rows = np.frombuffer(data, _LAYOUT, len(array), array.offset * _LAYOUT.itemsize)
    parts = [pa.array(np.ascontiguousarray(rows[each.name]), each.type) for each in INTERVAL_FIELDS]
    return pa.StructArray.from_arrays(parts, fields=INTERVAL_FIELDS, mask=array.is_null())


def intervals_of(parts: pa.StructArray) -> pa.Array:
    """Structs as intervals; a part that is null is 0."""
    rows = np.zeros(len(parts), _LAYOUT)
    for each, column in zip(INTERVAL_FIELDS, parts.flatten(), strict=True):
        rows[each.name] = column.cast(each.type).fill_null(0).to_numpy(zero_copy_only=False)
    valid = pa.concat_arrays([parts.is_valid()]).buffers()[1]
    return pa.Array.from_buffers(
        pa.month_day_nano_interval(), len(parts), [valid, pa.py_buffer(rows.tobytes())]
    )
