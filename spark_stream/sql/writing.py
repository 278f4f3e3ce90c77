"""Write a tree as text: a filter that was not given as text is sent as text."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from spark_stream.sql.tree import (
    And,
    Column,
    Compare,
    Holds,
    In,
    IsNull,
    Literal,
    LiteralKind,
    Not,
    Operand,
    Predicate,
)


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
