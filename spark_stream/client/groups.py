"""A member of a consumer group: its assignment, rebalances, and its heartbeats.

The core decides, without I/O, and the simulator drives the same core. Its owner applies the changes
of a rebalance between two records. First it gives up lost partitions. Then it stores the positions
of revoked ones and releases them. Then it takes new ones and requests their first offsets.

Invariant: each request that stores positions has the member's epoch at the time of sending. A late
request is refused if the partition was assigned again since, even to the same member.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.threads import call_elsewhere, weakly
from spark_stream.consistency.groups import Assigned, MemberAnswer, Owner, Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import ConsumerFenced, IsologError
from spark_stream.loggers import logger_of
from spark_stream.transport.client import client_loop
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.consumer_messages import (
    GroupHeartbeat,
    JoinGroup,
    LeaveGroup,
    ReaderHeartbeat,
    TakenPartitions,
    TakePartitions,
)

logger = logger_of(__name__)

BEAT_S: Final = 1.0
"""The interval of heartbeats. Usually a broker answers them from memory."""
LEAVE_S: Final = 5.0
_RENEWALS: Final = 3  # in a session, which outlives two late ones


class AssignmentChange(NamedTuple):
    """The changes of a rebalance. ``lost``: may belong to another. ``revoked``: to release."""

    lost: list[Assigned]
    revoked: list[Assigned]
    added: list[Assigned]


class MembershipCore:
    """The state of a member: its assigned and its read partitions. Not thread-safe."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.turn = 0
        """The number of its seeks."""
        self.reads: dict[Place, Assigned] = {}
        self._epoch = 0
        self._assigned: dict[Place, Assigned] = {}
        self._revoked: set[Assigned] = set()
        self._released: dict[Place, Assigned] = {}
        self.has_changes = False
        """Whether :meth:`changes` has changes."""

    def on_answer(
        self, epoch: int, assigned: Iterable[Assigned], revoked: Iterable[Assigned]
    ) -> None:
        """Record a broker's answer, unless it is older than an earlier one."""
        if epoch < self._epoch:
            return
        self._epoch = epoch
        self._assigned = {each.place: _untouched(each) for each in assigned}
        self._revoked = {_untouched(each) for each in revoked}
        self._released = {
            place: each
            for place, each in self._released.items()
            if self._assigned.get(place) == each
        }
        self._update_has_changes()

    def changes(self) -> AssignmentChange:
        """Return the pending changes. Release revoked partitions that were not read yet."""
        self.release([each for each in self._revoked if each.place not in self.reads])
        lost = [each for place, each in self.reads.items() if self._assigned.get(place) != each]
        wanted = self._wanted()
        revoked = [each for each in self._revoked if self.reads.get(each.place) == each]
        added = [each for place, each in wanted.items() if place not in self.reads]
        return AssignmentChange(lost, revoked, added)

    def take(self, added: Iterable[Assigned]) -> None:
        """Begin to read these partitions."""
        self.reads.update({each.place: each for each in added})
        self._update_has_changes()

    def give_up(self, lost: Iterable[Assigned]) -> None:
        """Stop reading these partitions."""
        for each in lost:
            self.reads.pop(each.place, None)
        self._update_has_changes()

    def release(self, revoked: Iterable[Assigned]) -> None:
        """Stop reading these partitions. The next heartbeat releases them."""
        for each in revoked:
            self.reads.pop(each.place, None)
            self._released[each.place] = each
        self._update_has_changes()

    @property
    def released(self) -> list[Assigned]:
        """The partitions that the next heartbeat releases."""
        return list(self._released.values())

    @property
    def owner(self) -> Owner:
        """The owner that brokers require for positions of this member."""
        return Owner(self.member, self._epoch, self.turn)

    def _update_has_changes(self) -> None:
        unread = self._revoked - set(self._released.values())
        self.has_changes = bool(unread) or self.reads != self._wanted()

    def _wanted(self) -> dict[Place, Assigned]:
        return {
            place: each
            for place, each in self._assigned.items()
            if each not in self._revoked and place not in self._released
        }


def _untouched(assigned: Assigned) -> Assigned:
    """Return the assignment without the turn, which changes when positions are stored."""
    return Assigned(assigned.topic, assigned.topic_id, assigned.partition, assigned.epoch)


