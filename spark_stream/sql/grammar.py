"""Parse a predicate's text into its tree: sqlglot reads SQL, and a subset of it is accepted.

SQL outside that subset is refused. The error quotes it and lists the supported syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from spark_stream.errors import InvalidFilter
from spark_stream.sql import literals
from spark_stream.sql.literals import NotAValue
from spark_stream.sql.tree import (
    And,
    Column,
    Compare,
    Comparison,
    In,
    Is,
    IsNan,
    IsNull,
    Like,
    Literal,
    LiteralKind,
    Not,
    Operand,
    Or,
    Predicate,
    TextPart,
    TextSearch,
    Truth,
)

KNOWN: Final = (
    "a filter has comparisons (=, <=>, !=, <, <=, >, >=), AND, OR, NOT, IN, BETWEEN, LIKE,"
    " IS [NOT] NULL (TRUE, FALSE, UNKNOWN), IS [NOT] DISTINCT FROM, isnull, isnotnull, isnan,"
    " startswith, endswith, contains, columns, and literals; CAST of a literal, and of a binary"
    " column to string"
)
_SHOWN_CHARACTERS_MAX: Final = 80

_TYPES: Final = {
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DECIMAL": "decimal",
    "TEXT": "string",
    "VARCHAR": "string",
    "BINARY": "binary",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "TIME": "time",
}


def predicate(text: str) -> Predicate:
    """Parse a predicate into its tree.

    Raises:
        InvalidFilter: the text is not SQL, or a filter does not support it. The error names the
            place.
    """
    try:
        found = sqlglot.parse_one(text, dialect="spark", into=exp.Condition)
        return _predicate(found)
    except (ParseError, TokenError) as error:
        raise _refused(_problem(error)) from None
    except NotAValue as error:
        raise _refused(str(error)) from None
    except RecursionError:
        raise _refused("it is nested too deep") from None


def _problem(error: Exception) -> str:
    told = getattr(error, "errors", None)
    if not told:
        return f"it is not valid SQL: {error}"
    first = told[0]
    seen = str(first.get("highlight") or "").strip()
    where = f"line {first['line']}, column {first['col']}" if first.get("line") else "the end"
    words = str(first["description"]).rstrip(".").partition(" for <class")[0]
    shown = f" ({seen!r})" if seen else ""
    return (
        f"it is not valid SQL at {where}{shown}: {words}. Write a column with the name of a"
        " keyword in backquotes"
    )


def _refused(problem: str) -> InvalidFilter:
    return InvalidFilter(f"filter: {problem}", option="filter")


def _unknown(node: exp.Expr) -> InvalidFilter:
    text = node.sql(dialect="spark")
    if len(text) > _SHOWN_CHARACTERS_MAX:
        text = text[:_SHOWN_CHARACTERS_MAX] + "…"
    starts = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    where = f" (at character {min(starts) + 1})" if starts else ""
    return _refused(f"{text}{where} is not supported in a filter: {KNOWN}")


def _has_only(node: exp.Expr, *names: str) -> None:
    """Raise InvalidFilter if the node has more than these parts."""
    for name, value in node.args.items():
        if name not in names and value not in (None, False, []):
            raise _unknown(node)


def _predicate(node: exp.Expr) -> Predicate:
    make = _PREDICATES.get(type(node))
    if make is None:
        return Truth(_operand(node))
    return make(node)


def _joined(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of a chain of ANDs or ORs, without recursion: it may be long."""
    kind, waiting = type(node), [node]
    while waiting:
        each = waiting.pop()
        if type(each) is kind:
            _has_only(each, "this", "expression")
            waiting += [each.expression, each.this]
        else:
            yield each


def _negated(node: exp.Expr) -> Predicate:
    _has_only(node, "this")
    return Not(_predicate(node.this))


def _compared(
    order: Comparison, *, turned: bool = False, negated: bool = False
) -> Callable[[Any], Predicate]:
    def make(node: exp.Expr) -> Predicate:
        _has_only(node, "this", "expression")
        left, right = _operand(node.this), _operand(node.expression)
        found = Compare(order, right, left) if turned else Compare(order, left, right)
        return Not(found) if negated else found

    return make


def _between(node: exp.Expr) -> Predicate:
    _has_only(node, "this", "low", "high")
    operand = _operand(node.this)
    low, high = _operand(node.args["low"]), _operand(node.args["high"])
    return And(
        (
            Compare(Comparison.LESS_OR_EQUAL, low, operand),
            Compare(Comparison.LESS_OR_EQUAL, operand, high),
        )
    )


def _in(node: exp.Expr) -> Predicate:
    _has_only(node, "this", "expressions")
    if not node.expressions:
        raise _unknown(node)
    return In(_operand(node.this), tuple(map(_operand, node.expressions)))


def _like(node: exp.Expr) -> Predicate:
    escape = "\\"
    if isinstance(node, exp.Escape):
        _has_only(node, "this", "expression")
        escape = _text(node.expression)
        if len(escape) != 1:
            raise _refused(f"ESCAPE takes one character, not {escape!r}")
        node = node.this
        if not isinstance(node, exp.Like):
            raise _unknown(node)
    _has_only(node, "this", "expression", "negate")
    if not _is_text(node.expression):
        raise _unknown(node)
    found = Like(_operand(node.this), _text(node.expression), escape)
    return Not(found) if node.args.get("negate") else found


