"""Opening a log after a crash or damage: exactly the valid prefix, and a word about the rest.

A log here has three kinds of places where a bit can flip: an entry, a batch, the schema message.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.consistency.ids import Offset
from spark_stream.errors import DamagedSegment
from spark_stream.storage.codec import END_OF_STREAM
from spark_stream.storage.disk import OsDisk
from spark_stream.storage.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.storage import logs
from tests.storage.disks import Died, MortalDisk
from tests.storage.logs import append_next, everything, flip, format_of, ids, read, segment_path

BATCHES = (3, 1, 4, 1, 5)
"""Records in each batch of the sample's last segment."""


def batches_of(path: Path, base: int = 0, **settings) -> PartitionLog:
    """A closed log with one segment of those batches; ``base`` records in an older segment."""
    log = PartitionLog.open(path, format_of(**settings))
    if base:
        append_next(log, rows=base)
        log.roll()
    for rows in BATCHES:
        append_next(log, rows)
    log.close()
    return log


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> PartitionLog:
    return batches_of(tmp_path_factory.mktemp("sample"), base=10)


def copied(sample: PartitionLog, folder: Path) -> PartitionLog:
    """The closed sample with its files in another folder; only to be opened again."""
    shutil.copytree(sample.directory, folder, dirs_exist_ok=True)
    active = sample.segments[-1]
    return PartitionLog(folder, sample.format, (), active, (), OsDisk())


def open_again(log: PartitionLog) -> PartitionLog:
    return PartitionLog.open(log.directory, log.format)


def opened_or_refused(log: PartitionLog) -> tuple[PartitionLog | None, DamagedSegment | None]:
    try:
        return open_again(log), None
    except DamagedSegment as error:
        return None, error


def holds_exactly(log: PartitionLog, records: int, start: int = 0) -> bool:
    """Whether the log has these records, right to the byte, and takes a next one for good."""
    expected = [logs.records(*span) for span in _spans(log, start, records)]
    whole = everything(log)
    assert log.end.offset == records
    assert whole.equals(pa.Table.from_batches(expected, logs.SCHEMA))
    more = append_next(log, rows=2)
    again = logs.reopened(log)
    assert again.cuts == (), "what was cut once is not cut again"
    assert again.end.offset == records + 2
    assert everything(again).slice(records - start).equals(pa.Table.from_batches([more]))
    again.close()
    return True


def _spans(log: PartitionLog, start: int, end: int):
    for segment in log.segments:
        for row in segment.table:
            first, count = int(row["base_offset"]), int(row["count"])
            if start <= first < end:
                yield first, count


def starts(base: int) -> list[int]:
    """The offset at which each batch of the sample starts, and the end."""
    return [base + sum(BATCHES[:number]) for number in range(len(BATCHES) + 1)]


# -- the tail ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", Compression)
def test_a_sound_log_is_opened_without_a_cut(tmp_path, compression):
    log = open_again(batches_of(tmp_path, compression=compression))
    assert log.cuts == ()
    assert holds_exactly(log, 14)


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["arrow", "entries"]),
    garbage=st.binary(min_size=1, max_size=200).filter(lambda each: each != END_OF_STREAM),
)
def test_garbage_after_the_tail_is_cut(sample, kind, garbage):
    with logs.folder() as folder:
        log = copied(sample, folder)
        with segment_path(log, 10, kind).open("ab") as file:
            file.write(garbage)
        log = open_again(log)
        (cut,) = log.cuts
        assert (cut.records_lost, cut.entries_lost, cut.kept_aside) == (0, 0, False)
        assert cut.bytes_lost == len(garbage)
        assert holds_exactly(log, 24)


@settings(max_examples=20)
@given(lost=st.integers(1, ENTRY_SIZE - 1))
def test_a_torn_entry_is_cut_with_its_batch(sample, lost):
    with logs.folder() as folder:
        log = copied(sample, folder)
        path = segment_path(log, 10, "entries")
        os.truncate(path, path.stat().st_size - lost)
        log = open_again(log)
        (cut,) = log.cuts
        assert cut.kept_aside is False
        assert holds_exactly(log, 19)


