"""Rows of a table by their offsets, whoever wrote its files."""

from __future__ import annotations

import random
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from spark_stream.errors import LakeUnavailable
from spark_stream.lake.data_files import is_missing
from spark_stream.lake.delta.actions import Action, Txn
from spark_stream.lake.delta.schema import table_schema
from spark_stream.lake.delta.table import Table, first_application
from spark_stream.lake.reading import (
    Coverage,
    coverage,
    first_at,
    read_rows,
    stored_bytes,
)
from spark_stream.lake.storage.files import write_rows
from spark_stream.lake.storage.stores import open_store
from tests.lake.tables import T0_US, Folder, commit, new_table, replace_files, rows_at

TOPIC = "t-1"
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def filled(folder: Folder) -> Table:
    """Return a table of offsets 0 to 40 of two partitions, without each fifth, in four files."""
    table = new_table("orders", TOPIC, SCHEMA)
    for first in (0, 20):
        files = []
        for partition in (0, 1):
            places = [(partition, at) for at in range(first, first + 20) if at % 5]
            rows = rows_at(places, n=[100 * p + at for p, at in places])
            files.append(folder.write(f"orders/{partition}-{first}.parquet", rows, group_rows=4))
        commit(table, TOPIC, {0: first + 20, 1: first + 20}, files)
    return table


def found(folder: Folder, table: Table, partition: int, start: int, end: int) -> list[int]:
    rows = []
    for batch in read_rows(folder, table, partition, start, end, ["n"]):
        at = batch.column("_offset").to_pylist()
        assert batch.column("n").to_pylist() == [100 * partition + each for each in at]
        rows += at
    return rows


def expected(start: int, end: int) -> list[int]:
    return [at for at in range(max(0, start), min(40, end)) if at % 5]


def test_rows_of_a_range_are_in_order(folder: Folder) -> None:
    table = filled(folder)
    for partition in (0, 1):
        for start, end in ((0, 40), (3, 4), (5, 6), (18, 23), (39, 60), (12, 12)):
            assert found(folder, table, partition, start, end) == expected(start, end)


def test_files_outside_the_range_are_not_opened(folder: Folder) -> None:
    table = filled(folder)
    found(folder, table, 1, 22, 30)
    assert folder.opened == ["orders/1-20.parquet"]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_in_order_after_a_compaction_by_another_program(
    folder: Folder, seed: int, statistics: bool
) -> None:
    table, draw = filled(folder), random.Random(seed)
    paths = draw.sample(sorted(table.files), draw.choice([2, 3, 4]))
    places = []
    for path in paths:
        partition, first = (int(each) for each in path.removesuffix(".parquet").split("-"))
        places += [(partition, at) for at in range(first, first + 20) if at % 5]
    draw.shuffle(places)
    rows = rows_at(places, n=[100 * p + at for p, at in places])
    cut = draw.randrange(1, len(places))
    files = [
        folder.write(f"orders/c{n}.parquet", part, statistics=statistics, group_rows=7)
        for n, part in enumerate((rows.slice(0, cut), rows.slice(cut)))
    ]
    replace_files(table, paths, files)
    for partition in (0, 1):
        start, end = sorted((draw.randrange(41), draw.randrange(41)))
        assert found(folder, table, partition, 0, 40) == expected(0, 40)
        assert found(folder, table, partition, start, end) == expected(start, end)


def test_one_of_many_overlapping_files_is_open_at_a_time(folder: Folder) -> None:
    table, files = new_table("orders", TOPIC, SCHEMA), []
    for number in range(60):
        places = [(0, at) for at in range(number, 600, 60)]
        rows = rows_at(places, n=[at for _, at in places])
        files.append(folder.write(f"orders/{number}.parquet", rows, statistics=False, group_rows=3))
    commit(table, TOPIC, {0: 600}, files)
    before, most = psutil.Process().num_fds(), 0
    open_read = folder.open_read

    def counted(path: str) -> pa.NativeFile:
        nonlocal most
        most = max(most, psutil.Process().num_fds() - before)
        return open_read(path)

    folder.open_read = counted  # type: ignore[method-assign]
    assert found(folder, table, 0, 0, 600) == list(range(600))
    assert most <= 2


