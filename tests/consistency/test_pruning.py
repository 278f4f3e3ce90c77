"""Keys keep the order of values, and no batch with a match is pruned."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.pruning import (
    HIGHEST,
    Extremes,
    Keys,
    Order,
    against,
    among,
    bytes_key,
    bytes_key_above,
    every,
    float_key,
    some,
    whole_key,
)


@given(st.integers(-(2**127), 2**127 - 1), st.integers(-(2**127), 2**127 - 1))
def test_whole_numbers_have_keys_in_their_order(a, b):
    assert (whole_key(a) < whole_key(b)) == (a < b)
    assert (whole_key(a) == whole_key(b)) == (a == b)


@given(st.floats(), st.floats())
def test_floats_have_keys_in_their_order_and_nan_is_above_all(a, b):
    def place(value):
        if math.isnan(value):
            return (1, 0)
        return (0, value if math.isinf(value) else Fraction(value))

    assert (float_key(a) < float_key(b)) == (place(a) < place(b))
    assert (float_key(a) == float_key(b)) == (place(a) == place(b))


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_bytes_have_bounds_in_their_order(a, b):
    if bytes_key(a) < bytes_key(b):
        assert a < b
    if a <= b:
        assert bytes_key(a) <= bytes_key(b) <= bytes_key_above(b)


def test_an_upper_bound_of_bytes_is_rounded_up_as_far_as_there_are_keys():
    assert bytes_key_above(b"a" * 16) == bytes_key(b"a" * 16)
    assert bytes_key_above(b"a" * 17) == bytes_key(b"a" * 16) + 1
    assert bytes_key_above(b"a" + b"\xff" * 20) == bytes_key(b"b")
    assert bytes_key_above(b"\xff" * 20) == HIGHEST


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_the_keys_of_an_array_are_those_of_its_numbers(numbers):
    keys = Keys.of_whole(np.array(numbers, np.int64))
    found = [(int(h) << 64) + int(w) for h, w in zip(keys.high, keys.low, strict=True)]
    assert found == [whole_key(each) for each in numbers]


SMALL = st.integers(-2, 2)
CONSTANTS = st.one_of(
    st.builds(lambda value: (whole_key(value), whole_key(value), True), SMALL),
    # A constant between two values is below the one and above the other.
    st.builds(lambda value: (whole_key(value + 1), whole_key(value), False), SMALL),
)
BATCHES = st.lists(st.lists(st.none() | SMALL, min_size=1, max_size=3), min_size=1, max_size=4)


def extremes_of(batches):
    values = [[each for each in batch if each is not None] for batch in batches]
    least = np.array([min(each, default=9) for each in values], np.int64)
    greatest = np.array([max(each, default=-9) for each in values], np.int64)
    return Extremes(
        Keys.of_whole(least),
        Keys.of_whole(greatest),
        np.array([None in batch for batch in batches]),
        np.array([bool(each) for each in values]),
    )


def check(possible, batches, verdict):
    """No outcome of a value counts as impossible. A null is neither."""
    for can_be, is_so in zip(possible, (True, False), strict=True):
        for may, batch in zip(can_be.tolist(), batches, strict=True):
            assert may or not any(verdict(whole_key(v)) is is_so for v in batch if v is not None)


@given(st.sampled_from(Order), CONSTANTS, BATCHES)
def test_comparisons_with_a_constant_agree_with_every_value(order, constant, batches):
    low, high, exact = constant

    def verdict(key):
        below, above = key < low, key > high
        equal = not below and not above
        return {Order.EQUAL: equal, Order.LESS: below, Order.LESS_OR_EQUAL: below or equal}[order]

    check(against(extremes_of(batches), order, low, high, exact=exact), batches, verdict)


@given(SMALL, SMALL, BATCHES)
def test_ranges_of_values_agree_with_every_value(low, high, batches):
    ends = whole_key(low), whole_key(high)
    check(among(extremes_of(batches), *ends), batches, lambda key: ends[0] <= key <= ends[1])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_joined_conditions_agree_with_their_parts(parts):
    arrays = [(np.array([true]), np.array([false])) for true, false in parts]
    (true,), (false,) = every(arrays)
    assert (true, false) == (all(t for t, _ in parts), any(f for _, f in parts))
    (true,), (false,) = some(arrays)
    assert (true, false) == (any(t for t, _ in parts), all(f for _, f in parts))
