"""The page of rules: each rule with the files that decide it and the tests that prove it.

A test names its rule by ``@pytest.mark.rule("what is decided", "the/file.py", …)``, with files of
``spark_stream/`` or of the simulator. ``python -m tests.rules`` writes docs/rules.md from these
marks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "rules.md"
_ABOUT: Final = """# Rules

For contributors. After this page you can find the file that decides a rule (in `spark_stream/`),
and a test that fails without the rule (in `tests/`). `make docs` writes this page from the marks of
the tests.
"""


@dataclass
class Rule:
    """A rule, the files that decide it, and the tests (``file::name``) that prove it."""

    text: str
    places: tuple[str, ...]
    tests: list[str] = field(default_factory=list)
    quick: list[str] = field(default_factory=list)
    """The tests that ``make test`` runs."""


@cache
def rules() -> list[Rule]:
    """Return all rules, sorted by the first file that decides them.

    Raises:
        ValueError: two tests name different files for the same rule.
    """
    found: dict[str, Rule] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        if "mark.rule(" not in source:
            continue
        tree = ast.parse(source)
        is_full = any("mark.full" in each for each in _marks_of_module(tree))
        for node, text, places in _marks(tree):
            rule = found.setdefault(text, Rule(text, places))
            if rule.places != places:
                raise ValueError(f"{path.name}::{node.name}: {text!r} is decided in {rule.places}")
            test = f"{path.relative_to(ROOT / 'tests')}::{node.name}"
            rule.tests.append(test)
            if not is_full and not any(map(_is_full, node.decorator_list)):
                rule.quick.append(test)
    return sorted(found.values(), key=lambda rule: (rule.places, rule.text))


def _marks_of_module(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield ast.unparse(value)


def _is_full(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) == "pytest.mark.full"


def _marks(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, str, tuple[str, ...]]]:
    """Yield (test, rule, files) of each mark in a module."""
    for node in ast.walk(tree):
        for each in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.rule":
                text, *places = (ast.literal_eval(argument) for argument in each.args)
                yield node, text, tuple(places)


def page() -> str:
    """Return the text of docs/rules.md."""
    lines, folder = [_ABOUT.rstrip()], None
    for rule in rules():
        here = rule.places[0].partition("/")[0].removesuffix(".py")
        if here != folder:
            lines += ["", f"## {here}", "", "| rule | decided in | proven by |", "|---|---|---|"]
            folder = here
        lines.append(f"| {rule.text} | {_quoted(rule.places)} | {_quoted(rule.tests)} |")
    return "\n".join(lines) + "\n"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page())
