"""Min/max statistics: the least and the greatest value of each column, as a row of fixed size.

A row describes consecutive entries of a segment: one large batch, or many small ones together. It
is valid only for batches with the checksums in the row. It has the columns whose values have keys
(``consistency.pruning``): numbers, decimals, dates and times, booleans, and texts by their first
bytes. It has no binary columns, and no fields within structs and lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from functools import cached_property
from typing import Any, Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.consistency.entries import Table
from spark_stream.consistency.pruning import (
    HIGHEST,
    LOWEST,
    Extremes,
    Keys,
    bytes_key,
    bytes_key_above,
    float_key,
    whole_key,
    words,
)

RECORDS_MIN: Final = 512
"""Fewer records have no row, because their read is cheap."""

_COLUMNS_MAX: Final = 64  # bounds the size of a row, and the time to compute it
_QUICK_PART: Final = 6
_KNOWN: Final = 1

COLUMN: Final = np.dtype(
    [
        ("least", "<u8", 2),
        ("greatest", "<u8", 2),
        ("nulls", "<u4"),
        ("known", "<u4"),
    ]
)

Rows = npt.NDArray[Any]

_EXACTLY: Final = Context(prec=80)
_NUMPY: Final[dict[int, np.dtype[Any]]] = {
    kind.id: np.dtype(name)
    for name, kinds in {
        "<i1": [pa.int8()],
        "<i2": [pa.int16()],
        "<i4": [pa.int32(), pa.date32(), pa.time32("s")],
        "<i8": [pa.int64(), pa.date64(), pa.time64("us"), pa.timestamp("us")],
        "<u1": [pa.uint8()],
        "<u2": [pa.uint16()],
        "<u4": [pa.uint32()],
        "<u8": [pa.uint64()],
        "<f4": [pa.float32()],
        "<f8": [pa.float64()],
    }.items()
    for kind in kinds
}
"""Arrow's id of a type → its type in NumPy, if a buffer has its values side by side."""
_WHOLE: Final = {4: pa.int32(), 8: pa.int64()}


