"""A predicate's tree and a topic's columns: which comparison of which types it is.

Types are brought together as Spark does it (in its default, ANSI): whole numbers and decimals are
compared exactly, with a float or double as doubles; dates and timestamps as moments (in UTC); a
string is taken as what it is compared with. A constant is brought into its column's own unit, so
that no column is cast where that can be avoided.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from difflib import get_close_matches
from fractions import Fraction
from math import floor, inf, nextafter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.consistency import pruning
from spark_stream.consistency.pruning import float_key, whole_key
from spark_stream.errors import InvalidFilter
from spark_stream.sql import literals, tree
from spark_stream.sql.literals import NotAValue
from spark_stream.sql.predicates import (
    Absent,
    Both,
    Bound,
    Certain,
    Constant,
    Either,
    Everywhere,
    Field,
    Flag,
    Matching,
    Negation,
    NotANumber,
    OneOf,
    Pair,
    RowFilter,
    Versus,
)
from spark_stream.sql.tree import Column, Kind, Literal, Operand, Predicate
from spark_stream.wire.type_names import type_name

Columns = Mapping[str, Field | Literal]
"""What a filter may name: the topic's columns, and what is the same for a whole partition."""

_ORDERS: Final = {
    tree.Order.EQUAL: pruning.Order.EQUAL,
    tree.Order.SAME: pruning.Order.EQUAL,
    tree.Order.LESS: pruning.Order.LESS,
    tree.Order.LESS_OR_EQUAL: pruning.Order.LESS_OR_EQUAL,
}
_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EXACTLY: Final = Context(prec=80)
_DECIMAL_DIGITS_MAX: Final = 76
_MANY: Final = 3
_MOMENTS: Final = pa.decimal256(60, 0)  # nanoseconds, whatever the unit


def bind(predicate: Predicate, columns: Columns) -> RowFilter:
    """What the predicate means for these columns.

    Raises:
        InvalidFilter: a column that there is not, or that is not compared with such a value.
    """
    binder = _Binder(columns)
    bound = binder.bound(predicate)
    return RowFilter(bound, tuple(binder.used))


