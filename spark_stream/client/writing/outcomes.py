"""Futures of records that were sent one by one and batched together.

A loop that sends makes a future for each record, and most are dropped unused. So a future of this
module holds only its record's row in the batch until it is first used; then it becomes a complete
future. A whole part of the rows is settled at once: a future that is used later finds its outcome
by the row, and only futures that were used before are settled one by one.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import Settlement
from spark_stream.client.writing.promises import Failure, Failures, Promise, Told
from spark_stream.errors import IsologError, RecordNotAttempted
from spark_stream.transport.lifetime import Lifetime

Rows = npt.NDArray[np.int64]

# The attributes of a future of the standard library.
_MADE_LATER: Final = frozenset(vars(Future()))
_MADE_LAST: Final = [*vars(Future())][-1]


class RecordPromise(Promise):
    """The future of one record."""

    def __init__(self, outcomes: Outcomes, row: int) -> None:
        # __getattr__ makes the other attributes.
        self._outcomes = outcomes
        self.row = row

    @property
    def _lifetime(self) -> Lifetime:
        return self._outcomes.lifetime

    def __getattr__(self, name: str) -> Any:
        """Become a complete future, when an attribute that is not there yet is first used."""
        if name not in _MADE_LATER:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        self._outcomes.watch(self)
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Written:
        """Return the result as any future does; do not become complete if the record is written."""
        if _MADE_LAST not in self.__dict__:
            written = self._outcomes.written(self.row)
            if written is not None:
                return written
        return super().result(timeout)


class Outcomes:
    """The outcomes of the rows of a batch, for any thread."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self.lifetime = failures.lifetime
        """The lifetime of the producer's process."""
        self._lock = failures.lock
        self._watched: dict[int, list[RecordPromise]] = {}  # complete futures, by their rows' parts
        self._settled: dict[int, _Part] = {}  # by number
        self._parts = 1
        self._given_up: Failure | None = None  # of the rows that are not settled
        self._part_of: Rows | None = None  # the part of each row; None: there is one part
        self._places: Rows | None = None  # the place of each row in its part

    def spread(self, parts: Sequence[Rows]) -> None:
        """Split the rows into parts that are settled separately; call it before any is settled."""
        rows = sum(len(part) for part in parts)
        part_of, places = np.empty(rows, np.int64), np.empty(rows, np.int64)
        for number, part in enumerate(parts):
            part_of[part] = number
            places[part] = np.arange(len(part))
        with self._lock:
            self._parts = len(parts)
            self._part_of, self._places = part_of, places
            for promise in self._watched.pop(0, []):
                self._watched.setdefault(self._place_of(promise.row)[0], []).append(promise)

    def settle(self, number: int, rows: int, settlement: Settlement) -> None:
        """Settle the part of this number, which has ``rows`` rows."""
        if isinstance(settlement, Written):
            assert settlement.count == rows, settlement
            part = _Part(settlement)
        else:
            kept = 0 if settlement.kept is None else settlement.kept.count
            failure = FailedRows(settlement.error, rows - kept, weakref.ref(self))
            self._failures.note(failure)
            part = _Part(settlement.kept, failure)
        with self._lock:
            self._settled[number] = part
            watched = self._watched.pop(number, [])
        for promise in watched:
            outcome = self._outcome(promise.row)
            assert outcome is not None
            promise.fulfil(*outcome)

    def give_up(self, error: IsologError) -> None:
        """Fail all rows that are not settled."""
        if len(self._settled) == self._parts:
            return
        failure = Failure(error, weakref.ref(self))
        self._failures.note(failure)
        with self._lock:
            self._given_up = failure
            watched = [each for listed in self._watched.values() for each in listed]
            self._watched.clear()
        for promise in watched:
            promise.fulfil(error, failure)

    def watch(self, promise: RecordPromise) -> None:
        """Make a used promise a complete future, and settle it if its row is settled."""
        with self._lock:
            if _MADE_LAST in promise.__dict__:
                return  # another thread was faster
            Future.__init__(promise)
            outcome = self._outcome(promise.row)
            if outcome is None:
                self._watched.setdefault(self._place_of(promise.row)[0], []).append(promise)
        if outcome is not None:
            promise.fulfil(*outcome)

    def written(self, row: int) -> Written | None:
        """Return where the row is in the log; None if it is not settled, or failed."""
        number, place = self._place_of(row)
        part = self._settled.get(number)
        if part is None or part.written is None or place >= part.written.count:
            return None
        return replace(part.written, offset=part.written.offset + place, count=1)

    def _outcome(self, row: int) -> tuple[Written | IsologError, Told | None] | None:
        """Return the row's outcome; None if it is not settled."""
        written = self.written(row)
        if written is not None:
            return written, None
        number, place = self._place_of(row)
        part = self._settled.get(number)
        if part is None or part.failure is None:
            return None if self._given_up is None else (self._given_up.error, self._given_up)
        kept = 0 if part.written is None else part.written.count
        failed = FailedRow(part.failure, place - kept)
        return failed.error, failed

    def _place_of(self, row: int) -> tuple[int, int]:
        """Return the number of the row's part, and its place in that."""
        if self._part_of is None or self._places is None:
            return 0, row
        return int(self._part_of[row]), int(self._places[row])


class _Part(Struct):
    """A settled part: its first rows are ``written``, and the others failed."""

    written: Written | None
    failure: FailedRows | None = None


class FailedRows:
    """Rows that failed together; ``holder`` refers to what their futures hold."""

    def __init__(self, error: IsologError, rows: int, holder: weakref.ref[Outcomes]) -> None:
        self.holder = holder
        self._error = error
        self._reported = np.zeros(rows, np.bool_)

    @property
    def is_reported(self) -> bool:
        """Whether callers have taken the errors of all rows."""
        return bool(self._reported.all())

    @property
    def error(self) -> IsologError:
        """The error of the first row whose error was not taken."""
        return self.error_of(int(np.argmin(self._reported)))

    def error_of(self, row: int) -> IsologError:
        """Return the error of a row; if the first one alone was refused, others were not tried."""
        if row and self._error.details.get("record") is not None:
            return RecordNotAttempted(
                f"not tried, for an earlier one was refused: {self._error.message}"
            )
        return self._error

    def mark_reported(self, row: int) -> None:
        self._reported[row] = True


class FailedRow:
    """One of the rows that failed together."""

    def __init__(self, failure: FailedRows, row: int) -> None:
        self._failure = failure
        self._row = row
        self.error = failure.error_of(row)

    def mark_reported(self) -> None:
        """Note that the error was taken from this row's future."""
        self._failure.mark_reported(self._row)
