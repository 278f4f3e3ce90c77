"""Percentiles match those of the sorted durations, within one percent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.cli.operating.load import PERCENTILES, Latencies


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=300), st.integers(1, 5))
def test_merged_percentiles_are_within_a_percent_of_the_exact_ones(durations, parts):
    whole = Latencies()
    for part in range(parts):
        one = Latencies()
        one.add(np.array(durations[part::parts], np.float64))
        whole.merge(one)
    found = whole.summary()
    rising = sorted(durations)
    for name, part in PERCENTILES.items():
        exact = rising[max(1, int(np.ceil(part * len(rising)))) - 1] / 1000
        assert exact * 0.999 - 0.001 <= found[name] <= exact * 1.011 + 0.001
    assert found["max"] == pytest.approx(rising[-1] / 1000, abs=0.001)


def test_negative_durations_count_as_zero():
    none = Latencies()
    assert set(none.summary().values()) == {0.0}
    none.add(np.array([-5.0, 0.0]))
    assert none.count == 2
    assert none.summary()["p50"] <= 0.001
