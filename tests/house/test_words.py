"""Texts refer only to things that are in the repository."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.house.test_layers import PACKAGE, ROOT

TEXTS = (".py", ".md", ".toml", ".cfg", ".yml", ".ipynb", "Makefile", "Dockerfile")
# Written so that this file does not match them.
ELSEWHERE = {
    "a design document that is not here": r"DESIGN\.m[d]|STYLE\.m[d]|(?<!docs/)SPARK\.m[d]",
    "texts that only its authors have": r"[Tt]he seed[s]\b",
    "a section of another text": r"[Ss]ection [0-9.]+ of the desig[n]|[Tt]he desig[n] (?:say|said)",
    "a path of a developer's machine": r"(?<![\w.])/wor[k]/|/tmp/i[0-9]",
}

FILES = {"broker.json", "broker.lock", "broker.log"}  # of a log's directory


def texts() -> list[str]:
    """The text files that git tracks, or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a checkout: which files are the repository's is not known")
    return [name for name in listed.stdout.splitlines() if name.endswith(TEXTS)]


@pytest.mark.parametrize("pattern", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_no_text_refers_to_anything_outside_the_repository(pattern: str) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in texts()
        if (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_texts_of_the_repository_are_found() -> None:
    assert len(texts()) > 300
    assert "spark_stream/errors.py" in texts()


def test_modules_named_in_texts_exist() -> None:
    """``part.room.module``, or something in it, in docstrings and comments of the package."""
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
    }
    parts = {name.partition(".")[0] for name in modules if "." in name}
    named = re.compile(r"``((?:" + "|".join(sorted(parts)) + r")(?:\.[a-z_]+)+)``")
    missing = [
        f"{path.relative_to(PACKAGE)}: {found}"
        for path in PACKAGE.rglob("*.py")
        for found in named.findall(path.read_text())
        if not {found, f"{found}.__init__", found.rpartition(".")[0]} & modules
        and found not in FILES
    ]
    assert missing == []
