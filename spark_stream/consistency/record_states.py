"""What became of records: which are committed, open, aborted, or not replicated yet.

A record is *aborted* once its log has the abort marker of its transaction's part: a transaction's
fate never changes. Below the high watermark any other record is *open* while the part has no
marker, and *committed* otherwise; records without a transaction are committed. All others are *not
replicated*: a failover may take them back.

The state is that of the record alone. A committed record at or above the last stable offset is
still hidden from ``read_committed``, because an earlier transaction is open.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_stream.consistency.entries import Kind, Table
from spark_stream.consistency.ids import NO_TRANSACTION, Offset
from spark_stream.structs import OffsetField, Positional


class RecordState(StrEnum):
    """What became of a record."""

    COMMITTED = "committed"
    OPEN = "open"
    ABORTED = "aborted"
    NOT_REPLICATED = "not_replicated"


class RecordRun(Positional):
    """Records ``first`` to ``end - 1``, all in one state and one transaction (None: in none)."""

    first: OffsetField
    end: OffsetField
    state: RecordState
    transaction: int | None = None


JudgedTable = tuple[Table, npt.NDArray[np.bool_] | None]
"""An entries table, and which of its rows are aborted batches (None: none is)."""

_STATES: Final = tuple(RecordState)


def record_states(
    tables: Sequence[JudgedTable],
    start: int,
    end: int,
    high_watermark: Offset,
    open_parts: Collection[tuple[int, int]],
) -> list[RecordRun]:
    """Return the states of the records ``[start, end)`` that are there, as runs in order.

    ``open_parts``: the (transaction, producer id) of the parts that have no marker yet.
    """
    runs: list[RecordRun] = []
    for table, aborted in tables:
        first = table["base_offset"]
        last = first + table["count"]
        rows = np.flatnonzero((table["kind"] == Kind.DATA) & (last > start) & (first < end))
        if not len(rows):
            continue
        numbers = table["transaction"][rows]
        states = np.full(len(rows), _STATES.index(RecordState.COMMITTED))
        states[_is_open(table[rows], open_parts)] = _STATES.index(RecordState.OPEN)
        gone = np.zeros(len(rows), np.bool_) if aborted is None else aborted[: len(table)][rows]
        states[gone] = _STATES.index(RecordState.ABORTED)
        lows = np.maximum(first[rows], start).tolist()
        highs = np.minimum(last[rows], end).tolist()
        for at, (low, high) in enumerate(zip(lows, highs, strict=True)):
            number = None if numbers[at] == NO_TRANSACTION else int(numbers[at])
            state = _STATES[states[at]]
            if state is RecordState.ABORTED:
                _add(runs, RecordRun(low, high, state, number))
                continue
            replicated = min(max(int(high_watermark), low), high)
            if low < replicated:
                _add(runs, RecordRun(low, replicated, state, number))
            if replicated < high:
                _add(runs, RecordRun(replicated, high, RecordState.NOT_REPLICATED, number))
    return runs


def _is_open(rows: Table, open_parts: Collection[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    found = np.zeros(len(rows), np.bool_)
    for transaction, producer_id in open_parts:
        found |= (rows["transaction"] == transaction) & (rows["producer_id"] == producer_id)
    return found


def _add(runs: list[RecordRun], run: RecordRun) -> None:
    """Add a run, to the last one if it continues that."""
    before = runs[-1] if runs else None
    if before is not None and (before.end, before.state, before.transaction) == (
        run.first,
        run.state,
        run.transaction,
    ):
        runs[-1] = RecordRun(before.first, run.end, run.state, run.transaction)
    else:
        runs.append(run)
