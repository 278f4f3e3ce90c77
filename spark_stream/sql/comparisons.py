"""Bring the two sides of a comparison to one type, as Spark does (by default, in ANSI mode).

Whole numbers and decimals are compared exactly, but as doubles with a float or double. Dates and
timestamps are compared as moments (in UTC). A string is cast to the type of the other side. A
constant is converted to its column's unit, so that a column is cast only if necessary.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from math import floor, inf, nextafter
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from spark_stream.consistency import pruning
from spark_stream.consistency.pruning import float_key, whole_key
from spark_stream.errors import InvalidFilter
from spark_stream.schema.types import type_name
from spark_stream.sql import literals
from spark_stream.sql.literals import NotAValue
from spark_stream.sql.predicates import (
    BoundPart,
    Constant,
    ConstantComparison,
    Field,
    FieldComparison,
    Negation,
    ValueConstant,
)
from spark_stream.sql.tree import Column, Literal, LiteralKind, Operand

_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXACTLY: Final = Context(prec=80)
_DECIMAL_DIGITS_MAX: Final = 76
_MOMENTS: Final = pa.decimal256(60, 0)  # nanoseconds, whatever the unit


def refused(problem: str, node: Operand | None) -> InvalidFilter:
    at, column = None, None
    if isinstance(node, Column):
        at, column = node.at, node.shown
    where = f" (at character {at})" if at else ""
    details = {} if column is None else {"column": column}
    return InvalidFilter(f"filter: {problem}{where}", option="filter", **details)


class TextField(Field, frozen=True):
    """A binary field that is compared as text."""


def compared(
    order: pruning.Order, left: Field | Literal, right: Field | Literal, node: Any
) -> BoundPart:
    """Bind a comparison of ``left`` with ``right``. ``node`` is the comparison, for messages."""
    if isinstance(left, Literal):
        if isinstance(right, Literal):
            return _of_constants(order, left, right)
        if order is pruning.Order.EQUAL:
            return _against(order, right, left, node)
        # c < x is NOT x <= c, since any two values are ordered.
        turned = pruning.Order.LESS_OR_EQUAL if order is pruning.Order.LESS else pruning.Order.LESS
        return Negation(_against(turned, right, left, node))
    if isinstance(right, Literal):
        return _against(order, left, right, node)
    return FieldComparison(order, left, right, _common(left, right, node))


def _of_constants(order: pruning.Order, left: Literal, right: Literal) -> BoundPart:
    if left.value is None or right.value is None:
        return Constant(None)
    try:
        a, b = _alike(left, right)
    except NotAValue as error:
        raise refused(str(error), None) from None
    if a != a or b != b:  # NaN is above all numbers, and equal to itself
        a, b = (a != a), (b != b)
    return Constant(bool(_PLAIN[order](a, b)))


_PLAIN: Final[dict[pruning.Order, Callable[[Any, Any], Any]]] = {
    pruning.Order.EQUAL: operator.eq,
    pruning.Order.LESS: operator.lt,
    pruning.Order.LESS_OR_EQUAL: operator.le,
}


def _alike(left: Literal, right: Literal) -> tuple[Any, Any]:
    kinds = {left.kind, right.kind}
    if kinds != {LiteralKind.STRING} and kinds <= {*literals.MOMENTS, LiteralKind.STRING}:
        kind = _wider(left.kind, right.kind)
        return literals.as_moment(left, kind), literals.as_moment(right, kind)
    for wanted, convert in _CONVERTED:
        if wanted & kinds and kinds <= wanted | {LiteralKind.STRING} | _NUMBERS * (
            wanted <= _NUMBERS
        ):
            return convert(left), convert(right)
    if kinds == {LiteralKind.STRING}:
        return str(left.value).encode(), str(right.value).encode()
    raise NotAValue(f"cannot compare {left.shown} with {right.shown}")


class _Kinds(frozenset[LiteralKind]):
    def __mul__(self, there: bool) -> frozenset[LiteralKind]:
        return self if there else frozenset()


_NUMBERS: Final = _Kinds({LiteralKind.WHOLE, LiteralKind.DECIMAL, LiteralKind.DOUBLE})


def _as_bytes(literal: Literal) -> bytes:
    if isinstance(literal.value, bytes):
        return literal.value
    if isinstance(literal.value, str):
        return literal.value.encode()
    raise NotAValue(f"{literal.shown} is not binary")


def _as_fraction(literal: Literal) -> Fraction:
    if isinstance(literal.value, Fraction):
        return literal.value
    return literals.as_whole(literal)


_CONVERTED: Final[list[tuple[frozenset[LiteralKind], Callable[[Literal], Any]]]] = [
    (_Kinds({LiteralKind.DOUBLE}), literals.as_double),
    (_Kinds({LiteralKind.DECIMAL}), literals.as_double),
    (_Kinds({LiteralKind.WHOLE}), _as_fraction),
    (_Kinds({LiteralKind.BOOLEAN}), literals.as_boolean),
    (_Kinds({LiteralKind.TIME}), literals.as_time),
    (_Kinds({LiteralKind.BINARY}), _as_bytes),
]


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def is_raw(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date(kind))


def _against(order: pruning.Order, field: Field, literal: Literal, node: Any) -> BoundPart:
    """Bind a comparison of a field with a constant."""
    if literal.value is None:
        return Constant(None)
    kind = field.type
    if pt.is_null(kind):
        return Constant(None)
    try:
        if (is_raw(kind) or is_text(kind)) and literal.kind in (
            LiteralKind.STRING,
            LiteralKind.BINARY,
        ):
            return of_bytes(order, field, literal)
        if pt.is_floating(kind) and literal.kind in (*_NUMBERS, LiteralKind.STRING):
            return _of_doubles(order, field, literals.as_double(literal))
        if pt.is_integer(kind) or pt.is_decimal(kind):
            return _of_numbers(order, field, literal)
        if pt.is_boolean(kind) and literal.kind in (LiteralKind.BOOLEAN, LiteralKind.STRING):
            return _of_wholes(order, field, Fraction(literals.as_boolean(literal)))
        if _is_moment(kind) and literal.kind in (*literals.MOMENTS, LiteralKind.STRING):
            seconds = literals.as_moment(literal, _kind_of(field))
            return _of_wholes(order, field, seconds * _per_second(kind))
        if pt.is_time(kind) and literal.kind in (LiteralKind.TIME, LiteralKind.STRING):
            return _of_wholes(order, field, literals.as_time(literal) * _per_second(kind))
    except NotAValue as error:
        raise refused(f"{_named(field, node)}: {error}", _column_of(node)) from None
    raise refused(
        f"{_named(field, node)} cannot be compared with {literal.shown}, a {literal.kind}",
        _column_of(node),
    )


def _column_of(node: Any) -> Operand | None:
    """Return the column of a comparison, for messages."""
    sides = [getattr(node, name, None) for name in ("left", "operand", "right")]
    return next((each for each in sides if isinstance(each, Column)), None)


def _named(field: Field, node: Any) -> str:
    column = _column_of(node)
    name = column.shown if column is not None else field.name
    return f"column {name!r} ({type_name(field.type)})"


def of_bytes(order: pruning.Order, field: Field, literal: Literal) -> BoundPart:
    value = _as_bytes(literal)
    wide = pt.is_large_binary(field.type) or pt.is_large_string(field.type)
    key = pruning.bytes_key(value)
    scalar = pa.scalar(value, pa.large_binary() if wide else pa.binary())
    return ConstantComparison(field, order, scalar, key, key, exact=False)


def _of_doubles(order: pruning.Order, field: Field, value: float) -> BoundPart:
    """Bind a comparison with a double: floats as they are, other numbers as doubles."""
    scalar = pa.scalar(value, pa.float64())
    if pt.is_floating(field.type):
        key = float_key(value)
        return ConstantComparison(field, order, scalar, key, key, exact=True)
    if value != value or value in (inf, -inf):
        return ConstantComparison(
            field, order, scalar, pruning.LOWEST, pruning.HIGHEST, exact=False
        )
    # A whole number or a decimal is rounded to the nearest double, so neighbours of the constant
    # may be equal to it: widen the range of keys by that much.
    scale = 10**field.type.scale if pt.is_decimal(field.type) else 1
    far = 1 if value == 0 else abs(value)
    around = 4 * max(nextafter(far, inf) - far, 0.0)
    low, high = (
        floor(Fraction(value) * scale + sign * (Fraction(around) * scale + 1)) for sign in (-1, 1)
    )
    return ConstantComparison(
        field, order, scalar, whole_key(low), whole_key(high + 1), exact=False
    )


def _of_numbers(order: pruning.Order, field: Field, literal: Literal) -> BoundPart:
    """Bind a comparison of whole numbers and decimals."""
    kind = field.type
    if literal.kind is LiteralKind.STRING:
        whole = pt.is_integer(kind)
        literal = (
            _as_whole(literal)
            if whole
            else Literal(LiteralKind.DOUBLE, literals.as_double(literal), literal.text)
        )
    if literal.kind is LiteralKind.DOUBLE:
        value = literals.as_double(literal)
        small = pt.is_integer(kind) and kind.bit_width < 64
        if not small or value - value != 0:
            return _of_doubles(order, field, value)
        return _of_wholes(order, field, Fraction(value))  # every such number is a double
    if literal.kind not in _NUMBERS or not isinstance(literal.value, Fraction):
        raise NotAValue(f"it cannot be compared with {literal.shown}, a {literal.kind}")
    scale = 10**kind.scale if pt.is_decimal(kind) else 1
    return _of_wholes(order, field, literal.value * scale)


def _as_whole(literal: Literal) -> Literal:
    """Cast a string to a whole number, for comparison with integer columns of any width."""
    try:
        return literals.cast(literal, "bigint")
    except NotAValue:
        raise NotAValue(f"{literal.shown} is not a whole number") from None


def _per_second(kind: pa.DataType) -> Fraction:
    """Return the number of a type's units in a second."""
    if pt.is_date32(kind):
        return Fraction(1, 86_400)
    return Fraction(_UNITS["ms" if pt.is_date64(kind) else kind.unit])


