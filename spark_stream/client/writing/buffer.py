"""A producer's buffer: room for unsettled records, and records that wait for a batch.

One lock guards the room. The sender uses it for its state too.

Single records are appended to lists, which are converted to Arrow arrays as a whole. Only this
module and :meth:`Producer.send` handle single rows.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from spark_stream.client.writing.partitioner import Part, partitions_of, split
from spark_stream.client.writing.promises import Outcomes, RecordPromise
from spark_stream.errors import BufferFull, IsologError
from spark_stream.schema.schemas import DEFAULT_SCHEMA, HEADERS_TYPE, TIMESTAMP_TYPE
from spark_stream.transport.channel import ChannelWaits
from spark_stream.transport.lifetime import check_may_wait, new_lock, present_lifetime
from spark_stream.transport.loop import Timer

Headers = list[tuple[str, bytes | None]]
_BINARY: Final = pa.binary()
_OFFSETS: Final = struct.Struct("<2i")
_LONG: Final = struct.Struct("<q")
_ONE_WITHOUT_KEY: Final = pa.nulls(1, _BINARY)
_ONE_WITHOUT_HEADERS: Final = pa.nulls(1, HEADERS_TYPE)


class Share(Struct):
    """Reserved room for data that is sent in ``parts``, which share their memory.

    ``flushes``: the number of earlier flushes, from :meth:`Buffer.take`.
    """

    size: int
    records: int
    parts: int
    flushes: int


class Buffer:
    """Room for ``limit`` bytes. A caller without room waits up to ``timeout_s``: backpressure.

    ``hurry`` is called, without the lock, before a caller waits. It sends the waiting records.
    ``answers``: the connection that a flush reads while it waits.
    """

    def __init__(
        self, limit: int, timeout_s: float, hurry: Callable[[], None], answers: ChannelWaits
    ) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._hurry = hurry
        self._answers = answers
        self.lock = new_lock()
        self._changed = threading.Condition(self.lock)
        self._bytes = 0
        self._flushing = 0
        self._flushes = 0  # the number of begun flushes
        self._unsettled: dict[int, int] = {}  # the number of shares, by the flushes before them
        self._crowded = 0
        self.outstanding = 0
        """The number of unsettled records."""
        self.interrupted: BaseException | None = None
        """The last exception that ended a wait for room."""
        self.closed: IsologError | None = None
        """The error for new records. None while the buffer is open."""

    @property
    def urgent(self) -> bool:
        """Whether a caller waits, so that records are sent without linger."""
        return bool(self._flushing or self._crowded or self.closed)

    def has_room(self, size: int) -> bool:
        """Return whether :meth:`reserve` would not wait. Without the lock the result is a guess."""
        return not self._bytes or self._bytes + size <= self._limit

    def reserve(self, size: int, records: int = 1) -> None:
        """Reserve room, or wait for it. The caller holds the lock, which a wait releases.

        Raises:
            BufferFull: There was no room in time.
            InvalidRequest, ForkedClient: The producer is closed, or belongs to the parent.
        """
        if not self.has_room(size):
            self._crowded += 1
            try:
                self._wait_for_room(size)
            except BaseException as error:
                self.interrupted = error
                raise
            finally:
                self._crowded -= 1
        if self.closed:
            raise self.closed.again()
        self._bytes += size
        self.outstanding += records

    def take(self) -> int:
        """Count a share that is released later. The caller holds the lock.

        Return the number of earlier flushes, which do not wait for this share.
        """
        self._unsettled[self._flushes] = self._unsettled.get(self._flushes, 0) + 1
        return self._flushes

    def _wait_for_room(self, size: int) -> None:
        self.lock.release()
        try:
            self._hurry()
        finally:
            self.lock.acquire()
        timeout_s = present_lifetime().seconds_left(self._timeout_s)
        if not self._changed.wait_for(lambda: self.closed or self.has_room(size), timeout_s):
            raise BufferFull(
                f"the buffer is full: {self._bytes} bytes are unacknowledged, and buffer_bytes is"
                f" {self._limit}"
            )

    def spare(self, size: int) -> int:
        """Reserve up to ``size`` bytes if no caller waits for room. The caller holds the lock."""
        taken = 0 if self._crowded else max(0, min(size, self._limit - self._bytes))
        self._bytes += taken
        return taken

    def settle_up(self, unused: int, records: int) -> None:
        """Give back unused room, and count records. The caller holds the lock."""
        self._give_back(unused, -records)

    def release(self, share: Share) -> None:
        """Settle a part of a share. After its last part, free its room."""
        with self.lock:
            share.parts -= 1
            if share.parts <= 0:
                if share.flushes not in self._unsettled:
                    return  # all records were abandoned
                self._unsettled[share.flushes] -= 1
                if not self._unsettled[share.flushes]:
                    del self._unsettled[share.flushes]
                self._give_back(share.size, share.records)

    def _give_back(self, size: int, records: int) -> None:
        self._bytes -= size
        self.outstanding -= records
        if self._flushing or self._crowded:
            self._changed.notify_all()
            self._answers.wake()

    def await_settled(self, timeout: float | None) -> None:
        """Wait until all earlier records are settled.

        Raises:
            TimeoutError: Records are unsettled after ``timeout`` seconds.
            ReentrantCall: The caller has interrupted a call that other threads wait for.
        """
        check_may_wait()
        with self.lock:
            self._flushing += 1
            self._flushes += 1
            flush = self._flushes
        try:
            self._hurry()
            timeout = self._answers.read_until(lambda: self._has_settled(flush), timeout)
            with self.lock:
                if not self._changed.wait_for(lambda: self._is_settled(flush), timeout):
                    raise TimeoutError(
                        f"{self.outstanding} records are unacknowledged, including those sent after"
                        " the flush began"
                    )
        finally:
            with self.lock:
                self._flushing -= 1

    def _has_settled(self, flush: int) -> bool:
        with self.lock:
            return self._is_settled(flush)

    def _is_settled(self, flush: int) -> bool:
        return min(self._unsettled, default=flush) >= flush

    def abandon(self) -> None:
        """Count all records as settled, and wake the waiting callers."""
        with self.lock:
            self._bytes = self.outstanding = 0
            self._unsettled.clear()
            self._changed.notify_all()
            self._answers.wake()

    def close(self, reason: IsologError) -> None:
        """Refuse new records, and wake the callers that wait for room."""
        with self.lock:
            self.closed = self.closed or reason
            self._changed.notify_all()


class Pending(Struct):
    """Unsent records of one default-schema topic.

    ``room``: the bytes reserved for them in the buffer. ``left``: the unused part of ``room``. A
    smaller record needs neither more room nor another batch. ``largest``: the size limit of a
    record. ``counted``: the number of records that the buffer has counted. ``flushes``: the number
    of flushes before the first record. ``partition``: the requested partition of the last record.
    ``runs``: the first row of each run of records with one requested partition, and this partition.
    None means that the key decides. The first run may be missing: its partition is None.
    """

    outcomes: Outcomes
    partitions: int = 0
    largest: int = 0
    room: int = 0
    left: int = 0
    counted: int = 0
    flushes: int = 0
    timer: Timer | None = None
    partition: int | None = None
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)
    _headed: list[tuple[int, Headers]] = field(default_factory=list)
    runs: list[tuple[int, int | None]] = field(default_factory=list)
    _timed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The size of the records in bytes."""
        return self.room - self.left

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> RecordPromise:
        """Add a record. ``timestamp`` is in microseconds, None means now."""
        row = len(self.values)
        try:
            self._append(row, key, value, partition, headers, timestamp)
        except BaseException:  # of a signal handler
            self.cut(row)
            raise
        return RecordPromise(self.outcomes, row)

    def cut(self, row: int) -> None:
        """Remove the last row, which is incomplete."""
        for each in (self.keys, self.values, self.moments):
            del each[row:]
        for listed in (self.runs, self._headed, self._timed):
            if listed and listed[-1][0] >= row:
                listed.pop()
        self.partition = self.runs[-1][1] if self.runs else None

    def _append(
        self,
        row: int,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | None,
    ) -> None:
        if partition != self.partition:
            self.runs.append((row, partition))
            self.partition = partition
        if headers:
            self._headed.append((row, headers))
        if timestamp is not None:
            self._timed.append((row, timestamp))
        self.keys.append(key)
        self.values.append(value)
        self.moments.append(time.time_ns())

    def batch(self) -> pa.RecordBatch:
        """Return the records as one batch, in their order."""
        rows = len(self.values)
        arrays = [
            _binary(self.keys) if self._keyed else _no_keys(rows),
            _binary(self.values),
            self._headers(rows),
            self._timestamps(rows),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)

    def _timestamps(self, rows: int) -> pa.Array:
        if rows == 1 and not self._timed:
            moments = pa.py_buffer(_LONG.pack(self.moments[0] // 1000))
        else:
            values = np.array(self.moments, np.int64) // 1000
            for row, moment in self._timed:
                values[row] = moment
            moments = pa.py_buffer(values)
        return pa.Array.from_buffers(TIMESTAMP_TYPE, rows, [None, moments])

    def _headers(self, rows: int) -> pa.Array:
        if not self._headed:
            return _no_headers(rows)
        found: list[list[dict[str, str | bytes | None]] | None] = [None] * rows
        for row, headers in self._headed:
            found[row] = [{"key": name, "value": value} for name, value in headers]
        return pa.array(found, HEADERS_TYPE)

    @property
    def _keyed(self) -> bool:
        return self.keys.count(None) < len(self.keys)

    def parts(self, partitions: int, keyless: int) -> list[Part]:
        """Split the records by partition: the requested one, else their key's, else ``keyless``."""
        batch = self.batch()
        runs = self.runs if self.runs and self.runs[0][0] == 0 else [(0, None), *self.runs]
        partition = runs[0][1]
        if len(runs) == 1 and (partition is not None or not self._keyed):
            return [(keyless if partition is None else partition, batch, np.arange(len(batch)))]
        places = partitions_of(batch.column("key"), partitions, keyless)
        ends = [row for row, _ in runs[1:]]
        for (row, partition), end in zip(runs, [*ends, len(batch)], strict=True):
            if partition is not None:
                places[row:end] = partition
        return list(split(batch, places))


# The fast path of a single record: its array is made from a buffer, because `pa.array` would
# inspect a list. The arrays for "no key" and "no headers" are created in advance.


def _binary(values: list[bytes | None]) -> pa.Array:
    value = values[0]
    if len(values) > 1 or value is None:
        return pa.array(values, _BINARY)
    offsets = pa.py_buffer(_OFFSETS.pack(0, len(value)))
    return pa.Array.from_buffers(_BINARY, 1, [None, offsets, pa.py_buffer(value)])


def _no_keys(rows: int) -> pa.Array:
    return _ONE_WITHOUT_KEY if rows == 1 else pa.nulls(rows, _BINARY)


def _no_headers(rows: int) -> pa.Array:
    return _ONE_WITHOUT_HEADERS if rows == 1 else pa.nulls(rows, HEADERS_TYPE)