@dataclass
class _Binder:
    columns: Columns

    def __post_init__(self) -> None:
        self.used: dict[str, None] = {}
        self._by_name = {name.lower(): name for name in self.columns}

    def bound(self, node: Predicate) -> Bound:
        make: Callable[[Any], Bound] = _BINDERS[type(node)].__get__(self)
        return make(node)

    # -- columns ----------------------------------------------------------------------------------

    def _operand(self, node: Operand) -> Field | Literal:
        if isinstance(node, Literal):
            return node
        name = self._by_name.get(node.path[0].lower())
        if name is None:
            raise self._no_column(node)
        found = self.columns[name]
        if isinstance(found, Literal):
            if len(node.path) > 1:
                raise _refused(f"column {name!r} is a {found.kind}, it has no fields", node)
            return found
        self.used[found.name] = None
        for step in node.path[1:]:
            found = _inner(found, step, node)
        if not node.as_text:
            return found
        if not (_is_raw(found.type) or _is_text(found.type)):
            raise _refused(
                f"column {node.shown!r} is {type_name(found.type)}; a filter casts only binary"
                " columns to string",
                node,
            )
        return _TextField(found.name, found.type, found.steps)

    def _no_column(self, node: Column) -> InvalidFilter:
        names = list(self.columns)
        near = get_close_matches(node.path[0].lower(), list(self._by_name), 1)
        meant = f" (is {self._by_name[near[0]]!r} meant?)" if near else ""
        return _refused(
            f"there is no column {node.shown!r}{meant}; the topic has"
            f" {', '.join(map(self._with_type, names))}",
            node,
        )

    def _with_type(self, name: str) -> str:
        found = self.columns[name]
        return f"{name} {found.kind if isinstance(found, Literal) else type_name(found.type)}"

    # -- comparisons ------------------------------------------------------------------------------

    def compare(self, node: tree.Compare) -> Bound:
        left, right = self._operand(node.left), self._operand(node.right)
        if node.order is tree.Order.SAME:
            return self._same(left, right, node)
        return _compared(_ORDERS[node.order], left, right, node)

    def _same(self, left: Field | Literal, right: Field | Literal, node: tree.Compare) -> Bound:
        if isinstance(left, Literal):
            left, right = right, left
        if isinstance(left, Literal):
            nulls = (left.value is None) + (right.value is None)  # type: ignore[union-attr]
            if nulls:
                return Constant(nulls == 2)
            return _compared(pruning.Order.EQUAL, left, right, node)
        if isinstance(right, Literal) and right.value is None:
            return Absent(left)
        found = Certain(_compared(pruning.Order.EQUAL, left, right, node), True)
        if isinstance(right, Literal):
            return found
        return Either((found, Both((Absent(left), Absent(right)))))

    def one_of(self, node: tree.In) -> Bound:
        operand, items = self._operand(node.operand), node.items
        if isinstance(operand, Field) and any(each.kind is Kind.DOUBLE for each in items):
            items = tuple(map(_doubled, items))  # one double makes a whole list one of doubles
        parts = [_compared(pruning.Order.EQUAL, operand, each, node) for each in items]
        plain = tuple(each for each in parts if isinstance(each, Versus) and not each.of_floats)
        if len(plain) > _MANY:
            rest = [each for each in parts if not isinstance(each, Versus) or each.of_floats]
            parts = [OneOf(plain), *rest]
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    # -- texts ------------------------------------------------------------------------------------

    def like(self, node: tree.Like) -> Bound:
        field = self._operand(node.operand)
        if isinstance(field, Literal):
            raise _refused("LIKE takes a column to its left", None)
        if not (_is_text(field.type) or isinstance(field, _TextField)):
            raise _no_text(field, node.operand, "LIKE")
        pieces = _pieces(node.pattern, node.escape)
        raw = _is_raw(field.type)
        if raw and "_" in pieces:
            raise _refused(f"_ in LIKE {node.pattern!r} takes a string column, not bytes", None)
        return _matching(field, pieces, raw)

    def holds(self, node: tree.Holds) -> Bound:
        field = self._operand(node.operand)
        if isinstance(field, Literal):
            raise _refused(f"{node.part} takes a column first", None)
        if not (_is_text(field.type) or _is_raw(field.type)) or pt.is_fixed_size_binary(field.type):
            raise _no_text(field, node.operand, node.part)
        value = node.text.value
        if value is None:
            return Constant(None)
        if not isinstance(value, str | bytes):
            raise _refused(f"{node.part} looks for a string, not for {node.text.shown}", None)
        raw = value.encode() if isinstance(value, str) else value
        text: str | bytes = raw if _is_raw(field.type) else _decoded(raw)
        prefix = raw if node.part is tree.Part.START else b""
        return Matching(field, _FUNCTIONS[node.part], text, prefix)

    # -- the rest ---------------------------------------------------------------------------------

    def is_null(self, node: tree.IsNull) -> Bound:
        found = self._operand(node.operand)
        return Constant(found.value is None) if isinstance(found, Literal) else Absent(found)

    def is_nan(self, node: tree.IsNan) -> Bound:
        found = self._operand(node.operand)
        if isinstance(found, Literal):
            value = found.value
            return Constant(isinstance(value, float) and value != value)
        if pt.is_floating(found.type):
            return NotANumber(found)
        if pt.is_integer(found.type) or pt.is_decimal(found.type):
            return Constant(False)
        raise _refused(
            f"column {node.operand.shown!r} is {type_name(found.type)}; isnan takes a number",
            node.operand,
        )

    def truth(self, node: tree.Truth) -> Bound:
        found = self._operand(node.operand)
        if isinstance(found, Field):
            if pt.is_null(found.type):
                return Constant(None)
            if not pt.is_boolean(found.type):
                raise _refused(
                    f"column {node.operand.shown!r} is {type_name(found.type)}, not boolean:"
                    " compare it with something",
                    node.operand,
                )
            return Flag(found)
        if found.kind not in (Kind.BOOLEAN, Kind.NULL):
            raise _refused(f"{found.shown} is not boolean: compare it with something", None)
        return Constant(None if found.value is None else bool(found.value))

    def certain(self, node: tree.Is) -> Bound:
        return Certain(self.bound(node.part), node.value)

    def negation(self, node: tree.Not) -> Bound:
        return Negation(self.bound(node.part))

    def both(self, node: tree.And) -> Bound:
        return Both(tuple(map(self.bound, node.parts)))

    def either(self, node: tree.Or) -> Bound:
        return Either(tuple(map(self.bound, node.parts)))


_BINDERS: Final[dict[type, Any]] = {
    tree.Compare: _Binder.compare,
    tree.In: _Binder.one_of,
    tree.Like: _Binder.like,
    tree.Holds: _Binder.holds,
    tree.IsNull: _Binder.is_null,
    tree.IsNan: _Binder.is_nan,
    tree.Truth: _Binder.truth,
    tree.Is: _Binder.certain,
    tree.Not: _Binder.negation,
    tree.And: _Binder.both,
    tree.Or: _Binder.either,
}


