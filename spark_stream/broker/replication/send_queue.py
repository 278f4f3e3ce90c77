"""Whose entries a leader sends next on a stream of replication.

Slots that have something to send take turns. Those that are *behind* (their last frame did not
reach the log's end) have a queue of their own. The two queues alternate, and the slots of a queue
take turns. What is not acknowledged is bounded three times:

* of the stream, by the window that the follower has given;
* of the slots that are behind, all together, by a share of it: a catch-up leaves room for live
  records, and puts little ahead of them on the line;
* of a slot, by the same share: one partition whose follower does not append holds up no other.

Within each bound one frame is always allowed, however large it is.

No lock and no clock: the stream that owns this has them. No session is called here: that takes the
partition's lock, while news takes the stream's lock under the partition's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from spark_stream.broker.replication.partitions import LeaderSession
from spark_stream.broker.replication.settings import BEHIND_SHARE
from spark_stream.consistency.ids import EntryIndex


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
    """The slots of one stream, and what they have under way."""

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
