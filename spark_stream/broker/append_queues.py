"""The batches of one stream that its own thread does not append, by partition.

A batch is queued if its partition is held by others, if the partition must first make its files or
join the batch's transaction, or if earlier batches of the partition are queued. It leaves its queue
when it is in the log or refused; what then waits for its followers waits in ``ack_line``.

Invariant: a partition's batches are appended in the order in which they came, by one thread at a
time; while a partition has a queue, no batch of it passes that queue. The bytes in all queues are
bounded: a full stream is not read, and so its client is slowed.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

QUEUED_BYTES_MAX: Final = 64 << 20  # of one stream; a batch that is larger waits alone
WORKERS_MAX: Final = 16  # threads of a stream; partitions beyond them wait for a free one


class Queued(Protocol):
    """A batch that waits for its partition."""

    partition: int

    @property
    def size(self) -> int:
        """The memory that it holds, in bytes."""

    def finish(self) -> None:
        """Append the batch or answer why not, however long that takes; never raise."""


class AppendQueues:
    """The queues of one stream: its thread fills them, and worker threads empty them."""

    def __init__(self) -> None:
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
        self._workers.submit(self._work_off, batch.partition)

    def finish(self) -> None:
        """Wait until all queues are empty; the workers touch the stream no more after that."""
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
