"""A file of a table that cannot be read is one error, which names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from spark_stream.errors import LakeUnavailable
from spark_stream.lake.data_files import DataFile, is_missing
from spark_stream.lake.delta.actions import AddFile
from tests.lake.tables import Folder, rows_at

PLACES = [(0, at) for at in range(400)]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def written(folder: Folder) -> AddFile:
    found = folder.write("orders/a b.parquet", rows_at(PLACES, n=range(400)), group_rows=100)
    return replace(found, path="a%20b.parquet")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def overwritten(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut_short, overwritten, emptied, Path.unlink])
@pytest.mark.parametrize(
    "read", [DataFile.read, lambda file: file.read_group(0, ["n"])], ids=["whole", "group"]
)
def test_a_file_that_cannot_be_read_is_named(
    folder: Folder,
    written: AddFile,
    damage: Callable[[Path], None],
    read: Callable[[DataFile], pa.Table],
) -> None:
    assert read(DataFile(folder, "orders", written)).column("n")[0].as_py() == 0
    damage(folder.root / "orders/a b.parquet")
    message = "the file a b.parquet of the table orders cannot be read"
    with pytest.raises(LakeUnavailable, match=message) as raised:
        read(DataFile(folder, "orders", written))
    assert is_missing(raised.value) is (damage is Path.unlink)
    assert (raised.value.details["table"], raised.value.details["file"]) == (
        "orders",
        "a b.parquet",
    )
    assert "\n" not in raised.value.message


def test_columns_that_a_file_lacks_are_left_out(folder: Folder, written: AddFile) -> None:
    found = DataFile(folder, "orders", written)
    assert len(found.row_groups()) == 4
    assert found.read_group(1, ["later", "n"]).to_pydict() == {"n": list(range(100, 200))}


def test_times_of_spark_are_read_in_microseconds(folder: Folder, written: AddFile) -> None:
    path = folder.root / "orders/a b.parquet"
    whole = pq.read_table(path)
    pq.write_table(whole, path, use_deprecated_int96_timestamps=True)
    file = DataFile(folder, "orders", written)
    assert file.read(["_timestamp"]).schema.field("_timestamp").type.unit == "us"
