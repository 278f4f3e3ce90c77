"""A leader's followers: their progress, the in-sync replicas, and the replicated entries.

**Invariant.** Every broker that is in the partition's ISR, or that an unfinished proposal may have
added to it, has every entry below the high watermark. So the leader waits for the *maximal* ISR:
the members on the last record that the leader has read, the members that it has proposed, and those
that it is about to propose. A member that leaves counts until its removal is on record.

**Sessions.** A follower reports under a session, in the generation of its logs. Its reports count
only for the member of that generation, also after the end of the session. A new session begins with
the common part of both logs. Reports of earlier sessions are ignored. The session of a dead broker
ends. A replica that is moved away loses its log: its reports are removed with its session.

**Leaving the ISR.** A member leaves if it lacks an entry which the leader appended longer than
``lag_max_us`` ago, if it has not reported for that long since the election, if it is not alive in
its generation, or if it has reported that its log refuses writes, with no report of progress since.

**Joining the ISR.** A follower joins if it has reported in its session, does not meet a condition
for leaving, has reached the high watermark, and has all entries that the leader had at its election
(up to the leader's *inherited end*: all entries that earlier leaders may have committed are below
it). Before its first report, its log may not have been truncated to the common part: it could be
elected with entries that no other replica has. A follower that is close behind is *admitted* first:
from then on the high watermark waits for the follower, so that the follower can reach it while
appends continue.

**Surplus entries.** Until its first report in the leader's epoch, even a member of the ISR may have
entries of an earlier leader. If that member is elected next, these entries return. So a transaction
is finished only when all members have reported (:attr:`Progress.all_truncated`): otherwise it could
be open again in a partition where it has its markers, or needs none.

**Order.** Only one proposal at a time is under way. Its outcome is the record after the
compare-and-set, or the other record that was found. While the outcome is unknown, the proposed
members count. A later version of the record ends a proposal too, because the store cannot take it
any more. The outcome of such a proposal may arrive while the next one is under way. It is no
outcome of the next one.

Source: Kafka's Partition (maximal ISR, caught-up time, leader epoch start) and KIP-903.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from typing import Final

from msgspec import Struct

from spark_stream.consistency.control.election import leads
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation
from spark_stream.consistency.replication import promises

GenerationOf = Callable[[BrokerId], Generation | None]
"""The generation in which a broker is registered and alive, or None if it is not alive."""

_NEAR: Final = 16  # a follower is close behind if it lacks nothing older than lag_max_us / this
_MARKS: Final = 64  # the number of append times that are kept within the greatest lag


class IsrSettings(Struct, frozen=True):
    """The settings of a partition's ISR.

    ``min_insync``: with fewer in-sync replicas the high watermark does not move. A partition with
    fewer replicas than that needs all of them. ``lag_max_us``: the greatest age of an entry that a
    member may lack, in microseconds. ``unclean``: a replica that is not in sync may be elected.
    """

    min_insync: int = 1
    lag_max_us: int = 10_000_000
    unclean: bool = False


class _Follower(Struct):
    """A follower in one generation: it has the entries below ``acked``.

    ``reported``: it has reported in its present session. ``was_truncated``: it has reported in some
    session, so its log has been truncated to the common part with the leader's log. ``refuses``:
    its last report was that its log refuses writes. ``promised_until``: the end of its promise not
    to lead, by the leader's monotonic clock (``replication.promises``).
    """

    member: Member
    acked: EntryIndex
    session: int | None = None
    admitted: bool = False
    reported: bool = False
    was_truncated: bool = False
    refuses: bool = False
    promised_until: float = 0.0


class Ages:
    """The append times of a leader's entries: for the last ``span``, to within ``step``."""

    def __init__(self, now: int, span: int) -> None:
        """Start. The entries of the log count as appended now."""
        self.span = span
        self._entries = [0]
        self._times = [now]

    @property
    def step(self) -> int:
        """The error of :meth:`time_of`: an entry may be newer by this much."""
        return self.span // _MARKS

    def on_appended(self, entry: int, now: int) -> None:
        """Record the append of the entry with this index, and perhaps of some after it."""
        if now - self._times[-1] >= self.step:
            self._entries.append(entry)
            self._times.append(now)
            old = bisect_right(self._times, now - self.span - 2 * self.step) - 1
            if old > 0:
                del self._entries[:old], self._times[:old]

    def time_of(self, entry: int) -> int:
        """Return the append time of the entry, or up to a step before it."""
        return self._times[max(0, bisect_right(self._entries, entry) - 1)]


