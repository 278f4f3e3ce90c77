"""Filters: parse the text once, then bind its tree to the columns of a topic's partition.

``comparisons`` has the comparison for two types. A LIKE gets the fastest Arrow function for its
pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from spark_stream.consistency import pruning
from spark_stream.errors import InvalidFilter
from spark_stream.schema.schemas import OFFSET, PARTITION, TIMESTAMP, TOPIC, is_default, meant
from spark_stream.schema.types import type_name
from spark_stream.sql import tree
from spark_stream.sql.comparisons import (
    TextField,
    compared,
    is_raw,
    is_text,
    of_bytes,
    of_one_kind,
    refused,
)
from spark_stream.sql.literals import NotAValue
from spark_stream.sql.predicates import (
    BooleanField,
    BoundPart,
    Conjunction,
    Constant,
    ConstantComparison,
    Disjunction,
    Field,
    Matching,
    Negation,
    NotANumber,
    NullTest,
    OneOf,
    RowFilter,
    TruthTest,
    ValueConstant,
)
from spark_stream.sql.tree import Column, Literal, LiteralKind, Operand, Predicate
from spark_stream.wire.limits import FILTER_CHARACTERS_MAX

_REMEMBERED: Final = 256
_KAFKAS_NAMES: Final = {OFFSET: "offset", TOPIC: "topic", PARTITION: "partition"}


@lru_cache(_REMEMBERED)
def parsed(text: str) -> Predicate:
    """Parse a filter's text. Results are cached.

    Raises:
        InvalidFilter: the text is not SQL, or SQL that a filter does not support.
    """
    if len(text) > FILTER_CHARACTERS_MAX:
        raise InvalidFilter(
            f"filter: it has {len(text)} characters; the limit is {FILTER_CHARACTERS_MAX}",
            option="filter",
        )
    if not text.strip():
        raise InvalidFilter(
            "filter: it is empty",
            option="filter",
            hint='Give a condition, such as "delay > 60", or leave the option out.',
        )
    from spark_stream.sql.grammar import predicate  # slow: only once there is a text to read

    return predicate(text)


def columns_of(topic: str, schema: pa.Schema, partition: int) -> Columns:
    """Return the columns of a filter: all columns of a reader, stored or derived."""
    columns: dict[str, Field | Literal] = {
        field.name: Field(field.name, field.type) for field in schema
    }
    default = is_default(schema)
    made: dict[pa.Field, Field | Literal] = {
        OFFSET: Field(OFFSET.name, OFFSET.type),
        TOPIC: Literal(LiteralKind.STRING, topic, repr(topic)),
        PARTITION: Literal(LiteralKind.WHOLE, Fraction(partition), str(partition)),
    }
    if default:
        columns["timestampType"] = Literal(LiteralKind.WHOLE, Fraction(0), "0")
        return columns | {_KAFKAS_NAMES[each]: found for each, found in made.items()}
    columns |= {each.name: found for each, found in made.items()}
    columns[TIMESTAMP.name] = Field(TIMESTAMP.name, TIMESTAMP.type)
    return columns


@lru_cache(_REMEMBERED)
def row_filter(text: str, topic: str, schema: pa.Schema, partition: int = 0) -> RowFilter:
    """Return the filter for one partition of a topic of this schema.

    Raises:
        InvalidFilter: as :func:`parsed`, or the topic lacks a column of the filter, or a column
            is compared with a value of another type.
    """
    return bind(parsed(text), columns_of(topic, schema, partition), topic)


Columns = Mapping[str, Field | Literal]
"""The columns of a filter: a topic's columns, and the constants of a partition."""

_ORDERS: Final = {
    tree.Comparison.EQUAL: pruning.Order.EQUAL,
    tree.Comparison.SAME: pruning.Order.EQUAL,
    tree.Comparison.LESS: pruning.Order.LESS,
    tree.Comparison.LESS_OR_EQUAL: pruning.Order.LESS_OR_EQUAL,
}
_MANY: Final = 3
_KINDS: Final = {LiteralKind.WHOLE: "int"}  # as Spark names the type of such a column


def bind(predicate: Predicate, columns: Columns, topic: str) -> RowFilter:
    """Bind the predicate to these columns of the topic.

    Raises:
        InvalidFilter: the topic lacks a column, or it cannot be compared with its value.
    """
    binder = _Binder(columns, topic)
    bound = binder.bound(predicate)
    return RowFilter(bound, tuple(binder.used))


