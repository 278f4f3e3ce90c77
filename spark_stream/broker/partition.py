"""One partition: its log, its leader's state, and who waits for it.

One lock a partition guards log and state together. A batch is inspected, encoded and checksummed
before the lock is taken. Readers hold it only to look at the bounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from spark_stream.broker.inspection import inspected, refusal
from spark_stream.consistency import leader
from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds, Isolation, upper_bound
from spark_stream.errors import BrokerStopping, IsologError, UnknownTopic
from spark_stream.storage.log import PartitionLog
from spark_stream.wire.limits import CANCEL_POLL_S

FIRST_EPOCH = LeaderEpoch(0)


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a message: ``count`` records from ``offset`` on are in the log.

    ``refused`` is the error for the first bad record, if there was one; those before it count.
    """

    offset: Offset
    count: int
    refused: IsologError | None = None


def now_us() -> int:
    """The wall clock, microseconds since the epoch."""
    return time.time_ns() // 1000


class Partition:
    """A partition that this broker leads."""

    def __init__(self, topic: str, number: int, log: PartitionLog) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self._changed = threading.Condition()
        self._state = leader.opened(FIRST_EPOCH, log.start, log.end)
        self._closed: IsologError | None = None
        self._last_flush = time.monotonic()
        schema = log.format.schema
        self._required = tuple(field.name for field in schema if not field.nullable)

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._state.leader_epoch

    def bounds(self) -> Bounds:
        """LEO, HW, LSO and the log's start, as one observation."""
        return self._state.bounds()

    def append(self, batch: pa.RecordBatch) -> Appended:
        """Appends a message: all of it, or the records before its first bad one.

        Raises:
            DiskFull, StorageFailure: nothing was kept.
            BatchTooLarge, InvalidRecord: the message as a whole is none.
            BrokerStopping, UnknownTopic: the partition is closed.
        """
        record_bytes_max = self.log.format.settings.max_record_bytes
        verdict = inspected(batch, self._required, record_bytes_max)
        offset = self._state.log_end.offset
        if verdict.kept:
            kept = batch if verdict.kept == batch.num_rows else batch.slice(0, verdict.kept)
            now = now_us()
            prepared = self.log.format.prepare(kept, now)
            with self._changed:
                if self._closed is not None:
                    raise self._closed
                offset = self.log.append(prepared, self._state.leader_epoch, now)
                self._state = leader.appended(self._state, verdict.kept)
                self._changed.notify_all()
        error = None
        if verdict.flaw is not None:
            error = refusal(verdict.flaw, verdict.kept, offset, record_bytes_max)
        return Appended(offset, verdict.kept, error)

    def wait_beyond(
        self,
        offset: Offset,
        isolation: Isolation,
        deadline: float | None,
        cancelled: Callable[[], bool],
    ) -> bool:
        """Waits until the isolation's bound is above ``offset``; False when the wait ended without.

        ``deadline`` is on the monotonic clock, None means without end; ``cancelled`` is asked four
        times a second.

        Raises:
            BrokerStopping, UnknownTopic: the partition was closed meanwhile.
        """
        with self._changed:
            while upper_bound(self.bounds(), isolation) <= offset:
                if self._closed is not None:
                    raise self._closed
                left = CANCEL_POLL_S if deadline is None else deadline - time.monotonic()
                if left <= 0 or cancelled():
                    return False
                self._changed.wait(min(left, CANCEL_POLL_S))
        return True

    def housekeep(self, flush_interval_s: float | None) -> None:
        """Rolls, removes and flushes what is due."""
        with self._changed:
            if self._closed is not None:
                return
            self.log.housekeep(now_us(), self.bounds().last_stable_offset)
            self._state = leader.evicted(self._state, self.log.start)
            now = time.monotonic()
            if flush_interval_s is not None and now - self._last_flush >= flush_interval_s:
                self._last_flush = now
                self.log.flush()

    def close(self, *, deleted: bool = False) -> None:
        """Ends appends and waits, then closes the files. Everything acknowledged is in them."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = (
                UnknownTopic(f"topic {self.topic!r} was deleted", topic=self.topic)
                if deleted
                else BrokerStopping("the broker is shutting down")
            )
            self._changed.notify_all()
            self.log.close()
