"""Random predicates: their SQL, and their verdict on a row in plain Python.

The Python side does not use Arrow, min/max statistics or sqlglot. A row is a dict. A verdict is
True, False or None.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Verdict = bool | None


@dataclass(frozen=True)
class RandomPredicate:
    """A predicate's text, and its verdict on a row."""

    sql: str
    of: Callable[[dict[str, Any]], Verdict]

    def __repr__(self) -> str:
        return self.sql


def place(value: Any) -> Any:
    """The sort key of a column's values: NaN is above all, texts are ordered by their bytes."""
    if isinstance(value, float):
        if math.isnan(value):
            return (1, 0)
        return (0, value) if math.isinf(value) else (0, Fraction(value))
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | Decimal):
        return (0, Fraction(value))
    return value


def text_of(value: Any) -> str:
    """The value as SQL."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return f"cast('{'NaN' if math.isnan(value) else value}' as double)"
        return f"cast('{value!r}' as double)"
    return str(value).upper() if isinstance(value, bool) else f"{value}"


WHOLE = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]), st.floats())
TEXTS = st.one_of(
    st.text("ab%_é\0", max_size=3),
    st.text("ab", min_size=15, max_size=18),
    st.sampled_from(["\U0010ffff" * 5, "a" * 16, "a" * 16 + "b"]),
)
DECIMALS = st.decimals(-1000, 1000, places=2)

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "whole": (pa.int64(), WHOLE),
    "small": (pa.int8(), st.integers(-128, 127)),
    "float": (pa.float64(), FLOATS),
    "text": (pa.string(), TEXTS),
    "raw": (pa.binary(), st.binary(max_size=3)),
    "money": (pa.decimal128(6, 2), DECIMALS.filter(lambda value: abs(value) < 10000)),
    "flag": (pa.bool_(), st.booleans()),
}
"""Column name → its type, and a strategy of values."""


def compared(name: str) -> st.SearchStrategy[RandomPredicate]:
    """A column compared with a constant of the same kind."""
    values = VALUES[name][1]

    def made(order: str, value: Any, turned: bool) -> RandomPredicate:
        def of(row: dict[str, Any]) -> Verdict:
            mine = row[name]
            if order == "<=>":
                return mine is not None and place(mine) == place(value)
            if mine is None:
                return None
            left, right = place(mine), place(value)
            left, right = (right, left) if turned else (left, right)
            return {
                "=": left == right,
                "!=": left != right,
                "<": left < right,
                "<=": left <= right,
                ">": left > right,
                ">=": left >= right,
            }[order]

        sides = [name, text_of(value)]
        return RandomPredicate(f" {order} ".join(sides[::-1] if turned else sides), of)

    orders = st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "<=>"])
    return st.builds(made, orders, values, st.booleans())


def listed(name: str) -> st.SearchStrategy[RandomPredicate]:
    """A column in a list, which may have a null."""

    def made(values: list[Any], with_null: bool) -> RandomPredicate:
        def of(row: dict[str, Any]) -> Verdict:
            if row[name] is None:
                return None
            if any(place(row[name]) == place(value) for value in values):
                return True
            return None if with_null else False

        items = [*map(text_of, values), *["null"] * with_null]
        return RandomPredicate(f"{name} in ({', '.join(items)})", of)

    return st.builds(made, st.lists(VALUES[name][1], min_size=1, max_size=6), st.booleans())


def like(pattern: str) -> RandomPredicate:
    """The text column matched against a pattern without an escape."""
    regex = "".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in pattern)

    def of(row: dict[str, Any]) -> Verdict:
        if row["text"] is None:
            return None
        return re.fullmatch(regex, row["text"], re.DOTALL) is not None

    return RandomPredicate(f"text like {text_of(pattern)}", of)


def null(name: str) -> RandomPredicate:
    return RandomPredicate(f"{name} is null", lambda row: row[name] is None)


def negation(part: RandomPredicate) -> RandomPredicate:
    def of(row: dict[str, Any]) -> Verdict:
        found = part.of(row)
        return None if found is None else not found

    return RandomPredicate(f"not ({part.sql})", of)


def joined(word: str, parts: list[RandomPredicate]) -> RandomPredicate:
    decides = word == "or"

    def of(row: dict[str, Any]) -> Verdict:
        found = [part.of(row) for part in parts]
        if decides in found:
            return decides
        return None if None in found else not decides

    return RandomPredicate(f" {word} ".join(f"({part.sql})" for part in parts), of)


def surely(part: RandomPredicate, value: bool) -> RandomPredicate:
    return RandomPredicate(f"({part.sql}) is {value}", lambda row: part.of(row) is value)


def predicates(names: list[str]) -> st.SearchStrategy[RandomPredicate]:
    """Predicates over these columns."""
    leaves = [compared(name) for name in names] + [listed(name) for name in names]
    leaves += [st.sampled_from([null(name) for name in names])]
    if "text" in names:
        leaves.append(st.text("ab%_é", max_size=4).map(like))
    return st.recursive(
        st.one_of(leaves),
        lambda parts: st.one_of(
            st.builds(negation, parts),
            st.builds(surely, parts, st.booleans()),
            st.builds(
                joined, st.sampled_from(["and", "or"]), st.lists(parts, min_size=2, max_size=3)
            ),
        ),
        max_leaves=5,
    )


@functools.cache
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, VALUES[name][0]) for name in names])


def rows_of(names: list[str], most: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows with nulls."""
    row = st.fixed_dictionaries({name: st.none() | VALUES[name][1] for name in names})
    return st.lists(row, min_size=1, max_size=most)
