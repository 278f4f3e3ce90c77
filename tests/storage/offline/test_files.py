"""Checks of logs without a broker find all damage, and change no file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment, NotALogDirectory
from spark_stream.consistency.entries import ENTRY_SIZE, Kind
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.storage.disk.directory import log_note
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.offline.checks import CheckedLog, check_log
from spark_stream.storage.offline.files import STATES, LogFiles, find_logs
from spark_stream.storage.offline.snapshot import SnapshotDisk
from spark_stream.storage.settings import Compression
from tests.examples import examples
from tests.storage import logs
from tests.storage.logs import (
    EPOCH,
    NOW,
    append_next,
    everything,
    flip,
    format_of,
    records,
    segment_path,
)
from tests.storage.recoveries import (
    copied,
    open_again,
    opened_or_refused,
    sample_log,
    three_segments,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> PartitionLog:
    return sample_log(tmp_path_factory.mktemp("sample"))


def state_of(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    """Every file below a folder with its content and the time of its last change."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def checked(log: PartitionLog, *, in_use: bool = False) -> CheckedLog:
    """Check the log, and that the check changes no file."""
    before = state_of(log.directory)
    found = check_log(log.directory, in_use=in_use)
    assert state_of(log.directory) == before
    return found


@pytest.mark.parametrize("in_use", [False, True])
@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("kind", ["arrow", "entries"])
def test_hole_of_a_tebibyte_at_the_end_of_a_file_is_not_read(tmp_path, kind, segment, in_use):
    """A read of it would take an hour, and a copy would fill the disk."""
    log = PartitionLog.open(tmp_path, format_of())
    for _ in range(2):
        append_next(log)
        append_next(log)
        log.roll()
    append_next(log)
    log.close()
    file = getattr(log.segments[1 + segment].name, kind)
    size = file.stat().st_size
    os.truncate(file, 1 << 40)
    found = check_log(tmp_path, in_use=in_use)
    assert (found.damaged, found.records) == (False, 50)
    is_last = segment == 1
    log = PartitionLog.open(tmp_path, log.format)
    assert everything(log).num_rows == 50
    assert not (tmp_path / "cut").exists()
    assert (file.stat().st_size == size) is is_last
    append_next(log)
    log.close()


@pytest.mark.parametrize("compression", Compression)
def test_intact_log_has_no_findings(tmp_path, compression):
    log = PartitionLog.open(tmp_path, format_of(compression=compression))
    for _ in range(3):
        append_next(log)
    log.close()
    found = checked(log)
    assert (found.findings, found.changes, found.damaged) == ((), (), False)
    assert (found.topic, found.partition) == ("t", 0)
    assert (found.segments, found.entries, found.records, found.end) == (1, 3, 30, 30)


def test_flipped_bit_of_a_closed_segment_is_found_with_its_place(sample, tmp_path):
    log = copied(sample, tmp_path)
    arrow = segment_path(log, 0, "arrow")
    position = int(log.segments[0].table[0]["position"])
    flip(arrow, position + 100, 3)
    found = checked(log)
    (finding,) = found.findings
    assert finding.damage
    assert (finding.file, finding.position) == (str(arrow), position)
    assert (finding.entry, finding.offset) == (0, 0)


def test_flipped_bit_of_the_last_segment_reports_the_cut_of_an_open(sample, tmp_path):
    log = copied(sample, tmp_path)
    row = log.segments[-1].table[2]
    arrow = segment_path(log, 10, "arrow")
    flip(arrow, int(row["position"]) + 40, 0)
    found = checked(log)
    (finding,) = found.findings
    assert (finding.file, finding.position) == (str(arrow), int(row["position"]))
    assert finding.offset == int(row["base_offset"])
    assert "takes 3 entries with 10 records out of it" in finding.problem
    assert any(f"{arrow} is cut from" in change for change in found.changes)
    (cut,) = open_again(log).cuts
    assert (cut.entries_lost, cut.records_lost, cut.end) == (3, 10, finding.offset)


def test_unfinished_write_is_not_damage(sample, tmp_path):
    log = copied(sample, tmp_path)
    with segment_path(log, 10, "arrow").open("ab") as file:
        file.write(b"half a batch")
    found = checked(log)
    (finding,) = found.findings
    assert not found.damaged
    assert "12 bytes at the end belong to no entry" in finding.problem


def test_damaged_schema_message_is_found_and_another_one_is_used(sample, tmp_path):
    log = copied(sample, tmp_path)
    flip(segment_path(log, 0, "arrow"), 60, 1)
    (finding,) = checked(log).findings
    assert (finding.position, finding.damage) == (0, True)
    assert "schema message" in finding.problem
    assert read_all(tmp_path) == list(range(24))