@dataclass(frozen=True)
class Layout:
    """The columns with min/max statistics, and the layout of a row of statistics."""

    schema: pa.Schema

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns, in the order of the row."""
        names = [field.name for field in self.schema if _has_keys(field.type)]
        return tuple(names[:_COLUMNS_MAX])

    @cached_property
    def row(self) -> np.dtype[Any]:
        """The type. ``first``: index of the first entry. ``data_crcs``: xor of all data CRCs."""
        return np.dtype(
            [
                ("first", "<i8"),
                ("entries", "<u4"),
                ("records", "<u4"),
                ("data_crcs", "<u4"),
                ("reserved", "<u4"),
                ("columns", COLUMN, (len(self.names),)),
                ("reserved2", "<u4"),
                ("row_crc", "<u4"),
            ]
        )

    @cached_property
    def mark(self) -> int:
        """A number that identifies this layout: layouts of other columns have others."""
        text = "".join(f"{name}={self.schema.field(name).type}\n" for name in self.names)
        return int(google_crc32c.value(text.encode()))

    @cached_property
    def quick(self) -> tuple[str, ...]:
        """The columns whose min/max an append computes: a sixth of all, times and dates first.

        A second read of a column's values costs a twelfth of its append. The first filtered read
        computes the other columns.
        """
        kinds = {name: self.schema.field(name).type for name in self.names}
        fixed = [name for name, kind in kinds.items() if kind.id in _NUMPY]
        fixed.sort(key=lambda name: not pt.is_temporal(kinds[name]))
        return tuple(fixed[: max(1, len(self.schema) // _QUICK_PART)])

    def described(self, batch: pa.RecordBatch, names: Sequence[str]) -> Rows:
        """Compute the min/max of these columns, as an array of the type :data:`COLUMN`.

        Other columns, and columns without a min/max, stay unknown.
        """
        columns = np.zeros(len(self.names), COLUMN)
        for place, name in enumerate(self.names):
            if name in names:
                columns[place] = _extremes(batch.column(name))
        return columns

    def packed(self, first: int, rows: Table, columns: Rows) -> bytes:
        """Pack the row for these entries. ``first`` is the index of the first one."""
        packed = np.zeros(1, self.row)
        packed["first"] = first
        packed["entries"] = len(rows)
        packed["records"] = int(rows["count"].sum())
        packed["data_crcs"] = np.bitwise_xor.reduce(rows["data_crc"])
        packed["columns"] = columns
        return self.sealed(packed.tobytes())

    def packed_one(self, first: int, records: int, data_crc: int, columns: Rows) -> bytes:
        """Pack the row for one entry."""
        packed = np.zeros(1, self.row)
        packed[0] = (first, 1, records, data_crc, 0, columns, 0, 0)
        return self.sealed(packed.tobytes())

    def sealed(self, row: bytes) -> bytes:
        """Append the row's own checksum."""
        crc = int(google_crc32c.value(row[:-4]))
        return row[:-4] + crc.to_bytes(4, "little")

    def intact(self, data: pa.Buffer) -> Rows:
        """Return the rows in these bytes that have a right checksum."""
        size = self.row.itemsize
        rows = np.frombuffer(data, self.row, count=data.size // size)
        view, value = memoryview(data), google_crc32c.value
        crcs = np.fromiter(
            (value(bytes(view[at : at + size - 4])) for at in range(0, len(rows) * size, size)),
            np.uint32,
            len(rows),
        )
        good = crcs == rows["row_crc"]
        return rows if good.all() else rows[good]

    def extremes(self, rows: Rows, owners: npt.NDArray[np.int64], name: str) -> Extremes:
        """Return a column's min/max. ``owners``: the row of each entry, -1 without a row."""
        found = rows["columns"][:, self.names.index(name)][owners]
        known = (owners >= 0) & (found["known"] == _KNOWN)
        nothing = Extremes.unknown(len(owners))
        least, greatest, nulls = found["least"], found["greatest"], found["nulls"]
        records = rows["records"][owners]
        return Extremes(
            Keys(least[:, 0], least[:, 1]).where(known, nothing.least),
            Keys(greatest[:, 0], greatest[:, 1]).where(known, nothing.greatest),
            ~known | (nulls > 0),
            ~known | (nulls < records),
        )


def have_same_keys(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether equal values of the two types have the same key."""
    if pt.is_decimal128(one) and pt.is_decimal128(other):
        return bool(one.scale == other.scale)
    families = (pt.is_integer, pt.is_floating)
    return one.equals(other) or any(is_of(one) and is_of(other) for is_of in families)


def _has_keys(kind: pa.DataType) -> bool:
    return bool(
        pt.is_boolean(kind)
        or pt.is_integer(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_decimal128(kind)
        or pt.is_timestamp(kind)
        or pt.is_date(kind)
        or pt.is_time(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
    )


def _extremes(values: pa.Array) -> tuple[Any, ...]:
    """Compute the item of type :data:`COLUMN` for these values."""
    nulls = values.null_count
    if nulls == len(values):
        return words(HIGHEST), words(LOWEST), nulls, _KNOWN
    least, greatest = _keys(values, nulls)
    return words(least), words(greatest), nulls, _KNOWN


def _keys(values: pa.Array, nulls: int) -> tuple[int, int]:
    kind = values.type
    plain = _NUMPY.get(kind.id)
    if plain is not None and nulls and plain.kind != "f":
        found = pc.min_max(values.view(_WHOLE[plain.itemsize]) if pt.is_temporal(kind) else values)
        return whole_key(found["min"].as_py()), whole_key(found["max"].as_py())
    if plain is not None:
        if nulls:
            values = values.drop_null()
        # Not to_numpy, which imports pandas.
        size = plain.itemsize
        found = np.frombuffer(values.buffers()[1], plain, len(values), size * values.offset)
        if plain.kind != "f":
            return whole_key(int(found.min())), whole_key(int(found.max()))
        least, greatest = float(np.fmin.reduce(found)), float(np.maximum.reduce(found))
        return float_key(least), float_key(greatest)  # fmin ignores NaN, maximum does not
    found = pc.min_max(values)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    if pt.is_decimal128(kind):
        scaled = (int(each.scaleb(kind.scale, _EXACTLY)) for each in (least, greatest))
        low, high = scaled
        return whole_key(low), whole_key(high)
    if pt.is_boolean(kind):
        return whole_key(int(least)), whole_key(int(greatest))
    return bytes_key(least.encode()), bytes_key_above(greatest.encode())
