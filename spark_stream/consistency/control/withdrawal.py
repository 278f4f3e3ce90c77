"""When a replica whose log refuses writes is looked at again, and whether it may go on leading.

**Rule.** A leader whose write failed hands over as soon as possible. One whose disk is full waits
for ``FULL_US`` first: room comes back by itself, and a write that succeeds ends the trouble. It
hands over to a live in-sync replica whose log takes a write at that moment, and leaves the ISR by
the same change of the record (``election.resign``). If there is none, it goes on leading: what is
there can be read, and writes are refused until one of the logs takes them.

A follower in trouble says so to its leader, which takes it out of the ISR (``progress``), and asks
for no entries, so it cannot join again. If its leader dies before, it can be elected, for it has
all that is committed, and an election does not ask who can write; it hands over by the same rule
then. The trouble ends when a write to its log has succeeded: a *probe*, which is tried every
``RETRY_US``. A broker that shuts down hands over to replicas whose logs take a probe, as well.

| event | who acts | what changes on record |
|---|---|---|
| a leader's write failed | ``Withdrawals``, at once | an heir leads, epoch + 1; it leaves the ISR |
| a leader's disk stays full | ``Withdrawals``, after ``FULL_US`` and a failed probe | the same |
| the same, and no heir takes writes | ``Withdrawals`` probes | nothing |
| a follower's write failed | its leader, at once; ``Withdrawals`` probes | it leaves the ISR |
| a force failed, or a file is gone | ``Standing`` | its broker has a new generation |
| the same, and it still leads | ``Withdrawals``, as for a failed write | an heir leads, epoch + 1 |
| its broker shuts down | ``handing_over`` | an heir leads, epoch + 1; it leaves the ISR |

After a failed force both act. ``Standing`` does so once; a replica that was the only one in sync
leads on then, and hands over to a replica that joins the ISR later, which is left to
``Withdrawals``.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

FULL_US: Final = 5_000_000
"""How long a leader waits for room on its disk before it hands over."""
RETRY_US: Final = 5_000_000
"""How long until a replica in trouble is looked at again."""


class Trouble(Struct, frozen=True):
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
