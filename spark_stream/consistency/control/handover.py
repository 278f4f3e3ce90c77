"""The conditions under which a broker gives up the leadership of a partition, or leaves the ISR.

There are three causes: its log refuses writes, its log is damaged, or the preferred leader can
lead.

**A log that refuses writes.** A leader whose write failed hands over as soon as possible. One whose
disk is full first waits for ``FULL_US``: space may become free by itself, and a successful write
ends the trouble. The leader hands over to a live in-sync replica whose log takes a write at that
moment, and leaves the ISR by the same change of the record (``election.resign``). If there is no
such replica, the leader continues to lead: existing records can be read, and writes are refused
until one of the logs takes them.

A follower in trouble reports it to its leader, which removes it from the ISR
(``partition.progress``). The follower requests no entries, so it cannot join again. If its leader
dies before that, the follower can be elected, because it has all committed entries and an election
does not check whether writes succeed. It then hands over by the same rule. The trouble ends when a
write to its log has succeeded: a *probe*, tried every ``RETRY_US``. A broker that shuts down also
hands over only to replicas whose logs take a probe.

| event | who acts | what changes on record |
|---|---|---|
| a leader's write failed | ``Withdrawals`` | an heir leads, epoch + 1; it leaves the ISR |
| a leader's disk stays full | ``Withdrawals``, after ``FULL_US`` and a failed probe | the same |
| the same, and no heir takes writes | ``Withdrawals`` probes | nothing |
| a follower's write failed | its leader; ``Withdrawals`` probes | it leaves the ISR |
| an fsync failed, or a file is missing | ``Registration`` | its broker has a new generation |
| the same, and it still leads | ``Withdrawals``, as for a failed write | an heir leads, epoch + 1 |
| its broker shuts down | ``handing_over`` | an heir leads, epoch + 1; it leaves the ISR |

After a failed fsync both act. ``Registration`` does so once. If the replica was the only one in
sync, it continues to lead, and ``Withdrawals`` hands over when a replica joins the ISR later.

**A damaged log.** The entry of a damaged batch is intact, so the replica still agrees with all
others about the log. It only cannot serve these records. Staying costs no record while another copy
exists. Truncation of the log at the damage loses records if there is no other copy.

The broker *leaves* by a new generation of its logs: after that one compare-and-set it is in sync in
no partition, and leads none. It does so if another in-sync replica of the damaged partition is
alive, which has all that is committed. Order: first the generation is on record. Then the broker
follows the leader. Its log is truncated at the damage only when that leader has answered, and the
removed part is copied from the leader (``consistency.replication.follower``).

The broker *stays* if no other replica could lead: the log is not truncated, the entries around the
damage are served, and a read of damaged ones gets an error. It decides again whenever the other
replicas change, so it leaves once an in-sync replica comes back or a follower joins the ISR.

The broker *waits* if leaving would leave a sound partition without a leader: one whose other
in-sync replicas are all dead but still on the record. They are removed from that record soon, or
come back.

**The preferred leader**, the first of the replicas, gets its partition back when it has been able
to lead for a *settle time* without interruption: alive, in sync, in the same start of its broker,
and under the same leader. So a broker that keeps restarting gets nothing back, and a partition goes
to its preferred leader at most once in that time. Then the preferred leader's log has to take a
write. If it does not, the settle time starts again. At most ``AT_ONCE_MAX`` partitions are handed
over together, those that have waited longest first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from spark_stream.consistency.control.election import Alive, live_members
from spark_stream.consistency.control.partition_record import Member, PartitionRecord

FULL_US: Final = 5_000_000
"""The time for which a leader waits for room on its disk before it hands over."""
RETRY_US: Final = 5_000_000
"""The time between two checks of a replica in trouble."""


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


AT_ONCE_MAX: Final = 50

_K = TypeVar("_K", bound=Hashable)


class Settling(Struct, frozen=True):
    """A partition whose preferred leader can lead.

    Attributes:
        under: The leader epoch and the start of the preferred broker. A change restarts the wait.
        since: The time of their last change, in microseconds of the steady clock.
    """

    under: Hashable
    since: int


def after_look(
    known: Mapping[_K, Settling], able: Mapping[_K, Hashable], now: int
) -> dict[_K, Settling]:
    """Return the settling partitions, given those whose preferred leader can lead now."""
    return {
        key: before
        if (before := known.get(key)) is not None and before.under == under
        else Settling(under, now)
        for key, under in able.items()
    }


def due_handovers(known: Mapping[_K, Settling], settle_us: int, now: int) -> list[_K]:
    """Return the partitions to hand over now."""
    settled = [key for key, each in known.items() if each.since + settle_us <= now]
    return sorted(settled, key=lambda key: known[key].since)[:AT_ONCE_MAX]


class Verdict(Enum):
    """The reaction of a broker to a damaged replica."""

    LEAVE = "it begins a new generation of its logs"
    WAIT = "it leaves as soon as no partition loses its leader by that"
    STAY = "no other live in-sync replica has the records"


def has_heir(record: PartitionRecord, me: Member, alive: Alive) -> bool:
    """Return whether an in-sync replica on another broker is alive."""
    return any(each.broker != me.broker for each in live_members(record, alive))


def can_go_on(record: PartitionRecord, me: Member, alive: Alive) -> bool:
    """Return whether the partition still has a leader once this broker has another generation.

    A partition in which only this broker is in sync continues with it
    (``scripts.partition_records.resume``).
    """
    if record.member(me.broker) != me or len(record.isr) == 1:
        return True
    return has_heir(record, me, alive)


def judge(
    damaged: PartitionRecord, others: Iterable[PartitionRecord], me: Member, alive: Alive
) -> Verdict:
    """Decide about one damaged replica. ``others`` are all records of this broker's replicas."""
    if not has_heir(damaged, me, alive):
        return Verdict.STAY
    if not all(can_go_on(each, me, alive) for each in others):
        return Verdict.WAIT
    return Verdict.LEAVE
