"""A member of a consumer group: what it reads, what a broker tells it, and its heartbeats.

The core decides, without I/O; the simulator drives the same one. Its owner applies changes between
two records: first it gives up what it lost, then it stores the positions of what is revoked and
releases that, then it takes what is new and asks where to begin there.

Invariant: each request that stores positions has the epoch that the member knew when it sent it. A
late request is refused if the partition was assigned anew since, even to the same member.
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
"""How often a member asks what it reads. Mostly a broker answers from memory."""
LEAVE_S: Final = 5.0
_RENEWALS: Final = 3  # in a session: it outlives two that come late


class AssignmentChange(NamedTuple):
    """What is to change. ``lost``: already another's, perhaps; ``revoked``: to be released."""

    lost: list[Assigned]
    revoked: list[Assigned]
    added: list[Assigned]


class MembershipCore:
    """What a member reads, and what it was told. Not for use from two threads at once."""

    def __init__(self, member: str) -> None:
        self.member = member
        self.turn = 0
        """How often a seek has moved it."""
        self.reads: dict[Place, Assigned] = {}
        self._epoch = 0
        self._assigned: dict[Place, Assigned] = {}
        self._revoked: set[Assigned] = set()
        self._released: dict[Place, Assigned] = {}
        self.has_changes = False
        """Whether there is something to apply."""

    def on_answer(
        self, epoch: int, assigned: Iterable[Assigned], revoked: Iterable[Assigned]
    ) -> None:
        """Take what a broker answers, unless it is older than what is known."""
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
        self._look_for_changes()

    def changes(self) -> AssignmentChange:
        """Return what is to change. What is revoked before it was read is released at once."""
        self.release([each for each in self._revoked if each.place not in self.reads])
        lost = [each for place, each in self.reads.items() if self._assigned.get(place) != each]
        wanted = self._wanted()
        revoked = [each for each in self._revoked if self.reads.get(each.place) == each]
        added = [each for place, each in wanted.items() if place not in self.reads]
        return AssignmentChange(lost, revoked, added)

    def take(self, added: Iterable[Assigned]) -> None:
        """Read these from now on."""
        self.reads.update({each.place: each for each in added})
        self._look_for_changes()

    def give_up(self, lost: Iterable[Assigned]) -> None:
        """Read these no longer."""
        for each in lost:
            self.reads.pop(each.place, None)
        self._look_for_changes()

    def release(self, revoked: Iterable[Assigned]) -> None:
        """Read these no longer; the next heartbeat says so."""
        for each in revoked:
            self.reads.pop(each.place, None)
            self._released[each.place] = each
        self._look_for_changes()

    @property
    def released(self) -> list[Assigned]:
        """What the next heartbeat gives up."""
        return list(self._released.values())

    @property
    def owner(self) -> Owner:
        """Who stores positions of what it reads."""
        return Owner(self.member, self._epoch, self.turn)

    def _look_for_changes(self) -> None:
        unread = self._revoked - set(self._released.values())
        self.has_changes = bool(unread) or self.reads != self._wanted()

    def _wanted(self) -> dict[Place, Assigned]:
        return {
            place: each
            for place, each in self._assigned.items()
            if each not in self._revoked and place not in self._released
        }


def _untouched(assigned: Assigned) -> Assigned:
    """Return the assignment without the turn, which changes with the positions stored for it."""
    return Assigned(assigned.topic, assigned.topic_id, assigned.partition, assigned.epoch)


