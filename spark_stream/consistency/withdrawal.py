"""When a replica whose log refuses writes is looked at again, and whether it may go on leading.

**Rule.** A leader whose write failed hands over as soon as possible. One whose disk is full waits
for ``FULL_US`` first: room comes back by itself, and a write that succeeds ends the trouble. It
hands over to a live in-sync replica whose log takes a write at that moment, and leaves the ISR by
the same change of the record (``election.resign``). If there is none, it goes on leading: what is
there can be read, and writes are refused until one of the logs takes them.

A replica in trouble asks no leader for entries, so it cannot join the ISR, and nobody elects it.
The trouble ends when a write to its log has succeeded: a *probe*, which is tried every
``RETRY_US``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

FULL_US: Final = 5_000_000
"""How long a leader waits for room on its disk before it hands over."""
RETRY_US: Final = 5_000_000
"""How long until a replica in trouble is looked at again."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A log refuses writes.

    Attributes:
        full: There is no room, which is no fault of the disk.
        due: When something is to be done about it, in microseconds of the steady clock.
        tried: Something was done about it, and the log still refused writes.
    """

    full: bool
    due: int
    tried: bool = False

    @property
    def needs_probe(self) -> bool:
        """Whether to look, before the replica hands over, if the log takes writes again."""
        return self.full or self.tried


def after_refusal(known: Trouble | None, now: int, *, full: bool) -> Trouble:
    """Return the trouble after one more write was refused."""
    if known is None:
        return Trouble(full, now + FULL_US if full else now)
    if known.full and not full:
        return Trouble(full=False, due=now, tried=known.tried)
    return known


def after_write(known: Trouble | None) -> Trouble | None:
    """Return the trouble after a write succeeded: a disk that has failed is probed all the same."""
    return None if known is None or known.full else known


def after_attempt(known: Trouble, now: int) -> Trouble:
    """Return the trouble after a probe failed, or there was no other replica to hand over to."""
    return replace(known, due=now + RETRY_US, tried=True)
