"""A member of a consumer group: what it reads, what a broker tells it, and its heartbeats.

The core decides, without I/O; the simulator drives the same one. Its owner applies changes between
two records: first it gives up what it lost, then it stores the positions of what is revoked and
releases that, then it takes what is new and asks where to begin there.

Invariant: a member stores positions as the owner that it was when it applied the changes which it
knows. So if a partition was another's for a while, and is this member's again, what it read before
is not stored after what the other has read.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from spark_stream.client.connecting.calls import call_elsewhere
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.consistency.groups import Assigned, Owner, Place
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import ConsumerFenced, IsologError
from spark_stream.transport.client import client_loop
from spark_stream.wire.consumer_messages import (
    GroupAnswer,
    GroupHeartbeat,
    JoinGroup,
    OfMember,
    TakenPartitions,
    TakePartitions,
)
from spark_stream.wire.messages import Empty

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
"""How often a member asks what it reads. Mostly a broker answers from memory."""
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
        self._told_epoch = 0
        self._applied_epoch = 0
        self._assigned: dict[Place, Assigned] = {}
        self._revoked: set[Assigned] = set()
        self._released: dict[Place, Assigned] = {}
        self.has_changes = False
        """Whether there is something to apply."""

    def on_answer(
        self, epoch: int, assigned: Iterable[Assigned], revoked: Iterable[Assigned]
    ) -> None:
        """Take what a broker answers, unless it is older than what is known."""
        if epoch < self._told_epoch:
            return
        self._told_epoch = epoch
        self._assigned = {each.place: _untouched(each) for each in assigned}
        self._revoked = {_untouched(each) for each in revoked}
        self._released = {
            place: each
            for place, each in self._released.items()
            if self._assigned.get(place) == each
        }
        self._look_for_changes()

    def changes(self) -> AssignmentChange:
        """Give up what is lost, and return what is to change."""
        self._applied_epoch = self._told_epoch
        lost = [each for place, each in self.reads.items() if self._assigned.get(place) != each]
        for each in lost:
            del self.reads[each.place]
        wanted = self._wanted()
        revoked = [each for place, each in self.reads.items() if place not in wanted]
        unread = [each for each in self._revoked if each.place not in self.reads]
        self.release(unread)
        added = [each for place, each in wanted.items() if place not in self.reads]
        self._look_for_changes()
        return AssignmentChange(lost, revoked, added)

    def take(self, added: Iterable[Assigned]) -> None:
        """Read these from now on."""
        self.reads.update({each.place: each for each in added})
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
        return Owner(self.member, self._applied_epoch, self.turn)

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
