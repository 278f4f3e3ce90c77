"""Tables with checkpoints, in their own reader and in those of others, at each version."""

from __future__ import annotations

import json
import random
import shutil
from decimal import Decimal

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import (
    LAST_CHECKPOINT,
    Action,
    RemoveFile,
    Txn,
    checkpoint_path,
    commit_info,
    encoded,
    version_path,
)
from spark_stream.lake.delta.schema import table_schema
from spark_stream.lake.delta.table import first_actions
from spark_stream.lake.storage.checkpoints import read_checkpoint, write_checkpoint
from spark_stream.lake.storage.files import write_rows
from spark_stream.lake.storage.snapshots import _LISTED_MIN, put_floor, read_table, sync_table
from spark_stream.lake.storage.stores import open_store

COLUMNS = {
    "n": pa.int32(),
    "text": pa.string(),
    "share": pa.float64(),
    "price": pa.decimal128(10, 2),
    "moment": pa.timestamp("us", "UTC"),
}
ZONELESS = COLUMNS | {"local": pa.timestamp("us")}


def rows(schema: pa.Schema, first: int) -> pa.RecordBatch:
    values = {
        "n": [first, None, first + 2],
        "text": ["a" * 40, "b", None],
        "share": [0.5, float("nan") if first else 1.5, 2.5],
        "price": [Decimal("1.25"), Decimal("-3.50"), None],
        "moment": [1_001, 2_002, 3_003],
        "local": [1_001, 2_002, 3_003],
        "_partition": [0, 0, 0],
        "_offset": [first, first + 1, first + 2],
        "_timestamp": [1_001, 2_002, 3_003],
    }
    return pa.record_batch([pa.array(values[f.name], f.type) for f in schema], schema=schema)


def build(store, columns, versions: int = 12, checkpoint_at: int = 10):
    schema = table_schema("t", pa.schema(columns))
    configuration = {"isolog.cluster": "c", "isolog.topic.id": "i", "isolog.lake": "l"}
    actions = [
        commit_info("CREATE TABLE", 1, "m"),
        *first_actions("t", schema, "id", configuration, 1),
    ]
    table = read_table(store, "t")
    for version in range(versions):
        if version:
            name = f"0-{version}.parquet"
            file = write_rows(store, "t", name, schema, [rows(schema, version * 3)])
            actions = [commit_info("WRITE", version, "m"), Action(add=file)]
            actions.append(Action(txn=Txn("isolog:i:0", version * 3 + 3)))
        assert store.put_if_absent(f"t/{version_path(version)}", encoded(actions))
        table = read_table(store, "t")
        if version == checkpoint_at:
            write_checkpoint(store, table)
    return table


@pytest.mark.parametrize("count", [3, _LISTED_MIN + 3])
def test_files_of_another_size_and_missing_files_are_found(tmp_path, count):
    """Few files are looked up one by one, and many by a list."""
    store = open_store(str(tmp_path))
    for number in range(count):
        store.put(f"t/{number} .parquet", b"12345")
    store.put_if_absent(f"t/{version_path(0)}", b"")
    sizes = {f"{number}%20.parquet": 5 for number in range(count)}
    assert sync_table(store, "t", sizes) == []
    (tmp_path / "t/0 .parquet").unlink()
    store.put("t/1 .parquet", b"1234")
    store.put("t/2 .parquet", b"")
    assert sync_table(store, "t", sizes) == [f"{number}%20.parquet" for number in range(3)]


@pytest.mark.parametrize("columns", [COLUMNS, ZONELESS], ids=["plain", "zoneless"])
def test_others_read_each_version(tmp_path, columns):
    """deltalake and polars return the rows of each version, also from a checkpoint alone."""
    build(open_store(str(tmp_path)), columns)
    for version in range(1, 12):
        found = DeltaTable(tmp_path / "t", version=version)
        assert found.transaction_version("isolog:i:0") == version * 3 + 3
        offsets = polars.read_delta(str(tmp_path / "t"), version=version)["_offset"].sort()
        assert offsets.to_list() == list(range(3, version * 3 + 3))
    for version in range(10):
        (tmp_path / "t" / version_path(version)).unlink()
    assert DeltaTable(tmp_path / "t").version() == 11
    frame = polars.scan_delta(str(tmp_path / "t"))
    assert frame.filter(polars.col("_offset") >= 33).collect().height == 3
    assert frame.filter(polars.col("text") > "a" * 40).collect().height == 11


def test_a_checkpoint_has_the_state_of_the_versions(tmp_path):
    """Its reader returns the same state without the versions below it."""
    store = open_store(str(tmp_path))
    whole = build(store, ZONELESS)
    for version in range(10):
        (tmp_path / "t" / version_path(version)).unlink()
    found = read_table(store, "t")
    assert found.version == 11
    for name in ("protocol", "metadata", "txns", "removed", "stopped"):
        assert getattr(found, name) == getattr(whole, name), name
    assert list(found.files) == list(whole.files)
    found.check("c", "i")
    assert read_table(store, "t", 10).version == 10


def test_removed_files_are_in_a_checkpoint(tmp_path):
    """Expiry deletes these files later, and a worker may start from a checkpoint before that."""
    store = open_store(str(tmp_path))
    table = build(store, COLUMNS, versions=3)
    table.removed = {"old": RemoveFile("old", deletion_timestamp=1, partition_values={}, size=1)}
    write_checkpoint(store, table)
    assert list(read_table(store, "t").removed) == ["old"]


