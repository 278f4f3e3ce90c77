"""A producer's futures, settled by the thread that reads the acknowledgements.

This thread must never wait for a user's callback, because the callback may wait for room that only
the next acknowledgement frees. So callbacks run on a separate thread, in the order of the futures.

A failure is reported once: by the future, when a caller reads its result or its exception, or else
by the producer's next flush. ``concurrent.futures.wait``, or a callback that does not read its
future's error, does not count as a report.

Records that are sent one by one are batched. A loop that sends makes a future for each record, and
most are dropped unused. So a :class:`RecordPromise` holds only its record's row in the batch until
it is first used, and then becomes a complete future. All rows of a part are settled together. A
future that is used later finds its outcome by the row, and only futures that were used before are
settled one by one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.connecting.threads import CallPool
from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import Settlement, Unacknowledged
from spark_stream.errors import IsologError, RecordNotAttempted, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.transport.channel import ChannelWaits, SocketChannel
from spark_stream.transport.lifetime import (
    Lifetime,
    ProcessBound,
    check_may_wait,
    new_lock,
    present_lifetime,
)

logger = logger_of(__name__)

CALLBACKS: Final = CallPool(1, "isolog-callbacks")
"""The thread that calls the callbacks of futures. It starts with the first callback."""

_FAILURES_KEPT: Final = 1024
_SETTLED: Final = ("CANCELLED_AND_NOTIFIED", "FINISHED")
# The attributes of a future of the standard library.
_MADE_LATER: Final = frozenset(vars(Future()))
_MADE_LAST: Final = [*vars(Future())][-1]

Rows = npt.NDArray[np.int64]


class Unreported(Protocol):
    """A failure of one or several futures, until the error was read from them."""

    @property
    def error(self) -> IsologError:
        """The error to raise."""

    @property
    def is_reported(self) -> bool:
        """Whether the error was read from all futures."""

    @property
    def holder(self) -> Callable[[], object | None]:
        """A weak reference to the futures' holder."""


class ReportableFailure(Protocol):
    """The failure of one future."""

    def mark_reported(self) -> None:
        """Record that the error was read from the future."""


class Failure(Struct, eq=False):
    """The failure of a single future."""

    error: IsologError
    holder: weakref.ref[Any]
    is_reported: bool = False

    def mark_reported(self) -> None:
        self.is_reported = True


class Failures:
    """The unreported failures of a producer, in order, and its unsettled batches."""

    def __init__(self, lifetime: Lifetime | None = None) -> None:
        self.lifetime = lifetime or present_lifetime()
        self.lock = new_lock()
        """The lock of the failures, and of the outcomes of the producer's batches."""
        self._kept: list[Unreported] = []
        self._tidy_at = _FAILURES_KEPT
        self.first: IsologError | None = None
        """The first error since :meth:`clear`, reported or not."""
        self.answers = ChannelWaits()
        self.unsettled: set[SpreadPromise | Outcomes] = set()
        """The batches with an unsettled part."""

    def add(self, failure: Unreported) -> None:
        """Add a failure, just before its futures are settled."""
        with self.lock:
            self.first = self.first or failure.error
            self._kept.append(failure)
            if len(self._kept) >= self._tidy_at:
                self._tidy()

    def raise_first(self) -> None:
        """Raise the first unreported error, if any. All failures then count as reported."""
        with self.lock:
            kept, self._kept = self._kept, []
        for failure in kept:
            if not failure.is_reported:
                raise failure.error

    def clear(self) -> None:
        """Drop the failures so far, unreported."""
        with self.lock:
            self._kept = []
            self.first = None

    def _tidy(self) -> None:
        """Drop the failures of collected futures, except the first."""
        # Each holder is checked once: it may disappear at any time.
        unreported = [(each, each.holder() is None) for each in self._kept if not each.is_reported]
        first = next((each for each, is_dropped in unreported if is_dropped), None)
        self._kept = [each for each, is_dropped in unreported if not is_dropped or each is first]
        self._tidy_at = max(_FAILURES_KEPT, 2 * len(self._kept))


