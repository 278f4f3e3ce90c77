"""Casts of nested values with nulls that nobody can see."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_stream.schema.values import cast


def inner(number: pa.DataType) -> pa.DataType:
    """A struct whose first field takes no nulls; Arrow fills it with nulls where it is null."""
    return pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("n", number)])


ROW = {"a": 1, "n": 2}
SHAPES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], list[object]]] = {
    "struct": (lambda of: pa.struct([("s", of), ("t", of)]), [{"s": ROW, "t": None}, None]),
    "list": (pa.list_, [[ROW, None], None, [], [ROW]]),
    "large list": (pa.large_list, [[ROW, None], None, [], [ROW]]),
    "list of two": (lambda of: pa.list_(of, 2), [[ROW, None], [ROW, ROW]]),
    "map": (lambda of: pa.map_(pa.string(), of), [[("k", ROW), ("l", None)], None, []]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sliced", [False, True])
def test_a_null_struct_stays_one_whatever_its_fields_declare(shape, sliced):
    of, rows = SHAPES[shape]
    array = pa.array(rows, of(inner(pa.int8())))
    wanted = of(inner(pa.int32()))
    if sliced:
        array, rows = array[1:], rows[1:]
    found = cast(array, wanted)
    assert found.type.equals(wanted)
    assert found.to_pylist() == rows
    found.validate(full=True)


def test_nulls_that_nobody_sees_are_no_reason_to_refuse():
    kind, wanted = inner(pa.int8()), inner(pa.int32())
    nulls = pa.nulls(3, pa.struct([("s", kind), ("m", pa.int8())]))
    with pytest.raises(pa.ArrowInvalid):
        nulls.cast(pa.struct([("s", kind), ("m", pa.int32())]))
    found = cast(nulls, pa.struct([("s", kind), ("m", pa.int32())]))
    assert found.to_pylist() == [None] * 3
    for shape in (pa.list_, pa.large_list, lambda of: pa.list_(of, 1)):
        outer = shape(pa.struct([("s", kind), ("m", pa.int8())]))
        values = nulls
        listed = pa.array([[None]] * 3, outer)
        if isinstance(listed, pa.FixedSizeListArray):
            listed = pa.FixedSizeListArray.from_arrays(values, type=outer)
        else:
            listed = type(listed).from_arrays(listed.offsets, values, type=outer)
        to = shape(pa.struct([("s", wanted), ("m", pa.int32())]))
        assert cast(listed, to).to_pylist() == [[None]] * 3
        assert cast(listed[1:], to).to_pylist() == [[None]] * 2


def test_a_value_that_has_no_place_is_refused_wherever_it_is():
    array = pa.array([[{"a": 1, "n": 300}, None]], pa.list_(inner(pa.int32())))
    with pytest.raises(pa.ArrowInvalid):
        cast(array, pa.list_(inner(pa.int8())))


@pytest.mark.parametrize("null", [True, False])
def test_a_field_of_a_struct_is_found_by_name_and_null_where_there_is_none(null):
    have = pa.struct([("s", inner(pa.int8())), ("a", pa.int8())])
    want = pa.struct([("s", inner(pa.int16())), ("b", pa.int8())])
    value = None if null else {"s": {"a": 1, "n": 2}, "a": 3}
    found = cast(pa.array([value], have), want)
    found.validate(full=True)
    assert found.to_pylist() == [None if null else {"s": {"a": 1, "n": 2}, "b": None}]


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (lambda field: pa.struct([field]), {"f": None}),
        (lambda field: pa.list_(field), [None]),
        (lambda field: pa.large_list(field), [None]),
        (lambda field: pa.list_(field, 1), [None]),
        (lambda field: pa.map_(pa.field("k", pa.string(), nullable=False), field), [("k", None)]),
    ],
)
def test_a_null_that_is_seen_needs_a_field_that_takes_it(of, value):
    strict = of(pa.field("f", pa.int32(), nullable=False))
    array = pa.array([None, value], of(pa.field("f", pa.int8())))
    with pytest.raises(pa.ArrowInvalid):
        cast(array, strict)
    assert cast(array[:1], strict).to_pylist() == [None]
