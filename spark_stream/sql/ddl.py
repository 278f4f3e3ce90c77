"""Convert Spark's DDL to Arrow schemas, and name Arrow's types as Spark does, without Spark.

::

    columns := column ("," column)*
    column  := name [":"] type ["NOT" "NULL"] ["COMMENT" 'text']
    type    := simple | decimal[(p[,s])] | varchar(n) | char(n) | time(p)
             | interval unit ["to" unit] | array<type> | map<type,type> | struct<[columns]>

sqlglot's lexer finds the words. The grammar is our own. sqlglot's grammar has no ``void`` and no
empty struct, misreads a colon after a name, and its errors do not name the column.

The Arrow types are those in which Spark itself exports such columns: items of lists are named
``element``, timestamps are microseconds with the zone UTC or with none. A type that Arrow lacks
(``char(n)``, ``varchar(n)``, ``time(p)``, ``interval hour``) is in the field's metadata.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.errors import InvalidOption
from spark_stream.schema.types import (
    INTERVALS,
    LEVELS_MAX,
    SIMPLE_TYPES,
    SPARK_TYPE,
    column_text,
    may_be_declared,
    with_inner,
)

_DECIMALS: Final = ("decimal", "dec", "numeric")
_TEXTS: Final = {"varchar": "varchar", "char": "char", "character": "char"}
_TIME_PRECISION: Final = 6  # the precision of TIME by default
_TIME_PRECISION_MAX: Final = 9
_INTERVALS_ADVICE: Final = (
    "an interval has one or two of the units day, hour, minute and second, such as"
    " 'interval day to second'. Store an interval of years and months as a number of months"
)
_KNOWN: Final = (
    *SIMPLE_TYPES,
    "interval hour",
    "decimal(p,s)",
    "varchar(n)",
    "array<…>",
    "map<…,…>",
    "struct<…>",
)
_PRECISION_MAX: Final = 38
_PART: Final = re.compile(r"\w+|[^\s\w]")
_MARK: Final = re.compile(r"[^\s\w]")


def parse_schema(text: str) -> pa.Schema:
    """Parse DDL into a schema.

    Raises:
        InvalidOption: the text is not valid. The error names the column and its fault.
    """
    parser = _Parser(_tokens(text))
    fields = parser.columns(end="")
    if not fields:
        raise _bad("it has no columns", "")
    return pa.schema(fields)


def parse_altered(text: str) -> pa.Schema:
    """Parse DDL of an existing topic's columns. A plain type replaces a declared one.

    Raises: as :func:`parse_schema`.
    """
    return pa.schema([_undeclared(field) for field in parse_schema(text)])


def _undeclared(field: pa.Field) -> pa.Field:
    """Return the field with an empty declaration, at any depth, if it has none and may have one."""
    field = field.with_type(with_inner(field.type, _undeclared) or field.type)
    if field.metadata or not may_be_declared(field.type):
        return field
    return field.with_metadata({SPARK_TYPE: ""})


class _Token(Struct, frozen=True):
    kind: str
    text: str

    @property
    def shown(self) -> str:
        return repr(self.text) if self.kind != "end" else "the end"

    def is_mark(self, mark: str) -> bool:
        """Return whether the token is this mark. The end of the text is ""."""
        return self.text == mark and self.kind in ("mark", "end")


def _tokens(text: str) -> list[_Token]:
    """Split DDL with sqlglot's lexer for Spark's SQL: quoted names and texts, escapes, comments."""
    import sqlglot  # slow: only once there is a text to read
    from sqlglot.errors import TokenError
    from sqlglot.tokens import TokenType  # type: ignore[attr-defined]  # it is there, unmarked

    kinds = {TokenType.IDENTIFIER: "quoted", TokenType.STRING: "text"}
    try:
        found = sqlglot.tokenize(text, read="spark")
    except TokenError:
        raise _bad("a quote is not closed", "") from None
    tokens = []
    for each in found:
        kind = kinds.get(each.token_type)
        if kind is not None:
            tokens.append(_Token(kind, each.text))
            continue
        tokens += [  # "<>" is one token in SQL, and two in a struct
            _Token("mark" if _MARK.fullmatch(part) else "word", part)
            for part in _PART.findall(each.text)
        ]
    return [*tokens, _Token("end", "")]


def _bad(problem: str, path: str) -> InvalidOption:
    where = f"column {path!r}: " if path else ""
    return InvalidOption(
        f"schema: {where}{problem}",
        hint='Write it as Spark does: "id bigint, name string NOT NULL, tags array<string>".',
        option="schema",
        column=path or None,
    )


def _repeated(first: str, second: str, path: str) -> InvalidOption:
    twice = "it is defined twice"
    problem = twice if first == second else f"{first!r} and {second!r} are equal, ignoring case"
    return _bad(problem, f"{path}.{second}" if path else second)


class _Parser:
    """A parser of tokens from left to right. ``path`` is the column (``a.b``) for errors."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _accept(self, *words: str) -> bool:
        """Consume the next tokens if they are these, ignoring case. Return whether they were."""
        ahead = self._tokens[self._at : self._at + len(words)]
        plain = [token.text.lower() for token in ahead if token.kind in ("word", "mark")]
        if plain != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, mark: str, path: str, after: str) -> None:
        token = self._take()
        if not token.is_mark(mark):
            raise _bad(f"expected {mark!r} after {after}, not {token.shown}", path)

    def columns(self, end: str, path: str = "", depth: int = 0) -> list[pa.Field]:
        """Parse columns up to and including the token ``end`` ("" is the end of the text)."""
        fields: list[pa.Field] = []
        if self._next.is_mark(end):
            self._take()
            return fields
        names: dict[str, str] = {}
        while True:
            field = self._column(path, depth)
            first = names.setdefault(field.name.lower(), field.name)
            if len(names) == len(fields):
                raise _repeated(first, field.name, path)
            fields.append(field)
            token = self._take()
            if token.is_mark(end):
                return fields
            if not token.is_mark(","):
                last = f"{path}.{fields[-1].name}" if path else fields[-1].name
                wanted = f"',' or {end!r}" if end else "','"
                raise _bad(f"expected {wanted} after its type, not {token.shown}", last)

    def _column(self, path: str, depth: int) -> pa.Field:
        token = self._take()
        if token.kind not in ("word", "quoted"):
            raise _bad(f"expected the name of a column, not {token.shown}", path)
        name = token.text
        path = f"{path}.{name}" if path else name
        self._accept(":")
        field = self._field(name, path, depth)
        nullable = not self._accept("not", "null")
        if self._accept("comment") and self._take().kind != "text":
            raise _bad("COMMENT takes a text in quotes", path)
        return field.with_nullable(nullable)

    def _field(self, called: str, path: str, depth: int) -> pa.Field:
        """Parse a type into a field. Its metadata declares the type if Arrow lacks it."""
        if depth > LEVELS_MAX:
            raise _bad(f"types are nested more than {LEVELS_MAX} levels deep", path)
        token = self._take()
        name = token.text.lower()
        if token.kind != "word":
            raise _bad(f"expected a type, not {token.shown}", path)
        if name in SIMPLE_TYPES:
            return self._simple(called, name, path)
        if name == "interval":
            return self._interval(called, path)
        if name in _DECIMALS:
            return pa.field(called, self._decimal(path))
        if name in _TEXTS:
            self._expect("(", path, name)
            length = self._number(path, name)
            self._expect(")", path, "the length")
            return pa.field(called, pa.string(), metadata={SPARK_TYPE: f"{_TEXTS[name]}({length})"})
        if name in ("array", "map", "struct"):
            self._expect("<", path, name)
            return pa.field(called, self._nested(name, path, depth + 1))
        raise _bad(f"unknown type {token.text!r}; the types are {', '.join(_KNOWN)}", path)

    def _simple(self, called: str, name: str, path: str) -> pa.Field:
        metadata = None
        if name == "time" and self._accept("("):
            precision = self._number(path, name)
            self._expect(")", path, "the precision")
            if precision > _TIME_PRECISION_MAX:
                raise _bad(f"time({precision}): the precision is 0 to {_TIME_PRECISION_MAX}", path)
            if precision != _TIME_PRECISION:
                metadata = {SPARK_TYPE: f"time({precision})"}
        return pa.field(called, SIMPLE_TYPES[name], metadata=metadata)

    def _interval(self, called: str, path: str) -> pa.Field:
        name = f"interval {self._take().text.lower()}"
        if self._accept("to"):
            name += f" to {self._take().text.lower()}"
        if name not in INTERVALS:
            raise _bad(f"{name.strip()!r}: {_INTERVALS_ADVICE}", path)
        metadata = None if name in SIMPLE_TYPES else {SPARK_TYPE: name}
        return pa.field(called, pa.duration("us"), metadata=metadata)

    def _decimal(self, path: str) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number(path, "decimal")
            if self._accept(","):
                scale = self._number(path, "decimal")
            self._expect(")", path, "the precision and scale")
        if not 1 <= precision <= _PRECISION_MAX or scale > precision:
            raise _bad(
                f"decimal({precision},{scale}): the precision is 1 to {_PRECISION_MAX},"
                " the scale 0 to the precision",
                path,
            )
        return pa.decimal128(precision, scale)

    def _number(self, path: str, name: str) -> int:
        token = self._take()
        if token.kind != "word" or not token.text.isdecimal():
            raise _bad(f"{name} takes a whole number in brackets, not {token.shown}", path)
        return int(token.text)

    def _nested(self, name: str, path: str, depth: int) -> pa.DataType:
        if name == "struct":
            return pa.struct(self.columns(">", path, depth))
        if name == "array":
            item = self._field("element", f"{path}.element", depth)
            self._expect(">", path, "the element's type")
            return pa.list_(item)
        key = self._field("key", f"{path}.key", depth)
        if pt.is_null(key.type):
            raise _bad("the keys of a map cannot be of type void", path)
        self._expect(",", path, "the key's type")
        value = self._field("value", f"{path}.value", depth)
        self._expect(">", path, "the value's type")
        return pa.map_(key.with_nullable(False), value)


def schema_text(schema: pa.Schema) -> str:
    """Return the schema as DDL, as far as Spark has names for its types."""
    return ", ".join(column_text(field, " ") for field in schema)