@settings(max_examples=30)
@given(st.data())
def test_a_torn_batch_is_cut_and_intact_entries_are_kept_aside(sample, data):
    with logs.folder() as folder:
        log = copied(sample, folder)
        path = segment_path(log, 10, "arrow")
        table = sample.segments[-1].table
        size = data.draw(st.integers(int(table[0]["position"]), path.stat().st_size - 1))
        os.truncate(path, size)
        good = int((table["position"] + table["length"] <= size).sum())
        before = segment_path(log, 10, "entries").read_bytes()
        log = open_again(log)
        (cut,) = log.cuts
        assert cut.entries_lost == len(BATCHES) - good
        assert cut.records_lost == sum(BATCHES[good:])
        assert cut.kept_aside
        assert (folder / "cut" / f"{10:020d}.entries").read_bytes() == before
        assert holds_exactly(log, starts(10)[good])


@settings(max_examples=80)
@given(st.data())
def test_a_flipped_bit_in_an_entry_ends_the_log_before_it(sample, data):
    row = data.draw(st.integers(0, len(BATCHES) - 1))
    name = data.draw(st.sampled_from(ENTRY.names))
    kind, at = ENTRY.fields[name][:2]
    position = row * ENTRY_SIZE + at + data.draw(st.integers(0, kind.itemsize - 1))
    with logs.folder() as folder:
        log = copied(sample, folder)
        flip(segment_path(log, 10, "entries"), position, data.draw(st.integers(0, 7)))
        log = open_again(log)
        (cut,) = log.cuts
        behind = row < len(BATCHES) - 1
        assert cut.kept_aside is behind, "intact entries behind the damage are not thrown away"
        if behind:
            assert cut.entries_lost == len(BATCHES) - row
            assert cut.records_lost == sum(BATCHES[row:])
        assert holds_exactly(log, starts(10)[row])


@settings(max_examples=50)
@given(st.data())
def test_a_flipped_bit_in_a_batch_ends_the_log_before_it(sample, data):
    row = data.draw(st.integers(0, len(BATCHES) - 1))
    entry = sample.segments[-1].table[row]
    position = int(entry["position"]) + data.draw(st.integers(0, int(entry["length"]) - 1))
    with logs.folder() as folder:
        log = copied(sample, folder)
        flip(segment_path(log, 10, "arrow"), position, data.draw(st.integers(0, 7)))
        log = open_again(log)
        (cut,) = log.cuts
        assert (cut.entries_lost, cut.records_lost) == (len(BATCHES) - row, sum(BATCHES[row:]))
        assert cut.kept_aside
        assert holds_exactly(log, starts(10)[row])


@settings(max_examples=80)
@given(st.data())
def test_a_flipped_bit_in_the_schema_message_costs_no_record_and_is_mended(sample, data):
    """Nothing of ours needs that message, but polars does: it is written anew."""
    header = int(sample.segments[-1].table[0]["position"])
    with logs.folder() as folder:
        log = copied(sample, folder)
        path = segment_path(log, 10, "arrow")
        whole = path.read_bytes()
        flip(path, data.draw(st.integers(0, header - 1)), data.draw(st.integers(0, 7)))
        log = open_again(log)
        assert path.read_bytes() == whole or log.cuts == ()
        with pa.ipc.open_stream(path) as reader:
            assert reader.schema.equals(logs.SCHEMA)
            assert reader.read_all().num_rows == 14
        assert holds_exactly(log, 24)


def emptied(folder: Path) -> PartitionLog:
    """A closed log of which retention left nothing: its next entry is the 25th, its offset 50."""
    log = PartitionLog.open(folder, format_of(retention_ms=100))
    for _ in range(25):
        append_next(log, rows=2)
    log.housekeep(logs.NOW + 10**6, log.end.offset)
    assert log.start == log.end
    log.close()
    return log


def goes_on_where_it_was_or_is_refused(log: PartitionLog) -> str:
    path = segment_path(log, 50, "arrow")
    again, error = opened_or_refused(log)
    if again is None:
        assert str(path) in str(error)
        return "refused"
    assert (again.end.entry, again.end.offset) == (25, 50)
    append_next(again)
    assert pa.ipc.open_stream(path).read_all().num_rows == 10
    again.close()
    return "went on"


@settings(max_examples=40)
@given(st.data())
def test_a_flipped_bit_never_changes_where_an_empty_log_goes_on(data):
    """After retention only the schema message tells the first entry's index: it has a checksum."""
    with logs.folder() as folder:
        log = emptied(folder)
        path = segment_path(log, 50, "arrow")
        position = data.draw(st.integers(0, path.stat().st_size - 1))
        flip(path, position, data.draw(st.integers(0, 7)))
        goes_on_where_it_was_or_is_refused(log)


