"""Whether a consumer keeps up: a rule over a window of samples of its position and its lag.

Source: the rules of Burrow, LinkedIn's monitor of Kafka's consumers. They need no threshold: what
counts is whether the position and the lag move, not how great the lag is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

WINDOW_S: Final = 120.0
"""Over how long the rule looks back."""

_LEAST_S: Final = 10.0  # of samples, before anything is said
_STALLED_S: Final = 45.0  # a query with a trigger of half a minute is not stalled in between


class LagTrend(StrEnum):
    """What a consumer does. The order is by how bad it is."""

    UP_TO_DATE = "up_to_date"
    CATCHING_UP = "catching_up"
    KEEPING_PACE = "keeping_pace"
    UNKNOWN = "unknown"
    FALLING_BEHIND = "falling_behind"
    STALLED = "stalled"


class LagSample(Struct, frozen=True):
    """The position of a consumer in a partition, and how much it lacked, at a moment in seconds."""

    at_s: float
    position: int
    lag: int


def trend_of(samples: Sequence[LagSample]) -> LagTrend:
    """Return what the samples of one partition show, the oldest first.

    It is *up to date* if the lag was 0 at any time in the last half of the samples. It is *stalled*
    if its position has not moved for 45 seconds although it lags. Otherwise the lag at the end is
    compared with the lag at the start: it *catches up*, *keeps pace* or *falls behind*.
    """
    if not samples:
        return LagTrend.UNKNOWN
    first, last = samples[0], samples[-1]
    if any(each.lag == 0 for each in samples[len(samples) // 2 :]):
        return LagTrend.UP_TO_DATE
    moves = [
        later.at_s for one, later in itertools.pairwise(samples) if later.position != one.position
    ]
    if last.at_s - max(moves, default=first.at_s) >= _STALLED_S:
        return LagTrend.STALLED
    if not moves or last.at_s - first.at_s < _LEAST_S:
        return LagTrend.UNKNOWN
    if last.lag > first.lag:
        return LagTrend.FALLING_BEHIND
    return LagTrend.CATCHING_UP if last.lag < first.lag else LagTrend.KEEPING_PACE


def worst(trends: Iterable[LagTrend]) -> LagTrend:
    """Return the worst of the trends of a consumer's partitions."""
    order = list(LagTrend)
    return max(trends, key=order.index, default=LagTrend.UNKNOWN)


class Window:
    """The samples of the last two minutes of many partitions, by any key."""

    def __init__(self) -> None:
        self._samples: dict[object, list[LagSample]] = {}

    def add(self, key: object, sample: LagSample) -> LagTrend:
        """Add a sample; return the trend of its key."""
        kept = self._samples.setdefault(key, [])
        kept.append(sample)
        while kept[0].at_s < sample.at_s - WINDOW_S:
            del kept[0]
        return trend_of(kept)

    def keep(self, keys: Iterable[object]) -> None:
        """Forget all keys but these."""
        known = set(keys)
        self._samples = {key: each for key, each in self._samples.items() if key in known}
