"""The batches of one stream that its own thread does not append, by partition.

A batch is queued if its partition is held by others, if the partition must first make its files or
join the batch's transaction, or if earlier batches of the partition are queued. It leaves its queue
when it is in the log or refused; what then waits for its followers waits in ``ack_line``.

Invariant: a partition's batches are appended in the order in which they came, by one thread at a
time; while a partition has a queue, no batch of it passes that queue. The bytes in all queues are
bounded: a full stream is not read, and so its client is slowed.

Partitions that have to join a transaction first do so together: while one group is put on record,
the next one gathers. When each joined in a thread of its own, that cost several times as much.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

QUEUED_BYTES_MAX: Final = 64 << 20  # of one stream; a batch that is larger waits alone
WORKERS_MAX: Final = 4  # threads of a stream; more of them only wait for the interpreter's lock


class Queued(Protocol):
    """A batch that waits for its partition."""

    partition: int

    @property
    def size(self) -> int:
        """The memory that it holds, in bytes."""

    @property
    def has_to_join(self) -> bool:
        """Whether its partition has to join a transaction first."""

    def finish_at_once(self) -> bool:
        """Append it if its partition is free and has files; never raises. Return whether it did."""

    def finish(self) -> None:
        """Append the batch or answer why not, however long that takes; never raise."""


class AppendQueues:
    """The queues of one stream: its thread fills them, and worker threads empty them."""

    def __init__(self, join: Callable[[Sequence[Any]], None]) -> None:
        """``join`` lets the partitions of several batches join; it never raises.

        A batch whose partition has not joined then joins by itself.
        """
        self._join = join
        self._joining: list[Queued] = []  # first batches that wait for the next group
        self._is_joining = False
        self._changed = threading.Condition()
        self._queues: dict[int, deque[Queued]] = {}
        self._bytes = 0
        self._workers: ThreadPoolExecutor | None = None

    def __contains__(self, partition: int) -> bool:
        """Whether batches of the partition are queued; the one being appended counts."""
        return partition in self._queues

    def put(self, batch: Queued) -> None:
        """Queue a batch; wait while there is no room for it."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._bytes or self._bytes + batch.size <= QUEUED_BYTES_MAX
            )
            self._bytes += batch.size
            queue = self._queues.get(batch.partition)
            if queue is not None:
                queue.append(batch)
                return
            self._queues[batch.partition] = deque([batch])
            if self._workers is None:
                self._workers = ThreadPoolExecutor(WORKERS_MAX, "isolog-append")
            if not batch.has_to_join:
                self._workers.submit(self._work_off, batch.partition)
                return
            self._joining.append(batch)
            if not self._is_joining:
                self._is_joining = True
                self._workers.submit(self._join_all)

    def finish(self) -> None:
        """Wait until all queues are empty; the workers touch the stream no more after that."""
        if self._workers is not None:
            with self._changed:  # until then a worker may need another one
                self._changed.wait_for(lambda: not self._queues)
            self._workers.shutdown()

    def _join_all(self) -> None:
        """Let group after group join; append what can be appended then, and queue the rest."""
        assert self._workers is not None
        while True:
            with self._changed:
                group, self._joining = self._joining, []
                if not group:
                    self._is_joining = False
                    return
            self._join(group)
            for batch in group:
                if not (batch.finish_at_once() and self._is_last(batch)):
                    self._workers.submit(self._work_off, batch.partition)

    def _work_off(self, partition: int) -> None:
        queue = self._queues[partition]
        while True:
            batch = queue[0]
            batch.finish()
            if self._is_last(batch):
                return

    def _is_last(self, batch: Queued) -> bool:
        """Remove a batch that is through; return whether its queue has ended with it."""
        with self._changed:
            queue = self._queues[batch.partition]
            queue.popleft()
            self._bytes -= batch.size
            if not queue:
                del self._queues[batch.partition]
            self._changed.notify()
            return not queue
