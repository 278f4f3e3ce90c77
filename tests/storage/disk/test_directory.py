"""A broker's directory: isolog's, empty, of other software, or of a later release."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import (
    InvalidTopic,
    IsologError,
    NotALogDirectory,
    StorageFailure,
    UnsupportedFormat,
)
from spark_stream.storage.disk.directory import (
    FORMAT_VERSION,
    LogDirectory,
    RunFile,
    check_directory,
    open_directory,
    recorded_cluster_id,
)
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.support import native


def test_missing_or_empty_directory_is_initialized(tmp_path):
    made = open_directory(tmp_path / "a" / "b")
    facts = json.loads((tmp_path / "a" / "b" / "isolog.json").read_text())
    assert facts == {
        "format": "isolog",
        "version": 1,
        "cluster_id": made.cluster_id,
        "broker_id": made.broker_id,
    }
    (tmp_path / "empty").mkdir()
    assert open_directory(tmp_path / "empty").cluster_id != made.cluster_id


def test_second_open_has_the_same_cluster(tmp_path):
    assert open_directory(tmp_path) == open_directory(tmp_path)


def test_new_directory_is_readable_only_by_its_owner(tmp_path):
    open_directory(tmp_path / "log")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o700


def test_files_made_before_the_description_are_accepted(tmp_path):
    for name in ("broker.lock", "start.lock", "broker.log", "isolog.json.new"):
        (tmp_path / name).touch()
    open_directory(tmp_path)


@pytest.mark.rule("the owner and the format of a directory", "storage/disk/directory.py")
def test_directory_of_other_software_is_refused_unchanged(tmp_path):
    for name in ("thesis.tex", "a.png", "b.png", "c.png"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(NotALogDirectory, match=r"it holds a\.png, b\.png, c\.png, …"):
        open_directory(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "c.png", "thesis.tex"]


def test_check_makes_an_empty_directory(tmp_path):
    check_directory(tmp_path / "log")
    assert list((tmp_path / "log").iterdir()) == []


def test_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotALogDirectory, match="is not a directory"):
        open_directory(tmp_path / "file")


@pytest.mark.parametrize("other", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_other_format_is_refused_with_both_versions(tmp_path, other):
    described(tmp_path, {"format": "isolog", "version": other, "cluster_id": "c"})
    with pytest.raises(
        UnsupportedFormat, match=f"has format {other}.* reads format {FORMAT_VERSION}"
    ):
        open_directory(tmp_path)


def described(path, facts) -> None:
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    (path / "isolog.json").write_bytes(text)


@pytest.mark.parametrize(
    "facts",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,  # deeper than the parser's limit
        [],
        None,
        "isolog",
        {},
        {"version": 1},
        {"format": "isolog", "cluster_id": "c"},
        {"format": "isolog", "version": "new", "cluster_id": "c"},
        {"format": "isolog", "version": None, "cluster_id": "c"},
        {"format": "isolog", "version": FORMAT_VERSION, "cluster_id": "c"},
        {"format": "isolog", "version": float("inf"), "cluster_id": "c"},
        {"format": "postgres", "version": 1, "cluster_id": "c"},
    ],
    ids=lambda facts: repr(facts)[:60],
)
def test_invalid_description_is_refused_unchanged(tmp_path, facts):
    described(tmp_path, facts)
    before = (tmp_path / "isolog.json").read_bytes()
    with pytest.raises(NotALogDirectory, match=r"isolog\.json"):
        open_directory(tmp_path)
    assert (tmp_path / "isolog.json").read_bytes() == before


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(100))
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("format", "version"), json_values)))
def test_any_description_opens_or_raises_a_typed_error(facts):
    with logs.folder() as folder:
        described(folder, facts | {"cluster_id": "c", "broker_id": "b"})
        try:
            opened = open_directory(folder)
        except IsologError:
            return
        assert opened.cluster_id == "c"
        assert facts == {"format": "isolog", "version": 1}


def test_partitions_have_the_documented_paths(tmp_path):
    directory = open_directory(tmp_path)
    assert directory.partition("flights", "id1", 3) == tmp_path / "topics" / "flights" / "id1" / "3"


def test_new_directory_belongs_to_the_given_cluster(tmp_path):
    assert recorded_cluster_id(tmp_path) is None
    assert open_directory(tmp_path, "d" * 32).cluster_id == "d" * 32
    assert recorded_cluster_id(tmp_path) == "d" * 32


# -- power cuts -----------------------------------------------------------------------------------

HERE = Path("/somewhere/log")


class FailingOnce(SimulatedDisk):
    """A disk on which one fsync fails. ``number``: its number, from 0."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def may_fail(self, path: Path) -> None:
        if self.forces == self._number:
            self.fail_next_force()
        super().may_fail(path)


