"""The trend of a reader's lag, over a window of samples.

The state of a reader (``consistency.reader_states``) says whether something is wrong. Its trend
says whether a reader that runs gains on the writers. A lag that is read within seconds has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

WINDOW_S: Final = 120.0
"""Over how long the rule looks back."""

_GROWS_S: Final = 0.9 * WINDOW_S  # of samples, before a window reports growth
_LEAST_S: Final = 10.0  # of samples, before anything is said
_BEHIND_S: Final = 10.0  # what a reader reads in less is not worth an alarm


class LagTrend(StrEnum):
    """How the readable lag develops. The order is by how bad that is."""

    NONE = "none"
    SHRINKS = "shrinks"
    STEADY = "steady"
    UNKNOWN = "unknown"
    GROWS = "grows"


class LagSample(Struct, frozen=True):
    """The position of a reader in a partition, and its readable lag, at a moment in seconds."""

    at_s: float
    position: int
    lag: int


def trend_of(samples: Sequence[LagSample]) -> LagTrend:
    """Return the trend that the samples of one partition show, the oldest first.

    There is *none* if the lag was 0 at any time in the last half of the samples. Otherwise the
    least lag of the last half is compared with that of the first, so that the trend is the same at
    any moment of a batch. A lag that is read within ten seconds at the reader's pace does not grow.
    """
    if not samples:
        return LagTrend.UNKNOWN
    first, last = samples[0], samples[-1]
    middle = len(samples) // 2
    if any(each.lag == 0 for each in samples[middle:]):
        return LagTrend.NONE
    span_s = last.at_s - first.at_s
    if span_s < _LEAST_S:
        return LagTrend.UNKNOWN
    before = min(each.lag for each in samples[:middle])
    after = min(each.lag for each in samples[middle:])
    if after < before:
        return LagTrend.SHRINKS
    is_behind = last.lag * span_s >= _BEHIND_S * (last.position - first.position)
    return LagTrend.GROWS if after > before and is_behind else LagTrend.STEADY


def worst(trends: Iterable[LagTrend]) -> LagTrend:
    """Return the worst of the trends of a consumer's partitions."""
    order = list(LagTrend)
    return max(trends, key=order.index, default=LagTrend.UNKNOWN)


class Window:
    """The samples of the last two minutes of many partitions, by any key."""

    def __init__(self) -> None:
        self._samples: dict[object, list[LagSample]] = {}

    def add(self, key: object, sample: LagSample) -> LagTrend:
        """Add a sample, and return the trend of its key.

        Growth is *unknown* until the samples span most of the window: a run that has just started
        may catch up.
        """
        kept = self._samples.setdefault(key, [])
        kept.append(sample)
        while kept[0].at_s < sample.at_s - WINDOW_S:
            del kept[0]
        trend, span_s = trend_of(kept), sample.at_s - kept[0].at_s
        return LagTrend.UNKNOWN if trend is LagTrend.GROWS and span_s < _GROWS_S else trend

    def keep(self, keys: Iterable[object]) -> None:
        """Forget all keys but these."""
        known = set(keys)
        self._samples = {key: each for key, each in self._samples.items() if key in known}
