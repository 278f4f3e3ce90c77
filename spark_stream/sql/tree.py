"""A predicate as it was written: a tree of plain values, independent of any schema; and its text.

What SQL can write in two ways has one form: ``a != b`` is ``Not(Compare(EQUAL, a, b))``,
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
    """How two values are compared."""

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
    """A value. WHOLE and DECIMAL are fractions; so are moments, in seconds (UTC) or of a day."""

    kind: LiteralKind
    value: Value
    text: str = ""

    @property
    def shown(self) -> str:
        """As a message names it."""
        return self.text or str(self.value)


class Column(Struct, frozen=True):
    """A column by its path: ``a.b`` is ("a", "b"). ``at``: where the text names it, from 1."""

    path: tuple[str, ...]
    at: int | None = None
    as_text: bool = False  # CAST(column AS STRING), of bytes

    @property
    def shown(self) -> str:
        """As a message names it."""
        return ".".join(self.path)


Operand = Column | Literal


class Compare(Struct, frozen=True):
    """``left`` and ``right`` in this order."""

    order: Comparison
    left: Operand
    right: Operand


class In(Struct, frozen=True):
    """``operand`` is one of these."""

    operand: Operand
    items: tuple[Operand, ...]


class Like(Struct, frozen=True):
    """A LIKE: ``%`` is any text, ``_`` a character; after ``escape`` both stand for themselves."""

    operand: Operand
    pattern: str
    escape: str


class TextPart(StrEnum):
    """Where in a text another is searched."""

    START = "startswith"
    END = "endswith"
    ANYWHERE = "contains"


class Holds(Struct, frozen=True):
    """``operand`` has this text (or these bytes) at its start, at its end, or anywhere."""

    operand: Operand
    part: TextPart
    text: Literal


class IsNull(Struct, frozen=True):
    """``operand`` is null."""

    operand: Operand


class IsNan(Struct, frozen=True):
    """``operand`` is not a number; false where it is null."""

    operand: Operand


class Truth(Struct, frozen=True):
    """A boolean by itself: a column, or TRUE, FALSE, NULL."""

    operand: Operand


class Is(Struct, frozen=True):
    """``part`` is true (or false): never null."""

    part: Predicate
    value: bool


class Not(Struct, frozen=True):
    """Null where the part is null."""

    part: Predicate


class And(Struct, frozen=True):
    """False if one part is, else null if one is, else true."""

    parts: tuple[Predicate, ...]


class Or(Struct, frozen=True):
    """True if one part is, else null if one is, else false."""

    parts: tuple[Predicate, ...]


Predicate = Compare | In | Like | Holds | IsNull | IsNan | Truth | Is | Not | And | Or


def compared_columns(node: object) -> Iterator[Column]:
    """Yield each column whose values a predicate compares, rather than checks for null."""
    if isinstance(node, Column):
        yield node
    elif isinstance(node, tuple):
        for each in node:
            yield from compared_columns(each)
    elif isinstance(node, Struct) and not isinstance(node, IsNull):
        for name in node.__struct_fields__:
            yield from compared_columns(getattr(node, name))


def literal_of(value: Any) -> Literal | None:
    """Return a Python value as a literal to be written; None if a filter has no such values."""
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
    """Return the predicate's text. It supports only what :func:`literal_of` and Spark make."""
    match node:
        case Compare():
            return f"{_operand(node.left)} {node.order} {_operand(node.right)}"
        case In():
            return f"{_operand(node.operand)} IN ({', '.join(map(_operand, node.items))})"
        case Holds():
            return f"{node.part}({_operand(node.operand)}, {_operand(node.text)})"
        case IsNull():
            return f"{_operand(node.operand)} IS NULL"
        case Not():
            return f"NOT ({sql_of(node.part)})"
        case And():
            return " AND ".join(f"({sql_of(part)})" for part in node.parts)
    raise TypeError(f"no text is made of a {type(node).__name__}")


def _operand(node: Operand) -> str:
    if isinstance(node, Column):
        return ".".join("`" + name.replace("`", "``") + "`" for name in node.path)
    return node.text


def both(*texts: str | None) -> str | None:
    """Return a filter that requires all of these; None if there is none."""
    there = [text for text in texts if text is not None]
    if len(there) < 2:
        return there[0] if there else None
    return " AND ".join(f"({text})" for text in there)
