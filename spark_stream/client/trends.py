"""Whether a consumer keeps up: a rule over a window of samples of its position and its lag.

Source: the rules of Burrow, LinkedIn's monitor of Kafka's consumers: what counts is whether the
position and the lag move, not how great the lag is. Two things are added. A reader that stands at
the last stable offset waits for a transaction, and a lag that is read within seconds is none.
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
_WAITS_S: Final = 10.0  # readers that keep up stand at the LSO for moments, too
_BEHIND_S: Final = 10.0  # what a reader reads in less is not worth an alarm


class LagTrend(StrEnum):
    """What a consumer does. The order is by how bad it is."""

    UP_TO_DATE = "up_to_date"
    CATCHING_UP = "catching_up"
    KEEPING_PACE = "keeping_pace"
    UNKNOWN = "unknown"
    FALLING_BEHIND = "falling_behind"
    WAITS = "waits"
    STALLED = "stalled"


class LagSample(Struct, frozen=True):
    """The position of a consumer in a partition, and how much it lacked, at a moment in seconds.

    ``waits_for``: the transaction that holds it back, as :func:`holder_of` says.
    """

    at_s: float
    position: int
    lag: int
    waits_for: int | None = None


def holder_of(
    position: int, last_stable: int | None, open_: Iterable[tuple[int, int | None]]
) -> int | None:
    """Return the open transaction that holds back a reader at this position, or None.

    A reader under read_committed goes as far as the last stable offset. ``open_``: the number and
    the first offset of each transaction that is open in the partition.
    """
    if last_stable is None or position != last_stable:
        return None
    return next((number for number, first in open_ if first == last_stable), None)


def trend_of(samples: Sequence[LagSample]) -> LagTrend:
    """Return what the samples of one partition show, the oldest first.

    It *waits* if one transaction has held it back for ten seconds. It is *up to date* if the lag
    was 0 at any time in the last half of the samples. It is *stalled* if its position has not moved
    for 45 seconds although it lags. Otherwise the least lag of the last half is compared with that
    of the first, so that it does not count when in a batch one looks: it *catches up*, *keeps pace*
    or *falls behind*. A lag that it reads within ten seconds at its pace is no reason to say that
    it falls behind.
    """
    if not samples:
        return LagTrend.UNKNOWN
    first, last = samples[0], samples[-1]
    if last.waits_for is not None:
        others = [each.at_s for each in samples if each.waits_for != last.waits_for]
        if last.at_s - max(others, default=first.at_s) >= _WAITS_S:
            return LagTrend.WAITS
    middle = len(samples) // 2
    if any(each.lag == 0 for each in samples[middle:]):
        return LagTrend.UP_TO_DATE
    moves = [
        later.at_s for one, later in itertools.pairwise(samples) if later.position != one.position
    ]
    if last.at_s - max(moves, default=first.at_s) >= _STALLED_S:
        return LagTrend.STALLED
    span_s = last.at_s - first.at_s
    if not moves or span_s < _LEAST_S:
        return LagTrend.UNKNOWN
    before = min(each.lag for each in samples[:middle])
    after = min(each.lag for each in samples[middle:])
    if after < before:
        return LagTrend.CATCHING_UP
    is_behind = last.lag * span_s >= _BEHIND_S * (last.position - first.position)
    return LagTrend.FALLING_BEHIND if after > before and is_behind else LagTrend.KEEPING_PACE


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
