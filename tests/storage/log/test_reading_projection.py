"""Reads of some columns: other columns are neither decoded nor held in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_stream.consistency.ids import Offset
from spark_stream.sql.filters import row_filter
from spark_stream.storage.settings import Compression
from tests.storage import logs
from tests.storage.logs import append_next, read

MIB = 1 << 20


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_other_columns_of_a_compressed_batch_are_not_decompressed(tmp_path, compression):
    log = logs.PartitionLog.open(tmp_path / "log", logs.format_of(compression=compression))
    append_next(log, rows=1000, size=4000)
    before = pa.total_allocated_bytes()
    (chunk,) = read(log, 0, columns=["id"])
    assert pa.total_allocated_bytes() - before < MIB
    assert chunk.batch.schema.names == ["id"]
    del chunk
    everything = read(log, 0)
    assert len(everything) == 1
    assert pa.total_allocated_bytes() - before > 3 * MIB
    log.close()


@pytest.mark.parametrize("columns", [["id"], []])
def test_other_columns_of_joined_batches_are_not_decoded(tmp_path, columns):
    log = logs.PartitionLog.open(tmp_path / "log", logs.format_of())
    for _ in range(100):
        append_next(log, rows=10, size=1000)
    before = pa.total_allocated_bytes()
    (chunk,) = read(log, 0, columns=columns)
    assert pa.total_allocated_bytes() - before < 100_000, "a million bytes of payload"
    assert (chunk.batch.schema.names, chunk.batch.num_rows) == (columns, 1000)
    assert chunk.batch.get_total_buffer_size() <= 8 * 1000
    log.close()


def test_column_used_only_by_the_filter_is_not_returned(tmp_path):
    log = logs.PartitionLog.open(tmp_path / "log", logs.format_of())
    append_next(log, rows=1000, size=10)
    rows = row_filter("id in (7, 8)", "t", logs.SCHEMA)
    for columns in (["payload"], []):
        (chunk,) = log.read(Offset(0), log.end.offset, columns, rows=rows)
        assert (chunk.batch.schema.names, chunk.batch.num_rows) == (columns, 2)
        assert chunk.offsets().tolist() == [7, 8]
        assert np.array_equal(chunk.counts, [2])
    log.close()