def test_a_flipped_digit_of_the_first_entrys_index_is_known(tmp_path):
    log = emptied(tmp_path)
    path = segment_path(log, 50, "arrow")
    whole = path.read_bytes()
    digits = [at for at in range(len(whole)) if whole[at : at + 2] == b"25"]
    outcomes = set()
    for position in digits:
        flip(path, position, 0)
        outcomes.add(goes_on_where_it_was_or_is_refused(log))
        path.write_bytes(whole)
        segment_path(log, 50, "entries").write_bytes(b"")
    assert "refused" in outcomes


@settings(max_examples=60)
@given(data=st.data(), flips=st.integers(1, 4))
def test_whatever_is_damaged_in_the_last_segment_what_is_served_is_right(sample, data, flips):
    with logs.folder() as folder:
        log = copied(sample, folder)
        for _ in range(flips):
            path = segment_path(log, 10, data.draw(st.sampled_from(["arrow", "entries"])))
            size = path.stat().st_size
            flip(path, data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 7)))
        if data.draw(st.booleans()):
            os.truncate(path, data.draw(st.integers(0, size)))
        again, error = opened_or_refused(log)
        if again is None:
            assert str(folder) in str(error)
        else:
            assert int(again.end.offset) in starts(10)
            assert holds_exactly(again, int(again.end.offset))


def test_a_second_cut_of_a_segment_keeps_what_the_first_kept_aside(tmp_path):
    log = batches_of(tmp_path)
    entries = segment_path(log, 0, "entries")
    aside = []
    for _ in range(2):
        aside.append(entries.read_bytes())
        flip(entries, 2 * ENTRY_SIZE, 0)
        aside[-1] = entries.read_bytes()
        log = open_again(log)
        assert log.cuts[0].kept_aside
        append_next(log, rows=7)
        append_next(log, rows=8)
        log.close()
    kept = [path.read_bytes() for path in sorted((tmp_path / "cut").glob("*.entries*"))]
    assert sorted(kept) == sorted(aside)


