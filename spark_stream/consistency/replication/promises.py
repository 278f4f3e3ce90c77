"""Leadership during an outage of the metadata store, by promises of the in-sync replicas.

A broker leads while its lease lasts, and it cannot renew the lease while the store is unavailable.
So the leader of a partition requests promises of its followers before the lease expires. A
*promise* states that the follower will not lead the partition for ``lasts_s``. The leader continues
while it has a promise of every other member of the partition's maximal ISR
(``partition.progress``), and at least one.

**Safety: two brokers never serve at the same time.** Suppose that leader L of epoch e serves at
time t although its lease expired. Then every other member of its maximal ISR has a promise that
lasts beyond t.

1. The first broker that serves in a later epoch is one of these members: only members are elected
   (``control.election``), and only a leader that serves adds members to the ISR. The maximal ISR
   has all members on record, and those that a proposal under way may have added. ``elect_longest``
   may choose another replica, but not here: either it requires that no member can come back in its
   generation, and L is alive in its own, or the topic allows unclean elections, and then L requests
   no promises.
2. That member serves only after its promise expired. It writes the promise to its disk before it
   sends it, so the promise outlives a restart. If its disk is lost, it gets another generation, and
   was no member.
3. The promise expires for L first. L counts from its request, and the member from its promise,
   which is later. L also stops earlier, by the share ``MARGIN``, in case the clocks do not run at
   the same speed.
4. A member that has read epoch e + 1 gives L no more promises for the partition. A promise covers
   the partitions that the member follows on the stream, and messages of one stream arrive in their
   order. So L receives the end of following before any later promise.

So L has stopped before its successor begins. A quorum of promises would not do: the successor could
be among the others.

**Assumptions.** The monotonic clocks of both advance, as for leases: a machine that is suspended
with its clock may serve for a moment when it wakes up. One process has the broker's id and its
disk: a disk that is attached to a second machine, whose broker starts, has two. The leader has the
topic's present settings: if an operator allows unclean elections while L and its followers are cut
off, L continues, and the records that it acknowledges are lost.

**Scope.** Appends, reads and cuts continue. Changes of records wait: elections, changes of the ISR,
decisions of transactions. So if a member dies during the outage, L stops when the member's last
promise expires.

**Conditions.** A follower promises only if it cannot reach the store either. If it can, then L
alone is cut off, and its partitions should get another leader. A leader that is the only member has
no follower to promise, and stops with its lease: it could not detect that another process has its
id.

Source: Patroni's failsafe mode (the primary continues while all members answer it), and leases of
leaders that followers grant, as in Raft (Ongaro's thesis, 6.4.1) and Spanner.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MARGIN: Final = 0.1
"""The share of a promise's time by which the leader stops earlier than the follower begins."""


def holds_until(asked_at: float, lasts_s: float) -> float:
    """Return the time until which the leader may count on a promise, by its clock in seconds."""
    return asked_at + lasts_s * (1 - MARGIN)


def free_at(promised_at: float, lasts_s: float) -> float:
    """Return the time from which the follower may lead after a promise, by its clock in seconds."""
    return promised_at + lasts_s


def leads_until(promises: Collection[float]) -> float | None:
    """Return the time until which a leader may continue without its lease, or None: it may not.

    ``promises``: the ends of the promises of the maximal ISR's members, without the leader.
    """
    return min(promises, default=None)
