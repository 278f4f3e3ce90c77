"""The outcome of each batch for its writer, and the required content of the log."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

ROWS = 5
SCHEMA = pa.schema(
    [("writer", pa.int32()), ("number", pa.int64()), ("row", pa.int32()), ("fill", pa.binary())]
)
UNKNOWN, ACKNOWLEDGED, ABSENT = 0, 1, 2


class Outcomes:
    """One writer's batches by number, a byte each, so that hours of them take little memory."""

    def __init__(self) -> None:
        self._told = bytearray()
        self._lock = threading.Lock()

    def begun(self) -> int:
        """Return the number of a new batch, with an unknown outcome."""
        with self._lock:
            self._told.append(UNKNOWN)
            return len(self._told) - 1

    def __setitem__(self, number: int, outcome: int) -> None:
        self._told[number] = outcome

    def told(self) -> np.ndarray:
        return np.frombuffer(bytes(self._told), np.uint8)


def broken_promises(table: pa.Table, outcomes: Mapping[int, Outcomes]) -> list[str]:
    """Return the differences: an acknowledged batch must exist once and whole, an absent one never.

    ``table`` has the columns writer, number and row.
    """
    batches = table["writer"].to_numpy().astype(np.int64) << 40 | table["number"].to_numpy()
    keys, counted = np.unique(batches, return_counts=True)
    rows = np.unique(np.stack([batches, table["row"].to_numpy()]), axis=1)[0]
    whole = (counted == ROWS) & (np.unique(rows, return_counts=True)[1] == ROWS)
    writers, found = keys >> 40, keys & ((1 << 40) - 1)
    broken = []
    for writer, each in outcomes.items():
        told, numbers = each.told(), found[writers == writer]
        there = np.zeros(len(told), bool)
        there[numbers] = True
        for what, wrong in (
            ("acknowledged and gone", np.flatnonzero((told == ACKNOWLEDGED) & ~there)),
            ("there, and told that it is not", np.flatnonzero((told == ABSENT) & there)),
            ("twice or in part", numbers[~whole[writers == writer]]),
        ):
            if len(wrong):
                broken.append(f"writer {writer}: {what}: {len(wrong)}, the first {wrong[:5]}")
    return broken


def counts(outcomes: Mapping[int, Outcomes]) -> tuple[int, int, int]:
    """The numbers of unknown, acknowledged and absent batches."""
    told = np.concatenate([each.told() for each in outcomes.values()])
    found = np.bincount(told, minlength=3)
    return int(found[UNKNOWN]), int(found[ACKNOWLEDGED]), int(found[ABSENT])
