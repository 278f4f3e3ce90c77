"""A board of leases in memory, and how brokers look at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from spark_stream.cluster.stores.leases import Board, Lease, Leases, Renewal
from spark_stream.environment import Clock

LEASE_S: Final = 4.0
"""The duration of a lease in a run."""


class MemoryBoard(Struct):
    """The leases of all brokers that are given the same board."""

    shown: dict[str, Renewal] = field(default_factory=dict)

    def take_place(self, broker_id: str, incarnation: str, duration_s: float) -> MemoryPlace:
        self.shown[broker_id] = Renewal(incarnation, 0, duration_s)
        return MemoryPlace(self, broker_id, incarnation, duration_s)

    def read(self, broker_id: str) -> Renewal | None:
        return self.shown.get(broker_id)

    def gone(self, broker_id: str) -> None:
        """The broker's process has ended, and the board has detected that."""
        self.shown.pop(broker_id, None)


class MemoryPlace(Struct, frozen=True):
    """One incarnation's place."""

    board: MemoryBoard
    broker_id: str
    incarnation: str
    duration_s: float

    def write(self, count: int) -> bool:
        if not self._is_mine():
            return False
        self.board.shown[self.broker_id] = Renewal(self.incarnation, count, self.duration_s)
        return True

    def clear(self) -> None:
        if self._is_mine():
            del self.board.shown[self.broker_id]

    def close(self) -> None:
        pass

    def _is_mine(self) -> bool:
        found = self.board.shown.get(self.broker_id)
        return found is not None and found.incarnation == self.incarnation


class WatchedLeases(Leases):
    """Leases that report each look."""

    def __init__(self, board: Board, clock: Clock, found_over: Callable[[str], None]) -> None:
        """``found_over`` is called with the holder of a lease that has expired for the observer."""
        super().__init__(board, clock, LEASE_S)
        self._over_at: dict[str, float] = {}  # when a broker's lease was found over last
        self._now = clock.monotonic
        self._found_over = found_over
        self.taken_again_at = float("-inf")
        """The time of the broker's new lease after an expired one."""

    def hold(self, broker_id: str, incarnation: str, after: Lease | None = None) -> Lease:
        if after is not None:
            self.taken_again_at = self._now()
        return super().hold(broker_id, incarnation, after)

    def left_s(self, broker_id: str) -> float:
        left = super().left_s(broker_id)
        if left <= 0:
            self._over_at[broker_id] = self._now()
            self._found_over(broker_id)
        return left

    def was_over(self, broker_id: str, within_s: float) -> bool:
        """Whether a look found the broker's lease over, not longer ago than this."""
        found = self._over_at.get(broker_id)
        return found is not None and self._now() - found <= within_s
