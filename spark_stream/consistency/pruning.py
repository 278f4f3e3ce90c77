"""Which batches can hold a record that a filter keeps, given the least and greatest values of each.

Values are *keys*: integers of 128 bits whose order is the values' own. Whole numbers, decimals
(without their point) and moments (in their column's unit) have a key each; of texts and bytes the
first sixteen count, so that different ones may share a key; a float's is its own, and NaN is the
greatest, as for Spark.

A rule answers two questions of every batch: can it be true for a record of it, can it be false?
Both may be wrong in one direction only, "it can". A batch where the whole filter cannot be true is
not read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, slots=True)
class Keys:
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


@dataclass(frozen=True, slots=True)
class Extremes:
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


@dataclass(frozen=True, slots=True)
class Against:
    """The column's values against a constant.

    Values with a key below ``low`` are less than the constant, those above ``high`` greater. Where
    ``exact``, both are one key, and a value with this key is equal to it.
    """

    column: str
    order: Order
    low: int
    high: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Among:
    """True only for values with keys from ``low`` to ``high``; maybe not for all of those."""

    column: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Null:
    """The column is null."""

    column: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same for every record; None: null."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell from least and greatest values."""


@dataclass(frozen=True, slots=True)
class Opposite:
    """NOT."""

    part: Rule


@dataclass(frozen=True, slots=True)
class NeverNull:
    """The part is this truth value; false where the part is null."""

    part: Rule
    value: bool


@dataclass(frozen=True, slots=True)
class Every:
    """AND."""

    parts: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR."""

    parts: tuple[Rule, ...]


Rule = Against | Among | Null | Fixed | Unknown | Opposite | NeverNull | Every | Some


def can_match(rule: Rule, known: Callable[[str], Extremes], batches: int) -> Flags:
    """Which batches may hold a record for which the rule is true, shape (batches,)."""
    return _possible(rule, known, batches)[0]


def _possible(rule: Rule, known: Callable[[str], Extremes], batches: int) -> tuple[Flags, Flags]:
    """(can be true, can be false) of each batch."""
    yes, no = np.ones(batches, np.bool_), np.zeros(batches, np.bool_)
    if isinstance(rule, Against):
        return _against(rule, known(rule.column))
    if isinstance(rule, Among):
        found = known(rule.column)
        inside = ~found.greatest.below(rule.low) & ~found.least.above(rule.high)
        return found.some_value & inside, found.some_value
    if isinstance(rule, Null):
        return known(rule.column).some_null, known(rule.column).some_value
    if isinstance(rule, Fixed):
        return (yes if rule.value is True else no), (yes if rule.value is False else no)
    if isinstance(rule, Opposite):
        true, false = _possible(rule.part, known, batches)
        return false, true
    if isinstance(rule, NeverNull):
        true, false = _possible(rule.part, known, batches)
        return (true if rule.value else false), yes
    if isinstance(rule, Unknown):
        return yes, yes
    # An AND is true where all parts are, and can be false where one is; an OR the other way round.
    every = isinstance(rule, Every)
    both, either = yes, no
    for part in rule.parts:
        true, false = _possible(part, known, batches)
        both, either = both & (true if every else false), either | (false if every else true)
    return (both, either) if every else (either, both)


def _against(rule: Against, found: Extremes) -> tuple[Flags, Flags]:
    some = found.some_value
    low, high = rule.low, rule.high
    reaches_down, reaches_up = ~found.least.above(high), ~found.greatest.below(low)
    if rule.order is Order.EQUAL:
        true = reaches_down & reaches_up
        if not rule.exact:
            return some & true, some
        alone = ~found.least.below(low) & ~found.greatest.above(high)
        return some & true, some & ~alone
    if rule.order is Order.LESS:
        true = found.least.below(low) if rule.exact else reaches_down
        return some & true, some & reaches_up
    false = found.greatest.above(high) if rule.exact else reaches_up
    return some & reaches_down, some & false
