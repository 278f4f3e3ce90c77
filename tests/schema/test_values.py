"""Casts of nested values with invisible nulls, and comparisons of values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from spark_stream.schema.values import cast, same_values


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


MAP = pa.map_(pa.string(), pa.float64())
PAIR = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float64()))])


@pytest.mark.parametrize(
    ("kind", "one", "other", "is_same"),
    [
        (pa.int32(), [1, None, 3], [1, None, 3], True),
        (pa.int32(), [1, None, 3], [1, None, 4], False),
        (pa.int32(), [1, None, 3], [1, 2, 3], False),
        (pa.float64(), [math.nan, 1.0], [math.nan, 1.0], True),
        (pa.float64(), [math.nan, 1.0], [1.0, math.nan], False),
        (pa.float64(), [float(np.float32(0.1)), None], [0.1, None], True),
        (pa.float64(), [0.1], [0.1000000001], False),
        (pa.float64(), [math.inf], [1e300], False),
        (pa.float64(), [float(np.float32(0.1)), 0.5], [0.1, 0.25], False),
        (MAP, [[("k", math.nan)], None, []], [[("k", math.nan)], None, []], True),
        (MAP, [[("k", 1.0)], []], [[], [("k", 1.0)]], False),
        (MAP, [[("k", 1.0)]], [[("j", 1.0)]], False),
        (PAIR, [{"a": 1, "b": [math.nan]}], [{"a": 1, "b": [math.nan]}], True),
        (PAIR, [{"a": 1, "b": [math.nan]}, None], [{"a": 2, "b": [math.nan]}, None], False),
        (PAIR, [{"a": 1, "b": [0.5]}], [{"a": 1, "b": None}], False),
    ],
)
def test_same_values_are_recognised_in_any_layout(
    kind: pa.DataType, one: list[object], other: list[object], is_same: bool
) -> None:
    arrays = pa.array(one, kind), pa.array([other[0], *other], kind).slice(1)
    assert same_values(*arrays) is is_same
    assert same_values(*reversed(arrays)) is is_same


def test_nulls_of_an_added_map_equal_those_of_a_client() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    assert same_values(pa.nulls(2, kind), pa.array([None, None], kind))