class Progress:
    """A leader's followers, in one epoch. All times are the leader's, in microseconds."""

    def __init__(
        self,
        me: Member,
        record: PartitionRecord,
        version: int,
        inherited_end: EntryIndex,
        settings: IsrSettings,
        generation_of: GenerationOf,
        now: int,
    ) -> None:
        """``record``, at ``version`` in the store, has ``me`` as its leader."""
        if not leads(record, me):
            raise ValueError(f"{me} does not lead by this record: {record}")
        self.me = me
        self.record = record
        self.version = version
        self.inherited_end = inherited_end
        self.settings = settings
        self.proposed: tuple[Member, ...] | None = None
        self._over = False
        self._generation_of = generation_of
        self._followers: dict[Member, _Follower] = {}
        self._sessions: dict[int, _Follower] = {}
        self._ages = Ages(now, settings.lag_max_us)
        self._began = now
        self._find_maximal()

    # -- state ------------------------------------------------------------------------------------

    @property
    def maximal(self) -> tuple[Member, ...]:
        """The members whose reports the high watermark requires, besides the leader."""
        return tuple(each.member for each in self._awaited)

    @property
    def enough(self) -> bool:
        """Whether the ISR is large enough for the high watermark to move."""
        needed = min(self.settings.min_insync, len(self.record.replicas))
        return len(self.record.isr) >= needed

    @property
    def alone(self) -> bool:
        """Whether an entry counts as replicated once the leader has appended it."""
        return not self._awaited and self.enough

    @property
    def all_truncated(self) -> bool:
        """Whether no member of the maximal ISR can have entries that the leader lacks."""
        return all(each.was_truncated for each in self._awaited)

    @property
    def waits(self) -> int:
        """The least number of followers that a record waits for, or 1 if the ISR is too small."""
        return len(self._awaited) or (0 if self.enough else 1)

    def leads_until(self) -> float | None:
        """Return the time until which the leader may continue without its lease, or None."""
        if self.settings.unclean:
            return None
        return promises.leads_until([each.promised_until for each in self._awaited])

    def acked(self, member: Member) -> EntryIndex | None:
        """Return the end of the member's acknowledged entries, or None without a report."""
        found = self._followers.get(member)
        return None if found is None else found.acked

    @property
    def session_numbers(self) -> Collection[int]:
        """The numbers of the open sessions."""
        return self._sessions.keys()

    def sessions(self) -> Iterator[tuple[int, Member, EntryIndex]]:
        """Iterate over the sessions: (number, follower, end of its acknowledged entries)."""
        return ((number, each.member, each.acked) for number, each in self._sessions.items())

    def followers(self) -> dict[BrokerId, EntryIndex]:
        """Return the progress of replicas with a session or in the maximal ISR. For any thread."""
        return {
            each.member.broker: each.acked
            for each in list(self._followers.values())
            if each.session is not None or each in self._awaited
        }

    def replicated(self, log_end: EntryIndex) -> EntryIndex:
        """Return the index below which the maximal ISR has all, or 0 if the ISR is too small."""
        if not self.enough:
            return EntryIndex(0)
        return min((each.acked for each in self._awaited), default=log_end)

    # -- events -----------------------------------------------------------------------------------

    def on_appended(self, entry: int, now: int) -> None:
        """Record that the leader appended this entry, and perhaps some after it."""
        self._ages.on_appended(entry, now)

    def on_started(self, session: int, member: Member, acked: EntryIndex) -> None:
        """Start a follower's session. Its entries below ``acked`` equal the leader's.

        This ends an earlier session of the broker.
        """
        for number, each in list(self._sessions.items()):
            if each.member.broker == member.broker:
                self.on_left(number)
        found = self._followers.get(member)
        if found is None:
            found = self._followers[member] = _Follower(member, acked)
        found.acked = acked
        found.session = session
        found.reported = False
        self._sessions[session] = found
        self._find_maximal()

    def on_reported(self, session: int, acked: EntryIndex) -> bool:
        """Record the follower's entries, those below ``acked``. Return whether it may now join."""
        found = self._sessions.get(session)
        if found is None or (found.reported and acked <= found.acked):
            return False
        found.reported, found.was_truncated, found.refuses = True, True, False
        found.acked = max(found.acked, acked)
        return found.member not in self.record.isr

    def refuses_writes(self, session: int) -> None:
        """Record that the log of this session's follower refuses writes."""
        found = self._sessions.get(session)
        if found is not None:
            found.refuses = True

    def on_promised(self, session: int, until: float) -> None:
        """Record the promise of this session's follower not to lead before ``until``."""
        found = self._sessions.get(session)
        if found is not None:
            found.promised_until = max(found.promised_until, until)

    def on_left(self, session: int) -> None:
        """End the session. Its follower's reports and promises still hold."""
        found = self._sessions.pop(session, None)
        if found is not None:
            found.session = None
            found.admitted = False
            self._find_maximal()

    def end_sessions_of_dead(self) -> None:
        """End the sessions of dead brokers: a returning one must report again before it may join.

        The leader may not have detected the end of its connection, and it may come back without the
        entries that it had reported.
        """
        for number, each in list(self._sessions.items()):
            if self._generation_of(each.member.broker) is None:
                self.on_left(number)

    def on_changed(self, record: PartitionRecord, version: int) -> bool:
        """Adopt the record at this version. Return False if it is not newer or of another leader.

        A record with another leader, or another epoch, ends this leader's epoch. It is not adopted,
        the followers' progress stays as it is, and there are no further proposals.
        """
        if version <= self.version:
            return False
        if not leads(record, self.me) or record.leader_epoch != self.record.leader_epoch:
            self._over = True
            return False
        if record.isr != self.proposed:
            self._forget_moved(record)
        self.record, self.version, self.proposed = record, version, None
        for each in self._followers.values():
            each.admitted = each.admitted and each.member not in record.isr
        self._find_maximal()
        return True

    def _forget_moved(self, record: PartitionRecord) -> None:
        """Remove the sessions of moved replicas after another broker's change of the record.

        A replica that was removed, and perhaps added again by a later change, has lost its log: its
        session no longer counts. A replica that was just added requests a session again.
        """
        for number, each in list(self._sessions.items()):
            broker = each.member.broker
            if broker not in record.replicas or broker in record.adding:
                del self._sessions[number]
                del self._followers[each.member]

    def on_refused(self, proposed_at: int, record: PartitionRecord, version: int) -> None:
        """Drop a finally refused proposal for version ``proposed_at``. The record was this one.

        If that ends this leader's epoch, the proposal still counts: it may have been on record at
        the election of the successor.
        """
        is_present = proposed_at == self.version  # any later version has ended it
        self.on_changed(record, version)
        if is_present and not self._over:
            self.proposed = None
            self._find_maximal()

    def configure(self, settings: IsrSettings) -> None:
        """Adopt the topic's settings."""
        self.settings = settings
        self._ages.span = settings.lag_max_us

    def propose(
        self, high_watermark: EntryIndex, log_end: EntryIndex, now: int
    ) -> tuple[Member, ...] | None:
        """Return the ISR to propose, or None if it is unchanged or a proposal is under way.

        The proposed members count until :meth:`on_changed` or :meth:`on_refused`. Followers that
        are close behind are admitted, and those that fell behind are removed.
        """
        if self.proposed is not None or self._over:
            return None
        reach = max(high_watermark, self.inherited_end)
        members = {
            each.broker: each
            for each in self.record.isr
            if each == self.me or self._stays(each, log_end, now)
        }
        for each in self._sessions.values():
            if each.member in self.record.isr:
                continue  # its place in the ISR is judged above
            each.admitted = self._is_near(each, log_end, now)
            caught_up = each.reported and each.acked >= reach
            if caught_up and self._stays(each.member, log_end, now):
                members[each.member.broker] = each.member
        isr = tuple(members[broker] for broker in self.record.replicas if broker in members)
        if set(isr) != set(self.record.isr):
            self.proposed = isr
        self._find_maximal()
        return self.proposed

    def due(self, log_end: EntryIndex) -> int | None:
        """Return the time at which :meth:`propose` may differ without a report, or None."""
        if self.proposed is not None or self._over:
            return None
        return min(
            (
                since + self._patience(each) + 1
                for each in self._awaited
                if (since := self._behind_since(each, log_end)) is not None
            ),
            default=None,
        )

    # -- the maximal ISR --------------------------------------------------------------------------

    def _is_near(self, follower: _Follower, log_end: EntryIndex, now: int) -> bool:
        """Return whether the high watermark waits for a follower that is not in sync yet."""
        member = follower.member
        if follower.acked < self.inherited_end or member.broker not in self.record.replicas:
            return False
        if self._generation_of(member.broker) != member.generation:
            return False
        near = self.settings.lag_max_us // _NEAR
        within = self._patience(follower) if follower.admitted else near
        return self._lag(follower.acked, log_end, now) <= within

    def _stays(self, member: Member, log_end: EntryIndex, now: int) -> bool:
        if self._generation_of(member.broker) != member.generation:
            return False
        follower = self._followers[member]
        if follower.refuses:
            return False
        behind_since = self._behind_since(follower, log_end)
        return behind_since is None or now - behind_since <= self._patience(follower)

    def _behind_since(self, follower: _Follower, log_end: EntryIndex) -> int | None:
        """Return the time since which a follower lacks an entry or has not reported, or None."""
        if follower.acked < log_end:
            return self._ages.time_of(follower.acked)
        return None if follower.was_truncated else self._began

    def _patience(self, follower: _Follower) -> int:
        """Return the time for which a follower of the maximal ISR may lack an entry."""
        lag = self.settings.lag_max_us
        return (2 * (lag // _NEAR) if follower.admitted else lag) + self._ages.step

    def _lag(self, acked: EntryIndex, log_end: EntryIndex, now: int) -> int:
        """Return the age of the oldest entry that a follower lacks, or 0 if it lacks none."""
        return 0 if acked >= log_end else now - self._ages.time_of(acked)

    def _find_maximal(self) -> None:
        """Find the maximal ISR, and remove followers that are neither in it nor in a session."""
        admitted = [each.member for each in self._followers.values() if each.admitted]
        members = {*self.record.isr, *(self.proposed or ()), *admitted} - {self.me}
        self._followers = {
            member: each
            for member, each in self._followers.items()
            if each.session is not None or member in members
        }
        for member in members - self._followers.keys():
            self._followers[member] = _Follower(member, EntryIndex(0))
        self._awaited = [self._followers[member] for member in sorted(members)]
