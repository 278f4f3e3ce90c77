"""Streams of replication, and the connections under them."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from spark_stream.broker.replication.follower_core import (
    Begin,
    FollowerState,
    FollowerStreamCore,
    Following,
    HangUp,
    Job,
)
from spark_stream.broker.replication.leader_core import LeaderStreamCore, SendQueue, Slot
from spark_stream.broker.replication.leader_stream import LeaderStream
from spark_stream.consistency.ids import EntryIndex
from spark_stream.protocol import Connection
from spark_stream.protocol.connection import data_bytes
from spark_stream.wire.replication_messages import Acked, Frame
from tests.simulation.planted_bugs.planting import Patch, bug

# -- followers ------------------------------------------------------------------------------------


@bug
def a_frame_is_acknowledged_before_it_is_appended(patch: Patch) -> None:
    original = FollowerStreamCore._take

    def take(self: Any, number: int, what: Any, now: float) -> None:
        original(self, number, what, now)
        if isinstance(what, Frame) and number in self._slots:
            self._send(Acked(((number, what.end),)))

    patch.setattr(FollowerStreamCore, "_take", take)


@bug
def a_failed_append_is_acknowledged(patch: Patch) -> None:
    original = FollowerStreamCore.on_failed

    def failed(self: Any, job: Job, error: Any, now: float) -> None:
        if isinstance(job.what, Frame):
            self.on_done(job, EntryIndex(job.what.end), now)
        else:
            original(self, job, error, now)

    patch.setattr(FollowerStreamCore, "on_failed", failed)


@bug
def work_of_a_partition_is_done_in_any_order(patch: Patch) -> None:
    def do(self: Any, job: Job) -> None:
        job.following.is_at_work = True
        self.at_work += 1
        self._effects.append(job)

    patch.setattr(FollowerStreamCore, "_do", do)


@bug
def a_session_that_failed_is_not_begun_again(patch: Patch) -> None:
    original = FollowerStreamCore._pause

    def pause(self: Any, following: Following, now: float) -> None:
        original(self, following, now)
        self._waiting.clear()

    patch.setattr(FollowerStreamCore, "_pause", pause)


@bug
def sessions_outlive_their_stream(patch: Patch) -> None:
    def lost(self: Any, error: Any, now: float) -> None:
        if self.is_connected:
            self._state, self._retry_at = FollowerState.RESTING, now + self._pause_s
            self._effects.append(HangUp())

    patch.setattr(FollowerStreamCore, "on_lost", lost)


@bug
def a_follower_tells_nothing_of_what_it_holds(patch: Patch) -> None:
    """Its leader counts it as having all of the leader's entries."""
    original = FollowerStreamCore.on_done

    def done(self: Any, job: Job, result: Any, now: float) -> None:
        if isinstance(job.what, Begin):
            result = msgspec.structs.replace(
                result, epochs=((int(job.following.partition.epoch), 0),)
            )
        original(self, job, result, now)

    patch.setattr(FollowerStreamCore, "on_done", done)


# -- leaders --------------------------------------------------------------------------------------


@bug
def what_is_sent_counts_as_acknowledged(patch: Patch) -> None:
    original = LeaderStream._take_turn

    def take_turn(self: Any, slot: Slot) -> bool:
        goes_on = original(self, slot)
        slot.session.on_acked(EntryIndex(slot.next))
        return goes_on

    patch.setattr(LeaderStream, "_take_turn", take_turn)


@bug
def an_acknowledgement_counts_for_one_entry_more(patch: Patch) -> None:
    original = LeaderStreamCore._take_acks

    def take(self: Any, message: Acked) -> Any:
        more = []
        for number, entry in message.entries:
            slot = self._queue.get(number)
            more.append((number, entry if slot is None else min(entry + 1, int(slot.next))))
        return original(self, Acked(tuple(more)))

    patch.setattr(LeaderStreamCore, "_take_acks", take)


@bug
def an_acknowledgement_counts_for_every_slot(patch: Patch) -> None:
    original = LeaderStreamCore._take_acks

    def take(self: Any, message: Acked) -> Any:
        (_, entry), *_ = message.entries
        told = tuple((each.number, min(entry, int(each.next))) for each in self._queue)
        return original(self, Acked(told))

    patch.setattr(LeaderStreamCore, "_take_acks", take)


@bug
def news_that_comes_while_a_slot_waits_is_forgotten(patch: Patch) -> None:
    def acked(self: Any, slot: Slot, entry: EntryIndex) -> None:
        while slot.unacked and slot.unacked[0][0] <= entry:
            _, size, was_behind = slot.unacked.popleft()
            slot.unacked_bytes -= size
            self._count(-size, was_behind)

    patch.setattr(SendQueue, "on_acked", acked)


# -- connections ----------------------------------------------------------------------------------


@bug
def credit_is_not_given_back(patch: Patch) -> None:
    patch.setattr(Connection, "grant_credit", lambda self, stream, size: None)


@bug
def credit_is_counted_twice(patch: Patch) -> None:
    original = Connection.send

    def send(self: Any, stream: int, header: Any, body: Any = b"", *, end: bool = False) -> None:
        original(self, stream, header, body, end=end)
        if stream in self._streams:
            self._streams[stream].credit -= data_bytes(header, body)

    patch.setattr(Connection, "send", send)


@bug
def a_frame_of_a_stream_is_lost(patch: Patch) -> None:
    """Each fifth, with any content."""
    original = Connection._data
    counts = itertools.count()

    def data(self: Any, frame: Any) -> Any:
        found = original(self, frame)
        return None if next(counts) % 5 == 4 else found

    patch.setattr(Connection, "_data", data)


@bug
def an_error_on_a_stream_is_not_told(patch: Patch) -> None:
    def fail(self: Any, stream: int, error: bytes) -> None:
        self._drop(stream)

    patch.setattr(Connection, "fail", fail)


@bug
def a_frame_that_is_larger_than_its_credit_never_passes(patch: Patch) -> None:
    def may_send(self: Any, stream: int) -> bool:
        found = self._streams.get(stream)
        return found is not None and found.sends and found.credit > 256

    patch.setattr(Connection, "may_send", may_send)
