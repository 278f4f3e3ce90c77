"""The end of a log after a crash or damage: the valid prefix, and a report about the rest."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.storage.format.codec import END_OF_STREAM
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.examples import examples
from tests.storage import logs
from tests.storage.logs import append_next, flip, segment_path
from tests.storage.recoveries import (
    BATCHES,
    batches_of,
    copied,
    holds_exactly,
    kept_aside,
    open_again,
    opened_or_refused,
    sample_log,
    starts,
)


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> PartitionLog:
    return sample_log(tmp_path_factory.mktemp("sample"))


@pytest.mark.parametrize("compression", Compression)
def test_intact_log_opens_without_a_cut(tmp_path, compression):
    log = open_again(batches_of(tmp_path, compression=compression))
    assert log.cuts == ()
    assert holds_exactly(log, 14)


@settings(max_examples=examples(25))
@given(
    kind=st.sampled_from(["arrow", "entries"]),
    garbage=st.binary(min_size=1, max_size=200).filter(lambda each: each != END_OF_STREAM),
)
def test_garbage_after_the_last_entry_is_cut(sample, kind, garbage):
    with logs.folder() as folder:
        log = copied(sample, folder)
        with segment_path(log, 10, kind).open("ab") as file:
            file.write(garbage)
        log = open_again(log)
        (cut,) = log.cuts
        assert (cut.records_lost, cut.entries_lost) == (0, 0)
        assert cut.entries_doubtful <= (len(garbage) // ENTRY_SIZE if kind == "entries" else 0)
        assert cut.bytes_lost == len(garbage)
        blank = not garbage.strip(b"\0")
        assert list(kept_aside(folder).values()) == ([] if blank else [garbage])
        assert holds_exactly(log, 24)


def test_end_mark_of_an_interrupted_roll_is_not_a_loss(sample, tmp_path):
    """A finished stream of batches ends with it. Entries files have no such mark."""
    for kind, lost in (("arrow", []), ("entries", [len(END_OF_STREAM)])):
        log = copied(sample, tmp_path / kind)
        with segment_path(log, 10, kind).open("ab") as file:
            file.write(END_OF_STREAM)
        log = open_again(log)
        assert [cut.bytes_lost for cut in log.cuts] == lost
        append_next(log)
        assert holds_exactly(open_again(log), 34)


@settings(max_examples=examples(20))
@given(lost=st.integers(1, ENTRY_SIZE - 1))
def test_torn_entry_is_cut_with_its_batch_and_both_are_kept(sample, lost):
    """It is incomplete, so it was never acknowledged. Its bytes are kept."""
    with logs.folder() as folder:
        log = copied(sample, folder, forced=False)
        path = segment_path(log, 10, "entries")
        os.truncate(path, path.stat().st_size - lost)
        torn = path.read_bytes()[4 * ENTRY_SIZE :]
        position = int(sample.segments[-1].table[4]["position"])
        batch = segment_path(log, 10, "arrow").read_bytes()[position:]
        log = open_again(log)
        (cut,) = log.cuts
        assert not cut.grave
        assert kept_aside(folder) == {
            f"1/{path.name}.from.{4 * ENTRY_SIZE}": torn,
            f"1/{10:020d}.arrow.from.{position}": batch,
        }
        assert holds_exactly(log, 19)


@settings(max_examples=examples(30))
@given(st.data())
def test_torn_batch_is_cut_and_intact_entries_are_kept(sample, data):
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
        aside = kept_aside(folder)[f"1/{10:020d}.entries.from.{good * ENTRY_SIZE}"]
        assert aside == before[good * ENTRY_SIZE :]
        assert holds_exactly(log, starts(10)[good])


@settings(max_examples=examples(80))
@given(st.data())
def test_flipped_bit_in_an_entry_ends_the_log_before_it(sample, data):
    row = data.draw(st.integers(0, len(BATCHES) - 1))
    name = data.draw(st.sampled_from(ENTRY.names))
    kind, at = ENTRY.fields[name][:2]
    position = row * ENTRY_SIZE + at + data.draw(st.integers(0, kind.itemsize - 1))
    with logs.folder() as folder:
        forced = data.draw(st.booleans())
        log = copied(sample, folder, forced=forced)
        path = segment_path(log, 10, "entries")
        flip(path, position, data.draw(st.integers(0, 7)))
        damaged = path.read_bytes()
        log = open_again(log)
        (cut,) = log.cuts
        assert (
            kept_aside(folder)[f"1/{path.name}.from.{row * ENTRY_SIZE}"]
            == (damaged[row * ENTRY_SIZE :])
        )
        if forced or row < len(BATCHES) - 1:
            assert cut.entries_lost == len(BATCHES) - row
            assert cut.records_lost == sum(BATCHES[row:])
        else:  # without a later entry or a mark: it was acknowledged, but there is no proof
            assert (cut.entries_lost, cut.entries_doubtful) == (0, 1)
        assert cut.grave
        assert holds_exactly(log, starts(10)[row])


@settings(max_examples=examples(50))
@given(st.data())
def test_flipped_bit_in_a_batch_ends_the_log_before_it(sample, data):
    row = data.draw(st.integers(0, len(BATCHES) - 1))
    entry = sample.segments[-1].table[row]
    position = int(entry["position"]) + data.draw(st.integers(0, int(entry["length"]) - 1))
    with logs.folder() as folder:
        log = copied(sample, folder)
        flip(segment_path(log, 10, "arrow"), position, data.draw(st.integers(0, 7)))
        log = open_again(log)
        (cut,) = log.cuts
        assert (cut.entries_lost, cut.records_lost) == (len(BATCHES) - row, sum(BATCHES[row:]))
        kept = kept_aside(folder)
        assert sum(".from." in name for name in kept) == 2
        assert (len(kept) == 4) == (row < len(BATCHES) - 1)  # as a whole, if later bytes are intact
        assert holds_exactly(log, starts(10)[row])


@pytest.mark.rule("the part of a damaged log that is served", "storage/log/recovery.py")
@settings(max_examples=examples(60))
@given(data=st.data(), flips=st.integers(1, 4))
def test_any_damage_in_the_last_segment_is_never_served(sample, data, flips):
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


def test_second_cut_of_a_segment_keeps_the_files_of_the_first(tmp_path):
    log = batches_of(tmp_path)
    entries = segment_path(log, 0, "entries")
    aside = []
    for number in (1, 2):
        flip(entries, 2 * ENTRY_SIZE, 0)
        aside.append(entries.read_bytes()[2 * ENTRY_SIZE :])
        log = open_again(log)
        assert log.cuts[0].kept_in == str(tmp_path / "cut" / str(number))
        append_next(log, rows=7)
        append_next(log, rows=8)
        log.close()
    name = f"{entries.name}.from.{2 * ENTRY_SIZE}"
    assert [kept_aside(tmp_path)[f"{number}/{name}"] for number in (1, 2)] == aside


def test_kept_files_do_not_change_with_the_log(tmp_path):
    log = batches_of(tmp_path)
    flip(segment_path(log, 0, "entries"), ENTRY_SIZE, 0)
    log = open_again(log)
    kept = kept_aside(tmp_path)
    assert len(kept) == 4
    append_next(log, rows=100)
    assert kept_aside(tmp_path) == kept


def test_mapped_file_is_never_shrunk_in_place(tmp_path):
    log = batches_of(tmp_path)
    paths = [segment_path(log, 0, kind) for kind in ("arrow", "entries")]
    flip(paths[1], ENTRY_SIZE, 0)
    mapped = [pa.memory_map(str(path)).read_buffer() for path in paths]
    before = [(path.stat().st_ino, bytes(each)) for path, each in zip(paths, mapped, strict=True)]
    log = open_again(log)
    for path, buffer, (inode, content) in zip(paths, mapped, before, strict=True):
        assert path.stat().st_ino != inode
        assert bytes(buffer) == content  # a truncated mapping would kill this process here
    assert holds_exactly(log, 3)


def test_cut_reports_the_loss_in_one_line(tmp_path):
    log = batches_of(tmp_path)
    flip(segment_path(log, 0, "arrow"), int(log.segments[-1].table[3]["position"]) + 100, 3)
    (cut,) = open_again(log).cuts
    line = str(cut)
    assert "\n" not in line
    assert line.startswith(f"t/0: {segment_path(log, 0, 'arrow')}: ")
    assert "the log ends at offset 8" in line
    assert "2 entries with 6 records" in line
    assert f"the remains are in {tmp_path / 'cut' / '1'}" in line
