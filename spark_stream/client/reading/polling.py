"""What an iteration waits for, and what lasts from one poll of a consumer to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import islice
from numbers import Real

from spark_stream.client.reading.cuts import Key
from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.reading.records import records_of
from spark_stream.client.values import Record
from spark_stream.errors import InvalidOption


class Patience:
    """The time that an iteration has to wait for the next record."""

    def __init__(self, seconds: float | None) -> None:
        self.renew(seconds)

    def renew(self, seconds: float | None) -> None:
        """Begin to wait for so many seconds; None: without end.

        Raises:
            InvalidOption: it is no number of seconds.
        """
        if seconds is not None and not (isinstance(seconds, Real) and seconds >= 0):
            raise InvalidOption(f"timeout takes seconds, not {seconds!r}", option="timeout")
        self._seconds = math.inf if seconds is None else seconds
        self.restart()

    def restart(self) -> None:
        """Begin to wait for the same time again."""
        self._until = time.monotonic() + self._seconds

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._until - time.monotonic())


class Polling:
    """Fetches that go on between polls, and the records of the last batch that no poll took."""

    def __init__(self, turns: Iterator[tuple[Key, Fetched] | None], patience: Patience) -> None:
        self.patience = patience
        self._turns = turns
        self._batch: tuple[Key, Fetched, Iterator[Record]] | None = None

    def take(self, records_max: int) -> tuple[Key, list[Record], int, Fetched] | None:
        """Return the next records of one batch, where to read on after them, and the batch.

        Return None once the patience has run out. A batch may have no records (left).
        """
        if self._batch is None:
            found = next(self._turns, None)
            if found is None:
                return None
            self._batch = (*found, records_of(*found))
        key, fetched, rest = self._batch
        records = list(islice(rest, records_max))
        if len(records) == records_max:
            return key, records, records[-1].offset + 1, fetched
        self._batch = None
        return key, records, fetched.next, fetched
