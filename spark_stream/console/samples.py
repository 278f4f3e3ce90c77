"""What samples of the last minutes tell: rates, when a disk is full, how soon a broker answers.

No I/O and no clock: whoever adds a sample says when it was taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Hashable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

RATE_S: Final = 10.0
"""Over how long a rate is counted."""
DISK_S: Final = 180.0
"""Over how long a disk is watched to say when it is full."""
ANSWERS_S: Final = 60.0
"""Over how long the answers of a broker are judged."""
HISTORY_S: Final = 600.0
HISTORY_STEP_S: Final = 5.0

_DISK_LEAST_S: Final = 30.0  # of samples, before anything is said


class RecentSamples(Generic[K, T]):
    """The samples of the last seconds, by key, each with its moment; the oldest first."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._samples: dict[K, list[tuple[float, T]]] = {}

    def add(self, key: K, at_s: float, value: T) -> None:
        """Add a sample. One that is not later than the last is the same again, and is left out."""
        kept = self._samples.setdefault(key, [])
        if not kept or at_s > kept[-1][0]:
            kept.append((at_s, value))
        while len(kept) > 2 and kept[0][0] < at_s - self._window_s:
            del kept[0]

    def of(self, key: K) -> Sequence[tuple[float, T]]:
        """Return the samples of a key."""
        return self._samples.get(key, ())

    def drop(self, key: K) -> None:
        """Remove the samples of a key."""
        self._samples.pop(key, None)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all keys but these."""
        known = list(self._samples.items())  # another thread may add a key meanwhile
        self._samples = {key: each for key, each in known if key in keys}


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """Return by how much the value grows in a second, from the first sample to the last."""
    if len(samples) < 2:
        return 0.0
    (first_s, first), (last_s, last) = samples[0], samples[-1]
    return (last - first) / (last_s - first_s)


def full_in_s(free: Sequence[tuple[float, float]]) -> float | None:
    """Return in how many seconds a disk is full if it goes on like this; None if it never is."""
    slope = growth(free)
    if slope >= 0 or free[-1][0] - free[0][0] < _DISK_LEAST_S:
        return None
    return free[-1][1] / -slope


class BrokerAnswers(Struct, frozen=True):
    """How a broker has answered of late; ``median_s`` is None if it never has."""

    asked: int = 0
    unanswered: int = 0
    median_s: float | None = None


def answers_of(took_s: Sequence[tuple[float, float | None]]) -> BrokerAnswers:
    """Return what these requests show; None is one that was not answered in time."""
    times = [each for _, each in took_s if each is not None]
    median_s = statistics.median(times) if times else None
    return BrokerAnswers(len(took_s), len(took_s) - len(times), median_s)
