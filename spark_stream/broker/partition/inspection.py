"""Which records of a batch are bad: for whole batches at once, never row by row.

A batch comes from the wire, so nothing in its buffers is believed before Arrow has validated it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from spark_stream.consistency.partition.admission import (
    Admission,
    Flaw,
    Reason,
    admit,
    first_too_large,
)
from spark_stream.errors import (
    BatchTooLarge,
    InvalidRecord,
    IsologError,
    RecordTooLarge,
)
from spark_stream.schema.not_null import first_null
from spark_stream.schema.record_sizes import bytes_at_most, record_sizes
from spark_stream.wire.limits import BATCH_BYTES_MAX

# A flag counts as a byte and is stored as a bit.
_COUNTED_PER_STORED_MAX: Final = 8


def inspected(
    batch: pa.RecordBatch, required: tuple[pa.Field, ...], record_bytes_max: int
) -> Admission:
    """Return the verdict on a batch that has the topic's columns.

    ``required``: the columns that take no nulls, or may have a field within that takes none.

    Raises:
        InvalidRecord: the buffers do not hold such a batch.
        BatchTooLarge: the batch has more bytes or rows than a message may have; it is not
            inspected.
    """
    try:
        batch.validate()
    except pa.ArrowInvalid as error:
        raise InvalidRecord(f"the batch is not valid Arrow: {error}") from None
    try:
        size = pa.ipc.get_record_batch_size(batch)
    except pa.ArrowException as error:  # 2^31 rows without a value need no bytes
        raise BatchTooLarge(f"the batch cannot be stored: {error}") from None
    if size > BATCH_BYTES_MAX:
        raise BatchTooLarge(f"a batch has at most {BATCH_BYTES_MAX} bytes, not {size}")
    flaws: list[Flaw] = []
    rows = batch.num_rows
    invalid = _first_invalid(batch)
    if invalid is not None:
        if invalid.row >= rows:
            raise InvalidRecord(f"column {invalid.column!r} has invalid values beyond its rows")
        flaws.append(invalid)
        batch = batch.slice(0, invalid.row)
    for field in required:
        null = first_null(batch.column(field.name), field, field.name)
        flaws += [Flaw(null[0], Reason.NULL_VALUE, column=null[1])] if null else []
    # Most batches need no look at each record: none can be too large.
    if size * _COUNTED_PER_STORED_MAX > record_bytes_max < bytes_at_most(batch):
        found = first_too_large(record_sizes(batch), record_bytes_max)
        flaws += [found] if found else []
    return admit(rows, flaws)


def refusal(
    flaw: Flaw,
    kept: int,
    offset: int | None,
    record_bytes_max: int,
    *,
    in_transaction: bool = False,
) -> IsologError:
    """Return the error that reports a flaw: how many records before it stay, and where."""
    where = f"record {flaw.row} of the message"
    tail, hint = _remains(kept, offset, in_transaction)
    details: dict[str, Any] = {"kept": kept, "offset": offset if kept else None, "record": flaw.row}
    if flaw.reason is Reason.TOO_LARGE:
        return RecordTooLarge(
            f"{where} has {flaw.size} bytes, the topic's max.record.bytes is"
            f" {record_bytes_max}{tail}",
            **details,
        )
    if flaw.reason is Reason.NULL_VALUE:
        return InvalidRecord(
            f"{where} has no value in column {flaw.column!r}, which takes no nulls{tail}",
            hint=hint,
            column=flaw.column,
            **details,
        )
    return InvalidRecord(
        f"{where} has a value in column {flaw.column!r} that its type does not allow{tail}",
        hint=hint,
        column=flaw.column,
        **details,
    )


def _remains(kept: int, offset: int | None, in_transaction: bool) -> tuple[str, str | None]:
    """Return what stays of a refused message, and a hint (None: the error has its own)."""
    if in_transaction:
        return (
            "; nothing of the message is kept, for it is part of a transaction",
            "Abort the transaction; mend or drop the record, and write all of it again.",
        )
    if not kept:
        return "; no record of the message is kept", None
    stays = "record before it is" if kept == 1 else "records before it are"
    at = f", at offset{'s' if kept > 1 else ''} {offset}"
    at += f" to {offset + kept - 1}" if offset is not None and kept > 1 else ""
    hint = "Mend or drop the record; those before it in its message are kept."
    return f"; the {kept} {stays} kept{at if offset is not None else ''}", hint


def _first_invalid(batch: pa.RecordBatch) -> Flaw | None:
    """Find the first row with a value that its type does not allow (text that is not UTF-8)."""
    if _valid(batch):
        return None
    flaws = [
        Flaw(row, Reason.INVALID_TEXT, column=name)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if (row := _first_invalid_row(column)) is not None
    ]
    return min(flaws, key=lambda flaw: flaw.row, default=None)


def _first_invalid_row(array: pa.Array) -> int | None:
    """Find the first invalid row of an array. Values that no row refers to are not looked at.

    Arrow validates the children of a list as a whole, also for a slice of it: so the search goes
    down to the arrays that have no children.
    """
    if _valid(array):
        return None
    kind = array.type
    if pt.is_struct(kind):
        rows = [_first_invalid_row(array.field(index)) for index in range(kind.num_fields)]
        return min((row for row in rows if row is not None), default=None)
    if pt.is_fixed_size_list(kind):
        width = kind.list_size
        row = _first_invalid_row(array.values.slice(array.offset * width, len(array) * width))
        return None if row is None else row // width
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        return _first_invalid_list(array)
    low, high = 0, len(array) - 1  # rows below low are valid, the slice to high + 1 is not
    while low < high:
        middle = (low + high) // 2
        if _valid(array.slice(low, middle - low + 1)):
            low = middle + 1
        else:
            high = middle
    return low


def _first_invalid_list(array: pa.Array) -> int | None:
    children = array.values
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    starts, ends = offsets[:-1], offsets[1:]
    jumps = np.flatnonzero((starts < 0) | (ends < starts) | (ends > len(children)))
    sound = int(jumps[0]) if len(jumps) else len(array)
    first = int(offsets[0]) if sound else 0
    child = (
        _first_invalid_row(children.slice(first, int(offsets[sound]) - first)) if sound else None
    )
    if child is not None:
        return int(np.searchsorted(starts[:sound], first + child, side="right")) - 1
    return sound if sound < len(array) else None


def _valid(data: pa.RecordBatch | pa.Array) -> bool:
    try:
        data.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