def test_what_is_kept_aside_does_not_change_when_the_log_grows(tmp_path):
    log = batches_of(tmp_path)
    flip(segment_path(log, 0, "entries"), ENTRY_SIZE, 0)
    log = open_again(log)
    kept = {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    assert len(kept) == 2
    append_next(log, rows=100)
    assert {path: path.read_bytes() for path in (tmp_path / "cut").iterdir()} == kept


def test_a_file_that_somebody_may_have_mapped_is_never_shrunk_in_place(tmp_path):
    log = batches_of(tmp_path)
    paths = [segment_path(log, 0, kind) for kind in ("arrow", "entries")]
    flip(paths[1], ENTRY_SIZE, 0)
    mapped = [pa.memory_map(str(path)).read_buffer() for path in paths]
    before = [(path.stat().st_ino, bytes(each)) for path, each in zip(paths, mapped, strict=True)]
    log = open_again(log)
    for path, buffer, (inode, content) in zip(paths, mapped, before, strict=True):
        assert path.stat().st_ino != inode
        assert bytes(buffer) == content  # an ended mapping would have killed us here
    assert holds_exactly(log, 3)


def test_a_cut_says_in_one_line_what_was_lost(tmp_path):
    log = batches_of(tmp_path)
    flip(segment_path(log, 0, "arrow"), int(log.segments[-1].table[3]["position"]) + 100, 3)
    (cut,) = open_again(log).cuts
    line = str(cut)
    assert "\n" not in line
    assert f"{0:020d}.arrow" in line
    assert "2 entries with 6 records" in line
    assert "folder `cut`" in line


# -- missing files -------------------------------------------------------------------------------


def test_entries_missing_of_the_last_segment_is_refused_never_guessed(tmp_path):
    log = batches_of(tmp_path)
    segment_path(log, 0, "entries").unlink()
    arrow = segment_path(log, 0, "arrow").read_bytes()
    with pytest.raises(DamagedSegment, match=r"entries is missing.*does not guess") as caught:
        open_again(log)
    assert caught.value.details["path"] == str(segment_path(log, 0, "entries"))
    assert segment_path(log, 0, "arrow").read_bytes() == arrow


def test_arrow_missing_of_the_last_segment_is_refused_and_nothing_is_cut(tmp_path):
    log = batches_of(tmp_path)
    segment_path(log, 0, "arrow").unlink()
    entries = segment_path(log, 0, "entries").read_bytes()
    with pytest.raises(DamagedSegment, match=f"has {len(BATCHES)} entries"):
        open_again(log)
    assert segment_path(log, 0, "entries").read_bytes() == entries


def test_an_arrow_file_of_something_else_is_refused_and_nothing_is_cut(tmp_path):
    log = batches_of(tmp_path)
    path = segment_path(log, 0, "arrow")
    path.write_bytes(b"not a segment at all")
    with pytest.raises(DamagedSegment, match="not a segment of Arrow batches"):
        open_again(log)
    assert path.read_bytes() == b"not a segment at all"


def three_segments(path: Path, first: int = 0) -> PartitionLog:
    """Segments of 10, 10 and 5 records, the first of them at offset ``first``."""
    log = PartitionLog.open(path, format_of(retention_bytes=2000))
    if first:
        append_next(log, rows=first, size=100)
        log.roll()
    for _ in range(2):
        for rows in (4, 1, 5):
            append_next(log, rows)
        log.roll()
    append_next(log, rows=5)
    if first:
        assert log.housekeep(logs.NOW, Offset(first)) == 1
    log.close()
    return log


@pytest.mark.parametrize("first", [0, 50], ids=["from offset 0", "after retention"])
@pytest.mark.parametrize("missing", ["arrow", "entries"])
@pytest.mark.parametrize("which", [0, 1], ids=["oldest", "second"])
def test_a_file_missing_of_an_older_segment_is_reported_and_the_rest_is_served(
    tmp_path, first, missing, which
):
    log = three_segments(tmp_path, first)
    hole = first + 10 * which
    segment_path(log, hole, missing).unlink()
    log = open_again(log)
    (cut,) = log.cuts
    assert cut.records_lost == 10
    assert "one of its two files is missing" in str(cut)
    assert (log.start.offset, log.end.offset) == (first, first + 25)
    with pytest.raises(DamagedSegment) as caught:
        read(log, hole + 3)
    assert caught.value.details["next"] == hole + 10
    readable = [n for n in range(first, first + 25) if not hole <= n < hole + 10]
    assert ids(read(log, first, hole)) + ids(read(log, hole + 10)) == readable
    append_next(log)
    assert log.end.entry == open_again_end(log)


def open_again_end(log: PartitionLog) -> int:
    log.close()
    return int(open_again(log).end.entry)


# -- damage in an older segment --------------------------------------------------------------------


@settings(max_examples=40)
@given(st.data())
def test_damage_in_an_older_segments_entries_is_a_hole_to_its_end(data):
    with logs.folder() as folder:
        log = three_segments(folder)
        path = segment_path(log, 10, "entries")
        row = data.draw(st.integers(0, 2))
        at = row * ENTRY_SIZE + data.draw(st.integers(0, ENTRY_SIZE - 1))
        flip(path, at, data.draw(st.integers(0, 7)))
        damaged = path.read_bytes()
        log = open_again(log)
        (cut,) = log.cuts
        good = 10 + [0, 4, 5][row]
        assert cut.records_lost == 20 - good
        assert not cut.kept_aside
        assert path.read_bytes() == damaged, "nothing is cut from an older segment"
        assert ids(read(log, 0)) == list(range(good)), "what is good is given first"
        with pytest.raises(DamagedSegment) as caught:
            read(log, good)
        assert (caught.value.details["first"], caught.value.details["next"]) == (good, 20)
        assert ids(read(log, 20)) == list(range(20, 25))
        assert log.end.entry == 7


@settings(max_examples=40)
@given(st.data())
def test_damage_in_an_older_segments_batch_costs_that_batch_alone(data):
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


@settings(max_examples=20)
@given(lost=st.integers(1, 1500))
def test_an_older_segments_arrow_file_cut_short_is_served_as_far_as_it_goes(lost):
    with logs.folder() as folder:
        log = three_segments(folder)
        path, table = segment_path(log, 10, "arrow"), log.segments[1].table
        size = max(0, path.stat().st_size - lost)
        os.truncate(path, size)
        good = 10 + int(table["count"][table["position"] + table["length"] <= size].sum())
        log = open_again(log)
        assert ids(read(log, 10, 20)) == list(range(10, good)) if good > 10 else True
        if good < 20:
            with pytest.raises(DamagedSegment):
                read(log, good)
        assert ids(read(log, 20)) == list(range(20, 25))


def test_damage_of_the_only_readable_column_is_damage_for_every_projection(tmp_path):
    log = three_segments(tmp_path)
    flip(segment_path(log, 0, "arrow"), int(log.segments[0].table[0]["position"]) + 200, 1)
    log = open_again(log)
    for columns in (["id"], ["payload"], []):
        with pytest.raises(DamagedSegment):
            read(log, 0, columns=columns)


# -- a process that dies ---------------------------------------------------------------------------


def dies_in(work, lives: int, folder: Path) -> tuple[bool, list[int], int]:
    """Runs work(log, acknowledged) until the process dies at that operation.

    Says whether it died, the offsets acknowledged by then, and the furthest start of the log.
    """
    acknowledged: list[int] = []
    try:
        log = PartitionLog.open(folder, format_of(retention_bytes=1), MortalDisk(lives))
        work(log, acknowledged)
    except Died:
        return True, acknowledged, 0
    return False, acknowledged, int(log.start.offset)


def appends_and_rolls(log: PartitionLog, acknowledged: list[int]) -> None:
    for number in range(4):
        for rows in (1, 3):
            batch = append_next(log, rows)
            acknowledged += batch.column("id").to_pylist()
        if number != 2:
            log.roll()


def appends_and_retention(log: PartitionLog, acknowledged: list[int]) -> None:
    appends_and_rolls(log, acknowledged)
    log.housekeep(logs.NOW, Offset(12))
    acknowledged += append_next(log, 2).column("id").to_pylist()


@pytest.mark.parametrize("work", [appends_and_rolls, appends_and_retention])
def test_a_process_may_die_at_any_operation_and_nothing_acknowledged_is_lost(work):
    """kill -9 between any two operations, and in the middle of any write."""
    died, lives = True, 0
    while died:
        with logs.folder() as folder:
            died, acknowledged, _ = dies_in(work, lives, folder)
            log = PartitionLog.open(folder, format_of(retention_bytes=1))
            assert all(not cut.kept_aside and not cut.records_lost for cut in log.cuts), lives
            start, end = int(log.start.offset), int(log.end.offset)
            found = ids(read(log, start))
            assert found == list(range(start, end)), lives
            assert start in (0, 4, 8, 12), lives
            assert start == 0 or work is appends_and_retention
            assert set(acknowledged) <= set(range(end)), lives
            assert end <= len(acknowledged) + 3, "at most the batch on its way is there too"
            assert holds_exactly(log, end, start), lives
        lives += 1
    assert lives > 25


def test_a_process_may_die_at_any_operation_of_a_cut_and_the_next_open_finishes_it():
    died, lives = True, 0
    while died:
        with logs.folder() as folder:
            log = batches_of(folder)
            flip(segment_path(log, 0, "entries"), 2 * ENTRY_SIZE + 5, 1)
            whole = {kind: segment_path(log, 0, kind).read_bytes() for kind in ("arrow", "entries")}
            try:
                PartitionLog.open(folder, log.format, MortalDisk(lives))
                died = False
            except Died:
                log = open_again(log)
                assert holds_exactly(log, 4), lives
            for kind, content in whole.items():
                aside = (folder / "cut").glob(f"{0:020d}.{kind}*")
                assert content in [path.read_bytes() for path in aside], lives
        lives += 1
    assert lives > 4


@pytest.mark.parametrize(
    "left",
    ["entries", "both"],
    ids=["only its entries file exists", "both its files exist and are empty"],
)
def test_a_roll_that_stopped_half_way_is_finished_by_the_next_open(tmp_path, left):
    log = batches_of(tmp_path)
    segment_path(log, 14, "entries").touch()
    if left == "both":
        segment_path(log, 14, "arrow").touch()
    log = open_again(log)
    assert log.cuts == ()
    assert [segment.first.offset for segment in log.segments] == [0, 14]
    assert log.end.entry == len(BATCHES)
    assert holds_exactly(log, 14)


def test_a_roll_that_only_marked_the_end_of_the_stream_is_taken_back(tmp_path):
    log = batches_of(tmp_path)
    with segment_path(log, 0, "arrow").open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    log = open_again(log)
    assert log.cuts == (), "nothing was lost, so nothing is reported"
    assert holds_exactly(log, 14)


def test_a_replacement_that_never_got_its_place_is_removed(tmp_path):
    log = batches_of(tmp_path)
    leftover = tmp_path / f"{0:020d}.arrow.new"
    leftover.write_bytes(b"half of it")
    log = open_again(log)
    assert not leftover.exists()
    assert holds_exactly(log, 14)


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    log = batches_of(tmp_path)
    names = ["notes.txt", "12.arrow", f"{'x' * 20}.arrow", "draft.new", "notes.entries.gone"]
    for name in names:
        (tmp_path / name).write_text("mine")
    log = open_again(log)
    assert holds_exactly(log, 14)
    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * len(names)
