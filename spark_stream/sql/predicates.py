"""Filters bound to a topic's columns: the mask of a batch, and the choice of batches to skip.

A mask is true, false or null for each row. Only true keeps a row. Logic is SQL's, three-valued. NaN
is equal to itself and greater than all other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.consistency.pruning import (
    PREFIX_BYTES,
    Batches,
    Extremes,
    Flags,
    Order,
    Possible,
    against,
    among,
    bytes_key,
    every,
    fixed,
    some,
    whole_key,
)

Lookup = Callable[[str], pa.Array]
"""A function that returns a column of a batch by its name."""

_NULL: Final = pa.nulls(1, pa.bool_())[0]  # not pa.scalar, which imports pandas
# Batches are compared with each item of a list up to this length, else with its bounds.
_PARTS_MAX: Final = 32


class BoundPart(Struct, frozen=True):
    """A part of a bound filter. A mask may be one value for all rows.

    By default, no batch is skipped.
    """

    def mask(self, column: Lookup) -> Any:
        raise NotImplementedError

    def possible(self, batches: Batches) -> Possible:
        yes = np.ones(batches.count, np.bool_)
        return yes, yes


class Field(Struct, frozen=True):
    """A column, or a field in it: ``steps`` are the indices within nested structs."""

    name: str
    type: pa.DataType
    steps: tuple[int, ...] = ()

    def array(self, column: Lookup) -> pa.Array:
        """Return the field's values. They are null where an enclosing struct is null."""
        values = column(self.name)
        return pc.struct_field(values, self.steps) if self.steps else values

    def extremes(self, batches: Batches) -> Extremes:
        """Return the field's min/max statistics in each batch. Within structs, they are unknown."""
        return Extremes.unknown(batches.count) if self.steps else batches.known(self.name)


class Constant(BoundPart, frozen=True):
    """The same truth value for every row. None stands for null."""

    value: bool | None

    def mask(self, column: Lookup) -> Any:
        return pa.scalar(self.value, pa.bool_())

    def possible(self, batches: Batches) -> Possible:
        return fixed(self.value, batches.count)


class ValueConstant(BoundPart, frozen=True):
    """One truth value for rows in which the field has a value, and null for the others."""

    field: Field
    value: bool

    def mask(self, column: Lookup) -> Any:
        values = self.field.array(column)
        return pc.if_else(values.is_valid(), pa.scalar(self.value), _NULL)

    def possible(self, batches: Batches) -> Possible:
        there, never = self.field.extremes(batches).some_value, np.zeros(batches.count, np.bool_)
        return (there, never) if self.value else (never, there)


class ConstantComparison(BoundPart, frozen=True):
    """A comparison of a field with a constant. ``value`` has the type of the comparison.

    ``low``, ``high``, ``exact``: :func:`~spark_stream.consistency.pruning.against`.
    """

    field: Field
    order: Order
    value: pa.Scalar
    low: int
    high: int
    exact: bool

    @property
    def of_floats(self) -> bool:
        """Whether both are compared as doubles, which have two zeros and NaN."""
        return bool(pt.is_floating(self.value.type))

    def mask(self, column: Lookup) -> Any:
        values, value = as_type(self.field.array(column), self.value.type), self.value
        if self.of_floats and value.as_py() != value.as_py():
            return self._against_nan(values)
        return _COMPARED[self.order](values, value)

    def _against_nan(self, values: pa.Array) -> pa.Array:
        if self.order is Order.EQUAL:
            return pc.is_nan(values)
        if self.order is Order.LESS:
            return pc.invert(pc.is_nan(values))
        return pc.if_else(values.is_valid(), pa.scalar(True), _NULL)

    def possible(self, batches: Batches) -> Possible:
        found = self.field.extremes(batches)
        return against(found, self.order, self.low, self.high, exact=self.exact)


_COMPARED: Final[dict[Order, Callable[[Any, Any], Any]]] = {
    Order.EQUAL: pc.equal,
    Order.LESS: pc.less,
    Order.LESS_OR_EQUAL: pc.less_equal,
}


class OneOf(BoundPart, frozen=True):
    """A test whether a field is one of many constants of one type, without NaN and null."""

    parts: tuple[ConstantComparison, ...]

    def mask(self, column: Lookup) -> Any:
        first = self.parts[0]
        values = as_type(first.field.array(column), first.value.type)
        # Not as_py: Python has no moments before the year 1 or after 9999.
        chosen = pa.array([part.value for part in self.parts], first.value.type)
        return pc.if_else(values.is_valid(), pc.is_in(values, value_set=chosen), _NULL)

    def possible(self, batches: Batches) -> Possible:
        if len(self.parts) <= _PARTS_MAX:
            return some(part.possible(batches) for part in self.parts)
        low, high = min(part.low for part in self.parts), max(part.high for part in self.parts)
        return among(self.parts[0].field.extremes(batches), low, high)