class Membership:
    """A consumer's membership of a group. The consumer's thread and the heartbeats share it.

    Heartbeats run on the process's threads for calls. They stop when the consumer was not asked for
    a record for ``processing_s``: then it leaves, and others read on.
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
        """What the group knows that this member can read; None: it has never been a member."""
        self._renewed_at = 0.0
        self._active_at = 0.0
        self._is_over = False
        self._was_idle = False
        self.is_fenced = False
        """Whether the group has removed it; :meth:`join` makes it a member again."""
        self.error: IsologError | None = None
        """Why heartbeats are refused for good."""

    def join(self, topics: Iterable[str]) -> None:
        """Become a new member, which reads these topics, and begin its heartbeats.

        Raises:
            InvalidOption, InvalidRequest, PermissionDenied, …: as the broker answers.
        """
        is_first = self._topics is None
        with self._lock:
            self._core = MembershipCore(uuid.uuid4().hex)
            self._active_at = time.monotonic()
        self._ask_to_join(sorted(topics))
        self.is_fenced = False
        if is_first:
            self._beat_later()

    def read_also(self, topics: Iterable[str]) -> None:
        """Read these topics from now on; those that are new from their first record on.

        It does nothing if these are the group's already, or the group has removed this member.
        """
        wanted = sorted(topics)
        if wanted != self._topics and not self.is_fenced:
            self._ask_to_join(wanted)

    def _ask_to_join(self, topics: list[str]) -> None:
        core, now = self._core, time.monotonic()
        asked = JoinGroup.of(
            consumer=self.group,
            member=core.member,
            topics=topics,
            session_ms=round(1_000 * self._session_s),
            isolation=self._isolation,
        )
        self._take_answer(core, self._connection.call(asked))
        self._topics, self._renewed_at = topics, now

    # -- for the consumer's thread ----------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether :meth:`changes` may have some, or it is fenced, or its heartbeats are refused."""
        return self._core.has_changes or self.is_fenced or self.error is not None

    def note_active(self) -> None:
        """Note that the consumer is asked for records."""
        self._active_at = time.monotonic()

    def changes(self) -> AssignmentChange:
        """As :meth:`MembershipCore.changes`."""
        with self._lock:
            return self._core.changes()

    def ask_where_to_begin(self, added: list[Assigned], timeout_s: float) -> TakenPartitions:
        """Return where to begin in partitions; raise ConsumerFenced if they are another's."""
        asked = TakePartitions(consumer=self.group, member=self._core.member, assigned=added)
        return self._connection.call(asked, timeout_s)

    def take(self, added: list[Assigned]) -> None:
        """As :meth:`MembershipCore.take`."""
        with self._lock:
            self._core.take(added)

    def release(self, revoked: list[Assigned]) -> None:
        """Give partitions up, whose positions are stored."""
        with self._lock:
            self._core.release(revoked)
        self.beat_soon()

    def give_up(self, lost: list[Assigned]) -> None:
        """As :meth:`MembershipCore.give_up`."""
        with self._lock:
            self._core.give_up(lost)

    def note_seek(self) -> None:
        """Note that positions may move back."""
        with self._lock:
            self._core.turn += 1

    @property
    def owner(self) -> str:
        """Who stores positions, as a text."""
        with self._lock:
            return str(self._core.owner)

    def leave(self, *, hangs: bool = False) -> None:
        """Leave the group, unless a broker does not answer: then the session ends by itself.

        ``hangs``: the program no longer requests records, or has failed.
        """
        self.is_fenced = True
        asked = LeaveGroup(consumer=self.group, member=self._core.member, hangs=hangs)
        try:
            self._connection.call(asked, min(LEAVE_S, self._timeout_s))
        except IsologError as error:
            logger.warning("cannot leave the group %r in order: %s", self.group, error)

    def end(self) -> None:
        """End the heartbeats."""
        self._is_over = True

    # -- heartbeats -------------------------------------------------------------------------------

    def beat_soon(self) -> None:
        """Ask now, not in a moment: there is something to tell."""
        call_elsewhere(self._key, weakly(self._beat))

    @property
    def _key(self) -> tuple[str, int]:
        return "group", id(self)

    def _beat_later(self) -> None:
        client_loop().call_later(self._beat_s, weakly(self._begin_beat))

    def _begin_beat(self) -> None:
        if not self._is_over:
            call_elsewhere(self._key, weakly(self._beat_and_go_on))

    def _beat_and_go_on(self) -> None:
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
                "the consumer of group %r was not asked for records for %g s: it leaves, and other"
                " members read its partitions",
                self.group,
                self._processing_s,
            )
            self.leave(hangs=True)
            return
        with self._lock:
            core, released = self._core, self._core.released
        renew = now - self._renewed_at >= self._session_s / _RENEWALS
        asked = GroupHeartbeat(
            consumer=self.group, member=core.member, released=released, renew=renew
        )
        try:
            found = self._connection.call(asked, self._timeout_s)
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
        """Report that the program requests no records, and that it does again."""
        idle_s = now - self._active_at
        is_idle = idle_s >= self._session_s / _RENEWALS
        if not (is_idle or self._was_idle):
            return
        self._was_idle = is_idle
        asked = ReaderHeartbeat(
            consumer=self.group,
            kind="group",
            instance=member,
            session_ms=round(1_000 * self._session_s),
            isolation=self._isolation,
            idle_ms=round(1_000 * idle_s) if is_idle else 0,
        )
        with suppress(IsologError):  # it is for people who watch
            self._connection.call(asked, self._timeout_s)

    def _take_answer(self, core: MembershipCore, found: MemberAnswer) -> None:
        with self._lock:
            core.on_answer(found.epoch, found.assigned, found.revoked)
