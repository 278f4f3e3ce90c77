"""The rules of the leader's end of a replication stream: no thread, lock, clock or socket.

The shell (``leader_stream``) passes in the follower's messages (:meth:`LeaderStreamCore.take`), the
partitions' notifications, and the time, and carries out one step after the other. Calls of sessions
are returned to the shell, which makes them in order and without its lock.

=============  ==================================================  ===========================
state          event                                               next state
=============  ==================================================  ===========================
open           Follow, Acked, Unfollow, Room, Beat, Promised,      open
               frames, notifications
open           ``end``                                             ending: Bye, then STREAM_END
open, ending   ``close``: the stream is lost or has failed         over: no more messages
=============  ==================================================  ===========================

A slot is *requested* (Follow), then *starting* (its session is being opened), then *sending*, until
Unfollow, a refusal, or the stream's end. Its number is never used again.

Invariants:

* The welcome is the first message.
* ``Agreed`` of a slot is sent before its first frame, and after ``Refused`` it has no more frames.
  A frame begins at the end of the previous one, and the first frame at the end of the part that
  both logs share.
* An acknowledgement counts only for a sending slot, and for entries that were sent.
* A promise counts for the slots that are sending on its arrival.
* The bytes in flight stay within the limits of :class:`SendQueue`.
* Every started session is closed after the end of its slot or of the stream.
* A high watermark that no frame has carried is sent ``HIGH_WATERMARK_LINGER_S`` later.

Order of the steps: messages, the end, sessions to start, due high watermarks, frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, assert_never

from spark_stream.broker.replication.interfaces import LeaderSession
from spark_stream.broker.replication.settings import (
    BEHIND_SHARE,
    HIGH_WATERMARK_LINGER_S,
    SLOWEST_LINE,
    ReplicationSettings,
)
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.replication.promises import holds_until
from spark_stream.errors import BrokerUnavailable, InvalidRequest, IsologError
from spark_stream.protocol import Bytes
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    AskPromise,
    Beat,
    Bye,
    Follow,
    Frame,
    HighWatermarks,
    Promised,
    Refused,
    Room,
    Said,
    Unfollow,
    Welcome,
)


class Slot:
    """The leader's state of one session on the stream."""

    def __init__(
        self, number: int, epoch: int, session: LeaderSession, *, is_behind: bool = False
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.session = session
        self.next = session.agreement.entry
        self.high_watermark_sent = session.agreement.high_watermark
        self.has_changes = False
        self.is_behind = is_behind
        self.is_queued = False
        self.unacked_bytes = 0
        self.unacked: deque[tuple[EntryIndex, int, bool]] = deque()  # end, bytes, was behind


class SendQueue:
    """The slots of one stream, the bytes that each has in flight, and the order of sending.

    Slots with entries to send take turns. Slots that are *behind* (their last frame did not reach
    the log's end) are in a separate queue. The two queues alternate, and within a queue the slots
    take turns. There are three limits of unacknowledged bytes:

    * The stream's limit is the window that the follower has granted.
    * All slots that are behind share a fraction of the window, so that a catch-up leaves room for
      live records and puts few bytes ahead of them on the line.
    * Each slot has the same fraction, so that a partition whose follower does not append delays no
      other.

    Within each limit one frame of any size is always allowed.

    The queue never calls a session. Such a call takes the partition's lock, and a notification
    takes the stream's lock under the partition's, so the two could deadlock.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.unacked_bytes = 0
        self._behind_bytes = 0
        self._slots: dict[int, Slot] = {}
        self._live: deque[Slot] = deque()
        self._behind: deque[Slot] = deque()
        self._behind_is_next = False

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def get(self, number: int) -> Slot | None:
        """Return the slot of this number, if it has not ended."""
        return self._slots.get(number)

    def add(self, slot: Slot) -> None:
        """Add a session's slot, which may have entries to send."""
        self._slots[slot.number] = slot
        self.on_change(slot)

    def remove(self, number: int) -> Slot | None:
        """Remove a session's slot, and its bytes in flight from the limits."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            for _, size, was_behind in slot.unacked:
                self._count(-size, was_behind)
            slot.unacked.clear()
        return slot

    def on_change(self, slot: Slot) -> None:
        """Queue a slot that may have entries to send."""
        slot.has_changes = True
        self._queue(slot)

    def can_send(self) -> bool:
        """Return whether a slot may send now."""
        return self._queue_of_turn() is not None

    def next_slot(self) -> Slot | None:
        """Remove the next slot from its queue, clear its notification, and return it."""
        while (queue := self._queue_of_turn()) is not None:
            slot = queue.popleft()
            slot.is_queued = False
            if slot.number not in self._slots:
                continue
            self._behind_is_next = queue is self._live
            slot.has_changes = False
            return slot
        return None

    def on_sent(self, slot: Slot, end: EntryIndex, size: int, *, is_behind: bool) -> None:
        """Count a frame in flight, up to entry ``end``. ``is_behind``: the log has more entries."""
        if slot.number not in self._slots:
            return
        slot.next = end
        slot.unacked.append((end, size, slot.is_behind))
        slot.unacked_bytes += size
        self._count(size, slot.is_behind)
        slot.is_behind = is_behind
        if is_behind:
            self.on_change(slot)
        elif slot.has_changes:
            self._queue(slot)

    def on_acked(self, slot: Slot, entry: EntryIndex) -> None:
        """Remove the acknowledged frames, which end at or below this entry, from the limits."""
        while slot.unacked and slot.unacked[0][0] <= entry:
            _, size, was_behind = slot.unacked.popleft()
            slot.unacked_bytes -= size
            self._count(-size, was_behind)
        if slot.has_changes:
            self._queue(slot)

    @property
    def _share(self) -> int:
        return max(1, self.window_bytes // BEHIND_SHARE)

    def _count(self, size: int, behind: bool) -> None:
        self.unacked_bytes += size
        if behind:
            self._behind_bytes += size

    def _queue(self, slot: Slot) -> None:
        if slot.is_queued or slot.number not in self._slots or slot.unacked_bytes >= self._share:
            return
        slot.is_queued = True
        (self._behind if slot.is_behind else self._live).append(slot)

    def _queue_of_turn(self) -> deque[Slot] | None:
        if self.unacked_bytes >= self.window_bytes:
            return None
        behind = self._behind if self._behind_bytes < self._share else None
        first, second = (behind, self._live) if self._behind_is_next else (self._live, behind)
        return first or second or None


Call = tuple[Callable[..., None], tuple[object, ...]]
"""A call of a session's method, with its arguments."""
Sent = tuple[bytes, Bytes]
"""A packed message: the header and the body of its frame."""


class StreamEnd(Enum):
    """The last step of a stream."""

    STREAM_END = "end"


STREAM_END: Final = StreamEnd.STREAM_END
Step = bytes | Follow | tuple[Slot, ...] | Slot | StreamEnd
"""Send a message, start a session, send high watermarks, read and send a frame, or end."""


class LeaderStreamCore:
    """The leader's end of one follower's stream, for all partitions that the follower has here."""

    def __init__(
        self, window_bytes: int, welcome: Welcome, settings: ReplicationSettings, now: float
    ) -> None:
        self._settings = settings
        self._queue = SendQueue(window_bytes)
        self._outbox: deque[bytes] = deque((welcome.pack(),))
        self._requested: deque[Follow] = deque()
        self._starting: set[int] = set()
        self._moved: dict[int, Slot] = {}  # slots with a new high watermark to send
        self._moved_at = now  # the time of the first of them
        self._report_at: float | None = None  # the time of their next check
        self._received_at = self._ticked_at = self._beat_at = now
        self._ending = False
        self._over = False

    # -- events ----------------------------------------------------------------------------------

    def take(self, message: Said, now: float) -> list[Call]:
        """Handle a message of the follower. Return the resulting calls of sessions.

        Raises:
            InvalidRequest: the message is invalid.
        """
        self._received_at = now
        match message:
            case Acked():
                return self._take_acks(message)
            case Follow():
                self._ask(message)
            case Unfollow():
                return self._take_unfollow(message)
            case Promised():
                if message.asked_at > now:
                    raise InvalidRequest("the follower sent an unsolicited promise")
                until = holds_until(message.asked_at, message.lasts_s)
                return [(slot.session.on_promised, (until,)) for slot in self._queue]
            case Room():
                self._queue.window_bytes = message.window_bytes
            case Beat():
                pass
            case (
                Welcome() | Agreed() | Frame() | HighWatermarks() | Refused() | Bye() | AskPromise()
            ):
                raise InvalidRequest(f"a follower must not send {type(message).__name__}")
            case _:
                assert_never(message)
        return []

    def on_change(self, number: int, now: float, *, is_urgent: bool) -> None:
        """Record new entries (urgent) or a new high watermark of a slot."""
        slot = self._queue.get(number)
        if slot is None or slot.has_changes:
            return
        if is_urgent:
            self._queue.on_change(slot)
            return
        if not self._moved:
            self._moved_at = now
        self._moved[number] = slot
        if self._report_at is None:
            self._report_at = now + HIGH_WATERMARK_LINGER_S

    def tick(self, now: float, promise_s: float | None = None) -> None:
        """Check the follower's silence and send heartbeats. Call this every :attr:`tick_s`.

        A late call checks nothing: this process was paused, and the follower's messages may wait to
        be received. ``promise_s`` is the time for which the follower should promise not to lead.
        None: no promise is needed.

        Raises:
            BrokerUnavailable: the follower has been silent for too long.
        """
        is_late, self._ticked_at = now - self._ticked_at > 3 * self.tick_s, now
        silent_s = now - self._received_at
        if is_late:
            return
        if silent_s > self.silence_s:
            raise BrokerUnavailable(f"sent no heartbeat for {silent_s:.1f} s")
        if promise_s is not None and not self._ending:
            self._outbox.append(AskPromise(now, promise_s).pack())
        if silent_s >= self.tick_s and now - self._beat_at >= self._settings.beat_s:
            self._beat_at = now
            self._outbox.append(Beat().pack())

    def end(self) -> None:
        """End the stream after a last message to the follower."""
        if not self._ending:
            self._ending = True
            self._outbox.append(Bye().pack())

    def close(self) -> list[Call]:
        """Drop all work of a stream that has ended. Return the calls that close its sessions."""
        self._ending = self._over = True
        self._outbox.clear()
        self._requested.clear()
        self._starting.clear()
        return [call for slot in list(self._queue) for call in self._end_slot(slot.number)]

    # -- steps -----------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """The allowed silence of the follower, with the time to receive the bytes in flight."""
        return self._settings.death_s + self._queue.unacked_bytes / SLOWEST_LINE

    @property
    def tick_s(self) -> float:
        """The seconds between two calls of :meth:`tick`."""
        return self._settings.beat_s / 2

    @property
    def unacked_bytes(self) -> int:
        """The bytes in flight, or not yet appended."""
        return self._queue.unacked_bytes

    @property
    def report_at(self) -> float | None:
        """The time of the next step without any event. None: there is none."""
        return self._report_at

    def has_step(self, now: float) -> bool:
        """Return whether there is a step to do."""
        if self._over:
            return False
        is_due = self._report_at is not None and now >= self._report_at
        return bool(
            self._outbox or self._ending or self._requested or is_due or self._queue.can_send()
        )

    def next_step(self, now: float) -> Step | None:
        """Remove and return the next step. None: there is none now."""
        if self._over:
            return None
        if self._outbox:
            return self._outbox.popleft()
        if self._ending:
            self._over = True
            return STREAM_END
        if self._requested:
            return self._requested.popleft()
        if self._report_at is not None and now >= self._report_at:
            due_at = self._moved_at + HIGH_WATERMARK_LINGER_S
            self._report_at = due_at if self._moved and due_at > now else None
            if self._moved and self._report_at is None:
                moved, self._moved = tuple(self._moved.values()), {}
                return moved
        slot = self._queue.next_slot()
        if slot is not None:
            # The frame is read after this, so it carries the high watermarks recorded so far. One
            # that is recorded during the read may be missing from it.
            self._moved.pop(slot.number, None)
        return slot

    # -- results ---------------------------------------------------------------------------------

    def session_started(self, number: int, epoch: int, session: LeaderSession) -> bool:
        """Begin to send on a slot. Return False if it has ended: then close the session."""
        if number not in self._starting or self._ending:
            return False
        self._starting.discard(number)
        agreement = session.agreement
        reset = None if agreement.begin is None else int(agreement.begin.offset)
        agreed = Agreed(number, agreement.entry, reset, agreement.high_watermark)
        self._outbox.append(agreed.pack())
        is_behind = session.end > agreement.entry
        self._queue.add(Slot(number, epoch, session, is_behind=is_behind))
        return True

    def refuse(self, number: int, error: IsologError) -> list[Call]:
        """End a slot whose session has failed."""
        self._starting.discard(number)
        if not self._over:
            self._outbox.append(Refused(number, error).pack())
        return self._end_slot(number)

    def frame(
        self,
        slot: Slot,
        found: StoredEntries | None,
        high_watermark: EntryIndex,
        end: EntryIndex,
        now: float,
    ) -> Sent | None:
        """Return the frame of a turn. None: there are no entries, or the slot has ended.

        ``end`` is the log's end.
        """
        if self._queue.get(slot.number) is not slot:
            return None
        if found is None:
            self.on_change(slot.number, now, is_urgent=False)  # the high watermark may have moved
            return None
        frame = Frame(slot.number, slot.epoch, slot.next, high_watermark, found.rows, found.data)
        slot.high_watermark_sent = high_watermark
        self._queue.on_sent(slot, EntryIndex(frame.end), frame.size, is_behind=end > frame.end)
        return frame.pack()

    def high_watermarks(self, found: list[tuple[Slot, EntryIndex]]) -> bytes | None:
        """Return the message with these high watermarks. None: frames have carried all of them."""
        sent = []
        for slot, high_watermark in found:
            if high_watermark > slot.high_watermark_sent:
                slot.high_watermark_sent = high_watermark
                sent.append((slot.number, int(high_watermark)))
        return HighWatermarks(tuple(sent)).pack() if sent else None

    # -- internals -------------------------------------------------------------------------------

    def _ask(self, asked: Follow) -> None:
        if asked.slot in self._starting or self._queue.get(asked.slot) is not None:
            raise InvalidRequest(f"the follower used slot {asked.slot} twice")
        if not self._ending:
            self._starting.add(asked.slot)
            self._requested.append(asked)

    def _take_acks(self, message: Acked) -> list[Call]:
        calls: list[Call] = []
        for number, entry in message.entries:
            slot = self._queue.get(number)
            if slot is None:
                continue  # the message was in flight when the slot ended
            if entry > slot.next:
                raise InvalidRequest(f"entry {entry} was acknowledged before it was sent")
            self._queue.on_acked(slot, EntryIndex(entry))
            calls.append((slot.session.on_acked, (EntryIndex(entry),)))
        return calls

    def _take_unfollow(self, message: Unfollow) -> list[Call]:
        self._starting.discard(message.slot)
        slot = self._queue.get(message.slot)
        calls: list[Call] = []
        if slot is not None and message.damaged is not None:
            calls.append((slot.session.on_damaged, (EntryIndex(message.damaged),)))
        if slot is not None and message.refuses_writes:
            calls.append((slot.session.on_writes_refused, ()))
        return calls + self._end_slot(message.slot)

    def _end_slot(self, number: int) -> list[Call]:
        slot = self._queue.remove(number)
        self._moved.pop(number, None)
        return [] if slot is None else [(slot.session.close, ())]
