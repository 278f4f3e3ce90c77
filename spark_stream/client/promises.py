"""The futures that a producer gives: settled by the thread that reads the acknowledgements.

That thread must never wait for a user's callback: the callback may itself wait for room that only
the next acknowledgement makes. So callbacks run on a thread of their own, in the order of the
futures.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from spark_stream.client.values import Written
from spark_stream.errors import IsologError

logger = logging.getLogger(__name__)

_CALLBACKS: Final = ThreadPoolExecutor(1, "isolog-callbacks")  # its thread starts with the first


class Promise(Future[Written]):
    """A future whose callbacks do not run on the thread that settles it."""

    def add_done_callback(self, fn: Callable[[Future[Written]], object]) -> None:
        """As every future's; the callback may wait, and may call the producer."""
        super().add_done_callback(lambda _: _CALLBACKS.submit(self._called, fn))

    def _called(self, fn: Callable[[Future[Written]], object]) -> None:
        try:
            fn(self)
        except Exception:
            logger.exception("a callback of %r", self)

    def settle(self, outcome: Written | Exception) -> None:
        """Sets the result or the error; nothing if the caller cancelled the future."""
        if not self.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)


class Gathering:
    """One promise for a batch that its keys spread over partitions; it fails if a part does.

    Then the error's ``kept`` counts what stays of all parts; its ``offset`` is of the failed part.
    """

    def __init__(self, topic: str, parts: int) -> None:
        self.promise = Promise()
        self._topic = topic
        self._lock = threading.Lock()
        self._left = parts
        self._outcomes: list[tuple[int, Written | Exception]] = []

    def settle(self, first: int, outcome: Written | Exception) -> None:
        """A part is settled; ``first`` is the row of the batch that its first record was."""
        with self._lock:
            self._outcomes.append((first, outcome))
            self._left -= 1
            if self._left:
                return
        self.promise.settle(self._whole())

    def _whole(self) -> Written | Exception:
        outcomes = [outcome for _, outcome in sorted(self._outcomes, key=lambda each: each[0])]
        if len(outcomes) == 1:
            return outcomes[0]
        parts = tuple(each for each in outcomes if isinstance(each, Written))
        stay = sum(each.count for each in parts)
        errors = [each for each in outcomes if isinstance(each, Exception)]
        if not errors:
            return Written(self._topic, parts[0].partition, parts[0].offset, stay, parts)
        error = errors[0]
        if not isinstance(error, IsologError):
            return error
        stay += sum(each.kept for each in errors if isinstance(each, IsologError))
        details = error.details | {"kept": stay}
        return type(error)(error.message, hint=error.hint, **details)