class Promise(ProcessBound, Future[Written]):
    """A future whose callbacks do not run on the thread that settles it."""

    _failure: ReportableFailure | None = None
    _read: SocketChannel | None = None  # by the last thread that waited

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self._failures = failures

    @property
    def _lifetime(self) -> Lifetime:
        return self._failures.lifetime

    @property
    def _answers(self) -> ChannelWaits:
        return self._failures.answers

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, as any future does. Then no flush raises it again.

        Raises:
            ForkedClient: The future is not settled, and its producer belongs to the parent of this
                process.
        """
        if self._state not in _SETTLED:  # without a lock, which a thread of the parent may hold
            self._lifetime.check()
            check_may_wait()
            timeout = self._read_answer(timeout)
        error = super().exception(timeout)
        if self._failure is not None:
            self._failure.mark_reported()
        return error

    def result(self, timeout: float | None = None) -> Written:
        """Return the result or raise the error, as any future does. No flush raises it again."""
        self.exception(timeout)
        return super().result(timeout)

    def cancel(self) -> bool:
        """Cancel the future, as any future."""
        is_cancelled = super().cancel()
        self._wake()
        return is_cancelled

    def _read_answer(self, timeout: float | None) -> float | None:
        """Read the producer's connection until the future is done. Return the rest of a timeout."""
        channel = self._answers.channel
        if channel is None:
            return timeout
        self._read = channel  # before the first check of the state
        return channel.read_until(self._is_settled, timeout)

    def _is_settled(self) -> bool:
        return self._state in _SETTLED or self.cancelled()

    def _wake(self) -> None:
        """Wake a thread that reads the connection."""
        if self._read is not None:
            self._read.wake()

    def add_done_callback(self, fn: Callable[[Future[Written]], object]) -> None:
        """Add a callback, as for any future. It may wait, and may call the producer."""
        CALLBACKS.keep_thread()
        super().add_done_callback(lambda _: CALLBACKS.add(None, self._call, fn))

    def _call(self, fn: Callable[[Future[Written]], object]) -> None:
        try:
            fn(self)
        except Exception:
            logger.exception("callback of %r failed", self)

    def settle(self, outcome: Written | IsologError) -> None:
        """Set the result or the error, unless the caller cancelled the future."""
        failure = None
        if isinstance(outcome, IsologError):
            failure = Failure(outcome, weakref.ref(self))
            self._failures.add(failure)
        self.fulfil(outcome, failure)

    def fulfil(self, outcome: Written | IsologError, failure: ReportableFailure | None) -> None:
        """Set the outcome as :meth:`settle` does, for a failure that was recorded already."""
        self._failure = failure
        if not self.set_running_or_notify_cancel():
            return
        if isinstance(outcome, IsologError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)
        self._wake()


class SpreadPromise:
    """The promise of a batch whose keys spread it over partitions. It fails if a part fails.

    Then the error's ``kept`` is the number of acknowledged records of all parts, and its ``offset``
    is that of the part that failed.
    """

    def __init__(self, parts: int, failures: Failures) -> None:
        self.promise = Promise(failures)
        self._parts = parts
        self._lock = failures.lock
        self._left = parts
        self._settlements: list[tuple[int, Settlement]] = []
        self._unsettled = failures.unsettled
        self._unsettled.add(self)

    def settle(self, first: int, settlement: Settlement) -> None:
        """Settle a part. ``first`` is the row of its first record in the batch."""
        if self._parts == 1:
            self.promise.settle(settlement if isinstance(settlement, Written) else settlement.error)
        else:
            with self._lock:
                self._settlements.append((first, settlement))
                self._left -= 1
                if self._left:
                    return
            self.promise.settle(self._whole())
        self._unsettled.discard(self)

    def give_up(self, error: IsologError) -> None:
        """Fail the batch if it is not settled."""
        if not self.promise.done():
            self.promise.settle(error)

    def _whole(self) -> Written | IsologError:
        settlements = [each for _, each in sorted(self._settlements, key=lambda each: each[0])]
        parts = tuple(each for each in settlements if isinstance(each, Written))
        failed = [each for each in settlements if isinstance(each, Unacknowledged)]
        count = sum(each.count for each in parts)
        if not failed:
            return replace(parts[0], count=count, parts=parts)
        errors = [each.error for each in failed]
        # If the outcome of a part is unknown, so is that of the whole.
        error = next((each for each in errors if isinstance(each, UnknownOutcome)), errors[0])
        kept = count + sum(each.kept.count for each in failed if each.kept is not None)
        return type(error)(error.message, hint=error.hint, **error.details | {"kept": kept})


