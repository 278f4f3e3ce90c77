"""The metadata store that ``isolog cluster backup`` and ``restore`` use."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_stream.cluster.brokers import CLUSTER
from spark_stream.cluster.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOLOG_PATH", raising=False)
    monkeypatch.delenv("ISOLOG_BOOTSTRAP", raising=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "log" / "metadata.sqlite"
    path.parent.mkdir()
    made = SqliteStore(path)
    made.put(CLUSTER, {"id": "c"}, 0)
    made.close()
    return path


def test_backup_copies_the_store_in_the_directory_of_isolog_path(
    call, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("ISOLOG_PATH", str(store.parent))
    assert call("cluster", "backup", str(tmp_path / "copy")).code == 0
    assert (tmp_path / "copy").exists()


def test_backup_needs_exactly_one_store(call, store, tmp_path):
    copy = str(tmp_path / "copy")
    assert "no log is named" in call("cluster", "backup", copy).err
    both = ["--metadata", str(store), "--path", str(store.parent)]
    assert "no metadata store is named" in call("cluster", "backup", copy, *both).err


def test_restore_into_a_directory_without_a_store_needs_force(call, store, tmp_path):
    """The directory of a broker with a shared store contains no store."""
    empty = tmp_path / "broker-2"
    empty.mkdir()
    refused = call("cluster", "restore", str(store), "--path", str(empty))
    assert refused.code != 0
    assert "there is no metadata store in" in refused.err
    assert not list(empty.iterdir())
    forced = call("cluster", "restore", str(store), "--path", str(empty), "--force")
    assert forced.code == 0
    assert (empty / "metadata.sqlite").exists()