@dataclass
class _Binder:
    columns: Columns
    topic: str

    def __post_init__(self) -> None:
        self.used: dict[str, None] = {}
        self._by_name = {name.lower(): name for name in self.columns}

    def bound(self, node: Predicate) -> BoundPart:
        make: Callable[[Any], BoundPart] = _BINDERS[type(node)].__get__(self)
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
                raise refused(f"column {name!r} is a {found.kind} and has no fields", node)
            return found
        self.used[found.name] = None
        for step in node.path[1:]:
            found = _inner(found, step, node)
        if not node.as_text:
            return found
        if not (is_raw(found.type) or is_text(found.type)):
            raise refused(
                f"column {node.shown!r} is {type_name(found.type)}; a filter casts only binary"
                " columns to string",
                node,
            )
        return TextField(found.name, found.type, found.steps)

    def _no_column(self, node: Column) -> InvalidFilter:
        names = list(self.columns)
        near = meant(node.path[0], names)
        return refused(
            f"there is no column {node.shown!r}{near}; topic {self.topic!r}"
            f" has {', '.join(map(self._with_type, names))}",
            node,
        )

    def _with_type(self, name: str) -> str:
        found = self.columns[name]
        if isinstance(found, Field):
            return f"{name} {type_name(found.type)}"
        return f"{name} {_KINDS.get(found.kind, found.kind)}"

    # -- comparisons ------------------------------------------------------------------------------

    def compare(self, node: tree.Compare) -> BoundPart:
        left, right = self._operand(node.left), self._operand(node.right)
        if node.order is tree.Comparison.SAME:
            return self._same(left, right, node)
        return compared(_ORDERS[node.order], left, right, node)

    def _same(self, left: Field | Literal, right: Field | Literal, node: tree.Compare) -> BoundPart:
        if isinstance(left, Literal):
            left, right = right, left
        if isinstance(left, Literal):
            nulls = (left.value is None) + (right.value is None)  # type: ignore[union-attr]
            if nulls:
                return Constant(nulls == 2)
            return compared(pruning.Order.EQUAL, left, right, node)
        if isinstance(right, Literal) and right.value is None:
            return NullTest(left)
        found = TruthTest(compared(pruning.Order.EQUAL, left, right, node), True)
        if isinstance(right, Literal):
            return found
        return Disjunction((found, Conjunction((NullTest(left), NullTest(right)))))

    def one_of(self, node: tree.In) -> BoundPart:
        sides = [self._operand(each) for each in (node.operand, *node.items)]
        try:
            operand, *items = of_one_kind(sides)
        except NotAValue as error:
            raise refused(f"{node.operand.shown} IN (…): {error}", node.operand) from None
        parts = [compared(pruning.Order.EQUAL, operand, each, node) for each in items]
        plain = tuple(
            each for each in parts if isinstance(each, ConstantComparison) and not each.of_floats
        )
        if len(plain) > _MANY:
            rest = [
                each for each in parts if not isinstance(each, ConstantComparison) or each.of_floats
            ]
            parts = [OneOf(plain), *rest]
        return parts[0] if len(parts) == 1 else Disjunction(tuple(parts))

    # -- texts ------------------------------------------------------------------------------------

    def like(self, node: tree.Like) -> BoundPart:
        field = self._operand(node.operand)
        if isinstance(field, Literal):
            raise refused("the left side of LIKE must be a column", None)
        if not (is_text(field.type) or isinstance(field, TextField)):
            raise _no_text(field, node.operand, "LIKE")
        pieces = pieces_of(node.pattern, node.escape)
        raw = is_raw(field.type)
        if raw and "_" in pieces:
            raise refused(f"_ in LIKE {node.pattern!r} takes a string column, not binary", None)
        return matching(field, pieces, raw)

    def holds(self, node: tree.TextSearch) -> BoundPart:
        field = self._operand(node.operand)
        if isinstance(field, Literal):
            raise refused(f"the first argument of {node.part} must be a column", None)
        if not (is_text(field.type) or is_raw(field.type)) or pt.is_fixed_size_binary(field.type):
            raise _no_text(field, node.operand, node.part)
        value = node.text.value
        if value is None:
            return Constant(None)
        if not isinstance(value, str | bytes):
            raise refused(
                f"the second argument of {node.part} must be a string, not {node.text.shown}", None
            )
        raw = value.encode() if isinstance(value, str) else value
        text: str | bytes = raw if is_raw(field.type) else decoded(raw)
        prefix = raw if node.part is tree.TextPart.START else b""
        return Matching(field, FUNCTIONS[node.part], text, prefix)

    # -- the rest ---------------------------------------------------------------------------------

    def is_null(self, node: tree.IsNull) -> BoundPart:
        found = self._operand(node.operand)
        return Constant(found.value is None) if isinstance(found, Literal) else NullTest(found)

    def is_nan(self, node: tree.IsNan) -> BoundPart:
        found = self._operand(node.operand)
        if isinstance(found, Literal):
            value = found.value
            return Constant(isinstance(value, float) and value != value)
        if pt.is_floating(found.type):
            return NotANumber(found)
        if pt.is_integer(found.type) or pt.is_decimal(found.type):
            return Constant(False)
        raise refused(
            f"column {node.operand.shown!r} is {type_name(found.type)}; isnan takes a number",
            node.operand,
        )

    def truth(self, node: tree.Truth) -> BoundPart:
        found = self._operand(node.operand)
        if isinstance(found, Field):
            if pt.is_null(found.type):
                return Constant(None)
            if not pt.is_boolean(found.type):
                raise refused(
                    f"column {node.operand.shown!r} is {type_name(found.type)}, not boolean:"
                    " compare it with something",
                    node.operand,
                )
            return BooleanField(found)
        if found.kind not in (LiteralKind.BOOLEAN, LiteralKind.NULL):
            raise refused(f"{found.shown} is not boolean: compare it with something", None)
        return Constant(None if found.value is None else bool(found.value))

    def certain(self, node: tree.Is) -> BoundPart:
        return TruthTest(self.bound(node.part), node.value)

    def negation(self, node: tree.Not) -> BoundPart:
        return Negation(self.bound(node.part))

    def both(self, node: tree.And) -> BoundPart:
        return Conjunction(tuple(map(self.bound, node.parts)))

    def either(self, node: tree.Or) -> BoundPart:
        return Disjunction(tuple(map(self.bound, node.parts)))


