"""The rules of one stream of appends: no thread, lock, clock or socket.

The shell (``append_stream``) passes in frames and the results of the work on each batch, and sends
:attr:`AppendStreamCore.outbox`. A frame becomes a batch in its turn:

==========  ============================================  =================================
batch       event                                         next state
==========  ============================================  =================================
trying      appended or refused                           answered
trying      in the log, not replicated yet                waiting
trying      its partition is held, has no files yet,      queued, at the end of its
            must join a transaction, or has a queue       partition's queue
queued      as the first of its queue: as *trying*, held  answered, waiting, or still queued
waiting     settled, or its timeout passed (``settle``)   answered
==========  ============================================  =================================

Invariants:

* *Order.* The batches of a partition are tried in the order of their arrival, by one thread at a
  time. Frames are taken one after the other, and no batch overtakes its partition's queue.
  Partitions do not wait for each other.
* *Answers.* The answers of a partition are sent in the same order, even if a later one is ready
  first. A client depends on this order: it would match an early answer to a batch that it has given
  up.
* Each batch is answered once.
* *Backpressure.* Above ``QUEUED_BYTES_MAX`` of queued batches, or ``UNANSWERED_MAX`` batches whose
  answers are not sent, no frame is taken, so the client receives no credit.
* A queue whose partition is held is tried again when the partition is released or the timeout of
  its first batch passes. Until then it uses no thread.
* Partitions that must join a transaction do so in groups: while one group is being recorded, the
  next one gathers.
* The stream ends when the client sends no more and all answers are sent. After a failure no frame
  is taken, and the batches that were taken are answered.
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
"""The limit of one stream. A larger batch is queued alone."""
UNANSWERED_MAX: Final = 4096
_LINGERING_MAX: Final = 64  # outdated deadlines that are not worth a cleanup


class BatchPlace(Struct, Generic[W], eq=False):
    """A batch's place in its stream. ``work`` belongs to the shell."""

    partition: int
    work: W
    deadline: float
    size: int = 0
    is_waiting: bool = False
    has_deadline: bool = False  # whether it is in the heap of deadlines
    answer: bytes | None = None


class _Queue(Struct, Generic[W]):
    places: deque[BatchPlace[W]] = field(default_factory=deque)
    wait: int | None = None  # the number of the current wait for a held partition


