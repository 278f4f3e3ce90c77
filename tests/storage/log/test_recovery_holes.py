"""A hole ends the log: later entries are neither served nor deleted."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment
from spark_stream.consistency.entries import ENTRY_SIZE
from spark_stream.storage.disk.fsyncs import MARK_NAME
from spark_stream.storage.format.codec import END_OF_STREAM
from spark_stream.storage.log.log import PartitionLog
from tests.examples import examples
from tests.simulation.disk import SimulatedDisk
from tests.storage import logs
from tests.storage.disks import Died, MortalDisk
from tests.storage.logs import append_next, flip, format_of, ids, read, segment_path
from tests.storage.recoveries import (
    BATCHES,
    batches_of,
    holds_exactly,
    kept_aside,
    open_again,
    three_segments,
)


def test_missing_entries_file_of_the_last_segment_is_refused(tmp_path):
    log = batches_of(tmp_path)
    segment_path(log, 0, "entries").unlink()
    arrow = segment_path(log, 0, "arrow").read_bytes()
    with pytest.raises(DamagedSegment, match=r"entries is missing.*does not guess") as caught:
        open_again(log)
    assert caught.value.details["path"] == str(segment_path(log, 0, "entries"))
    assert segment_path(log, 0, "arrow").read_bytes() == arrow


def test_missing_arrow_file_of_the_last_segment_is_refused(tmp_path):
    log = batches_of(tmp_path)
    segment_path(log, 0, "arrow").unlink()
    entries = segment_path(log, 0, "entries").read_bytes()
    with pytest.raises(DamagedSegment, match=f"is missing.* has {len(BATCHES)} entries"):
        open_again(log)
    assert segment_path(log, 0, "entries").read_bytes() == entries


def test_arrow_file_of_other_software_is_refused(tmp_path):
    log = batches_of(tmp_path)
    path = segment_path(log, 0, "arrow")
    path.write_bytes(b"not a segment at all")
    with pytest.raises(DamagedSegment, match="not a segment of Arrow batches"):
        open_again(log)
    assert path.read_bytes() == b"not a segment at all"


@pytest.mark.parametrize("first", [0, 50], ids=["from offset 0", "after retention"])
@pytest.mark.parametrize("missing", ["arrow", "entries"])
@pytest.mark.parametrize("which", [0, 1], ids=["oldest", "second"])
def test_missing_file_of_an_older_segment_is_refused(tmp_path, first, missing, which):
    """A crash removes no name: another program took the file, and may still have it."""
    log = three_segments(tmp_path, first)
    path = segment_path(log, first + 10 * which, missing)
    path.unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DamagedSegment, match="is missing") as caught:
        open_again(log)
    assert caught.value.details["path"] == str(path)
    assert "Restore the file" in caught.value.hint
    assert sorted(tmp_path.rglob("*")) == before


def holds_the_log_up_to(log: PartitionLog, end: int, aside: list[str]) -> bool:
    """Whether a log of three segments ends there, accepts appends, and kept those files."""
    (cut,) = log.cuts
    folder = log.directory
    assert (cut.end, cut.end + cut.records_lost) == (end, 25)
    assert cut.kept_in == str(folder / "cut" / "1")
    assert str(cut).startswith("t/0: ")
    assert set(aside) <= {path.removeprefix("1/") for path in kept_aside(folder)}
    assert holds_exactly(log, end)
    return True


LAST = [f"{20:020d}.arrow", f"{20:020d}.entries"]


@settings(max_examples=examples(40))
@given(st.data())
def test_damaged_entry_of_an_older_segment_ends_the_log(data):
    with logs.folder() as folder:
        log = three_segments(folder)
        path = segment_path(log, 10, "entries")
        row = data.draw(st.integers(0, 2))
        at = row * ENTRY_SIZE + data.draw(st.integers(0, ENTRY_SIZE - 1))
        flip(path, at, data.draw(st.integers(0, 7)))
        behind = [segment_path(log, 20, kind).read_bytes() for kind in ("arrow", "entries")]
        log = open_again(log)
        assert holds_the_log_up_to(log, 10 + [0, 4, 5][row], LAST)
        kept = kept_aside(folder)
        assert [kept[f"1/{name}"] for name in LAST] == behind
        assert f"1/{10:020d}.entries.from.{row * ENTRY_SIZE}" in kept
        assert log.cuts[0].entries_lost == 7 - [3, 4, 5][row]


def test_missing_segment_ends_the_log_before_it(tmp_path):
    log = three_segments(tmp_path)
    for kind in ("arrow", "entries"):
        segment_path(log, 10, kind).unlink()
    assert holds_the_log_up_to(open_again(log), 10, LAST)


def test_invalid_first_segment_leaves_an_empty_log_at_its_start(tmp_path):
    log = three_segments(tmp_path, first=50)
    flip(segment_path(log, 50, "entries"), 3, 0)
    log = open_again(log)
    (cut,) = log.cuts
    assert (log.start, log.end) == (log.end, log.end)
    assert (int(log.end.offset), int(log.end.entry), cut.records_lost) == (50, 1, 25)
    append_next(log)
    assert ids(read(log, 50)) == list(range(50, 60))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("segment_entries", [4, 1 << 18], ids=["rolls", "rolls by hand"])
def test_power_cut_leaves_no_hole_before_a_later_segment(segment_entries, seed):
    """With flush=none too a segment is on the disk before the next one exists."""
    here, disk = Path("/log"), SimulatedDisk()
    log = PartitionLog.open(here, format_of(segment_entries=segment_entries), disk)
    for number in range(10):
        append_next(log, rows=32)
        if number == 8:
            log.roll()
    base = int(log.segments[-1].first.offset)
    assert base >= 256
    disk.crash(random.Random(seed))
    log = PartitionLog.open(here, log.format, disk)
    left = int(log.end.offset)
    assert base <= left <= 320
    assert ids(read(log, 0)) == list(range(left))
    assert holds_exactly(log, left, disk=disk)


def test_loss_in_an_older_segment_ends_the_log(tmp_path):
    """The disk lost bytes after their fsync, and the mark of fsyncs too."""
    log = three_segments(tmp_path)
    header = int(log.segments[1].table[0]["position"])
    segment_path(log, 10, "entries").write_bytes(b"")
    os.truncate(segment_path(log, 10, "arrow"), header)
    (tmp_path / MARK_NAME).unlink()
    assert holds_the_log_up_to(open_again(log), 10, LAST)


@pytest.mark.parametrize("fails_at", range(12))
def test_open_survives_a_crash_while_it_moves_segments(tmp_path, fails_at):
    log = three_segments(tmp_path)
    flip(segment_path(log, 0, "entries"), ENTRY_SIZE, 1)
    whole = [path.read_bytes() for path in sorted(tmp_path.glob("*.*"))]
    with contextlib.suppress(Died):
        PartitionLog.open(tmp_path, log.format, MortalDisk(fails_at))
    log = open_again(log)
    assert ids(read(log, 0)) == list(range(4))
    left = [path.read_bytes() for path in sorted(tmp_path.glob("*.*"))]
    kept = [*kept_aside(tmp_path).values(), *left]
    for content in whole:
        assert content in kept or any(content.endswith(each) and each for each in kept)
    assert holds_exactly(log, 4)


def test_reappeared_files_of_a_failed_roll_do_not_cut_the_previous_segment(tmp_path):
    """After a power cut, the next segment's names may reappear, although the roll removed them."""
    log = PartitionLog.open(tmp_path, format_of())
    append_next(log)
    log.roll()
    left = {path.name: path.read_bytes() for path in tmp_path.glob(f"{10:020d}.*")}
    for name in left:
        (tmp_path / name).unlink()
    log = PartitionLog.open(tmp_path, log.format)
    append_next(log)
    log.close()
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    log = open_again(log)
    assert log.cuts == ()
    assert holds_exactly(log, 20)


