"""Records one by one: batches of a default-schema topic as record objects, and polls.

Whole columns are converted to Python lists, and one ``map`` builds the records, all of it in C.
Between two polls the rest of the last batch is kept.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice, repeat
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_stream.client.reading.fetching import Fetched
from spark_stream.client.topics import Key
from spark_stream.client.values import Record
from spark_stream.errors import InvalidOption

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US, _LAST_US = (
    (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
    for moment in (datetime.min, datetime.max)
)

RECORDS_MAX: Final = 500  # Kafka's max.poll.records
_FEW: Final = 8  # for so few rows a plain loop is faster


def records_of(key: tuple[str, int], fetched: Fetched) -> Iterator[Record]:
    """Return the records of a batch with the columns key, value, timestamp and headers."""
    topic, partition = key
    batch = fetched.batch
    rows = batch.num_rows
    columns = zip(
        repeat(topic, rows),
        repeat(partition, rows),
        _offsets(fetched),
        _moments(batch.column("timestamp")),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        _headers(batch.column("headers")),
        strict=True,
    )
    return map(_RECORD, columns)


# As a named tuple's own ``_make``, without a call of Python code for each record.
_RECORD: Final[Callable[[Iterable[Any]], Record]] = partial(tuple.__new__, Record)


def _offsets(fetched: Fetched) -> Iterable[int]:
    if fetched.spans is None and fetched.scattered is None:
        return range(fetched.base, fetched.base + fetched.batch.num_rows)
    return [int(offset) for offset in fetched.offsets().tolist()]


def _moments(column: pa.Array) -> Iterable[datetime]:
    """Return the times. Consecutive equal ones share the object."""
    # timedelta + datetime keeps the zone, in a third of the time of Arrow's own conversion.
    # Arrow's range is wider than Python's: moments outside become Python's first or last one.
    if not len(column):
        return ()
    # Neither cast, which is slow for few rows, nor to_numpy, which imports pandas.
    values = np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)
    if len(values) <= _FEW:
        known = (min(max(value, _FIRST_US), _LAST_US) for value in values.tolist())
        return [_EPOCH + timedelta(microseconds=value) for value in known]
    spans = np.clip(values, _FIRST_US, _LAST_US).astype("timedelta64[us]")
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    if 4 * len(edges) > len(values):
        return map(_EPOCH.__add__, spans.tolist())
    firsts = np.concatenate(([0], edges))[: len(values)]
    moments = map(_EPOCH.__add__, spans[firsts].tolist())
    counts = np.diff(np.append(firsts, len(values))).tolist()
    return chain.from_iterable(map(repeat, moments, counts))


def _headers(column: pa.Array) -> Iterator[list[tuple[str, bytes | None]]]:
    if column.null_count == len(column):
        return map(list, repeat((), len(column)))
    lists: list[list[dict[str, Any]] | None] = column.to_pylist()
    return ([(each["key"], each["value"]) for each in headers or ()] for headers in lists)


class Patience:
    """The time for which an iteration waits for the next record."""

    def __init__(self, seconds: float | None) -> None:
        self.renew(seconds)

    def renew(self, seconds: float | None) -> None:
        """Set the time to ``seconds``, counted from now. None is without a limit.

        Raises:
            InvalidOption: ``seconds`` is not a number of seconds.
        """
        is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and seconds >= 0):
            raise InvalidOption(f"timeout takes seconds, not {seconds!r}", option="timeout")
        self._seconds = math.inf if seconds is None else seconds
        self.restart()

    def restart(self) -> None:
        """Wait for the same time again, counted from now."""
        self._until = time.monotonic() + self._seconds

    def seconds_left(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self._until - time.monotonic())


def checked_records_max(requested: int) -> int:
    """Return the greatest number of records of a poll, or raise InvalidOption."""
    if not isinstance(requested, Integral) or requested < 1:
        raise InvalidOption(f"max_records is at least 1, not {requested!r}", option="max_records")
    return min(int(requested), sys.maxsize)


class Polling:
    """Fetches that continue between polls, and the rest of the last batch."""

    def __init__(self, fetches: Iterator[tuple[Key, Fetched] | None], patience: Patience) -> None:
        self.patience = patience
        self._fetches = fetches
        self._batch: tuple[Key, Fetched, Iterator[Record]] | None = None

    def wait(self) -> bool:
        """Wait for the next batch, which may have no records. Return False if none came in time."""
        if self._batch is None:
            found = next(self._fetches, None)
            if found is not None:
                self._batch = (*found, records_of(*found))
        return self._batch is not None

    def take(self, records_max: int) -> tuple[Key, list[Record], int, Fetched]:
        """Return the key, the next records of a batch, the offset after them, and the batch.

        Call :meth:`wait` before. A batch may have no records left.
        """
        assert self._batch is not None
        key, fetched, rest = self._batch
        records = list(islice(rest, records_max))
        if len(records) == records_max:
            return key, records, records[-1].offset + 1, fetched
        self._batch = None
        return key, records, fetched.next, fetched