class RecordPromise(Promise):
    """The future of one record."""

    def __init__(self, outcomes: Outcomes, row: int) -> None:
        # __getattr__ makes the other attributes.
        self._outcomes = outcomes
        self.row = row

    @property
    def _lifetime(self) -> Lifetime:
        return self._outcomes.lifetime

    @property
    def _answers(self) -> ChannelWaits:
        return self._outcomes.answers

    def __getattr__(self, name: str) -> Any:
        """Become a complete future on the first use of a missing attribute."""
        if name not in _MADE_LATER:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        self._outcomes.watch(self)
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Written:
        """Return the result, as any future does. If the record is written, stay incomplete."""
        if _MADE_LAST not in self.__dict__:
            written = self._outcomes.written(self.row)
            if written is not None:
                return written
        return super().result(timeout)


class Outcomes:
    """The outcomes of the rows of a batch. Thread-safe."""

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self.lifetime = failures.lifetime
        """The lifetime of the producer's process."""
        self.answers = failures.answers
        self._lock = failures.lock
        self._watched: dict[int, list[RecordPromise]] = {}  # complete futures, by their rows' parts
        self._settled: dict[int, _Part] = {}  # by number
        self._parts = 1
        self._given_up: Failure | None = None  # of the rows that are not settled
        self._part_of: Rows | None = None  # the part of each row, None for a single part
        self._places: Rows | None = None  # the place of each row in its part
        failures.unsettled.add(self)

    def spread(self, parts: Sequence[Rows]) -> None:
        """Split the rows into parts that are settled separately, before any is settled."""
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
        """Settle the part with this number, which has ``rows`` rows."""
        if isinstance(settlement, Written):
            assert settlement.count == rows, settlement
            part = _Part(settlement)
        else:
            kept = 0 if settlement.kept is None else settlement.kept.count
            failure = FailedRows(settlement.error, rows - kept, weakref.ref(self))
            self._failures.add(failure)
            part = _Part(settlement.kept, failure)
        with self._lock:
            self._settled[number] = part
            watched = self._watched.pop(number, [])
        for promise in watched:
            outcome = self._outcome(promise.row)
            assert outcome is not None
            promise.fulfil(*outcome)
        if len(self._settled) == self._parts:
            self._failures.unsettled.discard(self)

    def give_up(self, error: IsologError) -> None:
        """Fail all rows that are not settled."""
        if len(self._settled) == self._parts:
            return
        failure = Failure(error, weakref.ref(self))
        self._failures.add(failure)
        with self._lock:
            self._given_up = failure
            watched = [each for listed in self._watched.values() for each in listed]
            self._watched.clear()
        for promise in watched:
            promise.fulfil(error, failure)

    def watch(self, promise: RecordPromise) -> None:
        """Make a promise a complete future, and settle it if its row is settled."""
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
        """Return the acknowledgement of the row. None if it is not settled, or failed."""
        number, place = self._place_of(row)
        part = self._settled.get(number)
        if part is None or part.written is None or place >= part.written.count:
            return None
        return replace(part.written, offset=part.written.offset + place, count=1)

    def _outcome(self, row: int) -> tuple[Written | IsologError, ReportableFailure | None] | None:
        """Return the row's outcome. None if it is not settled."""
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
        """Return the number of the row's part, and its place in the part."""
        if self._part_of is None or self._places is None:
            return 0, row
        return int(self._part_of[row]), int(self._places[row])


class _Part(Struct):
    """A settled part. Its first rows are ``written``, and the others failed."""

    written: Written | None
    failure: FailedRows | None = None


class FailedRows:
    """Rows that failed together. ``holder`` refers to the outcomes that their futures hold."""

    def __init__(self, error: IsologError, rows: int, holder: weakref.ref[Outcomes]) -> None:
        self.holder = holder
        self._error = error
        self._reported = np.zeros(rows, np.bool_)

    @property
    def is_reported(self) -> bool:
        """Whether the errors of all rows were read."""
        return bool(self._reported.all())

    @property
    def error(self) -> IsologError:
        """The error of the first row whose error was not read."""
        return self.error_of(int(np.argmin(self._reported)))

    def error_of(self, row: int) -> IsologError:
        """Return the error of a row. If only the first one was refused, others were not tried."""
        if row and self._error.details.get("record") is not None:
            return RecordNotAttempted(
                f"not tried, because an earlier record was refused: {self._error.message}"
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
        """Record that the error was read from this row's future."""
        self._failure.mark_reported(self._row)