def test_records_without_an_intact_schema_message_are_not_decoded(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    append_next(log)
    log.close()
    flip(segment_path(log, 0, "arrow"), 60, 1)
    (finding,) = checked(log).findings
    assert "schema message" in finding.problem
    (view,) = LogFiles(tmp_path, SnapshotDisk()).segments
    assert (view.schema, view.header_intact) == (None, False)


def test_missing_file_is_refused_as_by_a_broker(sample, tmp_path):
    log = copied(sample, tmp_path)
    segment_path(log, 0, "entries").unlink()
    found = checked(log)
    (finding,) = found.findings
    assert found.damaged
    assert finding.file == str(segment_path(log, 0, "entries"))
    with pytest.raises(DamagedSegment):
        open_again(log)


def test_missing_folder_is_found(tmp_path):
    log = PartitionLog.open(tmp_path / "0", format_of())
    append_next(log)
    log.close()
    for path in log.directory.iterdir():
        path.unlink()
    log.directory.rmdir()
    assert log_note(log.directory).exists()
    (path,) = find_logs(tmp_path)
    found = check_log(path)
    assert [each.damage for each in found.findings] == [True]
    assert "the folder of the partition is missing" in found.findings[0].problem


@settings(max_examples=examples(100), deadline=None)
@given(
    base=st.sampled_from([0, 10]),
    kind=st.sampled_from(["arrow", "entries"]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    cut=st.booleans(),
    forced=st.booleans(),
)
def test_check_predicts_the_effect_of_an_open(sample, base, kind, place, bit, cut, forced):
    with logs.folder() as folder:
        log = copied(sample, folder, forced=forced)
        log.close(forced=False)
        path = segment_path(log, base, kind)
        position = int(path.stat().st_size * place)
        if cut:
            with path.open("r+b") as file:
                file.truncate(position)
        else:
            flip(path, position, bit)
        found = checked(log)
        before = {each for each in folder.rglob("*") if each.is_file()}
        opened, refused = opened_or_refused(log)
        if opened is None:
            assert found.damaged
            assert refused is not None
            assert refused.message in found.findings[0].problem
            return
        assert (found.start, found.end) == (opened.start.offset, opened.end.offset)
        if any(each.grave for each in opened.cuts):
            assert found.damaged
        if not found.findings:
            assert not opened.cuts
        after = {each for each in folder.rglob("*") if each.is_file()}
        for each in {*before, *after} - {*before} & {*after}:
            if each.suffix:
                assert any(change.startswith(str(each)) for change in found.changes)


def read_all(folder: Path, start: int = 0, end: int = 1 << 40) -> list[int]:
    """The ids of all readable records in the files."""
    found: list[int] = []
    for view in LogFiles(folder, SnapshotDisk()).segments:
        for each in view.records(start, end):
            if not isinstance(each, DamagedSegment):
                ids = each.batch.column("id").to_pylist()
                assert each.offsets().tolist() == ids
                found += ids
    return found


def test_records_around_damage_are_readable(sample, tmp_path):
    log = copied(sample, tmp_path)
    row = log.segments[-1].table[2]
    flip(segment_path(log, 10, "arrow"), int(row["position"]) + 40, 0)
    start, count = int(row["base_offset"]), int(row["count"])
    lost = range(start, start + count)
    assert read_all(tmp_path) == [each for each in range(24) if each not in lost]
    assert read_all(tmp_path, 5, 12) == list(range(5, 12))


def test_states_match_the_transactions(tmp_path):
    log = PartitionLog.open(tmp_path, format_of())
    for number in (1, 2, 3):
        batch = log.format.prepare(records(int(log.end.offset), 2), NOW)
        log.append(batch, EPOCH, NOW, Stamp(100 + number, 1, 0, number))
    append_next(log, rows=2)
    log.mark(Kind.COMMIT, 101, 1, 1, EPOCH, NOW)
    log.mark(Kind.ABORT, 102, 1, 2, EPOCH, NOW)
    log.close()
    (view,) = LogFiles(tmp_path, SnapshotDisk()).segments
    assert [STATES[each] for each in view.states] == [
        "committed",
        "aborted",
        "open",
        "",
        "committed",
        "aborted",
    ]
    (chunk,) = view.records(0, 100)
    assert [STATES[each] for each in view.states_at(chunk.offsets())] == [
        *["committed"] * 2,
        *["aborted"] * 2,
        *["open"] * 2,
        *[""] * 2,
    ]


def test_growing_log_is_intact_at_every_check(tmp_path):
    """A writer in this process appends, rolls and evicts, as a broker would."""
    log = PartitionLog.open(tmp_path, format_of(segment_bytes=40_000, retention_bytes=100_000))
    append_next(log)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            append_next(log, rows=50, size=100)
            log.housekeep(NOW, log.end.offset)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            found = check_log(tmp_path, in_use=True)
            assert not found.findings
            assert found.records > 0
    finally:
        stop.set()
        writer.join()
        log.close()


def test_damage_at_the_end_is_found_beside_a_running_broker(sample, tmp_path):
    log = copied(sample, tmp_path)
    entries = segment_path(log, 10, "entries")
    flip(entries, entries.stat().st_size - ENTRY_SIZE, 0)
    found = checked(log, in_use=True)
    assert found.damaged


def test_logs_are_found_below_any_folder_without_cut_files(tmp_path):
    topic = tmp_path / "topics" / "t" / "id"
    topic.mkdir(parents=True)
    for number in (0, 2, 10):
        three_segments(topic / str(number))
    (topic / "0" / "cut" / "1").mkdir(parents=True)
    (topic / "0" / "cut" / "1" / f"{0:020d}.arrow").touch()
    wanted = [topic / each for each in ("0", "2", "10")]
    assert find_logs(tmp_path) == find_logs(topic.parent) == wanted
    assert find_logs(topic / "2") == [topic / "2"]
    assert find_logs(topic / "0" / "cut" / "1") == [topic / "0" / "cut" / "1"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogDirectory, match="no partition's log is in"):
        find_logs(tmp_path / "empty")
