"""The answers of one stream of appends, on their way to its client.

Invariant: the answers of a partition leave in the order in which its batches came. Its client waits
for them in that order and cannot tell one that comes out of turn from one that it waits for no
more (``client.writing.lanes``). But batches are not always done in it: one that waits for followers
is overtaken by one that is refused, or that comes when there is no follower to wait for any more.
So each batch has a place, and what is done early waits there for those before it. The partitions
do not wait for each other.

Why: ``docs/decisions/0055``. One thread at a time writes (``docs/decisions/0018``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

UNANSWERED_MAX: Final = 4096  # beyond that the stream is not read on, and so its client is slowed


class Answers:
    """Of one stream; any thread gives them. ``write`` takes a message to the client."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._lock = threading.Lock()  # guards what follows
        self._changed = threading.Condition(self._lock)
        self._places: dict[int, deque[_Place]] = {}
        self._unanswered = 0
        self._failure: Exception | None = None

    def next_place(self, partition: int) -> Callable[[bytes], None]:
        """The place of the partition's next batch: to be called once, with the batch's answer.

        Waits while too many batches of the stream have none.
        """
        with self._lock:
            while self._unanswered >= UNANSWERED_MAX:
                self._changed.wait()
            self._unanswered += 1
            place = _Place(self, partition)
            queue = self._places.get(partition)
            if queue is None:
                queue = self._places[partition] = deque()
            queue.append(place)
        return place.answer

    def answer(self, partition: int, place: _Place, message: bytes) -> None:
        """The answer of this place; all whose turn it is leave."""
        with self._lock:
            place.message = message
            queue = self._places[partition]
            while queue and (first := queue[0].message) is not None:
                queue.popleft()
                self._write_unless_gone(first)
                if self._unanswered == UNANSWERED_MAX:
                    self._changed.notify()
                self._unanswered -= 1
            if not queue:
                del self._places[partition]  # a client may name any number of partitions

    def _write_unless_gone(self, message: bytes) -> None:
        """Writes, unless an earlier write has failed: then there is nobody to write to."""
        if self._failure is not None:
            return
        try:
            self._write(message)
        except Exception as error:
            self._failure = error

    def raise_failure(self) -> None:
        """Raises what kept an answer from the client, if anything did."""
        if self._failure is not None:
            raise self._failure


class _Place:
    """Where a batch's answer waits for those before it; None: it is not there yet."""

    __slots__ = ("_answers", "_partition", "message")

    def __init__(self, answers: Answers, partition: int) -> None:
        self._answers = answers
        self._partition = partition
        self.message: bytes | None = None

    def answer(self, message: bytes) -> None:
        self._answers.answer(self._partition, self, message)
