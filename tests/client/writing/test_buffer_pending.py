"""Single records become a batch, and a batch is split by partition."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_stream.client.writing.buffer import Pending
from spark_stream.client.writing.partitioner import partitions_of, split
from spark_stream.client.writing.promises import Failures, Outcomes
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from tests.examples import examples

maybe = st.none() | st.binary(max_size=5)
headers = st.none() | st.lists(st.tuples(st.text(max_size=3), maybe), max_size=2)
rows = st.lists(
    st.tuples(maybe, maybe, headers, st.integers(-(2**62), 2**62), st.none() | st.integers(0, 4)),
    min_size=1,
    max_size=10,
)


def pending_of(records) -> Pending:
    pending = Pending(Outcomes(Failures()))
    for number, (key, value, heads, at, partition) in enumerate(records):
        assert pending.add(key, value, partition, heads, at).row == number
    return pending


@settings(max_examples=examples(50))
@given(rows)
def test_the_batch_has_the_records_in_their_order(records):
    pending = pending_of(records)
    batch = pending.batch()
    batch.validate(full=True)
    assert batch.schema.equals(DEFAULT_SCHEMA)
    assert batch.column("key").to_pylist() == [key for key, *_ in records]
    assert batch.column("value").to_pylist() == [value for _, value, *_ in records]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [row[3] for row in records]
    found = batch.column("headers").to_pylist()
    for shown, (_, _, given_headers, _, _) in zip(found, records, strict=True):
        assert [(each["key"], each["value"]) for each in shown or []] == (given_headers or [])


def test_a_record_without_a_timestamp_gets_the_present_time_among_others():
    pending = pending_of([(None, b"a", None, None, None), (None, b"b", None, 5, None)])
    before = time.time_ns() // 1000 - 60_000_000
    now, given_time = pending.batch().column("timestamp").cast(pa.int64()).to_pylist()
    assert before < now <= time.time_ns() // 1000
    assert given_time == 5


@settings(max_examples=examples(50))
@given(rows, st.integers(0, 4))
def test_the_partition_of_a_record_is_the_requested_one_or_that_of_its_key(records, keyless):
    assert_placed(pending_of(records), records, keyless)


@settings(max_examples=examples(50))
@given(rows, rows, rows, st.integers(0, 4))
def test_a_record_that_was_cut_off_changes_no_partition(earlier, interrupted, later, keyless):
    pending = pending_of(earlier)
    for key, value, heads, at, partition in interrupted:
        pending.cut(pending.add(key, value, partition, heads, at).row)
    for key, value, heads, at, partition in later:
        pending.add(key, value, partition, heads, at)
    assert_placed(pending, earlier + later, keyless)


def assert_placed(pending: Pending, records, keyless: int) -> None:
    by_key = partitions_of(pa.array([key for key, *_ in records], pa.binary()), 5, keyless).tolist()
    expected = [
        place if named is None else named
        for place, (*_, named) in zip(by_key, records, strict=True)
    ]
    found = {}
    for partition, part, numbers in pending.parts(5, keyless):
        assert len(part) == len(numbers)
        found |= dict.fromkeys(numbers.tolist(), partition)
    assert [found[row] for row in range(len(records))] == expected


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.integers(-1, 5)
        | st.sampled_from([-(2**31), 255, 256, 65_534, 65_535, 65_536, 2**31 - 1]),
        min_size=1,
        max_size=30,
    )
)
def test_split_keeps_each_row_once_in_order(places):
    batch = pa.record_batch({"row": pa.array(range(len(places)), pa.int64())})
    parts = list(split(batch, np.array(places, np.int32)))
    assert [partition for partition, _, _ in parts] == sorted(set(places))
    for partition, part, numbers in parts:
        expected = [row for row, place in enumerate(places) if place == partition]
        assert part.column("row").to_pylist() == numbers.tolist() == expected


def test_a_batch_for_one_partition_is_not_copied():
    batch = pa.record_batch({"row": [1, 2, 3]})
    ((partition, part, numbers),) = split(batch, np.full(3, 7, np.int32))
    assert part is batch
    assert (partition, numbers.tolist()) == (7, [0, 1, 2])


@settings(max_examples=examples(50))
@given(rows, st.integers(0, 2), st.data())
def test_split_of_a_slice_has_only_its_rows(records, before, data):
    """Also for columns with only nulls or with some nulls."""
    batch = pending_of([(b"before", None, None, 0, None)] * before + records).batch()
    batch = batch.slice(before)
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(batch), max_size=len(batch)))
    for _, part, numbers in split(batch, np.array(places, np.int32)):
        part.validate(full=True)
        assert part.equals(pa.concat_batches([batch.slice(row, 1) for row in numbers.tolist()]))
