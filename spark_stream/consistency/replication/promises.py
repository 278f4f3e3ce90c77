"""Leading on while the metadata store is away: the promises of the in-sync replicas.

A broker leads while its lease lasts, and it cannot renew the lease while the store is away. So the
leader of a partition asks its followers for promises before the lease is over. A *promise* is the
follower's word that it will not lead the partition for ``lasts_s``. The leader goes on while it has
a promise of every other member of the partition's maximal ISR (``partition.progress``), and at
least one.

**Why no two brokers serve at once.** Suppose that leader L of epoch e serves at time t although its
lease is over. Then every other member of its maximal ISR has a promise that lasts beyond t.

1. The first broker that serves in a later epoch is one of these members: only members are elected
   (``control.election``), and only a leader that serves adds members to the ISR. The maximal ISR
   has all members on record, and those that may be on record by now. ``elect_longest`` may choose
   another replica, but only if no member can come back in its generation, and L lives in its own;
   or if the topic allows unclean elections, and then L asks for no promises.
2. That member serves only after its promise is over. It notes on its disk that it promises before
   it does, so the promise outlives a restart. If its disk is lost, it gets another generation, and
   was no member.
3. The promise is over for L first. L counts from when it asked, and the member from when it
   promised, which is later; L also stops earlier, by the share ``MARGIN``, in case the clocks do
   not run at the same speed.
4. A member that has learnt of epoch e + 1 gives L no more promises for the partition. A promise
   covers the partitions that the member follows on the stream, and messages of one stream arrive in
   their order: L hears that the member follows no more before it hears of a later promise.

So L has stopped before its successor begins. A quorum of promises would not do: the successor could
be among the others.

**What this relies on.** The monotonic clocks of both go on, as for leases: a machine that is
suspended with its clock may serve for a moment when it wakes up. One process has the broker's id
and its disk: a disk that is attached to a second machine, whose broker starts, has two. A setting
is known to the leader: if somebody allows unclean elections while L and its followers are cut off,
L goes on, and what it acknowledges is lost.

**What goes on.** Appends, reads and cuts. Nothing that changes a record does: elections, changes
of the ISR, decisions of transactions wait. So if a member dies meanwhile, L stops when the member's
last promise is over.

**Who promises.** A follower that cannot reach the store either. If it can, then L alone is cut off,
and its partitions should get another leader. A leader that is the only member asks nobody, and
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
    """Return until when a leader may go on; None: only while its lease lasts.

    ``promises``: until when the promise of each member of the maximal ISR holds, besides the
    leader's own.
    """
    return min(promises, default=None)