def _of_wholes(order: pruning.Order, field: Field, value: Fraction) -> BoundPart:
    """Bind a comparison for a type of whole numbers in some unit. ``value`` is in that unit.

    A constant between two of them, or out of range, is replaced by an equivalent comparison.
    """
    below = floor(value)
    if below != value:
        if order is pruning.Order.EQUAL:
            return ValueConstant(field, False)
        order = pruning.Order.LESS_OR_EQUAL
    least, greatest = _range_of(field.type)
    if below > greatest:
        return ValueConstant(field, order is not pruning.Order.EQUAL)
    if below < least:
        return ValueConstant(field, False)
    key = whole_key(below)
    return ConstantComparison(field, order, _scalar(below, field.type), key, key, exact=True)


def _range_of(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest whole number of a type."""
    if pt.is_boolean(kind):
        return 0, 1
    if pt.is_decimal(kind):
        most = 10**kind.precision - 1
        return -most, most
    if pt.is_unsigned_integer(kind):
        return 0, (1 << kind.bit_width) - 1
    half = 1 << (kind.bit_width - 1)
    return -half, half - 1


def _scalar(value: int, kind: pa.DataType) -> pa.Scalar:
    if pt.is_boolean(kind):
        return pa.scalar(bool(value))
    if pt.is_decimal(kind):
        return pa.scalar(Decimal(value).scaleb(-kind.scale, _EXACTLY), kind)
    if pt.is_integer(kind):
        return pa.scalar(value, kind)
    plain = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.scalar(value, plain).cast(kind)


def of_one_kind(sides: Sequence[Field | Literal]) -> list[Field | Literal]:
    """Return an operand and its list's items, each literal converted to the type of the comparison.

    As in Spark, go from left to right: a string's type depends on the items before it.

    Raises:
        NotAValue: a string is not a value of that type, or columns would be cast to double.
    """
    kind = reduce(_wider, map(_kind_of, sides))
    if kind is LiteralKind.DOUBLE:
        exact = [isinstance(each, Field) and _kind_of(each) is not kind for each in sides]
        if sum(exact) > 1:
            raise NotAValue(
                "IN compares these columns as doubles: write the comparisons with = and OR instead"
            )
    return [each if isinstance(each, Field) else _as_kind(each, kind) for each in sides]


def _as_kind(literal: Literal, kind: LiteralKind) -> Literal:
    if literal.kind is LiteralKind.STRING and kind in literals.MOMENTS:
        return Literal(kind, literals.as_moment(literal, kind), literal.text)
    if kind is LiteralKind.DOUBLE and literal.kind in (
        LiteralKind.WHOLE,
        LiteralKind.DECIMAL,
        LiteralKind.STRING,
    ):
        return Literal(kind, literals.as_double(literal), literal.text)
    if literal.kind is LiteralKind.STRING and kind in (LiteralKind.WHOLE, LiteralKind.DECIMAL):
        return _as_whole(literal)
    return literal


_WIDER: Final = ((LiteralKind.WHOLE, LiteralKind.DECIMAL, LiteralKind.DOUBLE), literals.MOMENTS)


def _wider(left: LiteralKind, right: LiteralKind) -> LiteralKind:
    """Return the kind in which Spark compares two kinds, or ``left`` if they are incomparable."""
    kinds = {left, right}
    if kinds == {LiteralKind.DECIMAL, LiteralKind.STRING}:
        return LiteralKind.DOUBLE
    for family in _WIDER:
        if kinds <= {*family}:
            return max(kinds, key=family.index)
    return (
        right
        if left in (LiteralKind.NULL, LiteralKind.STRING) and right is not LiteralKind.NULL
        else left
    )


def _kind_of(side: Field | Literal) -> LiteralKind:
    """Return the kind in which a side is compared, or ``NULL`` if its type is never compared."""
    if isinstance(side, Literal):
        return side.kind
    if isinstance(side, TextField):
        return LiteralKind.STRING
    if pt.is_timestamp(side.type):
        return LiteralKind.TIMESTAMP if side.type.tz else LiteralKind.TIMESTAMP_NTZ
    return next((kind for is_of, kind in _KINDS if is_of(side.type)), LiteralKind.NULL)


_KINDS: Final[list[tuple[Callable[[pa.DataType], bool], LiteralKind]]] = [
    (pt.is_integer, LiteralKind.WHOLE),
    (pt.is_decimal, LiteralKind.DECIMAL),
    (pt.is_floating, LiteralKind.DOUBLE),
    (is_text, LiteralKind.STRING),
    (is_raw, LiteralKind.BINARY),
    (pt.is_boolean, LiteralKind.BOOLEAN),
    (pt.is_date, LiteralKind.DATE),
    (pt.is_time, LiteralKind.TIME),
]


def _common(left: Field, right: Field, node: Any) -> pa.DataType:
    """Return the type in which two fields are compared."""
    a, b = left.type, right.type
    numbers = [pt.is_integer(each) or pt.is_decimal(each) for each in (a, b)]
    floats = [pt.is_floating(each) for each in (a, b)]
    if any(floats) and all(f or n for f, n in zip(floats, numbers, strict=True)):
        return pa.float64()
    if all(pt.is_signed_integer(each) for each in (a, b)):
        return pa.int64()
    if all(numbers):
        scale = max(each.scale if pt.is_decimal(each) else 0 for each in (a, b))
        return pa.decimal256(_DECIMAL_DIGITS_MAX, scale)
    if all(is_text(each) for each in (a, b)) or all(is_raw(each) for each in (a, b)):
        return pa.large_binary()
    if {is_text(each) or is_raw(each) for each in (a, b)} == {True}:
        return pa.large_binary()
    if all(_is_moment(each) for each in (a, b)) or all(pt.is_time(each) for each in (a, b)):
        return a if a.equals(b) else _MOMENTS
    if a.equals(b) and pt.is_boolean(a):
        return a
    raise refused(
        f"columns {node.left.shown!r} ({type_name(a)}) and {node.right.shown!r}"
        f" ({type_name(b)}) cannot be compared",
        node.left,
    )
