"""The inspection of batches, compared with loops over Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import BatchTooLarge, InvalidRecord, RecordTooLarge
from spark_stream.broker.partition.appends import inspected, refusal
from spark_stream.consistency.partition.admission import Flaw, Reason
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.schema.values import bytes_at_most, record_sizes
from spark_stream.wire.limits import BATCH_BYTES_MAX
from tests.examples import examples

LIMIT = 1 << 20


def test_batch_with_too_many_rows_is_refused() -> None:
    """Values of the type null have no bytes, so a short message may claim any number of rows."""
    batch = pa.RecordBatch.from_arrays([pa.nulls(2**31)], names=["void"])
    with pytest.raises(BatchTooLarge, match="2\\^31"):
        inspected(batch, (), LIMIT)


def test_empty_batch_with_invalid_values_is_refused() -> None:
    offsets = pa.py_buffer(np.array([-1], np.int32))
    child = pa.Array.from_buffers(pa.string(), 0, [None, offsets, pa.py_buffer(b"")])
    inner = pa.Array.from_buffers(pa.struct([("a", pa.string())]), 0, [None], children=[child])
    batch = pa.RecordBatch.from_arrays([inner], names=["inner"])
    with pytest.raises(InvalidRecord):
        inspected(batch, (), LIMIT)


# -- sizes of records ------------------------------------------------------------------------------


def size_of(value: Any, kind: pa.DataType) -> int:
    """Return the bytes of one value. A null has the bytes of its type's fixed width."""
    if pt.is_null(kind):
        return 0
    if pt.is_struct(kind):
        return sum(size_of(None if value is None else value[each.name], each.type) for each in kind)
    if pt.is_fixed_size_list(kind):
        values = [None] * kind.list_size if value is None else value
        return sum(size_of(each, kind.value_type) for each in values)
    if pt.is_map(kind):
        pairs = value or []
        return sum(size_of(k, kind.key_type) + size_of(v, kind.item_type) for k, v in pairs)
    if pt.is_list(kind) or pt.is_large_list(kind):
        return sum(size_of(each, kind.value_type) for each in value or [])
    if pt.is_boolean(kind):
        return 1
    if pt.is_string(kind) or pt.is_large_string(kind):
        return len((value or "").encode())
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return len(value or b"")
    return kind.bit_width // 8


def lists(inner):
    return st.lists(inner, max_size=3)


LEAVES = {
    pa.null(): st.none(),
    pa.bool_(): st.none() | st.booleans(),
    pa.int16(): st.none() | st.integers(-5, 5),
    pa.float64(): st.none() | st.floats(),
    pa.decimal128(5, 0): st.none() | st.integers(-5, 5),
    pa.timestamp("us", "UTC"): st.none() | st.integers(-5, 5),
    pa.binary(3): st.none() | st.binary(min_size=3, max_size=3),
    pa.string(): st.none() | st.text(max_size=4),
    pa.large_string(): st.none() | st.text(max_size=4),
    pa.binary(): st.none() | st.binary(max_size=4),
    pa.large_binary(): st.none() | st.binary(max_size=4),
}
typed = st.sampled_from(list(LEAVES.items()))


def nested(inner):
    """Return pairs of a type and its values, nested around such pairs."""
    return st.one_of(
        inner.map(lambda each: (pa.list_(each[0]), st.none() | lists(each[1]))),
        inner.map(lambda each: (pa.large_list(each[0]), st.none() | lists(each[1]))),
        inner.map(
            lambda each: (
                pa.list_(each[0], 2),
                st.none() | st.lists(each[1], min_size=2, max_size=2),
            )
        ),
        inner.map(
            lambda each: (
                pa.map_(pa.string(), each[0]),
                st.none() | lists(st.tuples(st.text(max_size=2), each[1])),
            )
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda fields: (
                pa.struct([(f"f{n}", kind) for n, (kind, _) in enumerate(fields)]),
                st.none()
                | st.fixed_dictionaries({f"f{n}": each for n, (_, each) in enumerate(fields)}),
            )
        ),
    )


columns = st.recursive(typed, nested, max_leaves=4)


@settings(max_examples=examples(150))
@given(columns, st.integers(0, 3), st.integers(0, 3), st.data())
def test_record_sizes_are_the_sums_of_value_sizes(column, before, after, data):
    """The same is true of slices of a column."""
    kind, values = column
    rows = data.draw(st.lists(values, max_size=6))
    around = data.draw(st.lists(values, min_size=before + after, max_size=before + after))
    whole = pa.array(around[:before] + rows + around[before:], kind)
    batch = pa.RecordBatch.from_arrays([whole], names=["c"]).slice(before, len(rows))
    sizes = record_sizes(batch).tolist()
    assert sizes == [size_of(value, kind) for value in rows]
    assert bytes_at_most(batch) >= max(sizes, default=0)