class AppendStreamCore(Generic[F, W]):
    """One stream of appends. ``F`` is the type of frames, ``W`` of the shell's batches."""

    def __init__(self) -> None:
        self.outbox: deque[bytes] = deque()
        """Answers to send, in order, each followed by a call of :meth:`on_sent`."""
        self.failure: IsologError | None = None
        """The error with which the stream ends early, or None."""
        self._frames: deque[F] = deque()
        self.is_taking = True
        """Whether a thread takes frames, or opens the stream."""
        self._has_ended = False
        self._unanswered = 0
        self._answers: dict[int, deque[BatchPlace[W]]] = {}
        self._queues: dict[int, _Queue[W]] = {}
        self._queued_bytes = 0
        self._waits = itertools.count()
        self._joining: list[BatchPlace[W]] = []  # the next group
        self._is_joining = False
        self._deadlines: list[tuple[float, int, BatchPlace[W]]] = []  # a heap
        self._watched = 0  # the number of entries in it that are not outdated

    # -- frames ----------------------------------------------------------------------------------

    def receive(self, frame: F) -> None:
        """Queue a frame, or ignore it after a failure."""
        if self.failure is None:
            self._frames.append(frame)

    def end(self) -> None:
        """Record that the client sends no more frames."""
        self._has_ended = True

    def fail(self, error: IsologError) -> None:
        """End the stream with an error, after the answers of the batches that were taken."""
        if self.failure is None:
            self.failure = error
        self._has_ended = True
        self._frames.clear()

    def begin_taking(self) -> bool:
        """Begin to take frames. Return False if there are none, or another thread takes them."""
        if self.is_taking or not self._frames or not self._has_room:
            return False
        self.is_taking = True
        return True

    def next_frame(self) -> F | None:
        """Return the next frame. None: this thread must take no more."""
        if self._frames and self._has_room:
            return self._frames.popleft()
        self.is_taking = False
        return None

    @property
    def _has_room(self) -> bool:
        return self._unanswered < UNANSWERED_MAX and self._queued_bytes < QUEUED_BYTES_MAX

    @property
    def is_over(self) -> bool:
        """Whether all work of the stream is done."""
        is_busy = self.is_taking or self._frames or self._unanswered or self._queues
        return self._has_ended and not is_busy and not self._is_joining

    # -- batches ---------------------------------------------------------------------------------

    def add(self, partition: int, work: W, deadline: float) -> BatchPlace[W]:
        """Add the batch of the frame that was taken last. Return its place."""
        place = BatchPlace(partition, work, deadline)
        self._unanswered += 1
        self._answers.setdefault(partition, deque()).append(place)
        return place

    def has_queue(self, partition: int) -> bool:
        """Return whether batches of the partition are queued, with the one that is being tried."""
        return partition in self._queues

    def queue(self, place: BatchPlace[W], size: int) -> bool:
        """Queue a batch of ``size`` bytes. Return whether it is the first of its queue.

        The caller must try the first one, or :meth:`join` its partition.
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

    def pop_first(self, place: BatchPlace[W]) -> BatchPlace[W] | None:
        """Remove the first batch of a queue after its attempt. Return the next one, or None."""
        places = self._queues[place.partition].places
        places.popleft()
        self._queued_bytes -= place.size
        if places:
            return places[0]
        del self._queues[place.partition]
        return None

    def hold(self, place: BatchPlace[W]) -> int:
        """Record a wait of the queue's first batch for its partition. Return the wait's number."""
        queue = self._queues[place.partition]
        queue.wait = wait = next(self._waits)
        self._watch(place)
        return wait

    def resume(self, partition: int, wait: int) -> bool:
        """End this wait for a held partition. Return False if it has already ended."""
        queue = self._queues.get(partition)
        if queue is None or queue.wait != wait:
            return False
        queue.wait = None
        self._watched -= 1
        return True

    # -- joining ---------------------------------------------------------------------------------

    def join(self, place: BatchPlace[W]) -> bool:
        """Add the first batch of a queue to the next group. Return whether to start that group."""
        self._joining.append(place)
        if self._is_joining:
            return False
        self._is_joining = True
        return True

    def next_group(self) -> list[BatchPlace[W]]:
        """Remove and return the next group of batches, whose partitions join together."""
        group, self._joining = self._joining, []
        self._is_joining = bool(group)
        return group

    # -- waiting to be replicated ------------------------------------------------------------------

    def wait(self, place: BatchPlace[W]) -> None:
        """Record that a batch is in the log and waits for its acknowledgement."""
        place.is_waiting = True
        self._watch(place)

    def settle(self, place: BatchPlace[W]) -> bool:
        """End the batch's wait, before its answer. Return False if the wait has already ended."""
        if not place.is_waiting:
            return False
        place.is_waiting = False
        self._watched -= 1
        return True

    def next_deadline(self) -> float | None:
        """Return the earliest deadline. None: no batch waits."""
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

    def expire(self, now: float) -> list[BatchPlace[W]]:
        """End the waits of the batches whose timeouts have passed. Return these batches.

        The caller must try the batches that are the first of a queue, and answer the others.
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
        """Record a batch's answer, and move the answers that are next in order to the outbox."""
        place.answer = message
        places = self._answers[place.partition]
        while places and (first := places[0].answer) is not None:
            places.popleft()
            self.outbox.append(first)
        if not places:
            del self._answers[place.partition]  # a client may use any number of partitions

    def on_sent(self, count: int = 1) -> None:
        """Remove answers from the outbox that were sent, or whose client has disconnected."""
        for _ in range(count):
            self.outbox.popleft()
        self._unanswered -= count
