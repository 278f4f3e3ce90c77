"""The sessions and positions of the members of groups, in the memory of a gateway.

They only save requests. For an unknown member, each heartbeat renews the session, and a commit
first requests the present turn. So a member may continue at another gateway at any time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from spark_stream.consistency.groups import Place
from spark_stream.transport.lifetime import new_lock

_RENEWALS: Final = 3  # in a session, which outlives two late ones
_MEMBERS_MAX: Final = 10_000


class KnownMember(Struct):
    """A member: its session, and the positions that it has stored through this gateway.

    ``turn``: the number of times that a stored position moved back.
    """

    session_s: float
    renewed_at: float
    turn: int
    offsets: dict[Place, int]


MemberKey = tuple[str, str]
"""The group and the id of a member."""


class Members:
    """The members of groups that use this gateway, the latest last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._known: dict[MemberKey, KnownMember] = {}

    def on_joined(self, key: MemberKey, session_s: float, turn: int) -> None:
        """Record that a member has joined, which renews its session."""
        with self._lock:
            known = self._known.pop(key, None)
            offsets = {} if known is None else known.offsets
            turn = turn if known is None else max(turn, known.turn)
            self._known[key] = KnownMember(session_s, time.monotonic(), turn, offsets)
            if len(self._known) > _MEMBERS_MAX:
                del self._known[next(iter(self._known))]

    def is_due(self, key: MemberKey) -> bool:
        """Return whether the session of a member needs a renewal."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return True
            return time.monotonic() - known.renewed_at >= known.session_s / _RENEWALS

    def on_renewed(self, key: MemberKey) -> None:
        """Record a renewal of the session."""
        with self._lock:
            if key in self._known:
                self._known[key].renewed_at = time.monotonic()

    def knows(self, key: MemberKey) -> bool:
        """Return whether the turn of a member is known."""
        with self._lock:
            return key in self._known

    def turn_for(self, key: MemberKey, offsets: Mapping[Place, int]) -> int:
        """Return the turn in which a member stores these positions: the next if one moves back."""
        with self._lock:
            known = self._known[key]
            if any(offset < known.offsets.get(at, 0) for at, offset in offsets.items()):
                known.turn += 1
            known.offsets.update(offsets)
            return known.turn

    def forget(self, key: MemberKey) -> None:
        """Forget a member that has left."""
        with self._lock:
            self._known.pop(key, None)