class _TextField(Field):
    """Bytes that are compared as a text."""

    __slots__ = ()


def _inner(field: Field, step: str, node: Column) -> Field:
    if not pt.is_struct(field.type):
        raise _refused(
            f"column {node.shown!r}: {type_name(field.type)} has no field {step!r}", node
        )
    names = [field.type.field(place).name for place in range(field.type.num_fields)]
    found = [place for place, name in enumerate(names) if name.lower() == step.lower()]
    if len(found) != 1:
        raise _refused(
            f"column {node.shown!r}: {'no' if not found else 'more than one'} field {step!r} in"
            f" {type_name(field.type)}",
            node,
        )
    return Field(field.name, field.type.field(found[0]).type, (*field.steps, found[0]))


def _refused(problem: str, node: Operand | None) -> InvalidFilter:
    at, column = None, None
    if isinstance(node, Column):
        at, column = node.at, node.shown
    where = f" (at character {at})" if at else ""
    details = {} if column is None else {"column": column}
    return InvalidFilter(f"filter: {problem}{where}", option="filter", **details)


def _no_text(field: Field, node: Operand, what: str) -> InvalidFilter:
    cast = (
        ": CAST it AS STRING" if _is_raw(field.type) and not isinstance(field, _TextField) else ""
    )
    return _refused(
        f"column {node.shown!r} is {type_name(field.type)}; {what} takes a string{cast}", node
    )


# -- which comparison ---------------------------------------------------------------------------


def _compared(
    order: pruning.Order, left: Field | Literal, right: Field | Literal, node: Any
) -> Bound:
    """``left`` and ``right`` in this order; ``node`` is theirs, for messages."""
    if isinstance(left, Literal):
        if isinstance(right, Literal):
            return _of_constants(order, left, right)
        if order is pruning.Order.EQUAL:
            return _against(order, right, left, node)
        # c < x is NOT x <= c, for any two values have an order.
        turned = pruning.Order.LESS_OR_EQUAL if order is pruning.Order.LESS else pruning.Order.LESS
        return Negation(_against(turned, right, left, node))
    if isinstance(right, Literal):
        return _against(order, left, right, node)
    return Pair(order, left, right, _common(left, right, node))


def _of_constants(order: pruning.Order, left: Literal, right: Literal) -> Bound:
    if left.value is None or right.value is None:
        return Constant(None)
    try:
        a, b = _alike(left, right)
    except NotAValue as error:
        raise _refused(str(error), None) from None
    if a != a or b != b:  # NaN is above all, and equal to itself
        a, b = (a != a), (b != b)
    found = {
        pruning.Order.EQUAL: lambda: a == b,
        pruning.Order.LESS: lambda: a < b,
        pruning.Order.LESS_OR_EQUAL: lambda: a <= b,
    }[order]()
    return Constant(bool(found))


def _alike(left: Literal, right: Literal) -> tuple[Any, Any]:
    kinds = {left.kind, right.kind}
    for wanted, convert in _CONVERTED:
        if wanted & kinds and kinds <= wanted | {Kind.STRING} | _NUMBERS * (wanted <= _NUMBERS):
            return convert(left), convert(right)
    if kinds == {Kind.STRING}:
        return str(left.value).encode(), str(right.value).encode()
    raise NotAValue(f"{left.shown} is not compared with {right.shown}")


class _Kinds(frozenset[Kind]):
    def __mul__(self, there: bool) -> frozenset[Kind]:
        return self if there else frozenset()


_NUMBERS: Final = _Kinds({Kind.WHOLE, Kind.DECIMAL, Kind.DOUBLE})


def _as_bytes(literal: Literal) -> bytes:
    if isinstance(literal.value, bytes):
        return literal.value
    if isinstance(literal.value, str):
        return literal.value.encode()
    raise NotAValue(f"{literal.shown} is no binary")


def _as_fraction(literal: Literal) -> Fraction:
    if isinstance(literal.value, Fraction):
        return literal.value
    return literals.as_whole(literal)


_CONVERTED: Final[list[tuple[frozenset[Kind], Callable[[Literal], Any]]]] = [
    (_Kinds({Kind.DOUBLE}), literals.as_double),
    (_Kinds({Kind.DECIMAL}), literals.as_double),
    (_Kinds({Kind.WHOLE}), _as_fraction),
    (_Kinds({Kind.BOOLEAN}), literals.as_boolean),
    (_Kinds({Kind.TIMESTAMP, Kind.DATE}), literals.as_moment),
    (_Kinds({Kind.TIME}), literals.as_time),
    (_Kinds({Kind.BINARY}), _as_bytes),
]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_raw(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pt.is_timestamp(kind) or pt.is_date(kind))


