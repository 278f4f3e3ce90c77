"""Whether a consumer keeps up, by rule: no clock, no broker."""

from __future__ import annotations

import pytest

from spark_stream.client.trends import (
    WINDOW_S,
    LagSample,
    LagTrend,
    Window,
    holder_of,
    trend_of,
    worst,
)


def samples(*places: tuple[float, int, int]) -> list[LagSample]:
    """(second, position, end) of each."""
    return [LagSample(at, position, end - position) for at, position, end in places]


CASES = {
    "nothing is known": ([], LagTrend.UNKNOWN),
    "one look": ([(0, 5, 9)], LagTrend.UNKNOWN),
    "one look at one who has read everything": ([(0, 9, 9)], LagTrend.UP_TO_DATE),
    "no lag at the end": ([(0, 0, 9), (10, 9, 9)], LagTrend.UP_TO_DATE),
    "no lag a moment ago, and more": (
        [(0, 9, 9), (10, 9, 9), (12, 9, 20)],
        LagTrend.UP_TO_DATE,
    ),
    "no lag long ago": ([(0, 9, 9), *((s, 9, 50) for s in range(2, 60, 2))], LagTrend.STALLED),
    "it does not move": ([(0, 5, 9), (30, 5, 9), (60, 5, 9)], LagTrend.STALLED),
    "it does not move while more comes": ([(0, 5, 9), (60, 5, 900)], LagTrend.STALLED),
    "it has not moved, but not for long": ([(0, 5, 9), (30, 5, 90)], LagTrend.UNKNOWN),
    "it moved, then stopped": ([(0, 5, 90), (10, 20, 90), (60, 20, 90)], LagTrend.STALLED),
    "a pause within a trigger": ([(0, 5, 90), (10, 20, 90), (40, 20, 90)], LagTrend.CATCHING_UP),
    "it gains": ([(0, 0, 100), (10, 50, 110), (20, 90, 120)], LagTrend.CATCHING_UP),
    "it loses": ([(0, 0, 100), (10, 10, 150), (20, 20, 200)], LagTrend.FALLING_BEHIND),
    "it keeps its distance": ([(0, 0, 100), (10, 50, 150), (20, 99, 199)], LagTrend.KEEPING_PACE),
    "what it lacks is read in a moment": (
        [(0, 0, 20), (10, 500, 525), (20, 1000, 1033)],
        LagTrend.KEEPING_PACE,
    ),
    "batches of ten seconds: the lag goes up and down": (
        [(s, 100 * (s // 10), 10 * s + 15) for s in range(0, 120, 3)],
        LagTrend.KEEPING_PACE,
    ),
    "batches, and more comes than it reads": (
        [(s, 50 * (s // 10), 10 * s + 15) for s in range(0, 120, 3)],
        LagTrend.FALLING_BEHIND,
    ),
    "too early to say": ([(0, 0, 100), (5, 10, 200)], LagTrend.UNKNOWN),
}


@pytest.mark.rule("whether a consumer keeps up", "client/trends.py")
@pytest.mark.parametrize(("places", "expected"), CASES.values(), ids=CASES)
def test_a_trend_is_what_the_samples_show(places, expected):
    assert trend_of(samples(*places)) is expected


@pytest.mark.parametrize("lag", [0, 40])  # under its own level, and up to the log's end
def test_a_reader_that_one_transaction_holds_back_waits_for_it(lag):
    held = [LagSample(float(at), 60, lag, 7) for at in range(11)]
    assert trend_of(held) is LagTrend.WAITS
    assert trend_of(held[:9]) is not LagTrend.WAITS
    passing = [LagSample(float(at), 60 + at, lag, at) for at in range(11)]  # each for a moment
    assert trend_of(passing) is not LagTrend.WAITS
    assert trend_of([*held, LagSample(11.0, 61, lag)]) is not LagTrend.WAITS


def test_a_transaction_holds_back_who_stands_where_it_begins():
    open_ = [(8, 70), (7, 60), (9, None)]
    assert holder_of(60, 60, open_) == 7
    assert holder_of(59, 60, open_) is None  # it has still something to read
    assert holder_of(70, 60, open_) is None  # it reads what is not committed
    assert holder_of(60, None, open_) is None
    assert holder_of(50, 50, open_) is None  # nothing is held back there


def test_a_consumer_is_as_bad_as_its_worst_partition():
    assert (
        worst([LagTrend.UP_TO_DATE, LagTrend.STALLED, LagTrend.FALLING_BEHIND]) is LagTrend.STALLED
    )
    assert worst([LagTrend.UP_TO_DATE, LagTrend.KEEPING_PACE]) is LagTrend.KEEPING_PACE
    assert worst([]) is LagTrend.UNKNOWN


def test_a_window_forgets_what_is_old_and_who_is_gone():
    window = Window()
    window.add("a", LagSample(0.0, 0, 5))  # would be a position that has moved
    for at_s in range(1, 200, 2):
        found = window.add("a", LagSample(WINDOW_S + at_s, 3, 5))
    assert found is LagTrend.STALLED
    window.keep(["b"])
    assert window.add("a", LagSample(400.0, 3, 5)) is LagTrend.UNKNOWN
