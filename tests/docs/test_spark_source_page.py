"""Tests in tests/spark/README.md exist, and each property of the Spark source has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.house.test_layers import ROOT

FOLDER = ROOT / "tests" / "spark"
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ", 1)]
    for line in (FOLDER / "README.md").read_text().partition("|---|---|\n")[2].splitlines()
]


@cache
def functions_of(path: Path) -> set[str]:
    """The names of all functions of a file, methods included."""
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_property_has_tests_that_exist(row: list[str]) -> None:
    named = re.findall(r"`(\w+\.py)::(\w+)`", row[1])
    assert named
    for file, test in named:
        assert test.startswith("test_")
        assert test in functions_of(FOLDER / file), f"tests/spark/{file} has no {test}"


SUBJECTS = (
    *("`earliest`", "`latest`", "by time", "`failOnDataLoss`", "partitions added while stopped"),
    *("`Trigger.AvailableNow`", "`minPartitions`", "limits", "created again", "Unicode", "10 MiB"),
    *("self-join", "watermark", "a stop", "late-bound", "used twice"),
    "bad option",
)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_page_has_the_expected_subjects(subject: str) -> None:
    assert any(subject in what for what, _ in ROWS)
