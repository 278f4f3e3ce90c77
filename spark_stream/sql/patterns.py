"""LIKE: patterns, and the fastest Arrow function for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from spark_stream.consistency import pruning
from spark_stream.sql import tree
from spark_stream.sql.comparing import of_bytes, refused
from spark_stream.sql.predicates import BoundPart, Everywhere, Field, Matching
from spark_stream.sql.tree import Literal, LiteralKind

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
    """Match a field against a pattern with the fastest function that can."""
    texts = [isinstance(each, _Literal) for each in pieces]
    prefix = pieces[0].encode() if texts[:1] == [True] else b""

    def found(function: Callable[..., Any], text: str) -> BoundPart:
        return Matching(field, function, text.encode() if raw else text, prefix)

    if not pieces or texts == [True]:
        value = Literal(LiteralKind.STRING, "".join(pieces))
        return of_bytes(pruning.Order.EQUAL, field, value)
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
    """Escape the text for a regular expression of RE2."""
    return re.sub(r"[^\w]", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise refused(f"X'{value.hex()}' is not text", None) from None
