"""A segment is an Arrow IPC stream: pyarrow, polars and DuckDB read it without isolog's code."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from isolog.errors import StorageFailure
from spark_stream.consistency.entries import ENTRY, Kind, aborted_rows
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression, LogSettings
from tests.storage import logs
from tests.storage.disks import FailingDisk
from tests.storage.logs import append_next, everything, format_of, segment_path


def with_pyarrow(path) -> pa.Table:
    with pa.ipc.open_stream(path) as reader:
        return reader.read_all()


def with_a_mapping(path) -> pa.Table:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


def with_polars(path) -> pa.Table:
    return pl.read_ipc_stream(path).to_arrow()


def with_duckdb(path) -> pa.Table:
    """DuckDB's reader of such files is an extension to download, so it reads pyarrow's stream."""
    with pa.ipc.open_stream(path) as stream, duckdb.connect() as connection:
        return connection.from_arrow(stream).select("id, payload").to_arrow_table()


READERS = [with_pyarrow, with_a_mapping, with_polars, with_duckdb]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("reader", READERS)
def test_other_readers_get_the_rows_of_a_closed_segment(tmp_path, reader, compression):
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    for rows in (1, 100, 7):
        append_next(log, rows)
    log.roll()
    found = reader(segment_path(log, 0, "arrow")).cast(logs.SCHEMA)
    assert found.equals(everything(log))


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("reader", READERS)
def test_segment_is_readable_during_appends(tmp_path, reader, compression):
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    path = segment_path(log, 0, "arrow")
    for _ in range(3):
        append_next(log, 10)
        assert reader(path).cast(logs.SCHEMA).equals(everything(log))


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("reader", READERS)
def test_other_readers_get_aborted_rows_too(tmp_path, reader, compression):
    """Markers have no bytes here, and only the entries have the aborted rows."""
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    for number in range(4):
        for branch in (number, 10 + number):
            batch = log.format.prepare(logs.records(int(log.end.offset), 2), logs.NOW)
            log.append(batch, logs.EPOCH, logs.NOW, Stamp(100 + branch, 1, 0, number))
        for branch, kind in ((number, Kind.COMMIT), (10 + number, Kind.ABORT)):
            log.mark(kind, 100 + branch, 1, number, logs.EPOCH, logs.NOW)
        active = reader(segment_path(log, 0, "arrow"))
        assert active.cast(logs.SCHEMA).equals(everything(log))
    log.roll()
    log.mark(Kind.COMMIT, 100, 1, 9, logs.EPOCH, logs.NOW)
    assert reader(segment_path(log, 16, "arrow")).num_rows == 0  # only a marker
    found = reader(segment_path(log, 0, "arrow")).cast(logs.SCHEMA)
    assert found.equals(everything(log))
    table = np.fromfile(segment_path(log, 0, "entries"), ENTRY)
    (mask,) = aborted_rows([table])
    rows = np.repeat(mask, table["count"])
    seen = logs.table_of(list(log.read(Offset(0), Offset(16), committed=True)))
    assert found.filter(pa.array((~rows).tolist())).equals(seen)
    assert seen.num_rows == 8


def test_segment_is_readable_after_a_failed_append(tmp_path):
    """So is one with an end mark, whose next segment could not be made."""
    disk = FailingDisk()
    log = PartitionLog.open(tmp_path, format_of(), disk)
    append_next(log)
    disk.refused = "create"
    with pytest.raises(StorageFailure):
        log.roll()
    append_next(log)
    for reader in READERS:
        assert reader(segment_path(log, 0, "arrow")).num_rows == 20


def test_every_type_of_the_default_schema_is_readable(tmp_path):
    """Headers are a list of structs: the nested case."""
    log = PartitionLog.open(tmp_path, LogFormat(DEFAULT_SCHEMA, LogSettings(), "timestamp"))
    row = {
        "key": b"k",
        "value": None,
        "headers": [{"key": "ü", "value": b"\0"}, {"key": "", "value": None}],
        "timestamp": -1,
    }
    logs.append(log, pa.RecordBatch.from_pylist([row, row | {"headers": None}], DEFAULT_SCHEMA))
    path = segment_path(log, 0, "arrow")
    assert (
        with_pyarrow(path).to_pylist() == log.segments[0].decode(np.array([0]), None)[0].to_pylist()
    )
    assert with_polars(path)["headers"].to_pylist()[0][0] == row["headers"][0]


@pytest.mark.parametrize("compression", Compression)
def test_schema_message_names_topic_and_partition(tmp_path, compression):
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    append_next(log, rows=3)
    append_next(log, rows=2)
    log.roll()
    with pa.ipc.open_stream(segment_path(log, 5, "arrow")) as reader:
        facts = reader.schema.metadata
    assert facts[b"isolog.topic"] == b"t"
    assert facts[b"isolog.base_offset"] == b"5"
    assert facts[b"isolog.base_entry"] == b"2"
