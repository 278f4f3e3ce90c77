"""Counts and latencies that hot paths take, cheap enough for every append.

They are plain numbers, each under a separate lock: no append waits for their readers, and this
module does not need prometheus-client. ``broker.metrics`` turns them into series at a scrape. All
of them only grow, and all classes are for any thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from msgspec import Struct

SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
"""The upper bounds of a histogram's buckets, from usual latencies of a log to unusual ones."""


class Distribution(Struct, frozen=True):
    """A histogram at one moment: the observations up to each bound, and the totals."""

    upto: tuple[tuple[float, int], ...]
    count: int
    seconds: float


class Histogram:
    """A histogram of durations."""

    __slots__ = ("_bounds", "_counts", "_lock", "_seconds")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one observation of this duration."""
        place = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[place] += 1
            self._seconds += seconds

    def time(self) -> _Timed:
        """Count the block, however it ends."""
        return _Timed(self)

    def read(self) -> Distribution:
        """Return the counts so far."""
        with self._lock:
            counts, seconds = self._counts.copy(), self._seconds
        upto, total = [], 0
        for bound, count in zip(self._bounds, counts, strict=False):
            total += count
            upto.append((bound, total))
        return Distribution(tuple(upto), sum(counts), seconds)


class _Timed:
    """A block of a histogram. A generator would cost twice as much."""

    __slots__ = ("_began", "_histogram")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._began = perf_counter()

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, *_: object) -> None:
        """Count the block."""
        self._histogram.observe(perf_counter() - self._began)


class NamedCounts:
    """Counts by name, such as errors by their code."""

    __slots__ = ("_counts", "_lock")

    def __init__(self, *names: str) -> None:
        """``names``: those that are shown from the start, as zero."""
        self._counts = Counter(dict.fromkeys(names, 0))
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one more of this name."""
        with self._lock:
            self._counts[name] += 1

    def read(self) -> dict[str, int]:
        """Return the counts so far."""
        with self._lock:
            return dict(self._counts)


class Amount(Struct, frozen=True):
    """A tally at one moment."""

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.batches + other.batches, self.records + other.records, self.bytes + other.bytes
        )


class Tally:
    """Counts batches, with their records and bytes."""

    __slots__ = ("_batches", "_bytes", "_lock", "_records")

    def __init__(self) -> None:
        self._batches = self._records = self._bytes = 0
        self._lock = threading.Lock()

    def add(self, batches: int, records: int, nbytes: int) -> None:
        """Count batches that have these records and bytes together."""
        with self._lock:
            self._batches += batches
            self._records += records
            self._bytes += nbytes

    def read(self) -> Amount:
        """Return the counts so far."""
        with self._lock:
            return Amount(self._batches, self._records, self._bytes)


class Traffic(Struct, eq=False):
    """The traffic of one replica.

    ``appended``: by producers, at the leader. ``fetched``: by readers. ``replicated``: from the
    leader, at a follower.
    """

    appended: Tally
    fetched: Tally
    replicated: Tally

    @classmethod
    def new(cls) -> Traffic:
        """Return one that has counted nothing."""
        return cls(Tally(), Tally(), Tally())

    def read(self) -> TrafficAmounts:
        """Return the counts so far."""
        return TrafficAmounts(self.appended.read(), self.fetched.read(), self.replicated.read())


class TrafficAmounts(Struct, frozen=True):
    """The traffic of one or several replicas at one moment, as :class:`Traffic`."""

    appended: Amount = Amount()
    fetched: Amount = Amount()
    replicated: Amount = Amount()

    def __add__(self, other: TrafficAmounts) -> TrafficAmounts:
        return TrafficAmounts(
            self.appended + other.appended,
            self.fetched + other.fetched,
            self.replicated + other.replicated,
        )


Place = tuple[str, int]
"""A topic's name and a partition's number."""


class TrafficBook:
    """The traffic of all replicas of a broker.

    The traffic of closed replicas stays in the total: if a counter falls, Prometheus takes that for
    a restart, and counts its whole value again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Place, Traffic] = {}
        self._closed = TrafficAmounts()

    def open(self, topic: str, number: int) -> Traffic:
        """Return the counter of a replica's traffic."""
        with self._lock:
            return self._open.setdefault((topic, number), Traffic.new())

    def close(self, topic: str, number: int) -> None:
        """Move the traffic of a removed replica to the total."""
        with self._lock:
            found = self._open.pop((topic, number), None)
            if found is not None:
                self._closed += found.read()

    def read(self) -> tuple[dict[Place, TrafficAmounts], TrafficAmounts]:
        """Return the traffic of each open replica, and the total, which includes closed ones."""
        with self._lock:
            found = {place: traffic.read() for place, traffic in self._open.items()}
            return found, sum(found.values(), self._closed)
