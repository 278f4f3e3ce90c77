"""The entries table: layout, validity and look-ups, each against a loop over its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.consistency.entries import (
    CRC_SPAN,
    ENTRY,
    ENTRY_SIZE,
    Entry,
    Kind,
    Table,
    aborted_rows,
    at_offset,
    first_at_or_after,
    greatest_numbers,
    lone_entry,
    next_offset,
    open_transactions,
    valid_prefix,
)
from tests.examples import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@dataclass
class Sketch:
    """A table in the making: ``rows`` are (records, timestamp, epoch step). 0 records: a marker."""

    rows: list[tuple[int, int, int]]
    first_index: int = 0
    first_offset: int = 0
    position: int = 0
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.table = np.zeros(len(self.rows), ENTRY)
        offset, position, epoch = self.first_offset, self.position, 0
        for number, (records, timestamp, step) in enumerate(self.rows):
            epoch += step
            length = 8 * records
            row = self.table[number]
            row["entry_index"] = self.first_index + number
            row["base_offset"] = offset
            row["timestamp"] = timestamp
            row["position"] = position
            row["length"] = length
            row["count"] = records
            row["leader_epoch"] = epoch
            row["kind"] = Kind.DATA if records else Kind.COMMIT
            offset += records
            position += length


def sketches_of(least: int, most: int) -> st.SearchStrategy[Sketch]:
    """Tables with so many rows."""
    row = st.tuples(st.integers(0, 4), st.integers(-50, 50), st.sampled_from([0, 0, 1]))
    return st.builds(
        Sketch,
        rows=st.lists(row, min_size=least, max_size=most),
        first_index=st.integers(0, 1000),
        first_offset=st.integers(0, 1000),
        position=st.integers(0, 1000),
    )


sketches = sketches_of(0, 25)


def walked_prefix(table: Table, first_index: int | None, first_offset: int, position: int) -> int:
    """The invariant of the module's docstring, entry by entry."""
    index = int(table[0]["entry_index"]) if first_index is None and len(table) else first_index
    offset, epoch = first_offset, None
    for number, row in enumerate(table):
        marker = row["kind"] in (Kind.COMMIT, Kind.ABORT)
        batch = row["kind"] == Kind.DATA
        count, length = int(row["count"]), int(row["length"])
        fits = (
            int(row["entry_index"]) == index
            and int(row["base_offset"]) == offset
            and int(row["position"]) == position
            and ((marker and count == length == 0) or (batch and count > 0 and length > 0))
            and (epoch is None or int(row["leader_epoch"]) >= epoch)
        )
        if not fits:
            return number
        index, offset, position = index + 1, offset + count, position + length
        epoch = int(row["leader_epoch"])
    return len(table)


@given(sketches)
def test_a_table_by_the_rules_is_valid(sketch):
    args = (sketch.first_index, sketch.first_offset, sketch.position)
    assert valid_prefix(sketch.table, *args) == len(sketch.rows)
    assert valid_prefix(sketch.table, None, *args[1:]) == len(sketch.rows)


CHECKED = {
    "entry_index": INT64,
    "base_offset": INT64,
    "position": INT64,
    "length": INT64,
    "count": st.integers(0, 2**32 - 1),
    "leader_epoch": INT32,
    "kind": st.integers(0, 255),
}


@pytest.mark.rule("entries, and valid tables of them", "consistency/entries.py")
@settings(max_examples=examples(200))
@given(sketches.filter(lambda sketch: sketch.rows), st.data())
def test_one_wrong_field_ends_the_valid_prefix_where_a_walk_ends_it(sketch, data):
    name = data.draw(st.sampled_from(sorted(CHECKED)))
    row = data.draw(st.integers(0, len(sketch.rows) - 1))
    near = st.integers(-2, 2).map(lambda step: max(0, int(sketch.table[row][name]) + step))
    sketch.table[row][name] = data.draw(st.one_of(near, CHECKED[name]))
    first_index = data.draw(st.sampled_from([None, sketch.first_index, sketch.first_index + 1]))
    args = (first_index, sketch.first_offset, sketch.position)
    assert valid_prefix(sketch.table, *args) == walked_prefix(sketch.table, *args)


@settings(max_examples=examples(300))
@given(sketches_of(1, 1), st.data())
def test_a_lone_row_is_valid_where_a_table_of_it_is(sketch, data):
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted(CHECKED.keys() - {"position"})))
        near = st.integers(-2, 2).map(lambda step: max(0, int(sketch.table[0][name]) + step))
        sketch.table[0][name] = data.draw(st.one_of(near, CHECKED[name]))
    row = sketch.table[0]
    epoch = data.draw(st.integers(0, 1))
    packed = row.tobytes()[:CRC_SPAN]
    found = lone_entry(packed, sketch.first_index, sketch.first_offset, epoch)
    rows = valid_prefix(sketch.table, sketch.first_index, sketch.first_offset, sketch.position)
    assert (found is not None) == (rows == 1 and row["leader_epoch"] >= epoch)
    if found is not None:
        entry, length = found
        assert length == row["length"]
        assert entry.packed(sketch.position, length) == packed


@pytest.mark.parametrize(("records", "field", "value"), [(0, "length", -8), (1, "length", -8)])
def test_an_invalid_lone_row_is_refused(records, field, value):
    sketch = Sketch([(records, 0, 0)])
    sketch.table[field] = value
    assert lone_entry(sketch.table.tobytes()[:CRC_SPAN], 0, 0, 0) is None