def test_upper_bound_of_record_sizes_is_sum_of_largest_values():
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32()), "b": ["x", "yyy"], "c": [[], [5]]})
    assert bytes_at_most(batch) == 4 + 3 + 8
    assert bytes_at_most(batch.slice(0, 1)) == 4 + 1
    assert bytes_at_most(batch.slice(0, 0)) == 0


def test_record_size_is_the_sum_over_columns():
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32()), "b": ["x", "yyy"]})
    assert record_sizes(batch).tolist() == [5, 7]


def test_sizes_of_sliced_children_start_at_the_slice():
    strings = pa.array(["long enough", "a", "bb", "ccc"]).slice(1)
    struct = pa.StructArray.from_arrays([strings], names=["s"]).slice(1)
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), strings)
    batch = pa.RecordBatch.from_arrays([struct, listed], names=["s", "l"])
    assert record_sizes(batch).tolist() == [2 + 1, 3 + 5]


def test_empty_batch_has_no_record_sizes():
    kinds = [pa.list_(pa.string()), pa.map_(pa.string(), pa.int8()), pa.list_(pa.int8(), 2)]
    arrays = [pa.array([], kind) for kind in kinds]
    assert record_sizes(pa.RecordBatch.from_arrays(arrays, names=["a", "b", "c"])).tolist() == []


# -- too large -------------------------------------------------------------------------------------


def verdict(batch: pa.RecordBatch, required: tuple[str, ...] = (), limit: int = LIMIT):
    fields = tuple(batch.schema.field(name).with_nullable(False) for name in required)
    found = inspected(batch, fields, limit)
    return found.kept, found.flaw


def test_record_above_size_limit_truncates_message_and_one_at_limit_does_not():
    batch = pa.record_batch({"v": [b"x" * 100, b"x" * 101, b"x"]})
    assert verdict(batch, limit=100) == (1, Flaw(1, Reason.TOO_LARGE, size=101))
    assert verdict(batch, limit=101) == (3, None)


def test_unreferenced_child_values_are_ignored():
    """A list array may have child values, here invalid ones, that belong to none of its lists."""
    inner = [None, pa.py_buffer(np.array([0, 1, 2, 1 << 30, 2], np.int32))]
    strings = pa.ListArray.from_buffers(
        pa.list_(pa.int8()), 4, inner, children=[pa.array([1, 2], pa.int8())]
    )
    outer = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), strings)
    batch = pa.RecordBatch.from_arrays([outer], names=["c"])
    assert verdict(batch, limit=1) == (2, None)
    assert verdict(batch, limit=0) == (0, Flaw(0, Reason.TOO_LARGE, size=1))


@pytest.mark.parametrize("neighbours", [0, 1, 100])
def test_size_check_of_a_record_ignores_its_neighbours(neighbours):
    """A thousand flags take 125 bytes in a file and are counted as a thousand bytes."""
    flags = [[True] * 1000] + [[]] * neighbours
    batch = pa.record_batch({"flags": pa.array(flags, pa.list_(pa.bool_()))})
    assert verdict(batch, limit=999)[0] == 0
    assert verdict(batch, limit=1000)[0] == len(flags)


def test_batch_above_message_size_is_refused_as_a_whole():
    nothing = np.zeros(BATCH_BYTES_MAX // 8 + 1)  # untouched pages take no memory
    with pytest.raises(BatchTooLarge, match=f"at most {BATCH_BYTES_MAX} bytes"):
        verdict(pa.record_batch({"v": nothing}))


# -- nulls -----------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1), st.lists(st.booleans(), min_size=1))
def test_null_in_required_column_truncates_message_before_it(one, two):
    rows = min(len(one), len(two))
    one, two = one[:rows], two[:rows]
    batch = pa.record_batch(
        {
            "one": pa.array([None if null else 1 for null in one], pa.int8()),
            "two": pa.array([None if null else "x" for null in two], pa.string()),
            "free": pa.nulls(rows, pa.string()),
        }
    )
    bad = [row for row in range(rows) if one[row] or two[row]]
    kept, flaw = verdict(batch, required=("one", "two"))
    assert kept == (bad[0] if bad else rows)
    if bad:
        assert flaw == Flaw(bad[0], Reason.NULL_VALUE, column="one" if one[bad[0]] else "two")


def test_null_in_required_nested_field_truncates_message_and_names_its_path():
    strict = pa.struct([pa.field("b", pa.int8(), nullable=False)])
    loose = pa.struct([("b", pa.int8())])
    column = pa.array(
        [[{"b": 1}], None, [None, {"b": 2}], [{"b": 3}, {"b": None}]], pa.list_(loose)
    )
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    found = inspected(batch, (pa.field("c", pa.list_(strict)),), LIMIT)
    assert (found.kept, found.flaw) == (3, Flaw(3, Reason.NULL_VALUE, column="c.element.b"))


# -- values that are invalid for their type --------------------------------------------------------

GOOD, BAD = "ü".encode(), b"\xff\xfe"


def text(values: list[bytes | None]) -> pa.Array:
    """Return an array of texts that Arrow has not validated."""
    return pa.array(values, pa.binary()).view(pa.string())


def offsets_of(rows: list[list[Any]]) -> pa.Array:
    return pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())


