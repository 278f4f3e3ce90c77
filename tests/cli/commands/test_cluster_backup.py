"""Which metadata store ``isolog cluster backup`` and ``restore`` mean."""

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


def test_the_variable_names_the_directory_whose_store_is_copied(call, store, tmp_path, monkeypatch):
    monkeypatch.setenv("ISOLOG_PATH", str(store.parent))
    assert call("cluster", "backup", str(tmp_path / "copy")).code == 0
    assert (tmp_path / "copy").exists()


def test_a_store_that_no_option_or_two_name_is_refused(call, store, tmp_path):
    copy = str(tmp_path / "copy")
    assert "no log is named" in call("cluster", "backup", copy).err
    both = ["--metadata", str(store), "--path", str(store.parent)]
    assert "no metadata store is named" in call("cluster", "backup", copy, *both).err


def test_a_backup_goes_into_a_directory_without_a_store_only_if_forced(call, store, tmp_path):
    """A broker that shares a store has none in its directory."""
    empty = tmp_path / "broker-2"
    empty.mkdir()
    refused = call("cluster", "restore", str(store), "--path", str(empty))
    assert refused.code != 0
    assert "there is no metadata store in" in refused.err
    assert not list(empty.iterdir())
    forced = call("cluster", "restore", str(store), "--path", str(empty), "--force")
    assert forced.code == 0
    assert (empty / "metadata.sqlite").exists()
