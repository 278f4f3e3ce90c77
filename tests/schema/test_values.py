"""Casts of nested values with invisible nulls."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_stream.schema.values import cast


def inner(number: pa.DataType) -> pa.DataType:
    """A struct whose first field takes no nulls. Where it is null, Arrow fills it with nulls."""
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
def test_null_struct_stays_null_even_with_required_fields(shape, sliced):
    of, rows = SHAPES[shape]
    array = pa.array(rows, of(inner(pa.int8())))
    wanted = of(inner(pa.int32()))
    if sliced:
        array, rows = array[1:], rows[1:]
    found = cast(array, wanted)
    assert found.type.equals(wanted)
    assert found.to_pylist() == rows
    found.validate(full=True)


def test_invisible_nulls_are_accepted():
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


def test_value_that_does_not_fit_is_refused_at_any_depth():
    array = pa.array([[{"a": 1, "n": 300}, None]], pa.list_(inner(pa.int32())))
    with pytest.raises(pa.ArrowInvalid):
        cast(array, pa.list_(inner(pa.int8())))


@pytest.mark.parametrize("null", [True, False])
def test_struct_fields_are_matched_by_name_and_missing_ones_are_null(null):
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
def test_visible_null_in_a_required_field_is_refused(of, value):
    strict = of(pa.field("f", pa.int32(), nullable=False))
    array = pa.array([None, value], of(pa.field("f", pa.int8())))
    with pytest.raises(pa.ArrowInvalid):
        cast(array, strict)
    assert cast(array[:1], strict).to_pylist() == [None]
