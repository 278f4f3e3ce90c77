"""Files without a version: only old files of isolog, and none whose versions are unknown."""

from __future__ import annotations

import os

import pytest

from spark_stream.errors import LakeStopped
from spark_stream.lake.delta.actions import Action, AddFile, RemoveFile, encoded, version_path
from spark_stream.lake.expiry import DAY_MS
from spark_stream.lake.storage.snapshots import orphans
from spark_stream.lake.storage.stores import open_store

NOW_MS = 10 * DAY_MS
LIVE, REMOVED, ORPHAN, YOUNG = (
    f"00000-{n:020d}-{n + 1:020d}-0123456789abcdef.parquet" for n in range(4)
)
TORN = ".isolog-0123456789abcdef"  # of a worker that was killed during a write
OF_OTHERS = "part-00000-7d6a2f1e-c000.snappy.parquet"
AGES_DAYS = {LIVE: 5, REMOVED: 5, ORPHAN: 5, OF_OTHERS: 5, YOUNG: 0.5, "latest.parquet": 0}
AGES_DAYS |= {TORN: 5, f"_delta_log/{TORN}": 5}

ORPHANS = {f"t/{ORPHAN}", f"t/{TORN}", f"t/_delta_log/{TORN}"}


@pytest.fixture
def store(tmp_path):
    store = open_store(str(tmp_path))
    add = Action(add=AddFile(path=LIVE, size=1, modification_time=0))
    remove = Action(remove=RemoveFile(path=REMOVED))
    for version, action in enumerate((add, remove)):
        assert store.put_if_absent(f"t/{version_path(version)}", encoded([action]))
    for name, days in AGES_DAYS.items():
        store.put(f"t/{name}", b"x")
        modified_s = (NOW_MS - days * DAY_MS) / 1_000
        os.utime(tmp_path / "t" / name, (modified_s, modified_s))
    for path in (tmp_path / "t" / "_delta_log").glob("*.json"):
        os.utime(path, (0, 0))
    return store


def test_only_old_files_of_isolog_without_a_version_are_orphans(store):
    assert {each.path for each in orphans(store, "t", NOW_MS)} == ORPHANS


def test_a_clock_that_is_ahead_makes_no_file_old(store):
    assert {each.path for each in orphans(store, "t", NOW_MS + 30 * DAY_MS)} == ORPHANS


def test_no_file_is_an_orphan_after_the_first_version_expired(store):
    store.delete(f"t/{version_path(0)}")
    with pytest.raises(LakeStopped, match="the first versions of the table t were removed"):
        orphans(store, "t", NOW_MS)
