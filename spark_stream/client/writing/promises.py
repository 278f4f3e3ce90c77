"""A producer's futures: settled by the thread that reads the acknowledgements.

That thread must never wait for a user's callback: the callback may itself wait for room that only
the next acknowledgement frees. So callbacks run on a thread of their own, in the order of the
futures.

A failure is reported once: by the future, to the caller that takes its result or its exception, or
else by the producer's next flush. A callback that does not read its future's error, or
``concurrent.futures.wait``, does not count as reporting it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.client.connecting.calls import CallPool
from spark_stream.client.values import Written
from spark_stream.client.writing.lanes import Settlement, Unacknowledged
from spark_stream.errors import IsologError, UnknownOutcome
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import (
    Lifetime,
    ProcessBound,
    check_may_wait,
    new_lock,
    present_lifetime,
)

logger = logger_of(__name__)

CALLBACKS: Final = CallPool(1, "isolog-callbacks")
"""Calls the callbacks of futures. Its thread starts with the first callback."""

_FAILURES_KEPT: Final = 1024
_SETTLED: Final = ("CANCELLED_AND_NOTIFIED", "FINISHED")


class Unreported(Protocol):
    """A failure, of one future or several, until their holders have taken the error."""

    @property
    def error(self) -> IsologError:
        """The error to raise."""

    @property
    def is_reported(self) -> bool:
        """Whether all holders have taken the error."""

    @property
    def holder(self) -> Callable[[], object | None]:
        """A reference that returns None once no holder is left."""


class Told(Protocol):
    """The failure of one future."""

    def mark_reported(self) -> None:
        """Note that the error was taken from the future."""


class Failure(Struct, eq=False):
    """The failure of a single future."""

    error: IsologError
    holder: weakref.ref[Any]
    is_reported: bool = False

    def mark_reported(self) -> None:
        self.is_reported = True


class Failures:
    """The failed writes of a producer that were not reported yet, in order."""

    def __init__(self, lifetime: Lifetime | None = None) -> None:
        self.lifetime = lifetime or present_lifetime()
        self.lock = new_lock()
        """Guards the failures, and the outcomes of the producer's batches."""
        self._kept: list[Unreported] = []
        self._tidy_at = _FAILURES_KEPT
        self.first: IsologError | None = None
        """The first error since :meth:`forget`, reported or not."""

    def note(self, failure: Unreported) -> None:
        """Add a failure, just before its futures are settled."""
        with self.lock:
            self.first = self.first or failure.error
            self._kept.append(failure)
            if len(self._kept) >= self._tidy_at:
                self._tidy()

    def tell(self) -> None:
        """Raise the first unreported error, if any; all count as reported then."""
        with self.lock:
            kept, self._kept = self._kept, []
        for failure in kept:
            if not failure.is_reported:
                raise failure.error

    def forget(self) -> None:
        """Forget the failures so far, unreported."""
        with self.lock:
            self._kept = []
            self.first = None

    def _tidy(self) -> None:
        """Drop the failures of futures that are no longer held, except the first."""
        # Each holder is checked once: it may disappear at any time.
        unreported = [(each, each.holder() is None) for each in self._kept if not each.is_reported]
        first = next((each for each, is_dropped in unreported if is_dropped), None)
        self._kept = [each for each, is_dropped in unreported if not is_dropped or each is first]
        self._tidy_at = max(_FAILURES_KEPT, 2 * len(self._kept))


class Promise(ProcessBound, Future[Written]):
    """A future whose callbacks do not run on the thread that settles it."""

    _failure: Told | None = None

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self._failures = failures

    @property
    def _lifetime(self) -> Lifetime:
        return self._failures.lifetime

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error as any future does; then no flush raises it again.

        Raises:
            ForkedClient: it is not settled, and its producer belongs to the parent of this process.
        """
        if self._state not in _SETTLED:  # without a lock, which a thread of the parent may hold
            self._lifetime.check()
            check_may_wait()
        error = super().exception(timeout)
        if self._failure is not None:
            self._failure.mark_reported()
        return error

    def result(self, timeout: float | None = None) -> Written:
        """Return the result, or raise the error, as any future does; no flush raises it again."""
        self.exception(timeout)
        return super().result(timeout)

    def add_done_callback(self, fn: Callable[[Future[Written]], object]) -> None:
        """Add a callback as for any future; it may wait, and may call the producer."""
        CALLBACKS.keep_thread()
        super().add_done_callback(lambda _: CALLBACKS.add(None, partial(self._call, fn)))

    def _call(self, fn: Callable[[Future[Written]], object]) -> None:
        try:
            fn(self)
        except Exception:
            logger.exception("a callback of %r failed", self)

    def settle(self, outcome: Written | IsologError) -> None:
        """Set the result or the error; do nothing if the caller cancelled the future."""
        failure = None
        if isinstance(outcome, IsologError):
            failure = Failure(outcome, weakref.ref(self))
            self._failures.note(failure)
        self.fulfil(outcome, failure)

    def fulfil(self, outcome: Written | IsologError, failure: Told | None) -> None:
        """Set the outcome as :meth:`settle` does, for a failure that was already noted."""
        self._failure = failure
        if not self.set_running_or_notify_cancel():
            return
        if isinstance(outcome, IsologError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


class Gathering:
    """One promise for a batch that is spread over partitions by its keys; it fails if a part does.

    Then the error's ``kept`` counts the acknowledged records of all parts; its ``offset`` is of the
    part that failed.
    """

    def __init__(self, parts: int, failures: Failures) -> None:
        self.promise = Promise(failures)
        self._parts = parts
        self._lock = failures.lock
        self._left = parts
        self._settlements: list[tuple[int, Settlement]] = []

    def settle(self, first: int, settlement: Settlement) -> None:
        """Settle a part; ``first`` is the row of its first record in the batch."""
        if self._parts == 1:
            self.promise.settle(settlement if isinstance(settlement, Written) else settlement.error)
            return
        with self._lock:
            self._settlements.append((first, settlement))
            self._left -= 1
            if self._left:
                return
        self.promise.settle(self._whole())

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
