"""The rules of the leader's end of a stream of replication: no thread, lock, clock or socket.

The shell (``leader_stream``) hands in what the follower says (:meth:`LeaderStreamCore.take`), news
of partitions, and the time, and carries out one step after the other while there is any. What a
session is to be told comes back as calls, to be made in their order and not under the shell's lock.

=============  ==================================================  ===========================
state          what may happen                                     next state
=============  ==================================================  ===========================
open           Follow, Acked, Unfollow, Room, Beat, Promised;      open
               frames; news
open           ``end``                                             ending: Bye, then LAST
open, ending   ``close``: the stream is lost or has failed         over: nothing is sent
=============  ==================================================  ===========================

A slot is *asked for* (Follow), then *starting* (its session is being made), then *sending*, and
over by Unfollow, by a refusal, or with the stream. Its number is never used again.

Invariants:

* The welcome is sent before everything else.
* ``Agreed`` of a slot is sent before its first frame, and after ``Refused`` there is none. A frame
  begins where the one before it ended, the first one where the two logs were found to be equal.
* An acknowledgement counts only for a slot that is sending, and for entries that were sent.
* A promise counts for the slots that are sending when it arrives.
* What is under way keeps within the bounds of :class:`SendQueue`.
* Every session that was started is closed, once its slot or the stream is over.
* A high watermark that no frame has taken along is told ``HIGH_WATERMARK_LINGER_S`` later.

Order of the steps: messages, the end, sessions to start, high watermarks that are due, frames.
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
    """One session on the stream, as its leader sees it."""

    def __init__(
        self, number: int, epoch: int, session: LeaderSession, *, is_behind: bool = False
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.session = session
        self.next = session.agreement.entry
        self.high_watermark_told = session.agreement.high_watermark
        self.has_news = False
        self.is_behind = is_behind
        self.is_queued = False
        self.unacked_bytes = 0
        self.unacked: deque[tuple[EntryIndex, int, bool]] = deque()  # end, bytes, was behind


class SendQueue:
    """The slots of one stream, and what they have under way: whose entries are sent next.

    Slots that have something to send take turns. Those that are *behind* (their last frame did not
    reach the log's end) have a queue of their own. The two queues alternate, and the slots of a
    queue take turns. What is not acknowledged is bounded three times:

    * of the stream, by the window that the follower has given;
    * of the slots that are behind, all together, by a share of it: a catch-up leaves room for live
      records, and puts little ahead of them on the line;
    * of a slot, by the same share: one partition whose follower does not append holds up no other.

    Within each bound one frame is always allowed, however large it is.

    No session is called here: that takes the partition's lock, while news takes the stream's lock
    under the partition's.
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
        """Add a session's slot; it may have something to send at once."""
        self._slots[slot.number] = slot
        self.take_news(slot)

    def remove(self, number: int) -> Slot | None:
        """Remove a session's slot; its bytes in flight count no more."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            for _, size, was_behind in slot.unacked:
                self._count(-size, was_behind)
            slot.unacked.clear()
        return slot

    def take_news(self, slot: Slot) -> None:
        """Note that the slot may have something to send."""
        slot.has_news = True
        self._queue(slot)

    def can_send(self) -> bool:
        """Return whether a slot has a turn."""
        return self._queue_of_turn() is not None

    def next_slot(self) -> Slot | None:
        """Return the slot whose turn it is, if any, and forget its news."""
        while (queue := self._queue_of_turn()) is not None:
            slot = queue.popleft()
            slot.is_queued = False
            if slot.number not in self._slots:
                continue
            self._behind_is_next = queue is self._live
            slot.has_news = False
            return slot
        return None

    def on_sent(self, slot: Slot, end: EntryIndex, size: int, *, is_behind: bool) -> None:
        """Note a frame in flight, up to entry ``end``; more follows if ``is_behind``."""
        if slot.number not in self._slots:
            return
        slot.next = end
        slot.unacked.append((end, size, slot.is_behind))
        slot.unacked_bytes += size
        self._count(size, slot.is_behind)
        slot.is_behind = is_behind
        if is_behind:
            self.take_news(slot)
        elif slot.has_news:
            self._queue(slot)

    def on_acked(self, slot: Slot, entry: EntryIndex) -> None:
        """Note that the follower has what was sent before this entry."""
        while slot.unacked and slot.unacked[0][0] <= entry:
            _, size, was_behind = slot.unacked.popleft()
            slot.unacked_bytes -= size
            self._count(-size, was_behind)
        if slot.has_news:
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
"""A method of a session, with its arguments: it tells the session something."""
Sent = tuple[bytes, Bytes]
"""A message as it is sent: the header and the body of a frame."""


class Last(Enum):
    """The step after which nothing is sent."""

    LAST = "last"


LAST: Final = Last.LAST
Step = bytes | Follow | tuple[Slot, ...] | Slot | Last
"""Send a message, start a session, tell high watermarks, read and send a frame, or end."""


class LeaderStreamCore:
    """What is sent to one follower, for all partitions that it follows here."""

    def __init__(
        self, window_bytes: int, welcome: Welcome, settings: ReplicationSettings, now: float
    ) -> None:
        self._settings = settings
        self._queue = SendQueue(window_bytes)
        self._outbox: deque[bytes] = deque((welcome.pack(),))
        self._asked: deque[Follow] = deque()
        self._starting: set[int] = set()
        self._moved: dict[int, Slot] = {}  # whose high watermark no frame has told yet
        self._moved_since = now  # while there are any
        self._tell_at: float | None = None  # when to look whether they are to be told
        self._heard_at = self._ticked_at = self._beat_at = now
        self._ending = False
        self._over = False

    # -- what happens ----------------------------------------------------------------------------

    def take(self, message: Said, now: float) -> list[Call]:
        """Take what the follower says; return the calls that tell sessions of it.

        Raises:
            InvalidRequest: the message makes no sense.
        """
        self._heard_at = now
        match message:
            case Acked():
                return self._take_acks(message)
            case Follow():
                self._ask(message)
            case Unfollow():
                return self._take_unfollow(message)
            case Promised():
                if message.asked_at > now:
                    raise InvalidRequest("a promise that nobody has asked for")
                until = holds_until(message.asked_at, message.lasts_s)
                return [(slot.session.on_promised, (until,)) for slot in self._queue]
            case Room():
                self._queue.window_bytes = message.window_bytes
            case Beat():
                pass
            case (
                Welcome() | Agreed() | Frame() | HighWatermarks() | Refused() | Bye() | AskPromise()
            ):
                raise InvalidRequest(f"a follower does not say {type(message).__name__}")
            case _:
                assert_never(message)
        return []

    def take_news(self, number: int, now: float, *, is_urgent: bool) -> None:
        """Note that a slot's log has more entries, or else that its high watermark has moved."""
        slot = self._queue.get(number)
        if slot is None or slot.has_news:
            return
        if is_urgent:
            self._queue.take_news(slot)
            return
        if not self._moved:
            self._moved_since = now
        self._moved[number] = slot
        if self._tell_at is None:
            self._tell_at = now + HIGH_WATERMARK_LINGER_S

    def tick(self, now: float, promise_s: float | None = None) -> None:
        """Note the time, every :attr:`tick_s`. A call that is late judges nothing.

        It is late if this process was paused: what the follower said is yet to be received then.
        ``promise_s``: for how long the follower is to promise that it will not lead; None: no need.

        Raises:
            BrokerUnavailable: the follower is dead.
        """
        is_late, self._ticked_at = now - self._ticked_at > 3 * self.tick_s, now
        silent_s = now - self._heard_at
        if is_late:
            return
        if silent_s > self.silence_s:
            raise BrokerUnavailable(f"gave no sign of life for {silent_s:.1f} s")
        if promise_s is not None and not self._ending:
            self._outbox.append(AskPromise(now, promise_s).pack())
        if silent_s >= self.tick_s and now - self._beat_at >= self._settings.beat_s:
            self._beat_at = now
            self._outbox.append(Beat().pack())

    def end(self) -> None:
        """Send no more frames, and tell the follower so."""
        if not self._ending:
            self._ending = True
            self._outbox.append(Bye().pack())

    def close(self) -> list[Call]:
        """Note that the stream is over; return the calls that close its sessions."""
        self._ending = self._over = True
        self._outbox.clear()
        self._asked.clear()
        self._starting.clear()
        return [call for slot in list(self._queue) for call in self._end_slot(slot.number)]

    # -- what to do ------------------------------------------------------------------------------

    @property
    def silence_s(self) -> float:
        """How long the follower may be silent: receiving what is under way takes it a while."""
        return self._settings.death_s + self._queue.unacked_bytes / SLOWEST_LINE

    @property
    def tick_s(self) -> float:
        """The seconds between two calls of :meth:`tick`."""
        return self._settings.beat_s / 2

    @property
    def unacked_bytes(self) -> int:
        """The bytes that are under way, or not yet appended."""
        return self._queue.unacked_bytes

    @property
    def tell_at(self) -> float | None:
        """When there is a step to do even if nothing happens."""
        return self._tell_at

    def has_step(self, now: float) -> bool:
        """Return whether there is a step to do."""
        if self._over:
            return False
        is_due = self._tell_at is not None and now >= self._tell_at
        return bool(self._outbox or self._ending or self._asked or is_due or self._queue.can_send())

    def next_step(self, now: float) -> Step | None:
        """Return what to do next; None if there is nothing to do now."""
        if self._over:
            return None
        if self._outbox:
            return self._outbox.popleft()
        if self._ending:
            self._over = True
            return LAST
        if self._asked:
            return self._asked.popleft()
        if self._tell_at is not None and now >= self._tell_at:
            due_at = self._moved_since + HIGH_WATERMARK_LINGER_S
            self._tell_at = due_at if self._moved and due_at > now else None
            if self._moved and self._tell_at is None:
                moved, self._moved = tuple(self._moved.values()), {}
                return moved
        slot = self._queue.next_slot()
        if slot is not None:
            # The frame is read after this, so it tells the moves that are noted by now. One that is
            # noted while it is read may not be in it.
            self._moved.pop(slot.number, None)
        return slot

    # -- what came of it -------------------------------------------------------------------------

    def session_started(self, number: int, epoch: int, session: LeaderSession) -> bool:
        """Begin to send on a slot; return False if it is over: then close the session."""
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
        """End a slot whose session could not start, or cannot go on."""
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
        """Return the frame to send in a turn; None if there is nothing, or the slot is over.

        ``end``: where the log ends.
        """
        if self._queue.get(slot.number) is not slot:
            return None
        if found is None:
            self.take_news(slot.number, now, is_urgent=False)  # the high watermark may have moved
            return None
        frame = Frame(slot.number, slot.epoch, slot.next, high_watermark, found.rows, found.data)
        slot.high_watermark_told = high_watermark
        self._queue.on_sent(slot, EntryIndex(frame.end), frame.size, is_behind=end > frame.end)
        return frame.pack()

    def high_watermarks(self, found: list[tuple[Slot, EntryIndex]]) -> bytes | None:
        """Return the message with these high watermarks; None if frames have told them all."""
        told = []
        for slot, high_watermark in found:
            if high_watermark > slot.high_watermark_told:
                slot.high_watermark_told = high_watermark
                told.append((slot.number, int(high_watermark)))
        return HighWatermarks(tuple(told)).pack() if told else None

    # -- inside ----------------------------------------------------------------------------------

    def _ask(self, asked: Follow) -> None:
        if asked.slot in self._starting or self._queue.get(asked.slot) is not None:
            raise InvalidRequest(f"slot {asked.slot} was given twice")
        if not self._ending:
            self._starting.add(asked.slot)
            self._asked.append(asked)

    def _take_acks(self, message: Acked) -> list[Call]:
        calls: list[Call] = []
        for number, entry in message.entries:
            slot = self._queue.get(number)
            if slot is None:
                continue  # the slot is over, and this was on its way
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
            calls.append((slot.session.refuses_writes, ()))
        return calls + self._end_slot(message.slot)

    def _end_slot(self, number: int) -> list[Call]:
        slot = self._queue.remove(number)
        self._moved.pop(number, None)
        return [] if slot is None else [(slot.session.close, ())]
