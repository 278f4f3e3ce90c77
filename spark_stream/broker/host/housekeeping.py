"""Which partitions are looked after in a round: those that moved, and those whose time has come.

A broker may have thousands of partitions, and nothing happens in most of them. So it does not go
and see: a partition says that it has moved, and each look at it tells when age alone will make the
next one due. A round costs what is due in it, and nothing for the others.

The cores say what is due; here is only who is asked when.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """When each member is due. Any thread may :meth:`move` one; one thread does the rest.

    Moments are numbers of any one clock.
    """

    def __init__(self) -> None:
        self._moved: dict[K, None] = {}  # in their order: the same run has the same
        self._at: dict[K, float] = {}
        self._earliest: float | None = None  # not above the least of them

    def move(self, member: K) -> None:
        """Make the member due at once."""
        self._moved[member] = None

    def take_due(self, now: float) -> list[K]:
        """Who is due by now. They are due no more, unless :meth:`put_down` says so again."""
        # One by one: what another thread adds at that moment could be lost with the whole.
        due = [self._moved.popitem()[0] for _ in range(len(self._moved))][::-1]
        if self._earliest is not None and self._earliest <= now:
            due += [member for member, at in self._at.items() if at <= now]
        for member in due:
            self._at.pop(member, None)
        if self._earliest is not None and self._earliest <= now:
            self._earliest = min(self._at.values(), default=None)
        return list(dict.fromkeys(due))

    def put_down(self, member: K, at: float) -> None:
        """Make the member due at this moment instead of any earlier one."""
        self._at[member] = at
        if self._earliest is None or at < self._earliest:
            self._earliest = at

    def next_moment(self) -> float | None:
        """No member is due before it, but such as move; None: no member is put down."""
        return self._earliest
