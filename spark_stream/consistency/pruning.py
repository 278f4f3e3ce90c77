"""Pruning: the batches that may have records for a filter, by min/max statistics of their columns.

Values are compared by *keys*: integers of 128 bits in the same order as the values. Whole numbers,
decimals (without their point) and times (in their column's unit) have one key each. Only the first
sixteen bytes of texts and bytes count, so different ones may share a key. Each float has its own
key. NaN is the greatest, as in Spark.

For each condition and each batch there are two questions: can the condition be true for a record of
the batch, and can it be false? Both answers may err only towards "it can". A batch for which the
whole filter cannot be true is not read.
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
    """Return the key of a whole number. One outside the range of keys gets the nearest key."""
    return min(HIGHEST, max(LOWEST, value + _MIDDLE))


def float_key(value: float) -> int:
    """Return the key of a float.

    Both zeros have the same key. NaN, whatever its bits, is above all.
    """
    if value != value:
        return HIGHEST
    bits = int(struct.unpack("<q", struct.pack("<d", value + 0.0))[0])
    ordered = bits if bits >= 0 else -(bits & ((1 << 63) - 1))
    return (ordered + (1 << 63)) << 64


def bytes_key(value: bytes) -> int:
    """Return the key of bytes, rounded down if they are longer than a key."""
    return int.from_bytes(value[:PREFIX_BYTES].ljust(PREFIX_BYTES, b"\0"), "big")


def bytes_key_above(value: bytes) -> int:
    """Return a key that is not below the key of any bytes up to ``value``."""
    key = bytes_key(value)
    return min(HIGHEST, key + 1) if len(value) > PREFIX_BYTES else key


def words(key: int) -> tuple[int, int]:
    """Split a key into two words of 64 bits, the higher one first."""
    return key >> 64, key & _LOW_BITS


class Keys(Struct, frozen=True):
    """A key for each batch. Both arrays have the shape (batches,)."""

    high: Words
    low: Words

    @classmethod
    def same(cls, key: int, batches: int) -> Keys:
        """Return the same key for all batches."""
        high, low = words(key)
        return cls(np.full(batches, high, np.uint64), np.full(batches, low, np.uint64))

    @classmethod
    def of_whole(cls, values: npt.NDArray[np.int64]) -> Keys:
        """Return the :func:`whole_key` of each value."""
        negative = values < 0
        high = np.where(negative, np.uint64((1 << 63) - 1), np.uint64(1 << 63))
        return cls(high, values.view(np.uint64))

    def below(self, key: int) -> Flags:
        """Return a mask of the keys below ``key``."""
        high, low = (np.uint64(word) for word in words(key))
        return np.asarray((self.high < high) | ((self.high == high) & (self.low < low)))

    def above(self, key: int) -> Flags:
        """Return a mask of the keys above ``key``."""
        high, low = (np.uint64(word) for word in words(key))
        return np.asarray((self.high > high) | ((self.high == high) & (self.low > low)))

    def where(self, mine: Flags, other: Keys) -> Keys:
        """Return these keys where ``mine`` is true, and the other's elsewhere."""
        return Keys(np.where(mine, self.high, other.high), np.where(mine, self.low, other.low))


class Extremes(Struct, frozen=True):
    """The min/max statistics of a column in some batches. All arrays have the shape (batches,).

    ``least`` is not above, and ``greatest`` not below, any of the batch's values. ``some_null``,
    ``some_value``: whether the batch may have a null, or a value.
    """

    least: Keys
    greatest: Keys
    some_null: Flags
    some_value: Flags

    @classmethod
    def unknown(cls, batches: int) -> Extremes:
        """Return the extremes of batches without statistics."""
        yes = np.ones(batches, np.bool_)
        return cls(Keys.same(LOWEST, batches), Keys.same(HIGHEST, batches), yes, yes)

    @classmethod
    def all_null(cls, batches: int) -> Extremes:
        """Return the extremes of batches that have only nulls in this column."""
        yes = np.ones(batches, np.bool_)
        return cls(Keys.same(HIGHEST, batches), Keys.same(LOWEST, batches), yes, ~yes)


class Order(Enum):
    """A comparison of a column's value with a constant."""

    EQUAL = auto()
    LESS = auto()
    LESS_OR_EQUAL = auto()


class Batches(Struct, frozen=True):
    """Some batches: their number, and the statistics of each column."""

    count: int
    known: Callable[[str], Extremes]


Possible = tuple[Flags, Flags]
"""Two masks of batches: the condition can be true, and can be false, for a record of the batch."""


def fixed(value: bool | None, batches: int) -> Possible:
    """Return the outcome of a condition that is the same for every record. None means null."""
    yes, no = np.ones(batches, np.bool_), np.zeros(batches, np.bool_)
    return (yes if value is True else no), (yes if value is False else no)


def among(found: Extremes, low: int, high: int) -> Possible:
    """Return the outcome of a condition that is true only for keys from ``low`` to ``high``."""
    inside = ~found.greatest.below(low) & ~found.least.above(high)
    return found.some_value & inside, found.some_value


def against(found: Extremes, order: Order, low: int, high: int, *, exact: bool) -> Possible:
    """Return the outcome of comparing a column's values with a constant.

    Values with a key below ``low`` are less than the constant, those above ``high`` greater. If
    ``exact``, ``low`` and ``high`` are the same key, and a value with this key equals the constant.
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
    """Combine by AND: it can be true if every part can, and false if one part can."""
    return reduce(lambda one, other: (one[0] & other[0], one[1] | other[1]), parts)


def some(parts: Iterable[Possible]) -> Possible:
    """Combine by OR: it can be false if every part can, and true if one part can."""
    return reduce(lambda one, other: (one[0] | other[0], one[1] & other[1]), parts)
