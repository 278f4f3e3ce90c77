"""docs/rules.md matches the marks of the tests. Files in ARCHITECTURE.md exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.test_layers import PACKAGE
from tests.rules import PAGE, ROOT, page, rules

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_page_of_rules_matches_the_marks() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_files_of_a_rule_exist() -> None:
    found = rules()
    assert len(found) > 100
    for rule in found:
        assert rule.places, f"{rule.text}: which file decides it?"
        roots = (PACKAGE, ROOT)
        missing = [each for each in rule.places if not any((r / each).is_file() for r in roots)]
        assert missing == [], rule.text


def test_make_test_runs_a_test_of_each_rule() -> None:
    assert [each.text for each in rules() if not each.quick] == []


def test_architecture_is_one_page_and_its_files_exist() -> None:
    assert len(ARCHITECTURE.split()) <= 1_300
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml))`", ARCHITECTURE))
    roots = (ROOT, PACKAGE, PACKAGE / "broker" / "replication")
    missing = [name for name in named if not any((root / name).is_file() for root in roots)]
    assert len(named) > 30
    assert missing == []


def modules_listed(docstring: str) -> set[str]:
    """The modules in a folder's docstring: one at the start of a line, more may follow in it."""
    lines = [line for line in docstring.splitlines()[1:] if re.match(r"``\w+``(?:  |, )", line)]
    return {name for line in lines for name in re.findall(r"(?:^|[;,:] | and )``([a-z_]+)``", line)}


@pytest.mark.parametrize(
    "folder",
    [path.parent for path in sorted(PACKAGE.rglob("__init__.py"))],
    ids=lambda path: path.name,
)
def test_modules_listed_by_a_folder_exist(folder: Path) -> None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    there = {path.stem for path in folder.glob("*.py")} | {
        path.name for path in folder.iterdir() if path.is_dir()
    }
    assert modules_listed(docstring) <= there


def test_folders_list_their_modules() -> None:
    broker = ast.get_docstring(ast.parse((PACKAGE / "broker" / "__init__.py").read_text()))
    assert {"partition", "background", "serving"} <= modules_listed(broker or "")
