"""The records of a message that are kept if one of them is invalid.

A message of several records is not atomic outside a transaction. Records are taken in order. The
first invalid one ends the message: the records before it are kept, those after it are not checked,
and the next message is checked separately.

Source: Fluvio's producers ("Records are processed one by one. If an error occurs, the operation
aborts, … but Fluvio does not roll back previous records from the batch").

All functions compute with whole batches, without a loop over records.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt
from msgspec import Struct


class Reason(StrEnum):
    """The reason for the refusal of a record."""

    TOO_LARGE = "too_large"
    NULL_VALUE = "null_value"
    INVALID_TEXT = "invalid_text"


class Flaw(Struct, frozen=True):
    """The first record of a batch that one rule refuses. ``row`` counts from the batch's start."""

    row: int
    reason: Reason
    column: str | None = None
    size: int | None = None


class Admission(Struct, frozen=True):
    """The verdict on a message: the first ``kept`` of its records go into the log."""

    kept: int
    flaw: Flaw | None = None


def first_too_large(sizes: npt.NDArray[np.int64], limit: int) -> Flaw | None:
    """Find the first row whose size (bytes) is above the limit. ``sizes`` has shape (rows,)."""
    over = sizes > limit
    if not over.any():
        return None
    row = int(over.argmax())
    return Flaw(row, Reason.TOO_LARGE, size=int(sizes[row]))


def admit(rows: int, flaws: list[Flaw]) -> Admission:
    """Decide from each rule's first flaw: the earliest row counts, then the order of the list."""
    if not flaws:
        return Admission(kept=rows)
    worst = min(flaws, key=lambda flaw: flaw.row)
    if not 0 <= worst.row < rows:
        raise ValueError(f"a flaw outside its batch of {rows} rows: {worst}")
    return Admission(kept=worst.row, flaw=worst)