def _holds(part: TextPart) -> Callable[[Any], Predicate]:
    def make(node: exp.Expr) -> Predicate:
        _has_only(node, "this", "expression")
        text = _operand(node.expression)
        if not isinstance(text, Literal):
            raise _unknown(node)
        return TextSearch(_operand(node.this), part, text)

    return make


def _is(node: exp.Expr) -> Predicate:
    _has_only(node, "this", "expression")
    if isinstance(node.expression, exp.Null):
        return IsNull(_operand(node.this))
    if isinstance(node.expression, exp.Boolean):
        return Is(_predicate(node.this), bool(node.expression.this))
    raise _unknown(node)


def _is_nan(node: exp.Expr) -> Predicate:
    _has_only(node, "this")
    return IsNan(_operand(node.this))


def _function(node: exp.Expr) -> Predicate:
    name, arguments = str(node.this).lower(), node.expressions
    if name in ("isnull", "isnotnull") and len(arguments) == 1:
        found = IsNull(_operand(arguments[0]))
        return found if name == "isnull" else Not(found)
    raise _unknown(node)


_PREDICATES: Final[dict[type, Callable[[Any], Predicate]]] = {
    exp.And: lambda node: And(tuple(map(_predicate, _joined(node)))),
    exp.Or: lambda node: Or(tuple(map(_predicate, _joined(node)))),
    exp.Not: _negated,
    exp.Paren: lambda node: _predicate(node.this),
    exp.EQ: _compared(Comparison.EQUAL),
    exp.NEQ: _compared(Comparison.EQUAL, negated=True),
    exp.NullSafeEQ: _compared(Comparison.SAME),
    exp.NullSafeNEQ: _compared(Comparison.SAME, negated=True),
    exp.LT: _compared(Comparison.LESS),
    exp.LTE: _compared(Comparison.LESS_OR_EQUAL),
    exp.GT: _compared(Comparison.LESS, turned=True),
    exp.GTE: _compared(Comparison.LESS_OR_EQUAL, turned=True),
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Escape: _like,
    exp.StartsWith: _holds(TextPart.START),
    exp.EndsWith: _holds(TextPart.END),
    exp.Contains: _holds(TextPart.ANYWHERE),
    exp.Is: _is,
    exp.IsNan: _is_nan,
    exp.Anonymous: _function,
}


def _operand(node: exp.Expr) -> Operand:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column | exp.Dot):
        return _column(node)
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column | exp.Dot):
        if node.args.get("safe") or _type_of(node) != "string":
            raise _unknown(node)
        found = _column(node.this)
        return Column(found.path, found.at, as_text=True)
    return _literal(node)


def _column(node: exp.Expr) -> Column:
    names: list[exp.Expr] = []
    while isinstance(node, exp.Dot):
        names.insert(0, node.expression)
        node = node.this
    if not isinstance(node, exp.Column):
        raise _unknown(node)
    _has_only(node, "this", "table", "db", "catalog")
    names = [*node.parts, *names]
    if not all(isinstance(each, exp.Identifier) for each in names):
        raise _unknown(node)
    start = names[0].meta.get("start")
    return Column(tuple(each.name for each in names), None if start is None else start + 1)


def _literal(node: exp.Expr) -> Literal:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Null):
        return Literal(LiteralKind.NULL, None, "NULL")
    if isinstance(node, exp.Boolean):
        return Literal(LiteralKind.BOOLEAN, bool(node.this), str(bool(node.this)).upper())
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal | exp.Cast | exp.Paren):
        return literals.negated(_literal(node.this))
    if isinstance(node, exp.HexString):
        return Literal(LiteralKind.BINARY, _bytes(str(node.this)), f"X'{node.this}'")
    if isinstance(node, exp.Literal) and not node.is_string:
        return literals.number(str(node.this))
    if _is_text(node):
        return Literal(LiteralKind.STRING, _text(node), repr(_text(node)))
    if isinstance(node, exp.Cast) and not node.args.get("safe"):
        kind = _type_of(node)
        if kind is None:
            raise _unknown(node)
        return literals.cast(_literal(node.this), kind, _precision(node.args["to"]))
    raise _unknown(node)


def _bytes(digits: str) -> bytes:
    try:
        return bytes.fromhex("0" * (len(digits) % 2) + digits)
    except ValueError:
        raise NotAValue(f"X'{digits}' is not binary") from None


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.RawString) or (isinstance(node, exp.Literal) and node.is_string)


def _text(node: exp.Expr) -> str:
    if not _is_text(node):
        raise _unknown(node)
    return str(node.this)


def _type_of(node: exp.Expr) -> str | None:
    """Return the name of a cast's type, or None if a filter does not support it."""
    kind = node.args["to"].this
    return _TYPES.get(str(getattr(kind, "value", kind)))


def _precision(kind: exp.Expr) -> tuple[int, int]:
    numbers = [int(str(each.this.this)) for each in kind.expressions] + [10, 0]
    return (numbers[0], numbers[1] if len(kind.expressions) > 1 else 0)