def _against(order: pruning.Order, field: Field, literal: Literal, node: Any) -> Bound:
    """A field and a constant."""
    if literal.value is None:
        return Constant(None)
    kind = field.type
    if pt.is_null(kind):
        return Constant(None)
    try:
        if (_is_raw(kind) or _is_text(kind)) and literal.kind in (Kind.STRING, Kind.BINARY):
            return _of_bytes(order, field, literal)
        if pt.is_floating(kind) and literal.kind in (*_NUMBERS, Kind.STRING):
            return _of_doubles(order, field, literals.as_double(literal))
        if pt.is_integer(kind) or pt.is_decimal(kind):
            return _of_numbers(order, field, literal)
        if pt.is_boolean(kind) and literal.kind in (Kind.BOOLEAN, Kind.STRING):
            return _of_wholes(order, field, Fraction(literals.as_boolean(literal)))
        if pt.is_date(kind) and literal.kind in (Kind.DATE, Kind.STRING):
            return _of_wholes(order, field, literals.as_day(literal) * _per_second(kind))
        if _is_moment(kind) and literal.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.STRING):
            return _of_wholes(order, field, literals.as_moment(literal) * _per_second(kind))
        if pt.is_time(kind) and literal.kind in (Kind.TIME, Kind.STRING):
            return _of_wholes(order, field, literals.as_time(literal) * _per_second(kind))
    except NotAValue as error:
        raise _refused(f"{_named(field, node)}: {error}", _column_of(node)) from None
    raise _refused(
        f"{_named(field, node)} is not compared with {literal.shown}, a {literal.kind}",
        _column_of(node),
    )


def _column_of(node: Any) -> Operand | None:
    """The column of a comparison, to be named."""
    sides = [getattr(node, name, None) for name in ("left", "operand", "right")]
    return next((each for each in sides if isinstance(each, Column)), None)


def _named(field: Field, node: Any) -> str:
    column = _column_of(node)
    name = column.shown if column is not None else field.name
    return f"column {name!r} ({type_name(field.type)})"


def _of_bytes(order: pruning.Order, field: Field, literal: Literal) -> Bound:
    value = _as_bytes(literal)
    wide = pt.is_large_binary(field.type) or pt.is_large_string(field.type)
    key = pruning.bytes_key(value)
    scalar = pa.scalar(value, pa.large_binary() if wide else pa.binary())
    return Versus(field, order, scalar, key, key, exact=False)


def _of_doubles(order: pruning.Order, field: Field, value: float) -> Bound:
    """Floats, and what is compared with a double as one."""
    scalar = pa.scalar(value, pa.float64())
    if pt.is_floating(field.type):
        key = float_key(value)
        return Versus(field, order, scalar, key, key, exact=True)
    if value != value or value in (inf, -inf):
        return Versus(field, order, scalar, pruning.LOWEST, pruning.HIGHEST, exact=False)
    # A whole number or a decimal becomes the nearest double, so neighbours of the constant may
    # be equal to it, or not: that far the keys know nothing.
    scale = 10**field.type.scale if pt.is_decimal(field.type) else 1
    far = 1 if value == 0 else abs(value)
    around = 4 * max(nextafter(far, inf) - far, 0.0)
    low, high = (
        floor(Fraction(value) * scale + sign * (Fraction(around) * scale + 1)) for sign in (-1, 1)
    )
    return Versus(field, order, scalar, whole_key(low), whole_key(high + 1), exact=False)


def _of_numbers(order: pruning.Order, field: Field, literal: Literal) -> Bound:
    """Whole numbers and decimals."""
    kind = field.type
    if literal.kind is Kind.STRING:
        whole = pt.is_integer(kind)
        literal = (
            literals.cast(literal, "bigint")
            if whole
            else Literal(Kind.DOUBLE, literals.as_double(literal), literal.text)
        )
    if literal.kind is Kind.DOUBLE:
        value = literals.as_double(literal)
        small = pt.is_integer(kind) and kind.bit_width < 64
        if not small or value - value != 0:
            return _of_doubles(order, field, value)
        return _of_wholes(order, field, Fraction(value))  # every such number is a double
    if literal.kind not in _NUMBERS or not isinstance(literal.value, Fraction):
        raise NotAValue(f"it is not compared with {literal.shown}, a {literal.kind}")
    scale = 10**kind.scale if pt.is_decimal(kind) else 1
    return _of_wholes(order, field, literal.value * scale)


