"""When a replica whose log refuses writes is checked again, and whether it may continue to lead.

**Rule.** A leader whose write failed hands over as soon as possible. One whose disk is full first
waits for ``FULL_US``: space may become free by itself, and a successful write ends the trouble. It
hands over to a live in-sync replica whose log takes a write at that moment, and leaves the ISR by
the same change of the record (``election.resign``). If there is none, it continues to lead:
existing records can be read, and writes are refused until one of the logs takes them.

A follower in trouble reports it to its leader, which removes it from the ISR (``progress``). The
follower requests no entries, so it cannot join again. If its leader dies before that, the follower
can be elected, because it has all that is committed and an election does not check who can write;
it then hands over by the same rule. The trouble ends when a write to its log has succeeded: a
*probe*, tried every ``RETRY_US``. A broker that shuts down also hands over only to replicas whose
logs take a probe.

| event | who acts | what changes on record |
|---|---|---|
| a leader's write failed | ``Withdrawals``, at once | an heir leads, epoch + 1; it leaves the ISR |
| a leader's disk stays full | ``Withdrawals``, after ``FULL_US`` and a failed probe | the same |
| the same, and no heir takes writes | ``Withdrawals`` probes | nothing |
| a follower's write failed | its leader, at once; ``Withdrawals`` probes | it leaves the ISR |
| a force failed, or a file is gone | ``Registration`` | its broker has a new generation |
| the same, and it still leads | ``Withdrawals``, as for a failed write | an heir leads, epoch + 1 |
| its broker shuts down | ``handing_over`` | an heir leads, epoch + 1; it leaves the ISR |

After a failed force both act. ``Registration`` does so once. If the replica was the only one in
sync, it continues to lead, and ``Withdrawals`` hands over when a replica joins the ISR later.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

FULL_US: Final = 5_000_000
"""How long a leader waits for room on its disk before it hands over."""
RETRY_US: Final = 5_000_000
"""How long until a replica in trouble is checked again."""


class Trouble(Struct, frozen=True):
    """A log refuses writes.

    Attributes:
        full: The disk is full, not faulty.
        due: When to act on it next, in microseconds of the steady clock.
        tried: An attempt was made, and the log still refused writes.
    """

    full: bool
    due: int
    tried: bool = False

    @property
    def needs_probe(self) -> bool:
        """Whether to probe the log before the replica hands over."""
        return self.full or self.tried


def after_refusal(known: Trouble | None, now: int, *, full: bool) -> Trouble:
    """Return the trouble after one more write was refused."""
    if known is None:
        return Trouble(full, now + FULL_US if full else now)
    if known.full and not full:
        return Trouble(full=False, due=now, tried=known.tried)
    return known


def after_write(known: Trouble | None) -> Trouble | None:
    """Return the trouble after a successful write, which ends it only if the disk was full."""
    return None if known is None or known.full else known


def after_attempt(known: Trouble, now: int) -> Trouble:
    """Return the trouble after a probe failed, or no other replica could take over."""
    return replace(known, due=now + RETRY_US, tried=True)
