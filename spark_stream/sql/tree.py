"""A predicate as it was written, independent of any schema: a tree of plain values, and its text.

If SQL has two notations, the tree has one: ``a != b`` is ``Not(Compare(EQUAL, a, b))``,
``a > b`` is ``Compare(LESS, b, a)``, ``a BETWEEN b AND c`` is two comparisons.

A filter is sent as text. :func:`sql_of` writes the text of a filter that was not given as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any

from msgspec import Struct


class Comparison(StrEnum):
    """An operator of comparison."""

    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    SAME = "<=>"  # as EQUAL, but two nulls are equal: the result is never null


class LiteralKind(StrEnum):
    """The kind of a literal, before a column decides the type of the comparison."""

    NULL = "void"
    BOOLEAN = "boolean"
    WHOLE = "bigint"
    DECIMAL = "decimal"
    DOUBLE = "double"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMP_NTZ = "timestamp_ntz"
    TIME = "time"


Value = bool | Fraction | float | str | bytes | None


class Literal(Struct, frozen=True):
    """A value. WHOLE and DECIMAL are fractions. So are moments: seconds since 1970 or of a day."""

    kind: LiteralKind
    value: Value
    text: str = ""

    @property
    def shown(self) -> str:
        """The text for messages."""
        return self.text or str(self.value)


class Column(Struct, frozen=True):
    """A column by its path: ``a.b`` is ("a", "b"). ``at``: its place in the text, from 1."""

    path: tuple[str, ...]
    at: int | None = None
    as_text: bool = False  # CAST(column AS STRING), of bytes

    @property
    def shown(self) -> str:
        """The text for messages."""
        return ".".join(self.path)


Operand = Column | Literal


class Compare(Struct, frozen=True):
    """A comparison of ``left`` with ``right``."""

    order: Comparison
    left: Operand
    right: Operand


class In(Struct, frozen=True):
    """A test whether ``operand`` is one of the items."""

    operand: Operand
    items: tuple[Operand, ...]


class Like(Struct, frozen=True):
    """A LIKE: ``%`` is any text, ``_`` any character. After ``escape`` both are literal."""

    operand: Operand
    pattern: str
    escape: str


class TextPart(StrEnum):
    """The part of a text in which another is searched."""

    START = "startswith"
    END = "endswith"
    ANYWHERE = "contains"


class TextSearch(Struct, frozen=True):
    """A test whether ``operand`` has this text (or these bytes) at its start, end, or anywhere."""

    operand: Operand
    part: TextPart
    text: Literal


class IsNull(Struct, frozen=True):
    """A test whether ``operand`` is null."""

    operand: Operand


class IsNan(Struct, frozen=True):
    """A test whether ``operand`` is NaN. It is false for null."""

    operand: Operand


class Truth(Struct, frozen=True):
    """A boolean as a condition: a column, or TRUE, FALSE, NULL."""

    operand: Operand


class Is(Struct, frozen=True):
    """A test whether ``part`` is true (or false). It is never null."""

    part: Predicate
    value: bool


class Not(Struct, frozen=True):
    """A negation. It is null where the part is null."""

    part: Predicate


class And(Struct, frozen=True):
    """A conjunction: false if a part is false, else null if a part is null, else true."""

    parts: tuple[Predicate, ...]


class Or(Struct, frozen=True):
    """A disjunction: true if a part is true, else null if a part is null, else false."""

    parts: tuple[Predicate, ...]


Predicate = Compare | In | Like | TextSearch | IsNull | IsNan | Truth | Is | Not | And | Or


def compared_columns(node: object) -> Iterator[Column]:
    """Yield each column of a predicate, except those that are only checked for null."""
    if isinstance(node, Column):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from compared_columns(each)
    elif isinstance(node, Struct) and not isinstance(node, IsNull):
        for name in node.__struct_fields__:
            yield from compared_columns(getattr(node, name))


def literal_of(value: Any) -> Literal | None:
    """Convert a Python value to a literal. Return None if a filter cannot have such a value."""
    text = _text_of(value)
    return None if text is None else Literal(LiteralKind.NULL, None, text)


def _text_of(value: Any) -> str | None:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, Decimal):
        return f"{value:f}" if value.is_finite() else None
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes | bytearray):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, datetime):
        kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f"{kind} '{moment.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, time) and value.tzinfo is None:
        return f"TIME '{value.isoformat()}'"
    return None


def quoted(text: str) -> str:
    """Quote a string for SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sql_of(node: Predicate) -> str:
    """Write the predicate as text. Only nodes of :func:`literal_of` and of Spark are supported."""
    match node:
        case Compare():
            return f"{_operand(node.left)} {node.order} {_operand(node.right)}"
        case In():
            return f"{_operand(node.operand)} IN ({', '.join(map(_operand, node.items))})"
        case TextSearch():
            return f"{node.part}({_operand(node.operand)}, {_operand(node.text)})"
        case IsNull():
            return f"{_operand(node.operand)} IS NULL"
        case Not():
            return f"NOT ({sql_of(node.part)})"
        case And():
            return " AND ".join(f"({sql_of(part)})" for part in node.parts)
    raise TypeError(f"a {type(node).__name__} cannot be written as text")


def _operand(node: Operand) -> str:
    if isinstance(node, Column):
        return ".".join("`" + name.replace("`", "``") + "`" for name in node.path)
    return node.text


def both(*texts: str | None) -> str | None:
    """Join filters with AND. Return None if there is no filter."""
    there = [text for text in texts if text is not None]
    if len(there) < 2:
        return there[0] if there else None
    return " AND ".join(f"({text})" for text in there)
