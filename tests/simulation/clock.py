"""Time and names that come from a seed: the same run gets the same ones."""

from __future__ import annotations

from random import Random
from typing import Final

BEGINNING_US: Final = 1_700_000_000_000_000
"""The wall clock's time when a run begins, microseconds since the epoch."""


class VirtualClock:
    """A clock that moves only when a test moves it. The wall clock may step, the others never
    do."""

    def __init__(self) -> None:
        self._now = 0.0
        self._stepped_us = 0

    def monotonic(self) -> float:
        return self._now

    def steady_us(self) -> int:
        return BEGINNING_US + int(self._now * 1_000_000)

    def wall_us(self) -> int:
        return self.steady_us() + self._stepped_us

    def move_to(self, moment: float) -> None:
        """Time passes until ``moment`` (seconds of ``monotonic``). Never backwards."""
        self._now = max(self._now, moment)

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock, either way."""
        self._stepped_us += int(seconds * 1_000_000)


class SeededIds:
    """Names drawn from a seeded source of chance."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def new_id(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"
