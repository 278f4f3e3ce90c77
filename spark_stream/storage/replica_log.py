"""What a partition needs of its log, whatever keeps it: files, or memory in a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from spark_stream.consistency.entries import Kind, Table
from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.consistency.leader import Boundary
from spark_stream.consistency.producers import NOBODY, Stamp
from spark_stream.errors import StorageFailure
from spark_stream.storage.aside import Cut
from spark_stream.storage.log_format import UNLIMITED, LogFormat, Prepared
from spark_stream.storage.reading import Chunk


class ReplicaLog(Protocol):
    """The log of one partition. One writer at a time; readers need no lock.

    What each does, :class:`~spark_stream.storage.log.PartitionLog` says.
    """

    directory: Path
    format: LogFormat
    cuts: tuple[Cut, ...]

    @property
    def failed(self) -> StorageFailure | None: ...
    @property
    def start(self) -> Boundary: ...
    @property
    def end(self) -> Boundary: ...
    @property
    def size(self) -> int: ...

    def tables(self) -> list[Table]: ...
    def append(
        self, batch: Prepared, leader_epoch: LeaderEpoch, now: int, stamp: Stamp = NOBODY
    ) -> Offset: ...
    def mark(
        self,
        kind: Kind,
        producer_id: int,
        epoch: int,
        transaction: int,
        leader_epoch: LeaderEpoch,
        now: int,
    ) -> None: ...
    def roll(self) -> None: ...
    def flush(self) -> None: ...
    def next_flush_due(self, monotonic: float) -> float | None: ...
    def flush_if_due(self, monotonic: float) -> None: ...
    def housekeep(self, now: int, last_stable_offset: Offset) -> int: ...
    def housekeeping_due(self) -> int | None: ...
    def close(self) -> None: ...
    def read(
        self,
        start: Offset,
        end: Offset,
        columns: Sequence[str] | None = None,
        max_records: int = UNLIMITED,
        max_bytes: int = UNLIMITED,
        *,
        committed: bool = False,
    ) -> Iterator[Chunk]: ...
    def has_aborted(self, start: Offset, end: Offset) -> bool: ...
    def offset_at(self, timestamp: int) -> Offset | None: ...