def test_a_stopped_table_gets_no_checkpoint(tmp_path):
    """A reader of the checkpoint would not see the reason."""
    store = open_store(str(tmp_path))
    table = build(store, COLUMNS, versions=3)
    table.stopped = "version 2 restored an older version"
    write_checkpoint(store, table)
    assert not (tmp_path / "t" / checkpoint_path(2)).exists()


def test_the_last_checkpoint_never_moves_back(tmp_path):
    """A worker that was paused may write an older one late."""
    store = open_store(str(tmp_path))
    build(store, COLUMNS)
    write_checkpoint(store, read_table(store, "t", 5))
    assert json.loads((tmp_path / "t" / LAST_CHECKPOINT).read_text())["version"] == 10
    assert (tmp_path / "t" / checkpoint_path(5)).exists()


def test_a_checkpoint_of_another_writer_is_not_used(tmp_path):
    """After a restore it would hide the rows that were removed."""
    store = open_store(str(tmp_path))
    build(store, COLUMNS, versions=4, checkpoint_at=99)
    found = DeltaTable(tmp_path / "t")
    found.restore(2)
    found.create_checkpoint()
    assert (tmp_path / "t" / LAST_CHECKPOINT).exists()
    with pytest.raises(LakeStopped, match="restored"):
        read_table(store, "t").check("c", "i")


def test_removed_first_versions_stop_a_reader_without_a_checkpoint(tmp_path):
    """Without the stop a worker would create the table a second time, below its versions."""
    store = open_store(str(tmp_path))
    build(store, COLUMNS, versions=4, checkpoint_at=99)
    for version in range(2):
        (tmp_path / "t" / version_path(version)).unlink()
    with pytest.raises(LakeStopped, match="first versions of the table t were removed"):
        read_table(store, "t")


def test_a_damaged_checkpoint_stops_with_its_remedy(tmp_path):
    """The versions have the state, so the remedy is the deletion of a file, unless they expired."""
    store = open_store(str(tmp_path))
    build(store, COLUMNS)
    checkpoint, last = tmp_path / "t" / checkpoint_path(10), tmp_path / "t" / LAST_CHECKPOINT
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(b"damaged")
    with pytest.raises(LakeStopped, match="checkpoint of the table t") as stopped:
        read_table(store, "t")
    assert f"If the table has {version_path(0)}, delete {LAST_CHECKPOINT}" in stopped.value.hint
    last.unlink()
    assert read_table(store, "t").version == 11
    put_floor(store, "t", 10)
    for version in range(10):
        (tmp_path / "t" / version_path(version)).unlink()
    with pytest.raises(LakeStopped, match="checkpoint of the table t") as stopped:
        read_table(store, "t")
    assert f"Restore {checkpoint_path(10)}" in stopped.value.hint
    checkpoint.write_bytes(whole)
    last.write_bytes(b"")
    with pytest.raises(LakeStopped, match="checkpoint of the table t") as stopped:
        read_table(store, "t")
    assert stopped.value.hint == f"Delete the file {LAST_CHECKPOINT} of the table."
    last.unlink()
    assert read_table(store, "t").version == 11


def test_a_flipped_byte_of_a_checkpoint_is_an_error_and_no_other_state(tmp_path):
    """Its pages have checksums, as those of data files."""
    store = open_store(str(tmp_path))
    state = read_table(store, build(store, COLUMNS).at)
    path, draw = tmp_path / "t" / checkpoint_path(10), random.Random(1)
    whole, expected = path.read_bytes(), read_checkpoint(store, "t", 10)
    assert expected.files.keys() < state.files.keys()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    errors = 0
    for at in draw.sample(range(4, footer), 100):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert read_checkpoint(store, "t", 10) == expected
        except LakeStopped:
            errors += 1
    assert errors > 50


def test_statistics_have_certain_bounds_only(tmp_path):
    """A column with NaN has none. Long texts are truncated, times rounded outwards."""
    store = open_store(str(tmp_path))
    schema = table_schema("t", pa.schema(ZONELESS))
    file = write_rows(store, "t", "a.parquet", schema, [rows(schema, 7)])
    assert file is not None
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 3
    assert stats["nullCount"] | {"n": 1, "text": 1, "price": 1, "share": 0} == stats["nullCount"]
    least, most = stats["minValues"], stats["maxValues"]
    assert "share" not in least
    assert (least["n"], most["n"]) == (7, 9)
    assert (least["_offset"], most["_offset"]) == (7, 9)
    assert least["text"] == "a" * 32
    assert (least["price"], most["price"]) == (-3.5, 1.25)
    assert (least["moment"], most["moment"]) == (
        "1970-01-01T00:00:00.001Z",
        "1970-01-01T00:00:00.004Z",
    )
    assert least["local"] == "1970-01-01T00:00:00.001"
    assert pq.read_table(tmp_path / "t/a.parquet").num_rows == 3
    shutil.rmtree(tmp_path / "t")
    assert write_rows(store, "t", "b.parquet", schema, []) is None
    assert not (tmp_path / "t").exists()