@pytest.mark.parametrize("seed", range(20))
def test_description_survives_a_power_cut(seed):
    disk = SimulatedDisk()
    made = open_directory(HERE, disk=disk)
    disk.crash(random.Random(seed))
    assert open_directory(HERE, disk=disk) == made


@pytest.mark.parametrize("forces", range(5))
@pytest.mark.parametrize("seed", range(20))
def test_directory_is_made_again_after_a_power_cut(forces, seed):
    """One fsync fails, and then there is a power cut."""
    disk = FailingOnce(forces)
    with contextlib.suppress(StorageFailure):
        open_directory(HERE, disk=disk)
    disk.crash(random.Random(seed))
    made = open_directory(HERE, disk=disk)
    assert open_directory(HERE, disk=disk) == made


def test_directory_has_the_last_run(tmp_path):
    open_directory(tmp_path)
    assert RunFile(tmp_path).recorded_run() is None
    RunFile(tmp_path).record_run("one")
    RunFile(tmp_path).record_run("two")
    assert RunFile(tmp_path).recorded_run() == "two"
    check_directory(tmp_path)
    (tmp_path / "broker.run").write_bytes(b"")
    assert RunFile(tmp_path).recorded_run() == "a copy of "


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2])
def test_copy_of_a_directory_is_detected(tmp_path, copy):
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    open_directory(first)
    RunFile(first).record_run("one")
    shutil.copytree(first, second, copy_function=copy)
    assert RunFile(second).recorded_run() == "a copy of one"
    first.rename(third)
    (third / "broker.run").chmod(0o644)
    assert RunFile(third).recorded_run() == "one"
    RunFile(second).record_run("two")
    assert RunFile(second).recorded_run() == "two"


@native  # it takes the generation of an inode
def test_copy_in_place_of_the_original_is_detected(tmp_path):
    """The file system may give the copy inodes of the original, even the same one."""
    log, backup = tmp_path / "log", tmp_path / "backup"
    open_directory(log)
    for run in range(100):
        RunFile(log).record_run(str(run))
        shutil.copytree(log, backup)
        shutil.rmtree(log)
        shutil.copytree(backup, log)
        shutil.rmtree(backup)
        assert RunFile(log).recorded_run() == f"a copy of {run}"


def test_run_of_an_earlier_release_is_recognized(tmp_path):
    open_directory(tmp_path)
    RunFile(tmp_path).record_run("one")
    (tmp_path / "broker.original").unlink()
    assert RunFile(tmp_path).recorded_run() == "one"


@pytest.mark.parametrize("seed", range(20))
def test_run_survives_a_power_cut(seed):
    disk = SimulatedDisk()
    open_directory(HERE, disk=disk)
    RunFile(HERE, disk).record_run("one")
    RunFile(HERE, disk).record_run("two")
    disk.crash(random.Random(seed))
    assert RunFile(HERE, disk).recorded_run() == "two"


PARTS = st.one_of(
    st.text(max_size=30),
    st.text("./\\a\0", max_size=8),
    st.from_regex(r"[A-Za-z0-9._-]{1,210}", fullmatch=True),
    st.sampled_from(["", ".", "..", "../x", "a/../..", "/etc", "a/b", ".hidden", "a\n", "x" * 201]),
)


@pytest.mark.rule("names and ids as paths within a broker's directory", "storage/disk/directory.py")
@settings(max_examples=examples(500))
@given(PARTS, PARTS, st.integers(0, 1 << 31))
def test_no_name_or_id_leads_out_of_the_topics_folder(name, topic_id, number):
    directory = LogDirectory(Path("/log"), "cluster", "broker")
    try:
        folder = directory.partition(name, topic_id, number)
    except InvalidTopic:
        return
    assert Path(os.path.normpath(folder)) == folder
    assert folder.parts == ("/", "log", "topics", name, topic_id, str(number))