class Membership:
    """A consumer's membership of a group, shared by the consumer's thread and the heartbeats.

    Heartbeats run on the process's threads for calls. If the program requests no record for
    ``processing_s`` seconds, the member leaves, and others read its partitions.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        group: str,
        isolation: Isolation,
        session_s: float,
        processing_s: float,
    ) -> None:
        self.group = group
        self._connection = connection
        self._isolation = isolation
        self._session_s = session_s
        self._processing_s = processing_s
        self._beat_s = min(BEAT_S, session_s / _RENEWALS)
        self._timeout_s = min(session_s, connection.timeout_s)
        self._lock = new_lock()
        self._core = MembershipCore(uuid.uuid4().hex)
        self._topics: list[str] | None = None
        """The topics that were sent to the group. None before the first :meth:`join`."""
        self._renewed_at = 0.0
        self._active_at = 0.0
        self._is_over = False
        self._was_idle = False
        self.is_fenced = False
        """Whether the group has removed this member. :meth:`join` makes it a member again."""
        self.error: IsologError | None = None
        """The final error of the heartbeats, or None."""

    def join(self, topics: Iterable[str]) -> None:
        """Join the group as a new member for these topics, and start its heartbeats.

        Raises:
            InvalidOption, InvalidRequest, PermissionDenied, …: The broker refuses it.
        """
        is_first = self._topics is None
        with self._lock:
            self._core = MembershipCore(uuid.uuid4().hex)
            self._active_at = time.monotonic()
        self._send_join(sorted(topics))
        self.is_fenced = False
        if is_first:
            self._beat_later()

    def read_also(self, topics: Iterable[str]) -> None:
        """Add topics to the subscription. New ones are read from their first record.

        This has no effect if the group has them, or has removed this member.
        """
        wanted = sorted(topics)
        if wanted != self._topics and not self.is_fenced:
            self._send_join(wanted)

    def _send_join(self, topics: list[str]) -> None:
        core, now = self._core, time.monotonic()
        request = JoinGroup.of(
            consumer=self.group,
            member=core.member,
            topics=topics,
            session_ms=round(1_000 * self._session_s),
            isolation=self._isolation,
        )
        self._take_answer(core, self._connection.call(request))
        self._topics, self._renewed_at = topics, now

    # -- for the consumer's thread ----------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there may be changes, or the member is fenced, or its heartbeats are refused."""
        return self._core.has_changes or self.is_fenced or self.error is not None

    def record_activity(self) -> None:
        """Record that the program requests records."""
        self._active_at = time.monotonic()

    def changes(self) -> AssignmentChange:
        """Return the pending changes, as :meth:`MembershipCore.changes`."""
        with self._lock:
            return self._core.changes()

    def first_offsets(self, added: list[Assigned], timeout_s: float) -> TakenPartitions:
        """Return the first offsets. Raise ConsumerFenced if another member has a partition."""
        request = TakePartitions(consumer=self.group, member=self._core.member, assigned=added)
        return self._connection.call(request, timeout_s)

    def take(self, added: list[Assigned]) -> None:
        """Begin to read partitions, as :meth:`MembershipCore.take`."""
        with self._lock:
            self._core.take(added)

    def release(self, revoked: list[Assigned]) -> None:
        """Release partitions whose positions are stored, and send a heartbeat."""
        with self._lock:
            self._core.release(revoked)
        self.beat_soon()

    def give_up(self, lost: list[Assigned]) -> None:
        """Stop reading lost partitions, as :meth:`MembershipCore.give_up`."""
        with self._lock:
            self._core.give_up(lost)

    def record_seek(self) -> None:
        """Record a seek, after which positions may move back."""
        with self._lock:
            self._core.turn += 1

    @property
    def owner(self) -> str:
        """The owner that brokers require for positions, as a text."""
        with self._lock:
            return str(self._core.owner)

    def leave(self, *, hangs: bool = False) -> None:
        """Leave the group. If no broker answers, the session expires later.

        ``hangs``: the program has stopped requesting records, or has failed.
        """
        self.is_fenced = True
        request = LeaveGroup(consumer=self.group, member=self._core.member, hangs=hangs)
        try:
            self._connection.call(request, min(LEAVE_S, self._timeout_s))
        except IsologError as error:
            logger.warning(
                "cannot leave the group %r before its session expires: %s", self.group, error
            )

    def end(self) -> None:
        """End the heartbeats."""
        self._is_over = True

    # -- heartbeats -------------------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Send a heartbeat without waiting for its time."""
        call_elsewhere(self._key, weakly(self._beat))

    @property
    def _key(self) -> tuple[str, int]:
        return "group", id(self)

    def _beat_later(self) -> None:
        client_loop().call_later(self._beat_s, weakly(self._begin_beat))

    def _begin_beat(self) -> None:
        if not self._is_over:
            call_elsewhere(self._key, weakly(self._beat_and_schedule))

    def _beat_and_schedule(self) -> None:
        try:
            self._beat()
        finally:
            if not self._is_over:
                self._beat_later()

    def _beat(self) -> None:
        if self._is_over or self.is_fenced:
            return
        now = time.monotonic()
        if now - self._active_at > self._processing_s:
            logger.warning(
                "leaving the group %r: the program requested no records for %g s",
                self.group,
                self._processing_s,
            )
            self.leave(hangs=True)
            return
        with self._lock:
            core, released = self._core, self._core.released
        renew = now - self._renewed_at >= self._session_s / _RENEWALS
        request = GroupHeartbeat(
            consumer=self.group, member=core.member, released=released, renew=renew
        )
        try:
            found = self._connection.call(request, self._timeout_s)
        except ConsumerFenced:
            self.is_fenced |= core is self._core
        except IsologError as error:
            if not error.retriable:
                self.error = error
        else:
            if renew:
                self._renewed_at = now
            self._take_answer(core, found)
        if renew:
            self._report_idle(core.member, now)

    def _report_idle(self, member: str, now: float) -> None:
        """Report that the program has stopped or resumed its requests for records."""
        idle_s = now - self._active_at
        is_idle = idle_s >= self._session_s / _RENEWALS
        if not (is_idle or self._was_idle):
            return
        self._was_idle = is_idle
        request = ReaderHeartbeat(
            consumer=self.group,
            kind="group",
            instance=member,
            session_ms=round(1_000 * self._session_s),
            isolation=self._isolation,
            idle_ms=round(1_000 * idle_s) if is_idle else 0,
        )
        with suppress(IsologError):  # it is only for monitoring
            self._connection.call(request, self._timeout_s)

    def _take_answer(self, core: MembershipCore, found: MemberAnswer) -> None:
        with self._lock:
            core.on_answer(found.epoch, found.assigned, found.revoked)