@given(sketches, st.integers(-1, 1), st.integers(-1, 1))
def test_a_table_that_starts_elsewhere_has_no_valid_prefix(sketch, offset_step, position_step):
    args = (
        sketch.first_index,
        sketch.first_offset + offset_step,
        sketch.position + position_step,
    )
    assert valid_prefix(sketch.table, *args) == walked_prefix(sketch.table, *args)


@given(sketches)
def test_next_offset_is_the_number_of_records_behind_the_first(sketch):
    records = sum(records for records, *_ in sketch.rows)
    assert next_offset(sketch.table, sketch.first_offset) == sketch.first_offset + records


@given(sketches)
def test_every_offset_is_found_in_its_batch_and_never_in_a_marker(sketch):
    for number, row in enumerate(sketch.table):
        base = int(row["base_offset"])
        for offset in range(base, base + int(row["count"])):
            assert at_offset(sketch.table, offset) == number


@settings(max_examples=examples(150))
@given(sketches, st.integers(-51, 51) | st.just(-(2**63)))
def test_a_timestamp_finds_the_first_batch_that_reaches_it_and_no_marker(sketch, moment):
    expected = None
    for number, (records, timestamp, _) in enumerate(sketch.rows):
        if records and timestamp >= moment:
            expected = number
            break
    assert first_at_or_after(sketch.table, moment) == expected


def test_a_marker_is_not_found_by_timestamp():
    table = Sketch([(5, 100, 0), (0, 900, 0)]).table
    assert first_at_or_after(table, 500) is None


@given(
    st.builds(
        Entry,
        entry_index=INT64,
        base_offset=INT64,
        timestamp=INT64,
        appended=INT64,
        count=st.integers(0, 2**32 - 1),
        leader_epoch=INT32,
        data_crc=st.integers(0, 2**32 - 1),
        kind=st.sampled_from(Kind),
        producer_id=INT64,
        producer_epoch=st.integers(-(2**15), 2**15 - 1),
        base_sequence=INT32,
        transaction=INT64,
    ),
    INT64,
    INT64,
)
def test_packed_bytes_are_the_table_row(entry, position, length):
    packed = entry.packed(position, length)
    assert len(packed) == CRC_SPAN == ENTRY_SIZE - 4
    row = np.frombuffer(packed + b"\0\0\0\0", ENTRY)[0]
    for name in Entry.__slots__:
        assert int(row[name]) == int(getattr(entry, name)), name
    assert (int(row["position"]), int(row["length"]), int(row["schema"])) == (position, length, 0)


Written = tuple[int, int, Kind]
"""Of an entry: transaction (-1: none), producer id, kind."""

written = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 3), st.integers(7, 9), st.sampled_from(Kind)),
        st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.sampled_from(Kind)),
        st.tuples(st.just(-1), st.integers(-1, 9), st.just(Kind.DATA)),
    ),
    max_size=25,
)


@st.composite
def parted(draw):
    """Entries of a log, in any order, as tables of several segments. Some may be empty."""
    rows: list[Written] = draw(written)
    # Large numbers too, and a second batch or a marker of some pair far from its first.
    rows += draw(st.permutations(rows[:8])) if rows else []
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    first_index = draw(st.integers(0, 1000))
    table = np.zeros(len(rows), ENTRY)
    table["entry_index"] = np.arange(first_index, first_index + len(rows))
    columns = np.array(rows, np.int64).reshape(-1, 3)
    for column, name in enumerate(("transaction", "producer_id", "kind")):
        table[name] = columns[:, column]
    table["count"] = table["kind"] == Kind.DATA
    return rows, np.split(table, cuts), first_index


@settings(max_examples=examples(200), deadline=None)
@given(parted())
def test_a_batch_is_aborted_if_any_table_has_the_marker_of_its_transaction_and_producer(log):
    """A marker of another producer id, or of another transaction of the id, does not count."""
    rows, tables, _ = log
    aborted = {(number, producer) for number, producer, kind in rows if kind is Kind.ABORT}
    expected = [
        kind is Kind.DATA and number >= 0 and (number, producer) in aborted
        for number, producer, kind in rows
    ]
    masks = aborted_rows(tables)
    assert len(masks) == len(tables)
    for table, mask in zip(tables, masks, strict=True):
        part, expected = expected[: len(table)], expected[len(table) :]
        assert (mask is not None) == any(part)
        if mask is not None:
            assert mask.dtype == np.bool_
            assert mask.tolist() == part


@settings(max_examples=examples(200), deadline=None)
@given(parted())
def test_open_transactions_are_those_without_a_marker(log):
    rows, tables, first_index = log
    ended = {(number, producer) for number, producer, kind in rows if kind is not Kind.DATA}
    expected: dict[tuple[int, int], int] = {}
    for index, (number, producer, _) in enumerate(rows, first_index):
        if number >= 0 and (number, producer) not in ended:
            expected.setdefault((number, producer), index)
    assert open_transactions(tables) == expected


def test_an_empty_log_has_no_open_and_no_aborted_transaction():
    assert open_transactions([]) == {}
    assert aborted_rows([]) == []
    assert aborted_rows([np.zeros(0, ENTRY)]) == [None]


def test_the_greatest_numbers_ignore_invented_ones():
    table = np.zeros(4, ENTRY)
    table["producer_id"] = [-1, 7, 3, (1 << 63) - 1]
    table["transaction"] = [-1, -1, 12, 1 << 62]
    assert greatest_numbers([]) == (-1, -1)
    assert greatest_numbers([table[:1], table[:0]]) == (-1, -1)
    assert greatest_numbers([table[:2], table]) == (7, 12)
