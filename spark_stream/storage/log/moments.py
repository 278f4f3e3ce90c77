"""The first record at or after a moment."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import first_at_or_after
from spark_stream.consistency.ids import Offset
from spark_stream.storage.segment.segment import Segment


def first_offset_at(
    segments: Iterable[Segment], timestamp: int, column: str | None
) -> Offset | None:
    """Return the first offset whose record's timestamp is at or after this one, or None.

    ``column`` has the records' own timestamps; None: a record's is that of its entry.

    Raises:
        DamagedSegment: the batch with that record is damaged, or an entry of its segment or one
            before.
    """
    for segment in segments:
        table = segment.table
        segment.check_rows(0, len(table))
        row = first_at_or_after(table, timestamp)
        if row is None:
            continue
        base = int(table[row]["base_offset"])
        if column is None:
            return Offset(base)
        batch, _ = segment.decode(np.array([row]), [column])
        late = batch.column(0).cast(pa.int64()).to_numpy(zero_copy_only=False) >= timestamp
        return Offset(base + int(np.argmax(late)))
    return None
