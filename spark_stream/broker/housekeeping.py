"""Which partitions are looked after in a round: those at work, and some of the others in turn.

A broker may have thousands of partitions, and nothing happens in most of them. Those whose end has
moved are looked after in every round for some seconds. Of the others each round takes some, so that
all have their turn in a while: only their age can make rolling and retention due.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

AT_ONCE: Final = 200  # a round over them takes some milliseconds
_LINGER_S: Final = 5.0


Member = tuple[Hashable, int]
"""A partition in a round: any key that it keeps, and its end."""


class Rounds:
    """Remembers where partitions ended in the round before, and whose turn is next."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._seen: dict[Hashable, tuple[int, float]] = {}  # key → end, and since when
        self._turn = 0

    def due(self, members: Sequence[Member], now_s: float) -> list[int]:
        """The places of those to look after now."""
        seen: dict[Hashable, tuple[int, float]] = {}
        busy: list[int] = []
        idle: list[int] = []
        for place, (key, end) in enumerate(members):
            known = self._seen.get(key)
            if known is None or known[0] != end:
                known = (end, now_s)
            seen[key] = known
            at_work = now_s - known[1] <= _LINGER_S
            (busy if at_work else idle).append(place)
        self._seen = seen
        if len(idle) <= self._at_once:
            return sorted(busy + idle)
        first = self._turn % len(idle)
        self._turn = first + self._at_once
        taken = (idle + idle)[first : first + self._at_once]
        return sorted(busy + taken)
