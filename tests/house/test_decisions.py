"""The records of decisions are short, and their references lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.test_layers import ROOT
from tests.house.test_words import texts

FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))
NUMBERS = {int(path.name[:4]) for path in RECORDS}
WORDS_MAX = 300

_TITLE = re.compile(r"# (\d+)\. \S.*")
_PATH = re.compile(
    r"`((?:(?:spark_stream|isolog|tests|docs|docs_site|bench|scripts|conf|examples)/[\w./*-]*)"
    r"|[\w/-]+\.(?:py|md|toml))`"
)
_REFERENCE = re.compile(r"\bdecisions?[ \n#]+((?:\d+(?:, | and |,\s)?)+)", re.IGNORECASE)
_LINK = re.compile(r"\bdecisions/(\d{4})([\w-]*(?:\.md)?)")


def references() -> list[tuple[str, int, str]]:
    """Return the file, number and rest of the link of each reference to a record."""
    found = []
    for name in texts():
        path = ROOT / name
        if not path.is_file() or name == "tests/house/test_decisions.py":
            continue
        text = path.read_text()
        for match in _REFERENCE.finditer(text):
            found += [(name, int(number), "") for number in re.findall(r"\d+", match[1])]
        found += [(name, int(match[1]), match[2]) for match in _LINK.finditer(text)]
    return found


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_is_half_a_page_with_its_number_in_the_title(path: Path) -> None:
    text = path.read_text()
    title = _TITLE.fullmatch(text.partition("\n")[0])
    assert title is not None
    assert int(title[1]) == int(path.name[:4])
    assert len(text.split()) <= WORDS_MAX
    for part in ("**Context.**", "**Choice.**", "**Consequences.**"):
        assert part in text


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_paths_in_a_record_exist(path: Path) -> None:
    missing = [name for name in _PATH.findall(path.read_text()) if not _exists(name)]
    assert missing == []


def _exists(name: str) -> bool:
    return any((folder / name).exists() for folder in (ROOT, ROOT / "spark_stream", ROOT / "tests"))


def test_index_has_each_record_with_its_title() -> None:
    index = (FOLDER / "README.md").read_text()
    lines = {
        f"- [{path.read_text().partition(chr(10))[0].removeprefix('# ')}]({path.name})"
        for path in RECORDS
    }
    assert {line for line in index.splitlines() if line.startswith("- [")} == lines


def test_references_name_existing_records() -> None:
    names = {path.name for path in FOLDER.glob("*.md")}
    wrong = [
        (name, number, rest)
        for name, number, rest in references()
        if number not in NUMBERS or (rest.endswith(".md") and f"{number:04}{rest}" not in names)
    ]
    assert wrong == []
    assert len(references()) > len(RECORDS) / 2


def test_each_number_is_used_once() -> None:
    assert len(NUMBERS) == len(RECORDS)
