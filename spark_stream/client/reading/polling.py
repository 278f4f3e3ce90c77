"""How long an iteration waits, and what is left of a batch from one poll to the next."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from itertools import islice
from numbers import Integral, Real
from typing import Final

from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.reading.positions import Key
from spark_stream.client.reading.records import records_of
from spark_stream.client.values import Record
from spark_stream.errors import InvalidOption

RECORDS_MAX: Final = 500  # Kafka's max.poll.records


class Patience:
    """How long an iteration waits for the next record."""

    def __init__(self, seconds: float | None) -> None:
        self.renew(seconds)

    def renew(self, seconds: float | None) -> None:
        """Wait for this many seconds from now on; None: without end.

        Raises:
            InvalidOption: it is no number of seconds.
        """
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and seconds >= 0):
            raise InvalidOption(f"timeout takes seconds, not {seconds!r}", option="timeout")
        self._seconds = math.inf if seconds is None else seconds
        self.restart()

    def restart(self) -> None:
        """Wait for the same time again, from now on."""
        self._until = time.monotonic() + self._seconds

    def seconds_left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._until - time.monotonic())


def checked_records_max(asked: int) -> int:
    """Return how many records a poll takes at most, or raise InvalidOption."""
    if not isinstance(asked, Integral) or asked < 1:
        raise InvalidOption(f"max_records is at least 1, not {asked!r}", option="max_records")
    return min(int(asked), sys.maxsize)


class Polling:
    """Fetches that continue between polls, and the rest of the last batch."""

    def __init__(self, fetches: Iterator[tuple[Key, Fetched] | None], patience: Patience) -> None:
        self.patience = patience
        self._fetches = fetches
        self._batch: tuple[Key, Fetched, Iterator[Record]] | None = None

    def wait(self) -> bool:
        """Wait for a batch to take records from; return whether there is one."""
        if self._batch is None:
            found = next(self._fetches, None)
            if found is not None:
                self._batch = (*found, records_of(*found))
        return self._batch is not None

    def take(self, records_max: int) -> tuple[Key, list[Record], int, Fetched]:
        """Return the next records of a batch, where to read on after them, and the batch.

        Call :meth:`wait` before. A batch may have no records (left).
        """
        assert self._batch is not None
        key, fetched, rest = self._batch
        records = list(islice(rest, records_max))
        if len(records) == records_max:
            return key, records, records[-1].offset + 1, fetched
        self._batch = None
        return key, records, fetched.next, fetched
