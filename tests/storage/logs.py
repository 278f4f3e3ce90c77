"""Logs with checkable records: the record at offset n has the number n."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.storage.disk.disk import HOST_DISK, Disk
from spark_stream.storage.format.log_format import UNLIMITED, LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.log.reading import Chunk
from spark_stream.storage.settings import LogSettings

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("payload", pa.binary())])
FACTS = (("isolog.format", "1"), ("isolog.topic", "t"), ("isolog.partition", "0"))
EPOCH = LeaderEpoch(0)
NOW = 1_700_000_000_000_000


def format_of(**settings) -> LogFormat:
    """A log's format with these settings. Limits may be lower than those of users."""
    return LogFormat(SCHEMA, replace(LogSettings(), **settings), facts=FACTS)


def records(first: int, rows: int, size: int = 20) -> pa.RecordBatch:
    """Records for the offsets from ``first`` on, each with ``size`` bytes that do not compress."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    noise = np.random.Generator(np.random.PCG64(first)).integers(0, 256, rows * size, np.uint8)
    offsets = np.arange(0, rows * size + 1, size or 1, dtype=np.int32)
    if size == 0:
        offsets = np.zeros(rows + 1, np.int32)
    payload = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(noise)]
    )
    return pa.RecordBatch.from_arrays([pa.array(ids), payload], schema=SCHEMA)


def append(log: PartitionLog, batch: pa.RecordBatch, now: int = NOW) -> Offset:
    return log.append(log.format.prepare(batch, now), EPOCH, now)


def append_next(
    log: PartitionLog, rows: int = 10, size: int = 20, now: int = NOW
) -> pa.RecordBatch:
    """Append records with the numbers of the log's end. Return them."""
    batch = records(int(log.end.offset), rows, size)
    assert append(log, batch, now) == log.end.offset - rows
    return batch


def read(
    log: PartitionLog,
    start: int,
    end: int | None = None,
    columns: list[str] | None = None,
    max_records: int = UNLIMITED,
    max_bytes: int = UNLIMITED,
) -> list[Chunk]:
    """Read to the end. Check that the chunks have no gap and no duplicate."""
    upto = log.end.offset if end is None else Offset(end)
    chunks = list(log.read(Offset(start), upto, columns, max_records, max_bytes))
    position = start
    for chunk in chunks:
        assert chunk.base_offset == position
        assert chunk.batch.num_rows > 0
        assert int(chunk.counts.sum()) == chunk.batch.num_rows
        assert len(chunk.timestamps) == len(chunk.counts)
        position = chunk.next_offset
    assert position <= upto
    return chunks


def ids(chunks: list[Chunk]) -> list[int]:
    return [number for chunk in chunks for number in chunk.batch.column("id").to_pylist()]


def table_of(chunks: list[Chunk], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_batches([chunk.batch for chunk in chunks], schema)


def everything(log: PartitionLog) -> pa.Table:
    """All records of the log, fully validated."""
    chunks = read(log, int(log.start.offset))
    assert not chunks or chunks[-1].next_offset == log.end.offset
    table = table_of(chunks)
    table.validate(full=True)
    return table


def reopened(log: PartitionLog, disk: Disk = HOST_DISK) -> PartitionLog:
    log.close()
    return PartitionLog.open(log.directory, log.format, disk)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one example of a property. pytest's tmp_path is the same for all examples."""
    memory = Path("/dev/shm")  # a normal file system, where an fsync costs no time
    path = Path(tempfile.mkdtemp(prefix="isolog-test-", dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def flip(path: Path, position: int, bit: int) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def segment_path(log: PartitionLog, base: int, kind: str) -> Path:
    return log.directory / f"{base:020d}.{kind}"
