"""The sessions and the latest turns of the members of groups, in the memory of a gateway.

A member may continue at another gateway at any time: the brokers have its positions. For an unknown
member, each heartbeat renews the session.
"""

from __future__ import annotations

import time
from typing import Final

from msgspec import Struct

from spark_stream.transport.lifetime import new_lock

_RENEWALS: Final = 3  # in a session, which outlives two late ones
_MEMBERS_MAX: Final = 10_000


class KnownMember(Struct):
    """A member: its session, and the turn of its latest commit through this gateway.

    A position of a later turn replaces the stored one, also a higher one (``consistency.groups``).
    """

    session_s: float
    renewed_at: float
    turn: int = 0


MemberKey = tuple[str, str]
"""The group and the id of a member."""


class Members:
    """The members of groups that use this gateway, the latest last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._known: dict[MemberKey, KnownMember] = {}

    def on_joined(self, key: MemberKey, session_s: float) -> None:
        """Record that a member has joined, which renews its session."""
        with self._lock:
            turn = self._known[key].turn if key in self._known else 0
            self._put(key, KnownMember(session_s, time.monotonic(), turn))

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

    def next_turn(self, key: MemberKey, stored: int) -> int:
        """Return the turn of the next commit, above that of the stored positions."""
        with self._lock:
            known = self._known.get(key) or KnownMember(0.0, 0.0)
            known.turn = max(known.turn, stored) + 1
            self._put(key, known)
            return known.turn

    def forget(self, key: MemberKey) -> None:
        """Remove a member that has left."""
        with self._lock:
            self._known.pop(key, None)

    def _put(self, key: MemberKey, known: KnownMember) -> None:
        self._known.pop(key, None)
        self._known[key] = known
        if len(self._known) > _MEMBERS_MAX:
            del self._known[next(iter(self._known))]
