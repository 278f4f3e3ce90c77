"""The cost of metrics for an append, and of a scrape of a broker with many partitions.

Both in this process, on one thread. The best of several rounds counts, because other load of the
machine only adds to the time.
"""

from __future__ import annotations

import timeit
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client import Histogram as ClientHistogram

from bench.results import Results
from spark_stream.counting import Histogram, Tally, TrafficBook
from spark_stream.environment import SystemClock

_CALLS: Final = 20_000
_ROUNDS: Final = 15
_PARTITIONS: Final = 1_000


def run(results: Results) -> None:
    """The counters of an append, next to those of prometheus-client."""
    tally, histogram, clock = Tally(), Histogram(), SystemClock()

    def count() -> None:
        tally.add(1, 100, 10_000)
        histogram.observe(clock.monotonic() * 0.0)

    registry = CollectorRegistry()
    counters = [Counter(f"c{each}", "counts", registry=registry) for each in range(3)]
    seconds = ClientHistogram("h", "seconds", registry=registry)

    def count_with_client() -> None:
        for counter in counters:
            counter.inc(100)
        seconds.observe(clock.monotonic() * 0.0)

    ours, theirs = (
        min(timeit.repeat(each, number=_CALLS, repeat=_ROUNDS)) / _CALLS * 1000
        for each in (count, count_with_client)
    )
    results.add(
        "counting an append",
        "ms",
        measured=ours,
        ceiling=theirs,
        note="next to prometheus-client's counters; 0.002 ms is the limit",
    )
    book = TrafficBook()
    for number in range(_PARTITIONS):
        book.open("t", number)
    read_ms = min(timeit.repeat(book.read, number=1, repeat=_ROUNDS)) * 1000
    results.add(f"reading the counts of {_PARTITIONS} partitions", "ms", measured=read_ms)
