"""Leading on while the metadata store is away: the promises of the in-sync replicas.

A broker leads while its lease lasts, and it cannot renew the lease while the store is away. So the
leader of a partition asks its followers for promises before the lease is over. A *promise* is the
follower's word that it will not lead the partition in its leader's place for ``lasts_s`` from the
moment at which the leader asked. The leader goes on while it has a promise of every member of the
partition's maximal ISR (``partition.progress``), and at least one.

**Why no two brokers lead at once.** Let the leader L of epoch e have its lease no more and serve at
a moment t. Then every member of its maximal ISR has a promise that lasts beyond t.

1. The first leader after L in a later epoch is a member of the ISR on record in epoch e: only such
   members are elected (``control.election``). The maximal ISR has all of them, and some more. Only
   ``elect_longest`` may choose others. It does so if no member can come back in its generation, but
   L lives in its own; or if the topic allows unclean elections, and then L asks for no promises.
2. That member begins to lead only after its promise is over. It notes the promise on its disk
   before it gives it, so it keeps the promise after a restart. If its disk is lost, it has another
   generation and was no member.
3. The promise is over for L before it is over for the member. Both count from when L asked, which
   was before the member promised; each uses its own clock, which never steps; and L stops earlier,
   by the share ``MARGIN``, in case that clocks do not run at the same speed.
4. A member that has learnt of epoch e + 1 promises no more: a promise is given on a stream, for the
   partitions whose sessions it has. The session is over, for the leader too, before any later
   promise: messages of one stream arrive in their order.

So L has stopped before its successor begins. A quorum of promises would not do: the successor could
be among the others.

**What goes on.** Appends, reads and cuts. Nothing that changes a record does: elections, changes
of the ISR, decisions of transactions wait. So if a member dies meanwhile, L stops when the member's
last promise is over.

**Who promises.** A follower that cannot reach the store either. If it can, then L alone is cut off,
and its partitions had better be led by others. A leader that is the only member asks nobody, and
stops with its lease: nobody could tell it that another process has its id.

Source: Patroni's failsafe mode (the primary goes on while all members answer it); leases of leaders
that followers grant, as in Raft (Ongaro's thesis, 6.4.1) and Spanner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MARGIN: Final = 0.1
"""The share of a promise's time by which the leader stops earlier than the follower begins."""


def holds_until(asked_at: float, lasts_s: float) -> float:
    """Return until when the leader may count on a promise, in seconds of its own clock."""
    return asked_at + lasts_s * (1 - MARGIN)


def free_at(promised_at: float, lasts_s: float) -> float:
    """Return when the follower may lead after a promise, in seconds of its own clock."""
    return promised_at + lasts_s


def leads_until(promises: Collection[float]) -> float | None:
    """Return until when a leader may go on; None: not without its lease.

    ``promises``: until when the promise of each member of the maximal ISR holds, besides the
    leader's own.
    """
    return min(promises, default=None)
