"""Partitions for replication streams: logs in memory or on the disk, with the real rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from isolog.errors import (
    DamagedEntries,
    EntriesGone,
    InvalidRequest,
    IsologError,
    NotLeader,
    StorageFailure,
    UnknownTopic,
)
from spark_stream.batches import crc32c
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import ENTRY, Entry, Table
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochHistory, EpochStarts, agreement
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.format.stored import StoredEntries, digest
from spark_stream.storage.log.log import PartitionLog

FACTS = (("isolog.format", "1"), ("isolog.topic", "t"), ("isolog.partition", "0"))
EntryBytes = tuple[bytes, bytes]  # the row, and the bytes of the batch


class MemoryLog:
    """Entries from ``start`` on. The caller holds the lock."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[EntryBytes] = []
        self.epochs: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def history(self) -> EpochHistory:
        return EpochHistory(self.start, self.end, self.epochs)

    def append(self, epoch: int, data: bytes) -> None:
        entry = Entry(self.end, self.end, 0, 0, 1, epoch, crc32c(data))
        self.put(entry.packed(0, len(data)) + bytes(4), data, epoch)

    def put(self, row: bytes, data: bytes, epoch: int) -> None:
        if not self.epochs or self.epochs[-1][0] < epoch:
            self.epochs.append((epoch, self.end))
        self.entries.append((row, data))

    def truncate(self, entry: int) -> None:
        del self.entries[max(0, entry - self.start) :]
        self.epochs = [each for each in self.epochs if each[1] < entry]

    def evict(self, entry: int) -> None:
        """Remove the entries below this one, as retention does."""
        del self.entries[: entry - self.start]
        self.start = entry

    def reset(self, start: Boundary) -> None:
        self.start, self.entries, self.epochs = start.entry, [], []

    def read(self, first: int, max_bytes: int) -> StoredEntries | None:
        if first < self.start:
            raise EntriesGone("the log starts later")
        found, size = [], 0
        for row, data in self.entries[first - self.start :][:20_000]:
            if found and size + len(data) > max_bytes:
                break
            found.append((row, data))
            size += len(data)
        if not found:
            return None
        rows = np.frombuffer(b"".join(row for row, _ in found), ENTRY)
        return StoredEntries(rows, pa.py_buffer(b"".join(data for _, data in found)))

    def take(self, rows: Table, data: pa.Buffer) -> None:
        """Append entries after a check of their checksums."""
        if int(rows[0]["entry_index"]) != self.end:
            raise InvalidRequest(f"entry {rows[0]['entry_index']} does not follow {self.end}")
        whole = data.to_pybytes()
        ends = np.cumsum(rows["length"]).tolist()
        lengths = rows["length"].tolist()
        pieces = [whole[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        for row, piece in zip(rows, pieces, strict=True):
            if crc32c(piece) != int(row["data_crc"]):
                at = int(row["entry_index"])
                raise DamagedEntries(f"entry {at} is damaged", entry=at)
        for row, piece in zip(rows, pieces, strict=True):
            self.put(row.tobytes(), piece, int(row["leader_epoch"]))

    def digest(self) -> str:
        return digest([np.frombuffer(b"".join(row for row, _ in self.entries), ENTRY)])


class DiskLog:
    """The same interface over files."""

    SCHEMA = pa.schema([pa.field("payload", pa.binary())])

    def __init__(self, directory: Path) -> None:
        self._log = PartitionLog.open(directory, LogFormat(self.SCHEMA, facts=FACTS))

    @property
    def start(self) -> int:
        return self._log.start.entry

    @property
    def end(self) -> int:
        return self._log.end.entry

    def history(self) -> EpochHistory:
        return EpochStarts.derived(self._log.tables()).history(self.start, self.end)

    def append(self, epoch: int, data: bytes) -> None:
        batch = pa.record_batch([pa.array([data], pa.binary())], schema=self.SCHEMA)
        self._log.append(self._log.format.prepare(batch, 0), epoch, 0)

    def truncate(self, entry: int) -> None:
        if entry < self.end:
            self._log.truncate(entry)

    def reset(self, start: Boundary) -> None:
        self._log.reset(start)

    def read(self, first: int, max_bytes: int) -> StoredEntries | None:
        return self._log.read_entries(first, max_bytes)

    def take(self, rows: Table, data: pa.Buffer) -> None:
        self._log.append_entries(rows, data)

    def digest(self) -> str:
        return digest(self._log.tables())


@dataclass(eq=False)
class MemorySession:
    """A leader's session over its partition."""

    partition: LeadPartition
    epoch: int
    agreement: Agreement
    notify: Callable[[bool], None]
    acked_entry: int = 0
    is_closed: bool = False

    @property
    def end(self) -> int:
        with self.partition.lock:
            return self.partition.log.end

    @property
    def high_watermark(self) -> int:
        with self.partition.lock:
            return self.partition.high_watermark

    def read_entries(self, first, max_bytes):
        self.partition.reads += 1
        with self.partition.lock:
            if self.partition.epoch != self.epoch or self.is_closed:
                raise NotLeader("not the leader in this epoch")
        return self.partition.log.read(first, max_bytes)

    def on_acked(self, entry):
        with self.partition.lock:
            if not self.is_closed:
                assert entry >= self.acked_entry
                self.acked_entry = entry
                self.partition.take_progress()

    def on_damaged(self, entry):
        with self.partition.lock:
            self.partition.complaints.append(entry)

    def on_writes_refused(self):
        with self.partition.lock:
            self.partition.refusals.append(self.follower)

    def on_promised(self, until):
        with self.partition.lock:
            self.partition.promises[self.follower] = until

    def close(self):
        with self.partition.lock:
            self.is_closed = True
            if self.partition.sessions.get(self.follower) is self:
                del self.partition.sessions[self.follower]

    follower: str = ""


@dataclass(eq=False)
class LeadPartition:
    """A partition at its leader. Its high watermark is the lowest entry acked by its sessions."""

    epoch: int = 1
    log: MemoryLog | DiskLog = field(default_factory=MemoryLog)
    lock: threading.RLock = field(default_factory=threading.RLock)
    moved: threading.Condition = field(init=False)
    sessions: dict[str, MemorySession] = field(default_factory=dict)
    complaints: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    promises: dict[str, float] = field(default_factory=dict)
    high_watermark: int = 0
    reads: int = 0

    def __post_init__(self):
        self.moved = threading.Condition(self.lock)

    def append(self, data: bytes, count: int = 1) -> int:
        """Append the bytes ``count`` times. Return the log's end."""
        with self.lock:
            for _ in range(count):
                self.log.append(self.epoch, data)
            self._notify()
            return self.log.end

    def depose(self) -> None:
        """End the leadership of this broker."""
        with self.lock:
            self.epoch = -1
            self._notify()

    def take_progress(self) -> None:
        least = min((each.acked_entry for each in self.sessions.values()), default=0)
        if least > self.high_watermark:
            self.high_watermark = least
            self.moved.notify_all()
            self._notify(is_urgent=False)

    def wait_for(self, high_watermark: int, timeout_s: float = 20.0) -> None:
        with self.lock:
            reached = self.moved.wait_for(lambda: self.high_watermark >= high_watermark, timeout_s)
        assert reached, f"{self.high_watermark}, not {high_watermark}"

    def _notify(self, *, is_urgent: bool = True) -> None:
        for session in self.sessions.values():
            session.notify(is_urgent)


class LeadPartitions:
    """The partitions that a broker leads."""

    def __init__(self, partitions: dict[PartitionId, LeadPartition]) -> None:
        self.partitions = partitions
        self.started = 0

    def start_session(self, follower, generation, key, epoch, history, notify):
        self.started += 1
        partition = self.partitions.get(key)
        if partition is None:
            raise UnknownTopic(f"no topic has the id {key.topic_id}")
        with partition.lock:
            if epoch != partition.epoch:
                raise NotLeader(f"epoch {partition.epoch}, not {epoch}")
            log = partition.log
            shared = agreement(log.history(), history)
            reset = None
            if shared is None:
                shared, reset = log.start, Boundary(log.start, log.start)
            found = Agreement(epoch, shared, partition.high_watermark, reset)
            session = MemorySession(partition, epoch, found, notify)
            session.follower = follower
            session.acked_entry = 0 if reset else shared
            earlier = partition.sessions.get(follower)
            if earlier is not None:
                earlier.is_closed = True
            partition.sessions[follower] = session
            return session


@dataclass(eq=False)
class Copy:
    """A follower's replica."""

    key: PartitionId
    epoch: int = 1
    generation: str = "g"
    log: MemoryLog | DiskLog = field(default_factory=MemoryLog)
    high_watermark: int = 0
    refusals: list[IsologError] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    damage: int = 0  # the number of frames in which a byte is flipped before the check
    full: threading.Event = field(default_factory=threading.Event)  # the disk refuses writes
    stuck: threading.Event = field(default_factory=threading.Event)  # the disk hangs
    freed: threading.Event = field(default_factory=threading.Event)
    entered: int = 0  # threads within a call
    most_entered: int = 0

    def history(self):
        return self.log.history()

    def cut_back(self, agreement):
        with _Alone(self):
            self.agreements.append(agreement)
            if agreement.begin is not None:
                self.log.reset(agreement.begin)
            else:
                self.log.truncate(agreement.entry)
            self.high_watermark = min(agreement.high_watermark, self.log.end)
            return self.log.end

    def append_frame(self, first, rows, data, high_watermark):
        with _Alone(self):
            if self.stuck.is_set():
                self.freed.wait(30)
            if self.full.is_set():
                raise StorageFailure("no room")
            if self.damage and data.size:
                self.damage -= 1
                content = bytearray(data)
                content[len(content) // 2] ^= 1
                data = pa.py_buffer(bytes(content))
            assert first == int(rows[0]["entry_index"])
            self.log.take(rows, data)
            self.high_watermark = min(high_watermark, self.log.end)
            return self.log.end

    def take_high_watermark(self, high_watermark):
        with _Alone(self):
            self.high_watermark = min(high_watermark, self.log.end)

    def on_refused(self, error):
        self.refusals.append(error)


class _Alone:
    """A check that only one thread at a time is within a replica."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        self._copy.entered += 1
        self._copy.most_entered = max(self._copy.most_entered, self._copy.entered)

    def __exit__(self, *_: object) -> None:
        self._copy.entered -= 1
