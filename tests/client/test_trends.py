"""The trend of a reader's lag, without a clock and a broker."""

from __future__ import annotations

import pytest

from spark_stream.client.trends import (
    WINDOW_S,
    LagSample,
    LagTrend,
    Window,
    sample_of,
    trend_of,
)


def sample(at: float, position: int, lag: int) -> LagSample:
    return sample_of(at, [(("id", 0), position, lag)])


def samples(*places: tuple[float, int, int]) -> list[LagSample]:
    """(second, position, end) of each."""
    return [sample(at, position, end - position) for at, position, end in places]


CASES = {
    "nothing is known": ([], LagTrend.UNKNOWN),
    "one look": ([(0, 5, 9)], LagTrend.UNKNOWN),
    "one look at one who has read everything": ([(0, 9, 9)], LagTrend.NONE),
    "no lag at the end": ([(0, 0, 9), (10, 9, 9)], LagTrend.NONE),
    "no lag a moment ago, and more": (
        [(0, 9, 9), (10, 9, 9), (12, 9, 20)],
        LagTrend.NONE,
    ),
    "no lag long ago": ([(0, 9, 9), *((s, 9, 50) for s in range(2, 60, 2))], LagTrend.STEADY),
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
    "long batches: the lag after each is less than amid the first": (
        [(s, 1_000 * ((s + 5) // 50), 20 * s + 5_000) for s in range(0, 120, 2)],
        LagTrend.SHRINKS,
    ),
    "batches of different lengths": (
        [
            (s, 20 * max(end for end in (0, 22, 35, 58, 70, 95, 108) if end <= s), 20 * s + 300)
            for s in range(0, 120, 2)
        ],
        LagTrend.STEADY,
    ),
    "it stood still, and catches up": (
        [(s, 20 * s if s < 40 else 800, 20 * s + 10) for s in range(0, 80, 2)]
        + [(s, 800 + 22 * (s - 80), 20 * s + 10) for s in range(80, 120, 2)],
        LagTrend.STEADY,
    ),
    "too early to say": ([(0, 0, 100), (5, 10, 200)], LagTrend.UNKNOWN),
}


@pytest.mark.rule("the trend of a reader's lag", "client/trends.py")
@pytest.mark.parametrize(("places", "expected"), CASES.values(), ids=CASES)
def test_samples_have_the_expected_trend(places, expected):
    assert trend_of(samples(*places)) is expected


def test_a_reader_that_reads_one_partition_after_the_other_catches_up():
    """Two partitions grow unread, while it reads 230 records per second of the third."""
    window = Window()
    for at in range(0, 120, 2):
        lags = {0: (0, 5_000 + 7 * at), 1: (230 * at, 81_000 - 223 * at), 2: (0, 5_000 + 6 * at)}
        places = ((("id", number), *each) for number, each in lags.items())
        trend = window.add("a", sample_of(float(at), places))
    assert trend is LagTrend.SHRINKS


def test_growth_within_a_micro_batch_is_an_unknown_trend():
    long = samples(*((s, 0, 124_000 + 20 * s) for s in range(0, 120, 2)))
    assert trend_of(long, in_batches=True) is LagTrend.UNKNOWN
    assert trend_of(long) is LagTrend.GROWS


def test_a_trend_restarts_if_the_set_of_partitions_changes():
    """A partition without a leader has no lag, so the sum of the others is smaller."""
    window = Window()
    for at in range(0, 122, 2):
        window.add("a", sample_of(float(at), [(("id", 0), at, 500), (("id", 1), at, 50)]))
    only = sample_of(122.0, [(("id", 0), 122, 500)])
    assert window.add("a", only) is LagTrend.UNKNOWN
    assert window.add("a", sample_of(124.0, [])) is LagTrend.UNKNOWN


def test_growth_is_unknown_while_the_samples_of_the_present_partitions_span_little():
    window = Window()
    for at in range(0, 60, 2):
        window.add("a", sample_of(float(at), [(("id", 1), 0, 10)]))
    trends = [
        window.add("a", sample_of(60.0 + at, [(("id", 2), 0, 10 + 90 * at)]))
        for at in range(0, 60, 2)
    ]
    assert LagTrend.GROWS not in trends


def test_a_window_reports_growth_only_after_most_of_its_length():
    window = Window()
    trends = [window.add("a", sample(float(at), 0, 10 + at)) for at in range(0, 122, 2)]
    assert LagTrend.GROWS not in trends[:50]
    assert trends[-1] is LagTrend.GROWS


def test_a_window_drops_old_samples_and_closed_readers():
    window = Window()
    window.add("a", sample(0.0, 0, 5))  # would count as a moved position
    for at_s in range(1, 200, 2):
        found = window.add("a", sample(WINDOW_S + at_s, 3, 5))
    assert found is LagTrend.STEADY
    window.keep(["b"])
    assert window.add("a", sample(400.0, 3, 5)) is LagTrend.UNKNOWN
