"""A byte may change at any time, even after a read. No read ever returns a wrong value."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import DamagedSegment
from spark_stream.batches import crc32c, crc_of_parts, facts_of, header_length
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.consistency.ids import EntryIndex, Offset
from spark_stream.consistency.pruning import Batches, Flags
from spark_stream.sql.filters import row_filter
from spark_stream.storage.format import codec
from spark_stream.storage.format.codec import first_broken_batch, intact_entries, run_crc
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Compression
from tests.examples import examples
from tests.storage.logs import SCHEMA, append_next, flip, folder, format_of, segment_path

ENTRIES, PER_SEGMENT, ROWS = 12, 5, 4
"""Two closed segments, and an active one with two entries."""


def filled(path: Path, compression: str = "none") -> PartitionLog:
    log = PartitionLog.open(
        path, format_of(segment_entries=PER_SEGMENT, compression=Compression(compression))
    )
    for _ in range(ENTRIES):
        append_next(log, ROWS)
    assert [len(segment.table) for segment in log.segments] == [5, 5, 2]
    return log


def shown(log: PartitionLog, start: int, **asked: Any) -> Iterator[tuple[Any, ...]]:
    """The records from ``start`` on, with all columns of a reader."""
    for chunk in log.read(Offset(start), log.end.offset, **asked):
        moments = chunk.column("_timestamp").cast(pa.int64())
        columns = [chunk.column("_offset"), moments, *chunk.batch.columns]
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def taken(found: Iterator[Any]) -> tuple[list[Any], DamagedSegment | None]:
    """The items of an iterator, and the damage at its end."""
    got: list[Any] = []
    try:
        got.extend(found)
    except DamagedSegment as error:
        return got, error
    return got, None


def strike(log: PartitionLog, entry: int, what: str, byte: int, bit: int) -> None:
    """Changes a bit of an entry, or of its batch, on the disk."""
    segment, row = log.segments[entry // PER_SEGMENT], entry % PER_SEGMENT
    if what == "entries":
        flip(segment.name.entries, row * ENTRY_SIZE + byte % ENTRY_SIZE, bit)
    else:
        place = segment.table[row]
        flip(segment.name.arrow, int(place["position"]) + byte % int(place["length"]), bit)


bits = st.tuples(
    st.integers(0, ENTRIES - 1),
    st.sampled_from(["arrow", "entries"]),
    st.integers(0),
    st.integers(0, 7),
)


def is_harmless(entry: int, what: str) -> bool:
    """The active table is in memory, so readers do not see changes of its file."""
    return what == "entries" and entry >= 2 * PER_SEGMENT


@pytest.mark.rule(
    "no reader and no follower gets bytes that have changed",
    "storage/segment/segment.py",
    "storage/format/codec.py",
    "client/reading/fetching.py",
)
@settings(max_examples=examples(300), deadline=None)
@given(bits, st.sampled_from(["none", "zstd"]), st.integers(0, ENTRIES * ROWS - 1))
def test_no_reader_gets_a_bit_changed_after_its_first_read(hit, packed, start):
    entry, what, byte, bit = hit
    with folder() as path:
        log = filled(path / "log", packed)
        before = list(shown(log, 0))
        strike(log, entry, what, byte, bit)
        got, error = taken(shown(log, start))
        assert got == before[start : start + len(got)]
        end = start + len(got)
        if is_harmless(entry, what) or (what == "arrow" and start >= (entry + 1) * ROWS):
            assert (end, error) == (len(before), None)
        elif error is None:
            assert end == (len(before) if start >= (entry + 1) * ROWS else entry * ROWS)
        else:
            told = [error.details[name] for name in ("entry", "first", "next")]
            assert told == [entry, entry * ROWS, (entry + 1) * ROWS]
            assert log.hole == entry
            assert not got
        log.close()


@pytest.mark.rule(
    "no reader and no follower gets bytes that have changed",
    "storage/segment/segment.py",
    "storage/format/codec.py",
    "client/reading/fetching.py",
)
@settings(max_examples=examples(150), deadline=None)
@given(bits, st.integers(0, ENTRIES - 1), st.sampled_from([1, 600, 1 << 20]))
def test_no_follower_gets_a_changed_bit(hit, first, most):
    entry, what, byte, bit = hit
    with folder() as path:
        log = filled(path / "log")

        def fed() -> Iterator[StoredEntries | None]:
            yield log.read_entries(EntryIndex(first), most)

        before = next(fed())
        strike(log, entry, what, byte, bit)
        found, error = taken(fed())
        if error is not None:
            assert error.details["entry"] == log.hole == entry == first
            assert not is_harmless(entry, what)
        for after in found:
            count = len(after.rows)
            assert is_harmless(entry, what) or not first <= entry < first + count
            assert after.rows.tobytes() == before.rows[:count].tobytes()
            assert before.data.slice(0, after.data.size).equals(after.data)
        log.close()


@pytest.mark.parametrize("entry", [3, ENTRIES - 1], ids=["closed", "active"])
def test_mapped_reader_gets_the_checksum_of_the_written_bytes(tmp_path, entry):
    log = filled(tmp_path / "log")

    def sums() -> list[bool]:
        chunks = log.read(Offset(0), log.end.offset, locating=True)
        return [
            crc_of_parts(log._disk.map(each.stored.path), each.stored.parts) == each.stored.crc
            for each in chunks
        ]

    assert sums() == [True] * 3
    strike(log, entry, "arrow", 77, 1)
    assert sums() == [number != entry // PER_SEGMENT for number in range(3)]
    log.close()


@pytest.mark.parametrize("column", ["_timestamp", "_offset"])
def test_changed_entry_hides_no_record_from_a_filter(tmp_path, column):
    """A filter skips batches by the offsets and timestamps of their entries."""
    log = filled(tmp_path / "log")
    places = {"_timestamp": "timestamp", "_offset": "base_offset"}
    strike(log, 2, "entries", int(ENTRY.fields[places[column]][1]) + 3, 6)
    with pytest.raises(DamagedSegment):
        list(log.read(Offset(2 * ROWS), Offset(3 * ROWS), rows=Everything(column)))
    log.close()


class Everything:
    """A filter by one column that matches every record, and every min/max."""

    def __init__(self, column: str) -> None:
        self.names = (column,)

    def can_match(self, batches: Batches) -> Flags:
        text = "_offset < 1000000" if self.names == ("_offset",) else "_timestamp < '2100-01-01'"
        return row_filter(text, "t", SCHEMA, 0).can_match(batches)

    def keeps(self, column: Any, rows: int) -> pa.Array:
        return pa.array([True] * rows)


def test_lookup_by_time_raises_for_changed_entries(tmp_path):
    log = filled(tmp_path / "log")
    found = log.offset_at(1)
    assert found == 0
    strike(log, 1, "entries", int(ENTRY.fields["timestamp"][1]) + 6, 6)
    with pytest.raises(DamagedSegment):
        log.offset_at(1 << 52)
    assert log.hole == 1
    log.close()


def test_change_of_the_last_closed_entry_does_not_move_the_logs_end(tmp_path):
    log = filled(tmp_path / "log")
    ends = [segment.end for segment in log.segments]
    strike(log, 2 * PER_SEGMENT - 1, "entries", int(ENTRY.fields["count"][1]), 5)
    assert [segment.end for segment in log.segments] == ends
    log.close()


def test_truncation_at_a_changed_entry_ends_after_the_one_before_it(tmp_path):
    log = filled(tmp_path / "log")
    before = list(shown(log, 0))
    strike(log, 3, "entries", int(ENTRY.fields["base_offset"][1]) + 1, 2)
    assert log.truncate(EntryIndex(3)).offset == 3 * ROWS
    assert list(shown(log, 0)) == before[: 3 * ROWS]
    append_next(log, ROWS)
    assert [each[0] for each in shown(log, 0)] == list(range(4 * ROWS))
    log.close()


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0), st.integers(0, 7))
def test_schema_message_with_a_changed_bit_is_rejected(byte, bit):
    with folder() as path:
        log = filled(path / "log")
        file = bytearray(segment_path(log, 0, "arrow").read_bytes())
        length = header_length(pa.py_buffer(bytes(file)))
        assert facts_of(pa.py_buffer(bytes(file[:length])))["isolog.topic"] == "t"
        file[byte % length] ^= 1 << bit
        assert facts_of(pa.py_buffer(bytes(file[:length]))) is None
        log.close()


lengths = st.lists(st.integers(0, 40), min_size=1, max_size=400)


@settings(max_examples=examples(100), deadline=None)
@given(lengths, st.integers(0, 3), st.randoms(use_true_random=False))
def test_checks_of_a_run_and_of_single_batches_agree(words, gaps, chance):
    """A run's checksum is that of its bytes. A changed bit is reported for the right batch."""
    table = np.zeros(len(words), ENTRY)
    table["length"] = 8 * np.array(words)
    apart = np.zeros(len(words), np.int64)
    for _ in range(gaps):
        apart[chance.randrange(len(words)) :] += 8
    table["position"] = np.cumsum(table["length"]) - table["length"] + apart + 16
    data = bytearray(chance.randbytes(int(table[-1]["position"] + table[-1]["length"])))
    pieces = [bytes(data[row["position"] : row["position"] + row["length"]]) for row in table]
    table["data_crc"] = [crc32c(each) for each in pieces]
    assert run_crc(table) == crc32c(b"".join(pieces))
    assert first_broken_batch(table, pa.py_buffer(bytes(data))) == len(table)
    hit = chance.randrange(len(words))
    if words[hit]:
        data[int(table[hit]["position"]) + chance.randrange(8 * words[hit])] ^= (
            1 << chance.randrange(8)
        )
        assert first_broken_batch(table, pa.py_buffer(bytes(data))) == hit


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 3_000), st.integers(0), st.integers(0, 8 * ENTRY_SIZE - 1))
def test_first_changed_entry_is_found(count, row, bit):
    table = np.frombuffer(codec.sealed(bytes(ENTRY_SIZE - 4)) * count, ENTRY).copy()
    assert intact_entries(table) == count
    row %= count
    raw = table[row : row + 1].view(np.uint8)
    raw[bit // 8] ^= 1 << bit % 8
    assert intact_entries(table) == row