def _per_second(kind: pa.DataType) -> Fraction:
    """How many of a type's units a second has."""
    if pt.is_date32(kind):
        return Fraction(1, 86_400)
    return Fraction(_UNITS["ms" if pt.is_date64(kind) else kind.unit])


def _of_wholes(order: pruning.Order, field: Field, value: Fraction) -> Bound:
    """Types whose values are whole numbers in some unit; ``value`` is in that unit.

    A constant between two of them, or beyond all, is brought to the nearest that says the same.
    """
    below = floor(value)
    if below != value:
        if order is pruning.Order.EQUAL:
            return Everywhere(field, False)
        order = pruning.Order.LESS_OR_EQUAL
    least, greatest = _range_of(field.type)
    if below > greatest:
        return Everywhere(field, order is not pruning.Order.EQUAL)
    if below < least:
        return Everywhere(field, False)
    key = whole_key(below)
    return Versus(field, order, _scalar(below, field.type), key, key, exact=True)


def _range_of(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest whole number of a type."""
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


def _doubled(literal: Literal) -> Literal:
    if literal.kind in (Kind.WHOLE, Kind.DECIMAL):
        return Literal(Kind.DOUBLE, literals.as_double(literal), literal.text)
    return literal


def _common(left: Field, right: Field, node: Any) -> pa.DataType:
    """The type that two fields are compared as."""
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
    if all(_is_text(each) for each in (a, b)) or all(_is_raw(each) for each in (a, b)):
        return pa.large_binary()
    if {_is_text(each) or _is_raw(each) for each in (a, b)} == {True}:
        return pa.large_binary()
    if all(_is_moment(each) for each in (a, b)) or all(pt.is_time(each) for each in (a, b)):
        return a if a.equals(b) else _MOMENTS
    if a.equals(b) and pt.is_boolean(a):
        return a
    raise _refused(
        f"columns {node.left.shown!r} ({type_name(a)}) and {node.right.shown!r}"
        f" ({type_name(b)}) are not compared",
        node.left,
    )


# -- patterns -----------------------------------------------------------------------------------

_FUNCTIONS: Final[dict[tree.Part, Callable[..., Any]]] = {
    tree.Part.START: pc.starts_with,
    tree.Part.END: pc.ends_with,
    tree.Part.ANYWHERE: pc.match_substring,
}


class _Text(str):
    """A piece of a pattern that stands for itself."""

    __slots__ = ()


def _pieces(pattern: str, escape: str) -> list[str]:
    """A pattern as ``%``, ``_`` and texts (:class:`_Text`) that stand for themselves."""
    pieces: list[str] = []
    rest = iter(pattern)
    text = ""
    for sign in rest:
        if sign == escape:
            following = next(rest, "")
            if following not in ("%", "_", escape) or not following:
                raise _refused(
                    f"LIKE {pattern!r}: behind the escape character {escape!r} there is %, _ or"
                    " itself",
                    None,
                )
            text += following
        elif sign in "%_":
            pieces += [_Text(text)] * bool(text) + [sign]
            text = ""
        else:
            text += sign
    return pieces + [_Text(text)] * bool(text)


def _matching(field: Field, pieces: Sequence[str], raw: bool) -> Bound:
    """By the quickest function that does it."""
    texts = [isinstance(each, _Text) for each in pieces]
    prefix = pieces[0].encode() if texts[:1] == [True] else b""

    def found(function: Callable[..., Any], text: str) -> Bound:
        return Matching(field, function, text.encode() if raw else text, prefix)

    if not pieces or texts == [True]:
        value = Literal(Kind.STRING, "".join(pieces))
        return _of_bytes(pruning.Order.EQUAL, field, value)
    if list(pieces) == ["%"]:
        return Everywhere(field, True)
    if texts == [True, False] and pieces[1] == "%":
        return found(pc.starts_with, pieces[0])
    if texts == [False, True] and pieces[0] == "%":
        return found(pc.ends_with, pieces[1])
    if texts == [False, True, False] and pieces[0] == pieces[2] == "%":
        return found(pc.match_substring, pieces[1])
    body = "".join(
        _quoted(each) if is_text else ".*" if each == "%" else "."
        for each, is_text in zip(pieces, texts, strict=True)
    )
    return found(pc.match_substring_regex, rf"(?s)\A{body}\z")


def _quoted(text: str) -> str:
    """The text for a regular expression of RE2, in which it stands for itself."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _refused(f"X'{value.hex()}' is no text", None) from None
