"""A clock that a test advances, with a wall clock that may jump."""

from __future__ import annotations

YEAR_US = 365 * 24 * 3_600 * 1_000_000


class FakeClock:
    """A clock that stands still until the test advances it. The wall clock may also jump."""

    def __init__(self, wall_us: int = 50 * YEAR_US) -> None:
        self._passed_us = 0
        self._epoch_us = wall_us
        self.jumped_us = 0

    def pass_us(self, microseconds: int) -> None:
        """Advance all clocks."""
        self._passed_us += microseconds

    def monotonic(self) -> float:
        return self._passed_us / 1e6

    def steady_us(self) -> int:
        return self._epoch_us + self._passed_us

    def wall_us(self) -> int:
        return self._epoch_us + self._passed_us + self.jumped_us
