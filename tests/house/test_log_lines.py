"""Log lines are constant sentences with parameters, so that they can be searched and grouped."""

from __future__ import annotations

import ast
import re

from tests.house.prose import MESSAGE_CALLS
from tests.house.test_layers import PACKAGE

FEWEST_WORDS = 2
WORD = re.compile(r"[A-Za-z]{2,}")
PARAMETER = re.compile(r"%(?:\(\w+\))?[\d.]*\w")
FORWARDS = {"server.py"}  # `Server.warn` limits the rate of a line


def texts() -> list[tuple[str, str | None]]:
    """Return the place and the constant text of each log line of the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=attribute),
                    args=[ast.Name(id="text"), *_],
                ) if attribute in MESSAGE_CALLS and path.name in FORWARDS:
                    continue  # its callers are checked
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="logger"), attr=attribute),
                    args=[first, *_],
                ) if attribute in MESSAGE_CALLS:
                    text = first.value if isinstance(first, ast.Constant) else None
                    found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", text))
                case ast.Call(func=ast.Attribute(attr="warn"), args=[first, *_]):
                    text = first.value if isinstance(first, ast.Constant) else None
                    found.append((f"{path.relative_to(PACKAGE)}:{node.lineno}", text))
    return found


def test_each_log_line_has_a_constant_sentence() -> None:
    found = texts()
    assert len(found) > 100
    bare = [
        place
        for place, text in found
        if text is None or len(WORD.findall(PARAMETER.sub("", text))) < FEWEST_WORDS
    ]
    assert bare == [], "log a constant sentence with parameters"
