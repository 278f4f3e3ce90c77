"""Leases: which brokers are alive, without a clock that they share.

A broker renews its lease by changing what is written on a board. Others see it change, and judge by
their own clocks how long ago that was.

Invariant: whenever somebody finds a lease over, its holder's own clock had said so before, and the
holder's next renewal says so as well. (As long as their clocks run equally fast: a broker steps
down a little earlier.) It holds because each side counts on its safe side:

* the holder counts from the moment before it wrote a renewal;
* an observer counts from the moment after it first read that renewal, up to the moment before it
  read that there is no later one.

Whoever looks for the first time knows only what is there now: the lease gets its full time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Protocol

from spark_stream.environment import Clock

DURATION_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a board shows of a lease: whose it is, and a number that each renewal changes."""

    incarnation: str
    count: int


class Place(Protocol):
    """One broker's place on a board; all calls may raise ``StorageFailure``."""

    def write(self, count: int) -> bool:
        """Shows the count; False if the place is somebody else's by now: nothing was written."""

    def clear(self) -> None:
        """Removes the lease, unless the place is somebody else's by now."""


class Board(Protocol):
    """Where leases are written, and read by all; its calls may raise ``StorageFailure``."""

    def take_place(self, broker_id: str, incarnation: str) -> Place:
        """The broker's place from now on; its earlier incarnation's writes are not seen any more.

        Shows count 0 at once.
        """

    def read(self, broker_id: str) -> Renewal | None:
        """What the broker's place shows; None: nothing."""


class Lease:
    """One incarnation's lease, which it holds from construction for as long as it renews it."""

    def __init__(
        self, board: Board, broker_id: str, incarnation: str, clock: Clock, duration_s: float
    ) -> None:
        self._clock = clock
        self._duration = duration_s
        self._count = 0
        self._renewed_at = clock.monotonic()
        self._place = board.take_place(broker_id, incarnation)

    def renew(self) -> bool:
        """Renews it. False: it was over in between, or another incarnation took its place.

        Others may have acted on that: the broker has to step down.
        """
        started = self._clock.monotonic()
        self._count += 1
        if not self._place.write(self._count):
            return False
        in_time = started < self._renewed_at + self._duration
        self._renewed_at = started
        return in_time

    def left_s(self) -> float:
        """How long the broker holds the lease if it is not renewed; not above 0: it is over."""
        return self._renewed_at + self._duration - self._clock.monotonic()

    def release(self) -> None:
        """Ends it: whoever looks finds it over."""
        self._place.clear()


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an observer saw last, and when it had first read it, on its own clock."""

    renewal: Renewal
    first_read_at: float


def note(before: Sighting | None, shown: Renewal | None, read_at: float) -> Sighting | None:
    """What an observer knows after a look; ``read_at`` is not before it read what is shown."""
    if shown is None:
        return None
    if before is not None and before.renewal == shown:
        return before
    return Sighting(shown, read_at)


def time_left(sighting: Sighting, asked_at: float, duration_s: float) -> float:
    """How long the lease lasts by what was seen; ``asked_at`` is not after it was read last."""
    return sighting.first_read_at + duration_s - asked_at


class Leases:
    """All leases of a board, as one broker sees them. From any thread."""

    def __init__(self, board: Board, clock: Clock, duration_s: float = DURATION_S) -> None:
        """``duration_s``: how long a lease lasts; the same for all brokers of a cluster."""
        self._board = board
        self._clock = clock
        self._duration = duration_s
        self._lock = threading.Lock()
        self._seen: dict[str, Sighting] = {}

    def hold(self, broker_id: str, incarnation: str) -> Lease:
        """The broker's own lease, in the place of its earlier incarnation's."""
        return Lease(self._board, broker_id, incarnation, self._clock, self._duration)

    def alive(self, broker_id: str) -> bool:
        """Whether the broker has a lease that may not be over."""
        return self.left_s(broker_id) > 0

    def left_s(self, broker_id: str) -> float:
        """How long the broker's lease lasts at least, if nobody sees it renewed."""
        with self._lock:
            asked_at = self._clock.monotonic()
            shown = self._board.read(broker_id)
            seen = note(self._seen.get(broker_id), shown, self._clock.monotonic())
            if seen is None:
                self._seen.pop(broker_id, None)
                return 0.0
            self._seen[broker_id] = seen
            return max(0.0, time_left(seen, asked_at, self._duration))
