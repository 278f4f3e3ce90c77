"""Many durations in little memory: how many fell into each of some thousand ranges.

A range is one percent wide, so a percentile is at most one percent too high. The greatest duration
is exact. Source of the idea: Gil Tene, HdrHistogram.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
_WIDTH: Final = 1.01
_LEAST_US: Final = 1.0
_RANGES: Final = 2600  # the last one begins at 1.01 ** 2599 microseconds, which is two days


class Latencies:
    """Durations in microseconds. One thread at a time."""

    def __init__(self) -> None:
        self._counts = np.zeros(_RANGES, np.int64)
        self._greatest = 0.0

    def add(self, durations: npt.NDArray[np.float64]) -> None:
        """Add durations in microseconds; one below 0, as after a step of a clock, counts as 0."""
        if not len(durations):
            return
        places = np.log(np.maximum(durations, _LEAST_US)) / np.log(_WIDTH)
        places = np.minimum(np.ceil(places).astype(np.int64), _RANGES - 1)
        self._counts += np.bincount(places, minlength=_RANGES)
        self._greatest = max(self._greatest, float(durations.max()))

    def merge(self, other: Latencies) -> None:
        """Add the durations of another collection."""
        self._counts += other._counts
        self._greatest = max(self._greatest, other._greatest)

    @property
    def count(self) -> int:
        """How many durations there are."""
        return int(self._counts.sum())

    def percentile(self, part: float) -> float:
        """Return the duration in ms that this part of all (0 to 1) does not exceed; 0 if none."""
        if not self.count:
            return 0.0
        upto = np.cumsum(self._counts)
        place = int(np.searchsorted(upto, max(1, int(np.ceil(part * self.count)))))
        return float(min(_WIDTH**place, self._greatest)) / 1000

    def summary(self) -> Mapping[str, float]:
        """Return the percentiles and the maximum, in ms."""
        found = {name: round(self.percentile(part), 3) for name, part in PERCENTILES.items()}
        return found | {"max": round(self._greatest / 1000, 3)}