def test_a_file_without_a_new_column_has_rows_without_it(folder: Folder) -> None:
    table = filled(folder)
    batches = read_rows(folder, table, 0, 0, 40, ["n", "later"])
    assert {each.schema.names[0] for each in batches} == {"n"}


def test_a_removed_file_is_reported(folder: Folder) -> None:
    table = filled(folder)
    (folder.root / "orders/0-20.parquet").unlink()
    rows = read_rows(folder, table, 0, 0, 40, ["n"])
    before = [next(rows).num_rows for _ in range(4)]
    assert sum(before) == len(expected(0, 20))
    with pytest.raises(LakeUnavailable) as raised:
        next(rows)
    assert is_missing(raised.value)


def test_a_flipped_byte_is_an_error_and_no_value(tmp_path: Path) -> None:
    store, path = open_store(str(tmp_path)), tmp_path / "orders/0.parquet"
    schema = table_schema("orders", pa.schema([("n", pa.int64()), ("text", pa.string())]))
    draw = random.Random(1)
    values = {"n": [draw.getrandbits(60) for _ in range(200)]}
    values["text"] = [f"{n:x}" for n in values["n"]]
    rows = rows_at([(0, at) for at in range(200)], **values).select(schema.names).cast(schema)
    file = write_rows(store, "orders", "0.parquet", schema, rows.to_batches())
    assert file is not None
    table, whole = new_table("orders", TOPIC, SCHEMA), path.read_bytes()
    commit(table, TOPIC, {0: 200}, [file])
    assert pa.Table.from_batches(read_rows(store, table, 0, 0, 200, schema.names)).num_rows == 200
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in draw.sample(range(4, footer), 300):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            found = pa.Table.from_batches(read_rows(store, table, 0, 0, 200, schema.names))
        except LakeUnavailable:
            continue
        assert found.column("n").to_pylist() == values["n"], at
        assert found.column("text").to_pylist() == values["text"], at


def test_coverage_is_from_the_first_commit_to_the_present_offset(folder: Folder) -> None:
    table = filled(folder)
    assert coverage(table, TOPIC, 0) == Coverage(0, 40)
    assert coverage(table, TOPIC, 2) is None
    assert coverage(table, "t-2", 0) is None
    first = Txn(first_application(TOPIC, 0), 12, 0)
    table.apply(table.version + 1, [Action(txn=first)])
    assert coverage(table, TOPIC, 0) == Coverage(12, 40)


def test_the_first_offset_of_a_time_is_found_by_statistics(folder: Folder) -> None:
    table = filled(folder)
    assert first_at(folder, table, 0, T0_US + 25_000_000, 0, 40) == 26
    assert folder.opened == ["orders/0-20.parquet"]
    assert first_at(folder, table, 0, T0_US, 0, 40) == 1
    assert first_at(folder, table, 0, T0_US, 22, 40) == 22
    assert first_at(folder, table, 0, T0_US + 23_000_001, 0, 40) == 24
    assert first_at(folder, table, 0, T0_US + 39_000_000, 0, 39) is None
    assert first_at(folder, table, 0, T0_US + 40_000_000, 0, 40) is None


def test_sizes_are_in_proportion_to_offsets(folder: Folder) -> None:
    table = filled(folder)
    whole = sum(each.size for path, each in table.files.items() if path.startswith("0-"))
    assert stored_bytes(table, 0, 0, 40) == whole
    assert abs(stored_bytes(table, 0, 10, 30) - whole / 2) < whole / 10
    assert stored_bytes(table, 2, 0, 40) == 0