@settings(max_examples=examples(40))
@given(st.data())
def test_damaged_batch_of_an_older_segment_loses_only_that_batch(data):
    with logs.folder() as folder:
        log = three_segments(folder)
        table = log.segments[1].table
        row = data.draw(st.integers(0, 2))
        inside = data.draw(st.integers(0, int(table[row]["length"]) - 1))
        path = segment_path(log, 10, "arrow")
        flip(path, int(table[row]["position"]) + inside, data.draw(st.integers(0, 7)))
        damaged = path.read_bytes()
        log = open_again(log)
        first, last = [(10, 14), (14, 15), (15, 20)][row]
        assert ids(read(log, 0)) == list(range(first)), "what is good is given first"
        for start in range(first, last):
            with pytest.raises(DamagedSegment, match=f"offsets {first} to {last - 1}") as caught:
                read(log, start)
            assert (caught.value.details["first"], caught.value.details["next"]) == (first, last)
        assert ids(read(log, last)) == list(range(last, 25))
        assert path.read_bytes() == damaged


@settings(max_examples=examples(20))
@given(lost=st.integers(len(END_OF_STREAM) + 1, 1500))
def test_shortened_arrow_file_of_an_older_segment_ends_the_log(lost):
    with logs.folder() as folder:
        log = three_segments(folder)
        path, table = segment_path(log, 10, "arrow"), log.segments[1].table
        size = max(int(table[0]["position"]), path.stat().st_size - lost)
        os.truncate(path, size)
        good = 10 + int(table["count"][table["position"] + table["length"] <= size].sum())
        assert holds_the_log_up_to(open_again(log), good, LAST)


def test_damage_in_one_column_is_damage_for_every_projection(tmp_path):
    log = three_segments(tmp_path)
    flip(segment_path(log, 0, "arrow"), int(log.segments[0].table[0]["position"]) + 200, 1)
    log = open_again(log)
    for columns in (["id"], ["payload"], []):
        with pytest.raises(DamagedSegment):
            read(log, 0, columns=columns)