_BINDERS: Final[dict[type, Any]] = {
    tree.Compare: _Binder.compare,
    tree.In: _Binder.one_of,
    tree.Like: _Binder.like,
    tree.TextSearch: _Binder.holds,
    tree.IsNull: _Binder.is_null,
    tree.IsNan: _Binder.is_nan,
    tree.Truth: _Binder.truth,
    tree.Is: _Binder.certain,
    tree.Not: _Binder.negation,
    tree.And: _Binder.both,
    tree.Or: _Binder.either,
}


def _inner(field: Field, step: str, node: Column) -> Field:
    if not pt.is_struct(field.type):
        raise refused(f"column {node.shown!r}: {type_name(field.type)} has no field {step!r}", node)
    names = [field.type.field(place).name for place in range(field.type.num_fields)]
    found = [place for place, name in enumerate(names) if name.lower() == step.lower()]
    if len(found) != 1:
        raise refused(
            f"column {node.shown!r}: {'no' if not found else 'more than one'} field {step!r} in"
            f" {type_name(field.type)}",
            node,
        )
    return Field(field.name, field.type.field(found[0]).type, (*field.steps, found[0]))


def _no_text(field: Field, node: Operand, what: str) -> InvalidFilter:
    cast = ": CAST it AS STRING" if is_raw(field.type) and not isinstance(field, TextField) else ""
    return refused(
        f"column {node.shown!r} is {type_name(field.type)}; {what} takes a string{cast}", node
    )


FUNCTIONS: Final[dict[tree.TextPart, Callable[..., Any]]] = {
    tree.TextPart.START: pc.starts_with,
    tree.TextPart.END: pc.ends_with,
    tree.TextPart.ANYWHERE: pc.match_substring,
}


class _Literal(str):
    """A literal piece of a pattern."""

    __slots__ = ()


def pieces_of(pattern: str, escape: str) -> list[str]:
    """Split a pattern into ``%``, ``_`` and literal texts (:class:`_Literal`)."""
    pieces: list[str] = []
    rest = iter(pattern)
    text = ""
    for sign in rest:
        if sign == escape:
            following = next(rest, "")
            if following not in ("%", "_", escape) or not following:
                raise refused(
                    f"LIKE {pattern!r}: the escape character {escape!r} must be followed by %, _ or"
                    " itself",
                    None,
                )
            text += following
        elif sign in "%_":
            pieces += [_Literal(text)] * bool(text) + [sign]
            text = ""
        else:
            text += sign
    return pieces + [_Literal(text)] * bool(text)


def matching(field: Field, pieces: Sequence[str], raw: bool) -> BoundPart:
    """Bind a match of a field against a pattern, with the fastest function for it."""
    texts = [isinstance(each, _Literal) for each in pieces]
    prefix = pieces[0].encode() if texts[:1] == [True] else b""

    def found(function: Callable[..., Any], text: str) -> BoundPart:
        return Matching(field, function, text.encode() if raw else text, prefix)

    if not pieces or texts == [True]:
        value = Literal(LiteralKind.STRING, "".join(pieces))
        return of_bytes(pruning.Order.EQUAL, field, value)
    if list(pieces) == ["%"]:
        return ValueConstant(field, True)
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
    """Escape the text for a regular expression of RE2."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise refused(f"X'{value.hex()}' is not UTF-8", None) from None
