"""Keys keep the order of values, and a rule never says no to a batch that holds a match."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_stream.consistency.pruning import (
    HIGHEST,
    Against,
    Among,
    Every,
    Extremes,
    Fixed,
    Keys,
    NeverNull,
    Null,
    Opposite,
    Order,
    Some,
    Unknown,
    bytes_key,
    bytes_key_above,
    can_match,
    float_key,
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
RULES = st.recursive(
    st.one_of(
        st.builds(
            lambda order, value: Against("n", order, whole_key(value), whole_key(value), True),
            st.sampled_from(Order),
            SMALL,
        ),
        # A constant between two values is below the one and above the other.
        st.builds(
            lambda order, value: Against("n", order, whole_key(value + 1), whole_key(value), False),
            st.sampled_from(Order),
            SMALL,
        ),
        st.builds(lambda a, b: Among("n", whole_key(a), whole_key(b)), SMALL, SMALL),
        st.just(Null("n")),
        st.builds(Fixed, st.sampled_from([True, False, None])),
    ),
    lambda part: st.one_of(
        st.builds(Opposite, part),
        st.builds(NeverNull, part, st.booleans()),
        st.builds(lambda a, b: Every((a, b)), part, part),
        st.builds(lambda a, b: Some((a, b)), part, part),
    ),
    max_leaves=6,
)


def verdict(rule, value):
    """What the rule says of one value, by SQL's logic of three values."""
    match rule:
        case Against():
            if value is None:
                return None
            key = whole_key(value)
            below, above = key < rule.low, key > rule.high
            equal = not below and not above
            return {
                Order.EQUAL: equal,
                Order.LESS: below,
                Order.LESS_OR_EQUAL: below or equal,
            }[rule.order]
        case Among():
            return None if value is None else rule.low <= whole_key(value) <= rule.high
        case Null():
            return value is None
        case Fixed():
            return rule.value
        case Opposite():
            found = verdict(rule.part, value)
            return None if found is None else not found
        case NeverNull():
            return verdict(rule.part, value) is rule.value
    found = [verdict(part, value) for part in rule.parts]
    decides = isinstance(rule, Some)
    if decides in found:
        return decides
    return None if None in found else not decides


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


@given(RULES, st.lists(st.lists(st.none() | SMALL, min_size=1, max_size=3), min_size=1, max_size=4))
def test_a_batch_with_a_match_can_match(rule, batches):
    known = extremes_of(batches)
    found = can_match(rule, lambda name: known, len(batches)).tolist()
    for may, batch in zip(found, batches, strict=True):
        assert may or not any(verdict(rule, value) is True for value in batch)


def exactly(order, value):
    return Against("n", order, whole_key(value), whole_key(value), True)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (exactly(Order.EQUAL, 4), [False, True, False]),
        (exactly(Order.LESS, 3), [True, False, False]),
        (exactly(Order.LESS_OR_EQUAL, 3), [True, True, False]),
        (Opposite(exactly(Order.LESS_OR_EQUAL, 2)), [False, True, False]),
        (Opposite(exactly(Order.EQUAL, 2)), [True, True, False]),
        (Among("n", whole_key(5), whole_key(9)), [False, True, False]),
        (Null("n"), [False, False, True]),
        (Opposite(Null("n")), [True, True, False]),
        (Every((exactly(Order.EQUAL, 1), Null("n"))), [False, False, False]),
        (Some((exactly(Order.EQUAL, 1), Null("n"))), [True, False, True]),
        (Every((Unknown(), exactly(Order.LESS, 1))), [False, False, False]),
        (Fixed(None), [False, False, False]),
    ],
)
def test_batches_that_cannot_match_are_known(rule, expected):
    known = extremes_of([[1, 2], [3, 5], [None]])
    assert can_match(rule, lambda name: known, 3).tolist() == expected


def test_of_a_column_of_which_nothing_is_known_everything_may_be_true():
    rules = [exactly(Order.EQUAL, 0), Opposite(exactly(Order.EQUAL, 0)), Null("n")]
    for rule in rules:
        assert can_match(rule, lambda name: Extremes.unknown(2), 2).all()
