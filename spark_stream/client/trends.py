"""The trend of a reader's lag, over a window of samples.

The state of a reader (``consistency.isolation``) shows whether it is stalled or lost. Its trend
shows whether a running reader gains on the writers. A lag that is read within seconds has no trend.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final

from msgspec import Struct

WINDOW_S: Final = 120.0
"""The length of the window of samples, in seconds."""

_GROWS_S: Final = 0.9 * WINDOW_S  # of samples, before a window reports growth
_LEAST_S: Final = 10.0  # of samples, before there is a trend
_BEHIND_S: Final = 10.0  # a lag that is read in less needs no alarm
_JITTER_S: Final = 5.0  # batches of the same work differ in length
_PARTS: Final = 4


class LagTrend(StrEnum):
    """The development of the readable lag, in the order of severity."""

    NONE = "none"
    SHRINKS = "shrinks"
    STEADY = "steady"
    UNKNOWN = "unknown"
    GROWS = "grows"


class LagSample(Struct, frozen=True):
    """The sums of a reader's positions and of its readable lags at one time, in seconds.

    ``places``: the partitions in the sums.
    """

    at_s: float
    position: int
    lag: int
    places: frozenset[Hashable]


def sample_of(at_s: float, partitions: Iterable[tuple[Hashable, int, int]]) -> LagSample:
    """Return the sample of partitions, each with its place, its position and its readable lag.

    A reader may read its partitions in turn, so only the sums show whether it gains.
    """
    known = list(partitions)
    return LagSample(
        at_s,
        sum(position for _, position, _ in known),
        sum(lag for _, _, lag in known),
        frozenset(place for place, _, _ in known),
    )


def trend_of(
    samples: Sequence[LagSample], *, in_batches: bool = False, growth_s: float = 0.0
) -> LagTrend:
    """Return the trend of one reader's samples, which are in the order of time.

    The trend is *none* if the lag was 0 in the last half of the samples. Otherwise the lags after
    each progress are compared, so that the trend does not depend on the phase of a batch. The lag
    grows if it is greater in each quarter than in the previous one, and by more than the
    differences between batches. A lag that is read within ten seconds at the reader's pace does not
    grow.

    Samples before a change of the partitions do not count. ``in_batches``: the position moves only
    when a micro-batch ends, so growth without progress is unknown. ``growth_s``: growth is also
    unknown until the samples span this time.
    """
    samples = _comparable(samples)
    if not samples or not samples[-1].places:
        return LagTrend.UNKNOWN
    if any(each.lag == 0 for each in samples[len(samples) // 2 :]):
        return LagTrend.NONE
    first, last = samples[0], samples[-1]
    span_s, progress = last.at_s - first.at_s, last.position - first.position
    moved = [each for old, each in pairwise(samples) if each.position != old.position]
    if span_s < _LEAST_S:
        return LagTrend.UNKNOWN
    lags = [each.lag for each in ([first, *moved] if moved else samples)]
    parts = min(_PARTS, len(lags))
    bounds = [len(lags) * part // parts for part in range(parts + 1)]
    least = [min(lags[start:end]) for start, end in pairwise(bounds)]
    if least[-1] < least[0]:
        return LagTrend.SHRINKS
    is_behind = last.lag * span_s >= _BEHIND_S * progress
    is_more = (least[-1] - least[0]) * span_s >= _JITTER_S * progress
    rises = all(before < after for before, after in pairwise(least))
    if not (rises and is_behind and is_more):
        return LagTrend.STEADY
    is_known = span_s >= growth_s and (moved or not in_batches)
    return LagTrend.GROWS if is_known else LagTrend.UNKNOWN


def _comparable(samples: Sequence[LagSample]) -> Sequence[LagSample]:
    """Return the latest samples with the same partitions."""
    start = len(samples)
    while start and samples[start - 1].places == samples[-1].places:
        start -= 1
    return samples[start:]


class Window:
    """The samples of many readers in the last two minutes, by key."""

    def __init__(self) -> None:
        self._samples: dict[object, list[LagSample]] = {}

    def add(self, key: object, sample: LagSample, *, in_batches: bool = False) -> LagTrend:
        """Add a sample, and return the trend of its key.

        Growth is *unknown* until the samples span most of the window, because a run that has just
        started may catch up.
        """
        kept = self._samples.setdefault(key, [])
        kept.append(sample)
        while kept[0].at_s < sample.at_s - WINDOW_S:
            del kept[0]
        return trend_of(kept, in_batches=in_batches, growth_s=_GROWS_S)

    def keep(self, keys: Iterable[object]) -> None:
        """Drop the samples of all other keys."""
        known = set(keys)
        self._samples = {key: each for key, each in self._samples.items() if key in known}
