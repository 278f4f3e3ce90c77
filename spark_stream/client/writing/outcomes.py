"""What becomes of records that were sent one by one and go together.

A loop that sends makes a future for each record, and most are dropped unseen. So a future of this
module is no more than its record's row among those that go together, until somebody looks at it;
then it becomes what every future is. A whole part of the rows is settled at once, whoever looks
later finds its outcome by the row, and only futures that were used before are settled singly.
"""

from __future__ import annotations

import threading
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
from spark_stream.client.writing.promises import Failures, Promise
from spark_stream.errors import IsologError, RecordNotAttempted

Rows = npt.NDArray[np.int64]

# What a future of the standard library has.
_MADE_LATER: Final = frozenset(vars(Future()))
_MADE_LAST: Final = [*vars(Future())][-1]


class RecordPromise(Promise):
    """The future of one record."""

    def __init__(self, outcomes: Outcomes, row: int) -> None:
        # The rest is made by __getattr__.
        self._outcomes = outcomes
        self.row = row

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there: makes this a whole future when somebody looks at it."""
        if name not in _MADE_LATER:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        self._outcomes.watch(self)
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Written:
        """As every future's; one that is written already is not made a whole future for it."""
        if _MADE_LAST not in self.__dict__:
            written = self._outcomes.written(self.row)
            if written is not None:
                return written
        return super().result(timeout)


class Outcomes:
    """Of the rows that go together, for any thread."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._lock = threading.Lock()
        self._watched: dict[int, list[RecordPromise]] = {}  # whole futures, by their rows' parts
        self._settled: dict[int, _Part] = {}  # by their numbers
        self._part_of: Rows | None = None  # which part a row is in; None: there is one part
        self._places: Rows | None = None  # which row of its part it is

    def spread(self, parts: Sequence[Rows]) -> None:
        """The rows are in several parts, which are settled by themselves; before any is."""
        rows = sum(len(part) for part in parts)
        part_of, places = np.empty(rows, np.int64), np.empty(rows, np.int64)
        for number, part in enumerate(parts):
            part_of[part] = number
            places[part] = np.arange(len(part))
        with self._lock:
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

    def watch(self, promise: RecordPromise) -> None:
        """Somebody looks at the promise: makes it a whole future, settled if its row is."""
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
        """Where the row is in the log; None: it is not settled, or it failed."""
        number, place = self._place_of(row)
        part = self._settled.get(number)
        if part is None or part.written is None or place >= part.written.count:
            return None
        return replace(part.written, offset=part.written.offset + place, count=1)

    def _outcome(self, row: int) -> tuple[Written | IsologError, FailedRow | None] | None:
        """None: it is not settled."""
        written = self.written(row)
        if written is not None:
            return written, None
        number, place = self._place_of(row)
        part = self._settled.get(number)
        if part is None or part.failure is None:
            return None
        kept = 0 if part.written is None else part.written.count
        failed = FailedRow(part.failure, place - kept)
        return failed.error, failed

    def _place_of(self, row: int) -> tuple[int, int]:
        """The number of its part, and which row of that it is."""
        if self._part_of is None or self._places is None:
            return 0, row
        return int(self._part_of[row]), int(self._places[row])


class _Part(Struct):
    """A settled part: its first rows are ``written``, and those behind them failed."""

    written: Written | None
    failure: FailedRows | None = None


class FailedRows:
    """Rows that failed together; ``holder`` is what their futures hold."""

    def __init__(self, error: IsologError, rows: int, holder: weakref.ref[Outcomes]) -> None:
        self.holder = holder
        self._error = error
        self._told = np.zeros(rows, np.bool_)

    @property
    def told(self) -> bool:
        """Whether the callers have taken the errors of all."""
        return bool(self._told.all())

    @property
    def error(self) -> IsologError:
        """The error of the first that nobody was told of."""
        return self.error_of(int(np.argmin(self._told)))

    def error_of(self, row: int) -> IsologError:
        """The first is refused with the error; so are the others unless it is about one alone."""
        if row and self._error.details.get("record") is not None:
            return RecordNotAttempted(
                f"not tried, for an earlier one was refused: {self._error.message}"
            )
        return self._error

    def mark_told(self, row: int) -> None:
        self._told[row] = True


class FailedRow:
    """One of them."""

    def __init__(self, failure: FailedRows, row: int) -> None:
        self._failure = failure
        self._row = row
        self.error = failure.error_of(row)

    def mark_told(self) -> None:
        """Whoever holds its future has taken the error from there."""
        self._failure.mark_told(self._row)
