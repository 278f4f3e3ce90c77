"""The batches of one stream that could not be appended at once, by partition.

Invariant: a partition's batches are appended in the order in which they came, by one thread at a
time; while a partition has a queue, none of its batches goes past that queue. What waits is
bounded: beyond that the stream is not read on, and so its client is slowed.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

QUEUED_BYTES_MAX: Final = 64 << 20  # how much of a stream may wait; one batch always may
WORKERS_MAX: Final = 16  # threads of a stream; partitions beyond them wait for a free one


class Queued(Protocol):
    """A batch that waits for its partition."""

    partition: int

    @property
    def size(self) -> int:
        """What it holds of memory, in bytes."""

    def finish(self) -> None:
        """Appends it, however long that takes; never raises."""


class AppendQueues:
    """The queues of one stream.

    The stream's own thread puts batches in, and threads of the queues' own take them out.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[int, deque[Queued]] = {}
        self._bytes = 0
        self._workers: ThreadPoolExecutor | None = None

    def __contains__(self, partition: int) -> bool:
        """Whether batches of the partition wait, or one of them is being appended."""
        return partition in self._queues

    def put(self, batch: Queued) -> None:
        """Queues a batch; waits while there is no room for it."""
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
        self._workers.submit(self._work_off, batch.partition)

    def finish(self) -> None:
        """Waits until every batch is through: nothing touches the stream after that."""
        if self._workers is not None:
            self._workers.shutdown()

    def _work_off(self, partition: int) -> None:
        queue = self._queues[partition]
        while True:
            batch = queue[0]
            batch.finish()
            with self._changed:
                queue.popleft()
                self._bytes -= batch.size
                self._changed.notify()
                if not queue:
                    del self._queues[partition]
                    return
