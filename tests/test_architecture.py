"""ARCHITECTURE.md points at files and tests that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import ARCHITECTURE, PACKAGE, ROOT, names_in, table

RULES = table("which test proves it")


@cache
def functions_of(path: Path) -> set[str]:
    """The names of all functions of a file, methods included."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", RULES, ids=lambda row: row[0])
def test_a_rule_is_where_the_table_says_and_its_test_exists(row: list[str]) -> None:
    _, where, proof = row
    for place in names_in(where):
        assert (PACKAGE / place).is_file(), f"there is no spark_stream/{place}"
    assert names_in(where)
    for test in names_in(proof):
        file, _, name = test.partition("::")
        assert (ROOT / "tests" / file).is_file(), f"there is no tests/{file}"
        assert name.startswith("test_")
        assert name in functions_of(ROOT / "tests" / file), f"tests/{file} has no {name}"
    assert names_in(proof)


def test_the_table_has_the_rules_that_people_look_for() -> None:
    assert len(RULES) >= 40
    assert len({rule for rule, *_ in RULES}) == len(RULES)


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|md))`", ARCHITECTURE))
    missing = [
        name for name in named if not ((ROOT / name).is_file() or (PACKAGE / name).is_file())
    ]
    assert len(named) > 40
    assert missing == []


def modules_told(docstring: str) -> set[str]:
    """The modules that a folder's docstring lists: one opens a line, more may follow in it."""
    lines = [line for line in docstring.splitlines()[1:] if re.match(r"``\w+``(?:  |, )", line)]
    return {name for line in lines for name in re.findall(r"(?:^|[;,:] | and )``([a-z_]+)``", line)}


@pytest.mark.parametrize(
    "folder",
    [path.parent for path in sorted(PACKAGE.rglob("__init__.py"))],
    ids=lambda path: path.name,
)
def test_a_folder_lists_no_module_that_is_not_there(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    there = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir()
    }
    assert modules_told(docstring) <= there


def test_folders_list_their_modules() -> None:
    broker = ast.get_docstring(ast.parse((PACKAGE / "broker" / "__init__.py").read_text()))
    assert {"partition", "spare_memory", "topic_actions"} <= modules_told(broker or "")