def flat(rows: list[list[Any]]) -> list[Any]:
    return [each for row in rows for each in row]


def in_a_column(rows):
    return text([row[0] if row else None for row in rows])


def in_a_large_column(rows):
    raw = pa.array([row[0] if row else None for row in rows], pa.large_binary())
    return raw.view(pa.large_string())


def in_a_list(rows):
    return pa.ListArray.from_arrays(offsets_of(rows), text(flat(rows)))


def in_a_struct(rows):
    return pa.StructArray.from_arrays([pa.nulls(len(rows)), in_a_column(rows)], names=["n", "t"])


def in_the_keys_of_a_map(rows):
    return pa.MapArray.from_arrays(offsets_of(rows), text(flat(rows)), pa.nulls(len(flat(rows))))


def in_the_values_of_a_map(rows):
    keys = pa.array([""] * len(flat(rows)))
    return pa.MapArray.from_arrays(offsets_of(rows), keys, text(flat(rows)))


def in_a_list_of_fixed_length(rows):
    pairs = [[*row, None, None][:2] for row in rows]
    return pa.FixedSizeListArray.from_arrays(text(flat(pairs)), 2)


def in_a_list_of_structs_of_lists(rows):
    """Each record has its texts twice, one level deeper."""
    inner = [row for row in rows for _ in range(2)]
    outer = pa.array(np.arange(len(rows) + 1) * 2, pa.int32())
    struct = pa.StructArray.from_arrays([in_a_list(inner)], names=["l"])
    return pa.ListArray.from_arrays(outer, struct)


PLACES = [
    in_a_column,
    in_a_large_column,
    in_a_list,
    in_a_struct,
    in_the_keys_of_a_map,
    in_the_values_of_a_map,
    in_a_list_of_fixed_length,
    in_a_list_of_structs_of_lists,
]
texts = st.lists(
    st.lists(st.sampled_from([GOOD] * 6 + [b"", BAD]), max_size=2), min_size=1, max_size=12
)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=examples(40))
@given(texts, st.integers(0, 3))
def test_text_that_is_not_utf8_truncates_message_before_it(place, rows, before):
    one_each = place in (in_a_column, in_a_large_column, in_a_struct)
    bad = [number for number, row in enumerate(rows) if BAD in (row[:1] if one_each else row)]
    whole = place([[BAD]] * before + rows)  # bad rows before the slice
    batch = pa.RecordBatch.from_arrays([pa.nulls(len(whole)), whole], names=["n", "t"])
    kept, flaw = verdict(batch.slice(before))
    assert kept == (bad[0] if bad else len(rows))
    if bad:
        assert flaw == Flaw(bad[0], Reason.INVALID_TEXT, column="t")


def test_records_before_a_bad_header_are_kept():
    """Headers are the only column of a default topic with text."""
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 2], pa.int32()),
        pa.StructArray.from_arrays(
            [text([GOOD, BAD]), pa.nulls(2, pa.binary())], names=["key", "value"]
        ),
    )
    arrays = [pa.array([b"k"] * 3), pa.array([b"v"] * 3), headers, pa.array([0, 1, 2])]
    arrays[3] = arrays[3].cast(DEFAULT_SCHEMA.field("timestamp").type)
    batch = pa.RecordBatch.from_arrays(arrays, schema=DEFAULT_SCHEMA)
    assert verdict(batch, ("timestamp",)) == (2, Flaw(2, Reason.INVALID_TEXT, column="headers"))


