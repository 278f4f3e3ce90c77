"""Which batches can hold a record that a filter keeps, given the least and greatest values of each.

Values are *keys*: integers of 128 bits whose order is the values' own. Whole numbers, decimals
(without their point) and moments (in their column's unit) have a key each; of texts and bytes the
first sixteen count, so that different ones may share a key; a float's is its own, and NaN is the
greatest, as for Spark.

Of every condition there are two questions for each batch: can it be true for a record of it, can it
be false? Both answers may be wrong in one direction only, "it can". A batch where the whole filter
cannot be true is not read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

KEY_BITS: Final = 128
LOWEST: Final = 0
HIGHEST: Final = (1 << KEY_BITS) - 1
PREFIX_BYTES: Final = KEY_BITS // 8
_MIDDLE: Final = 1 << (KEY_BITS - 1)
_LOW_BITS: Final = (1 << 64) - 1

Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


def whole_key(value: int) -> int:
    """The key of a whole number; those that no column holds get the nearest."""
    return min(HIGHEST, max(LOWEST, value + _MIDDLE))


def float_key(value: float) -> int:
    """The key of a float. Both zeros are one; NaN, of any bits, is above all."""
    if value != value:
        return HIGHEST
    bits = int(struct.unpack("<q", struct.pack("<d", value + 0.0))[0])
    ordered = bits if bits >= 0 else -(bits & ((1 << 63) - 1))
    return (ordered + (1 << 63)) << 64


def bytes_key(value: bytes) -> int:
    """The key of bytes, rounded down where they are longer than it."""
    return int.from_bytes(value[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0"), "big")


def bytes_key_above(value: bytes) -> int:
    """A key that is not below that of any bytes up to ``value``."""
    key = bytes_key(value)
    return min(HIGHEST, key + 1) if len(value) > PREFIX_BYTES else key


def words(key: int) -> tuple[int, int]:
    """A key as two words of 64 bits, the higher one first."""
    return key >> 64, key & _LOW_BITS


class Keys(Struct, frozen=True):
    """A key for each batch; both arrays have the shape (batches,)."""

    high: Words
    low: Words

    @classmethod
    def same(cls, key: int, batches: int) -> Keys:
        """The same key for all."""
        high, low = words(key)
        return cls(np.full(batches, high, np.uint64), np.full(batches, low, np.uint64))

    @classmethod
    def of_whole(cls, values: npt.NDArray[np.int64]) -> Keys:
        """:func:`whole_key` of each."""
        negative = values < 0
        high = np.where(negative, np.uint64((1 << 63) - 1), np.uint64(1 << 63))
        return cls(high, values.view(np.uint64))

    def below(self, key: int) -> Flags:
        """Which are below the key."""
        high, low = (np.uint64(word) for word in words(key))
        return np.asarray((self.high < high) | ((self.high == high) & (self.low < low)))

    def above(self, key: int) -> Flags:
        """Which are above it."""
        high, low = (np.uint64(word) for word in words(key))
        return np.asarray((self.high > high) | ((self.high == high) & (self.low > low)))

    def where(self, mine: Flags, other: Keys) -> Keys:
        """These keys where ``mine`` says so, else the other's."""
        return Keys(np.where(mine, self.high, other.high), np.where(mine, self.low, other.low))


class Extremes(Struct, frozen=True):
    """What is known of a column in each of some batches; all arrays have the shape (batches,).

    ``least`` is not above, ``greatest`` not below any of the batch's values. ``some_null``,
    ``some_value``: whether there may be any.
    """

    least: Keys
    greatest: Keys
    some_null: Flags
    some_value: Flags

    @classmethod
    def unknown(cls, batches: int) -> Extremes:
        """Nothing is known."""
        yes = np.ones(batches, np.bool_)
        return cls(Keys.same(LOWEST, batches), Keys.same(HIGHEST, batches), yes, yes)

    @classmethod
    def all_null(cls, batches: int) -> Extremes:
        """The batches have no value in it."""
        yes = np.ones(batches, np.bool_)
        return cls(Keys.same(HIGHEST, batches), Keys.same(LOWEST, batches), yes, ~yes)


class Order(Enum):
    """A value of a column against a constant."""

    EQUAL = auto()
    LESS = auto()
    LESS_OR_EQUAL = auto()


class Batches(Struct, frozen=True):
    """Some batches: their number, and what is known of a column in each of them."""

    count: int
    known: Callable[[str], Extremes]


Possible = tuple[Flags, Flags]
"""Whether a condition can be true, and whether it can be false, for a record of each batch."""


def fixed(value: bool | None, batches: int) -> Possible:
    """A condition that is the same for every record; None: null."""
    yes, no = np.ones(batches, np.bool_), np.zeros(batches, np.bool_)
    return (yes if value is True else no), (yes if value is False else no)


def among(found: Extremes, low: int, high: int) -> Possible:
    """A condition that is true only for values with keys from ``low`` to ``high``."""
    inside = ~found.greatest.below(low) & ~found.least.above(high)
    return found.some_value & inside, found.some_value


def against(found: Extremes, order: Order, low: int, high: int, *, exact: bool) -> Possible:
    """A column's values against a constant.

    Values with a key below ``low`` are less than the constant, those above ``high`` greater. Where
    ``exact``, both are one key, and a value with this key is equal to it.
    """
    some = found.some_value
    reaches_down, reaches_up = ~found.least.above(high), ~found.greatest.below(low)
    if order is Order.EQUAL:
        true = reaches_down & reaches_up
        if not exact:
            return some & true, some
        alone = ~found.least.below(low) & ~found.greatest.above(high)
        return some & true, some & ~alone
    if order is Order.LESS:
        true = found.least.below(low) if exact else reaches_down
        return some & true, some & reaches_up
    false = found.greatest.above(high) if exact else reaches_up
    return some & reaches_down, some & false


def every(parts: Iterable[Possible]) -> Possible:
    """AND: true where all parts are; it can be false where one can."""
    return reduce(lambda one, other: (one[0] & other[0], one[1] | other[1]), parts)


def some(parts: Iterable[Possible]) -> Possible:
    """OR: false where all parts are; it can be true where one can."""
    return reduce(lambda one, other: (one[0] | other[0], one[1] & other[1]), parts)