class FieldComparison(BoundPart, frozen=True):
    """A comparison of two fields as ``type``."""

    order: Order
    left: Field
    right: Field
    type: pa.DataType

    def mask(self, column: Lookup) -> Any:
        left = as_type(self.left.array(column), self.type)
        right = as_type(self.right.array(column), self.type)
        if not pt.is_floating(self.type):
            return _COMPARED[self.order](left, right)
        return self._of_floats(left, right)

    def _of_floats(self, left: pa.Array, right: pa.Array) -> pa.Array:
        no_left, no_right = pc.is_nan(left), pc.is_nan(right)
        both = pc.and_(no_left, no_right)
        if self.order is Order.EQUAL:
            return pc.or_(pc.equal(left, right), both)
        less = pc.or_(pc.less(left, right), pc.and_not(no_right, no_left))
        if self.order is Order.LESS:
            return less
        return pc.or_(less, pc.or_(pc.equal(left, right), both))


class Matching(BoundPart, frozen=True):
    """A match of a text (or bytes) against a pattern. All matches begin with ``prefix``."""

    field: Field
    function: Callable[..., Any]
    pattern: str | bytes
    prefix: bytes

    def mask(self, column: Lookup) -> Any:
        return self.function(self.field.array(column), self.pattern)

    def possible(self, batches: Batches) -> Possible:
        low = bytes_key(self.prefix)
        short = self.prefix[:PREFIX_BYTES]
        high = bytes_key(short + b"\xff" * (PREFIX_BYTES - len(short)))
        return among(self.field.extremes(batches), low, high)


class NullTest(BoundPart, frozen=True):
    """A test whether a field is null."""

    field: Field

    def mask(self, column: Lookup) -> Any:
        return pc.is_null(self.field.array(column))

    def possible(self, batches: Batches) -> Possible:
        found = self.field.extremes(batches)
        return found.some_null, found.some_value


class NotANumber(BoundPart, frozen=True):
    """A test whether a float is NaN. It is false for null."""

    field: Field

    def mask(self, column: Lookup) -> Any:
        return pc.fill_null(pc.is_nan(self.field.array(column)), False)


class BooleanField(BoundPart, frozen=True):
    """A boolean field as a condition."""

    field: Field

    def mask(self, column: Lookup) -> Any:
        return self.field.array(column)

    def possible(self, batches: Batches) -> Possible:
        true = whole_key(1)
        return against(self.field.extremes(batches), Order.EQUAL, true, true, exact=True)


class Negation(BoundPart, frozen=True):
    part: BoundPart

    def mask(self, column: Lookup) -> Any:
        return pc.invert(self.part.mask(column))

    def possible(self, batches: Batches) -> Possible:
        true, false = self.part.possible(batches)
        return false, true


class TruthTest(BoundPart, frozen=True):
    """A test whether the part has this truth value. It is false where the part is null."""

    part: BoundPart
    value: bool

    def mask(self, column: Lookup) -> Any:
        mask = self.part.mask(column)
        return pc.coalesce(mask if self.value else pc.invert(mask), pa.scalar(False))

    def possible(self, batches: Batches) -> Possible:
        true, false = self.part.possible(batches)
        return (true if self.value else false), np.ones(batches.count, np.bool_)


class Conjunction(BoundPart, frozen=True):
    """AND of all parts."""

    parts: tuple[BoundPart, ...]

    def mask(self, column: Lookup) -> Any:
        return reduce(pc.and_kleene, (part.mask(column) for part in self.parts))

    def possible(self, batches: Batches) -> Possible:
        return every(part.possible(batches) for part in self.parts)


class Disjunction(BoundPart, frozen=True):
    """OR of all parts."""

    parts: tuple[BoundPart, ...]

    def mask(self, column: Lookup) -> Any:
        return reduce(pc.or_kleene, (part.mask(column) for part in self.parts))

    def possible(self, batches: Batches) -> Possible:
        return some(part.possible(batches) for part in self.parts)


def as_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast the values to the type of a comparison. As doubles they may be rounded."""
    if values.type.equals(kind):
        return values
    if pt.is_decimal(kind) and pt.is_temporal(values.type):
        return _in_nanoseconds(values, kind)
    return values.cast(kind, safe=False)


_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def _in_nanoseconds(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert moments to decimals, in nanoseconds since the epoch, which have all moments."""
    if pt.is_date32(values.type):
        counts, factor = values.cast(pa.int32()).cast(pa.int64()), 86_400 * 10**9
    elif pt.is_date64(values.type):
        counts, factor = values.cast(pa.int64()), 10**6
    else:
        counts, factor = _counts(values), _NANOSECONDS[values.type.unit]
    factors = pa.scalar(Decimal(factor), pa.decimal256(15, 0))
    return pc.multiply(counts.cast(pa.decimal256(20, 0)), factors).cast(kind)


def _counts(values: pa.Array) -> pa.Array:
    if pt.is_time32(values.type):
        return values.cast(pa.int32()).cast(pa.int64())
    return values.cast(pa.int64())


class RowFilter(Struct, frozen=True):
    """A filter as the log uses it. ``names``: the stored columns that it reads."""

    bound: BoundPart
    names: tuple[str, ...]

    def can_match(self, batches: Batches) -> Flags:
        """Return a mask of the batches that may have a matching row, shape (batches,)."""
        return self.bound.possible(batches)[0]

    def keeps(self, column: Lookup, rows: int) -> pa.Array:
        """Return a mask of the matching rows, without nulls."""
        mask = self.bound.mask(column)
        if isinstance(mask, pa.Scalar):
            return pa.repeat(pa.scalar(bool(mask.as_py())), rows)
        return pc.fill_null(mask, False)
