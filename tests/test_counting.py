"""Concurrent counts are exact, and a total never decreases."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.counting import SECONDS, Amount, Histogram, NamedCounts, Tally, TrafficBook


@given(st.lists(st.floats(0, 20)))
def test_histogram_counts_values_up_to_each_bound(seconds: list[float]) -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    found = histogram.read()
    assert found.upto == tuple((bound, sum(each <= bound for each in seconds)) for bound in SECONDS)
    assert found.count == len(seconds)
    assert abs(found.seconds - sum(seconds)) <= 1e-9 * max(1.0, sum(seconds))


def test_concurrent_counts_are_exact() -> None:
    tally, names, histogram = Tally(), NamedCounts("a"), Histogram()

    def count() -> None:
        for _ in range(2_000):
            tally.add(1, 10, 100)
            names.add("b")
            histogram.observe(0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert tally.read() == Amount(8_000, 80_000, 800_000)
    assert names.read() == {"a": 0, "b": 8_000}
    assert histogram.read().count == 8_000


@pytest.mark.rule("traffic of closed replicas in totals", "counting.py")
def test_traffic_of_closed_replicas_stays_in_the_total() -> None:
    book = TrafficBook()
    book.open("t", 0).appended.add(1, 10, 100)
    book.open("t", 1).fetched.add(2, 20, 200)
    book.close("t", 0)
    book.close("t", 0)
    by_place, total = book.read()
    assert by_place.keys() == {("t", 1)}
    assert (total.appended, total.fetched) == (Amount(1, 10, 100), Amount(2, 20, 200))
    assert book.open("t", 0).appended.read() == Amount()
    assert book.open("t", 1).fetched.read() == Amount(2, 20, 200)
