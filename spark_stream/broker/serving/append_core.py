"""The rules of one stream of appends: no thread, lock, clock or socket.

The shell (``append_stream``) hands in frames, and the results of the work on each batch; it sends
:attr:`AppendStreamCore.outbox`. A frame becomes a batch when its turn comes:

==========  ============================================  =================================
batch       what may happen                               next state
==========  ============================================  =================================
trying      appended or refused                           answered
trying      in the log, not replicated yet                waiting
trying      its partition is held, has no files yet, has  queued, at the end of its
            to join a transaction, or has a queue         partition's queue
queued      as the first of its queue: as *trying*; held  answered, waiting, or still queued
waiting     settled, or its time is over (``settle``)     answered
==========  ============================================  =================================

Invariants:

* *Order.* The batches of a partition are tried in the order in which they came, by one thread at a
  time: frames are taken one after the other, and while a partition has a queue, none of its batches
  overtakes the queue. The partitions do not wait for each other.
* *Answers* of a partition are sent in that order too, whichever is ready first. A client expects
  them in this order: it takes an early answer for one to a batch that it has given up.
* Each batch is answered once.
* *Bounds.* Beyond ``QUEUED_BYTES_MAX`` of queued batches, or ``UNANSWERED_MAX`` batches without an
  answer sent, no frame is taken; so its client gets no credit.
* A queue whose partition is held is tried again when the partition is released, or when the time of
  its first batch is over, whichever comes first. Until then it costs no thread.
* Partitions that have to join a transaction do so together: while one group is put on record, the
  next one gathers.
* The stream is over when the client sends no more and all answers are sent. After a failure no
  frame is taken, and what was taken before is answered.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import Final, Generic, TypeVar

from msgspec import Struct, field

from spark_stream.errors import IsologError

F = TypeVar("F")
W = TypeVar("W")

QUEUED_BYTES_MAX: Final = 64 << 20
"""The bound of one stream; a batch that is larger is queued alone."""
UNANSWERED_MAX: Final = 4096
_LINGERING_MAX: Final = 64  # how many outdated deadlines are not worth looking for


class BatchPlace(Struct, Generic[W], eq=False):
    """A batch's place in its stream. ``work``: the shell's."""

    partition: int
    work: W
    deadline: float
    size: int = 0
    is_waiting: bool = False
    has_deadline: bool = False  # among those that are watched
    answer: bytes | None = None


class _Queue(Struct, Generic[W]):
    places: deque[BatchPlace[W]] = field(default_factory=deque)
    wait: int | None = None  # the number of the present wait for a held partition


class AppendStreamCore(Generic[F, W]):
    """One stream. ``F``: frames, ``W``: what the shell knows of a batch."""

    def __init__(self) -> None:
        self.outbox: deque[bytes] = deque()
        """Answers to be sent, in their order; then call :meth:`on_sent`."""
        self.failure: IsologError | None = None
        """Why the stream ends before its time."""
        self._frames: deque[F] = deque()
        self._is_taking = True  # at first the stream is opened
        self._has_ended = False
        self._unanswered = 0
        self._answers: dict[int, deque[BatchPlace[W]]] = {}
        self._queues: dict[int, _Queue[W]] = {}
        self._queued_bytes = 0
        self._waits = itertools.count()
        self._joining: list[BatchPlace[W]] = []  # those that wait for the next group
        self._is_joining = False
        self._deadlines: list[tuple[float, int, BatchPlace[W]]] = []  # a heap; outdated ones linger
        self._watched = 0  # how many of them are not outdated

    # -- frames ----------------------------------------------------------------------------------

    def receive(self, frame: F) -> None:
        """Take a frame; ignore it after a failure."""
        if self.failure is None:
            self._frames.append(frame)

    def end(self) -> None:
        """Note that no frame comes any more."""
        self._has_ended = True

    def fail(self, error: IsologError) -> None:
        """End the stream with an error, once what was taken is answered."""
        if self.failure is None:
            self.failure = error
        self._has_ended = True
        self._frames.clear()

    def begin_taking(self) -> bool:
        """Return whether to call :meth:`next_frame` now: frames wait, and no thread takes them."""
        if self._is_taking or not self._frames or not self._has_room:
            return False
        self._is_taking = True
        return True

    def next_frame(self) -> F | None:
        """Return the next frame; None ends the taking."""
        if self._frames and self._has_room:
            return self._frames.popleft()
        self._is_taking = False
        return None

    @property
    def _has_room(self) -> bool:
        return self._unanswered < UNANSWERED_MAX and self._queued_bytes < QUEUED_BYTES_MAX

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        is_busy = self._is_taking or self._frames or self._unanswered or self._queues
        return self._has_ended and not is_busy and not self._is_joining

    # -- batches ---------------------------------------------------------------------------------

    def add(self, partition: int, work: W, deadline: float) -> BatchPlace[W]:
        """Give the batch of the frame that was taken last its place."""
        place = BatchPlace(partition, work, deadline)
        self._unanswered += 1
        self._answers.setdefault(partition, deque()).append(place)
        return place

    def has_queue(self, partition: int) -> bool:
        """Return whether batches of the partition are queued; the one being tried counts."""
        return partition in self._queues

    def queue(self, place: BatchPlace[W], size: int) -> bool:
        """Queue a batch that holds ``size`` bytes; return whether it is the first of its queue.

        The first one is to be worked off, or has to :meth:`join`.
        """
        place.size = size
        self._queued_bytes += size
        queue = self._queues.get(place.partition)
        if queue is None:
            queue = self._queues[place.partition] = _Queue()
        queue.places.append(place)
        return len(queue.places) == 1

    def first(self, partition: int) -> BatchPlace[W]:
        """Return the first of a partition's queue."""
        return self._queues[partition].places[0]

    def through(self, place: BatchPlace[W]) -> BatchPlace[W] | None:
        """Remove the first of a queue, which was tried; return the next one, or None."""
        places = self._queues[place.partition].places
        places.popleft()
        self._queued_bytes -= place.size
        if places:
            return places[0]
        del self._queues[place.partition]
        return None

    def hold(self, place: BatchPlace[W]) -> int:
        """Note that the partition of the first of a queue is held; return the wait's number."""
        queue = self._queues[place.partition]
        queue.wait = wait = next(self._waits)
        self._watch(place)
        return wait

    def resume(self, partition: int, wait: int) -> bool:
        """End this wait for a held partition; return False if it had ended before."""
        queue = self._queues.get(partition)
        if queue is None or queue.wait != wait:
            return False
        queue.wait = None
        self._watched -= 1
        return True

    # -- joining ---------------------------------------------------------------------------------

    def join(self, place: BatchPlace[W]) -> bool:
        """Let the first of a queue join with the next group; return whether to begin with it."""
        self._joining.append(place)
        if self._is_joining:
            return False
        self._is_joining = True
        return True

    def next_group(self) -> list[BatchPlace[W]]:
        """Return the batches whose partitions join together now; empty if none are left."""
        group, self._joining = self._joining, []
        self._is_joining = bool(group)
        return group

    # -- waiting to be replicated ------------------------------------------------------------------

    def wait(self, place: BatchPlace[W]) -> None:
        """Note that a batch is in the log, and waits until it is as safe as it asked to be."""
        place.is_waiting = True
        self._watch(place)

    def settle(self, place: BatchPlace[W]) -> bool:
        """End the batch's wait, to answer it; return False if the wait had ended before."""
        if not place.is_waiting:
            return False
        place.is_waiting = False
        self._watched -= 1
        return True

    def next_deadline(self) -> float | None:
        """Return the next deadline; None if nothing waits."""
        heap = self._deadlines
        while heap and not self._is_watched(heap[0][2]):
            heapq.heappop(heap)[2].has_deadline = False
        if len(heap) > 2 * self._watched + _LINGERING_MAX:
            self._deadlines = []
            for each in heap:
                each[2].has_deadline = self._is_watched(each[2])
                if each[2].has_deadline:
                    self._deadlines.append(each)
            heap = self._deadlines
            heapq.heapify(heap)
        return heap[0][0] if heap else None

    def late(self, now: float) -> list[BatchPlace[W]]:
        """Return the batches whose time is over; their waits have ended.

        One that is the first of a queue is to be worked off, any other one answered.
        """
        found: list[BatchPlace[W]] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            place = heapq.heappop(self._deadlines)[2]
            place.has_deadline = False
            if not self.settle(place):
                wait = self._queues[place.partition].wait
                assert wait is not None
                self.resume(place.partition, wait)
            found.append(place)
        return found

    def _watch(self, place: BatchPlace[W]) -> None:
        self._watched += 1
        if not place.has_deadline:
            place.has_deadline = True
            heapq.heappush(self._deadlines, (place.deadline, next(self._waits), place))

    def _is_watched(self, place: BatchPlace[W]) -> bool:
        if place.is_waiting:
            return True
        queue = self._queues.get(place.partition)
        return queue is not None and queue.wait is not None and queue.places[0] is place

    # -- answers ---------------------------------------------------------------------------------

    def answer(self, place: BatchPlace[W], message: bytes) -> None:
        """Take a batch's answer; what is next in its partition's order is to be sent."""
        place.answer = message
        places = self._answers[place.partition]
        while places and (first := places[0].answer) is not None:
            places.popleft()
            self.outbox.append(first)
        if not places:
            del self._answers[place.partition]  # a client may name any number of partitions

    def on_sent(self, count: int = 1) -> None:
        """Note that so many of the outbox were sent, or that there is no client to send them to."""
        for _ in range(count):
            self.outbox.popleft()
        self._unanswered -= count