def with_offsets(offsets: list[int], data: bytes, kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize(
    ("offsets", "kept"),
    [([0, 1, 0, 2], 1), ([0, 1, 1 << 30, 2], 1), ([0, -5, 1, 2], 0), ([0, 1, -1, 2], 1)],
)
def test_text_offsets_out_of_range_truncate_message_and_read_no_other_memory(kind, offsets, kept):
    batch = pa.RecordBatch.from_arrays([with_offsets(offsets, b"ab", kind)], names=["c"])
    assert verdict(batch)[0] == kept


@pytest.mark.parametrize(
    ("offsets", "kept"), [([0, 1, 0, 2], 1), ([0, 1, 1 << 30, 2], 1), ([0, 1, -1, 2], 1)]
)
def test_list_offsets_out_of_range_truncate_message(offsets, kept):
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    kind = pa.list_(pa.string())
    array = pa.Array.from_buffers(kind, 3, buffers, children=[pa.array(["a", "b"])])
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    assert verdict(batch)[0] == kept


def test_batch_with_short_buffers_is_refused():
    offsets = np.array([0, 1, 2, 2], np.int32)
    array = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"ab")]
    )
    batch = pa.RecordBatch.from_arrays([array], names=["c"])
    offsets[3] = 3  # afterwards, because Arrow refuses to build it
    with pytest.raises(InvalidRecord, match="not valid Arrow"):
        verdict(batch)


def test_decimal_with_too_many_digits_truncates_message():
    wide = pa.array([1, 10**9, 2], pa.decimal128(12, 0))
    narrow = pa.Array.from_buffers(pa.decimal128(5, 0), 3, wide.buffers())
    batch = pa.RecordBatch.from_arrays([narrow], names=["price"])
    assert verdict(batch) == (1, Flaw(1, Reason.INVALID_TEXT, column="price"))


@pytest.mark.rule("bad records: size, nulls, text that is not UTF-8", "broker/partition/appends.py")
def test_earliest_of_several_flaws_truncates_message():
    batch = pa.RecordBatch.from_arrays(
        [
            text([GOOD, GOOD, GOOD, BAD]),
            pa.array([1, 1, None, 1]),
            pa.array(["", "x" * 99, "", ""]),
        ],
        names=["text", "number", "long"],
    )
    assert verdict(batch, ("number",), 50)[1].reason is Reason.TOO_LARGE
    assert verdict(batch, ("number",), 500) == (2, Flaw(2, Reason.NULL_VALUE, column="number"))
    assert verdict(batch, (), 500) == (3, Flaw(3, Reason.INVALID_TEXT, column="text"))


# -- errors for the producer -----------------------------------------------------------------------


def test_refusal_reports_kept_records_their_offsets_and_the_flaw():
    error = refusal(Flaw(2, Reason.TOO_LARGE, size=101), kept=2, offset=40, record_bytes_max=100)
    assert isinstance(error, RecordTooLarge)
    assert error.message == (
        "record 2 of the message has 101 bytes, the topic's max.record.bytes is 100;"
        " the 2 records before it are kept, at offsets 40 to 41"
    )
    assert (error.kept, error.offset, error.details["record"]) == (2, 40, 2)


def test_refusal_of_first_record_has_no_offset():
    error = refusal(Flaw(0, Reason.NULL_VALUE, column="id"), 0, 40, 100)
    assert isinstance(error, InvalidRecord)
    assert "record 0 of the message has no value in column 'id', which takes no nulls" in str(error)
    assert (error.kept, error.offset) == (0, None)
    assert error.details["column"] == "id"


def test_refusal_reports_that_no_record_is_kept():
    first = refusal(Flaw(0, Reason.NULL_VALUE, column="id"), 0, 40, 100)
    assert first.message.endswith("; no record of the message is kept")
    one = refusal(Flaw(1, Reason.NULL_VALUE, column="id"), 1, 40, 100)
    assert one.message.endswith("; the 1 record before it is kept, at offset 40")
    flaw = Flaw(5, Reason.NULL_VALUE, column="id")
    inside = refusal(flaw, 0, None, 100, in_transaction=True)
    assert "before it" not in str(inside)
    assert inside.message.endswith(
        "; no record of the message is kept, because it is part of a transaction"
    )
    assert "Abort the transaction" in inside.hint


def test_refusal_names_the_column_of_an_invalid_value():
    error = refusal(Flaw(1, Reason.INVALID_TEXT, column="name"), 1, 7, 100)
    assert isinstance(error, InvalidRecord)
    assert "column 'name'" in str(error)
    assert error.details["column"] == "name"
