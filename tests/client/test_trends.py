"""The trend of a reader's lag, by rule: no clock, no broker."""

from __future__ import annotations

import pytest

from spark_stream.client.trends import (
    WINDOW_S,
    LagSample,
    LagTrend,
    Window,
    trend_of,
    worst,
)


def samples(*places: tuple[float, int, int]) -> list[LagSample]:
    """(second, position, end) of each."""
    return [LagSample(at, position, end - position) for at, position, end in places]


CASES = {
    "nothing is known": ([], LagTrend.UNKNOWN),
    "one look": ([(0, 5, 9)], LagTrend.UNKNOWN),
    "one look at one who has read everything": ([(0, 9, 9)], LagTrend.NONE),
    "no lag at the end": ([(0, 0, 9), (10, 9, 9)], LagTrend.NONE),
    "no lag a moment ago, and more": (
        [(0, 9, 9), (10, 9, 9), (12, 9, 20)],
        LagTrend.NONE,
    ),
    "no lag long ago": ([(0, 9, 9), *((s, 9, 50) for s in range(2, 60, 2))], LagTrend.GROWS),
    "it does not move": ([(0, 5, 9), (30, 5, 9), (60, 5, 9)], LagTrend.STEADY),
    "it does not move while more comes": ([(0, 5, 9), (60, 5, 900)], LagTrend.GROWS),
    "it moved, then stopped": ([(0, 5, 90), (10, 20, 90), (60, 20, 90)], LagTrend.SHRINKS),
    "a pause within a trigger": ([(0, 5, 90), (10, 20, 90), (40, 20, 90)], LagTrend.SHRINKS),
    "it gains": ([(0, 0, 100), (10, 50, 110), (20, 90, 120)], LagTrend.SHRINKS),
    "it loses": ([(0, 0, 100), (10, 10, 150), (20, 20, 200)], LagTrend.GROWS),
    "it keeps its distance": ([(0, 0, 100), (10, 50, 150), (20, 99, 199)], LagTrend.STEADY),
    "what it lacks is read in a moment": (
        [(0, 0, 20), (10, 500, 525), (20, 1000, 1033)],
        LagTrend.STEADY,
    ),
    "batches of ten seconds: the lag goes up and down": (
        [(s, 100 * (s // 10), 10 * s + 15) for s in range(0, 120, 3)],
        LagTrend.STEADY,
    ),
    "batches, and more comes than it reads": (
        [(s, 50 * (s // 10), 10 * s + 15) for s in range(0, 120, 3)],
        LagTrend.GROWS,
    ),
    "too early to say": ([(0, 0, 100), (5, 10, 200)], LagTrend.UNKNOWN),
}


@pytest.mark.rule("how the lag of a reader develops", "client/trends.py")
@pytest.mark.parametrize(("places", "expected"), CASES.values(), ids=CASES)
def test_a_trend_is_what_the_samples_show(places, expected):
    assert trend_of(samples(*places)) is expected


def test_a_consumer_is_as_bad_as_its_worst_partition():
    assert worst([LagTrend.NONE, LagTrend.GROWS, LagTrend.STEADY]) is LagTrend.GROWS
    assert worst([LagTrend.NONE, LagTrend.STEADY]) is LagTrend.STEADY
    assert worst([]) is LagTrend.UNKNOWN


def test_a_window_reports_growth_only_after_most_of_its_length():
    window = Window()
    trends = [window.add("a", LagSample(float(at), 0, 10 + at)) for at in range(0, 122, 2)]
    assert LagTrend.GROWS not in trends[:50]
    assert trends[-1] is LagTrend.GROWS


def test_a_window_forgets_what_is_old_and_who_is_gone():
    window = Window()
    window.add("a", LagSample(0.0, 0, 5))  # would be a position that has moved
    for at_s in range(1, 200, 2):
        found = window.add("a", LagSample(WINDOW_S + at_s, 3, 5))
    assert found is LagTrend.STEADY
    window.keep(["b"])
    assert window.add("a", LagSample(400.0, 3, 5)) is LagTrend.UNKNOWN
