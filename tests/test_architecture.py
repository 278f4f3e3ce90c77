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
