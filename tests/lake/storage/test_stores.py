"""Stores of a lake: a folder, and S3. Each has the same tests."""

from __future__ import annotations

import os
import secrets
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_stream.errors import InvalidOption, LakeUnavailable, Unsupported
from spark_stream.lake.storage.stores import check_store, open_store


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path):
    if request.param == "folder":
        return open_store(str(tmp_path / "lake"))
    request.getfixturevalue("objects")
    return open_store(f"s3://lake/{secrets.token_hex(4)}")


def test_of_racing_puts_one_is_written(store):
    """Eight writers put the same version: one of them succeeds, with its content."""
    written: list[bytes] = []

    def put(content: bytes) -> None:
        if store.put_if_absent("t/_delta_log/0.json", content):
            written.append(content)

    threads = [threading.Thread(target=put, args=(b"%d" % number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [store.read("t/_delta_log/0.json")] == written


def test_files_are_read_replaced_listed_and_deleted(store):
    """Paths that do not exist have no content, and can be deleted."""
    assert store.read("t/a") is None
    assert list(store.list("t/")) == []
    store.put("t/a", b"1")
    store.put("t/a", b"22")
    store.put("t/log/b", b"333")
    store.put("tt/c", b"4")
    assert store.read("t/a") == b"22"
    assert {each.path: each.size for each in store.list("t/")} == {"t/a": 2, "t/log/b": 3}
    assert [each.path for each in store.list("t/", after="t/a")] == ["t/log/b"]
    assert [each.path for each in store.list("t/l")] == ["t/log/b"]
    assert all(each.modified_ms > 1_600_000_000_000 for each in store.list("t/"))
    store.delete("t/a")
    store.delete("t/a")
    assert store.read("t/a") is None


def test_files_have_a_size(store):
    """A file that does not exist has none."""
    store.put("t/a", b"22")
    assert [store.size(path) for path in ("t/a", "t/b", "u/a")] == [2, None, None]


def test_an_interrupted_write_leaves_no_file(store):
    """A file exists once it is complete."""

    def interrupt() -> None:
        with store.write("t/part.parquet") as file:
            file.write(b"x" * 20)
            raise KeyError

    with pytest.raises(KeyError):
        interrupt()
    assert list(store.list("t/")) == []
    with pytest.raises(FileNotFoundError):
        store.open_read("t/part.parquet")


def test_parquet_is_written_and_read(store):
    """Large files are written in parts, and read by ranges."""
    rows = pa.table({"n": range(1_000), "text": [os.urandom(10_000).hex() for _ in range(1_000)]})
    with store.write("t/rows.parquet") as file:
        with pq.ParquetWriter(file, rows.schema, compression="none") as writer:
            writer.write_table(rows, row_group_size=100)
        assert file.tell() > 10_000_000
    with store.open_read("t/rows.parquet") as file:
        assert pq.read_table(file).equals(rows)


def test_a_store_is_checked(store):
    """The check leaves no file."""
    check_store(store)
    assert list(store.list("")) == []


def test_a_store_that_replaces_files_is_refused(store):
    """Commits to such a store would replace those of others."""

    class Replacing:
        def __getattr__(self, name):
            return getattr(store, name)

        def put_if_absent(self, path, data):
            store.put(path, data)
            return True

    with pytest.raises(Unsupported, match="replaces files"):
        check_store(Replacing())


def test_locations_with_keys_or_of_unknown_kinds_are_refused():
    """A location is part of a plan, so it has no keys."""
    for location in ("s3://key:secret@lake/a", "s3://lake/a?secret=1"):
        with pytest.raises(InvalidOption, match="keys or parameters") as caught:
            open_store(location)
        assert "secret" not in str(caught.value)
    open_store("abfss://container@account.dfs.core.windows.net/lake")
    with pytest.raises(Unsupported, match="ftp://lake"):
        open_store("ftp://lake")


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path):
    """A file in the place of the folder gives a clear error."""
    (tmp_path / "lake").write_bytes(b"")
    store = open_store(str(tmp_path / "lake"))
    for call in (lambda: store.put_if_absent("t/a", b""), lambda: store.put("t/a", b"")):
        with pytest.raises(LakeUnavailable, match=r"lake refused an operation"):
            call()


def test_an_address_with_file_is_a_folder(tmp_path):
    """Escapes of the address are decoded."""
    open_store((tmp_path / "my lake").as_uri()).put("t/a", b"1")
    assert (tmp_path / "my lake/t/a").read_bytes() == b"1"
