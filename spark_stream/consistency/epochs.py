"""Where the leader epochs of a log begin and end: what tells that records were cut off.

Every entry carries the epoch of the leader that appended it, and epochs never fall along a log. So
a reader that was at offset ``o`` under the epoch ``e`` has lost nothing exactly if ``o`` does not
lie above the place where epoch ``e`` ended: where the first entry of a later epoch begins, or the
log's end if there is none. That holds however far the log has grown since.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import LeaderEpoch, Offset


class EpochStarts:
    """The first offset of each epoch in a log, epochs without an entry left out.

    One writer at a time; any thread may ask.
    """

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._offsets: list[int] = []

    @classmethod
    def derived(cls, tables: Sequence[Table]) -> EpochStarts:
        """From the entries tables of a whole log, oldest first."""
        found = cls()
        for table in tables:
            epochs, rows = np.unique(table["leader_epoch"], return_index=True)
            offsets = table["base_offset"][rows]
            for epoch, offset in zip(epochs.tolist(), offsets.tolist(), strict=True):
                found.appended(LeaderEpoch(epoch), Offset(offset))
        return found

    @property
    def last(self) -> LeaderEpoch | None:
        """The epoch of the last entry; None: there is none."""
        return LeaderEpoch(self._epochs[-1]) if self._epochs else None

    def appended(self, epoch: LeaderEpoch, offset: Offset) -> None:
        """An entry of this epoch is at ``offset``, behind all others."""
        if not self._epochs or epoch > self._epochs[-1]:
            self._offsets.append(offset)
            self._epochs.append(epoch)

    def end_of(self, epoch: int, log_end: Offset) -> Offset:
        """Where the epoch ended: the first offset that a later one may have given anew."""
        later = bisect_right(self._epochs, epoch)
        return Offset(self._offsets[later]) if later < len(self._epochs) else log_end
