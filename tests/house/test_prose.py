"""The prose keeps its limits, and the field's terms occur where readers search for them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.house.prose import HABITS, count, files_below
from tests.house.test_layers import ROOT

TABLES = tomllib.loads((Path(__file__).parent / "prose.toml").read_text())
TERMS: dict[str, dict[str, str]] = TABLES["terms"]

FEWEST_WORDS = 150  # of which one habit is already 6.7 per 1,000
PARENTS = ("spark_stream", "tests", "docs")
PLACES = (
    "isolog",
    "bench",
    "examples",
    "docs_site",
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
)


def folders() -> dict[str, list[Path]]:
    """Return the files of each place with separate limits."""
    found: dict[str, list[Path]] = {}
    for parent in PARENTS:
        loose = []
        for path in sorted((ROOT / parent).iterdir()):
            name = f"{parent}/{path.name}"
            if path.is_symlink() or path.name.startswith((".", "__pycache__")):
                continue
            if path.is_dir():
                found[name] = files_below(path)
            elif path.suffix in (".py", ".md"):
                loose.append(path)
        found[parent] = loose
    found |= {name: files_below(ROOT / name) for name in PLACES}
    return {name: files for name, files in found.items() if files}


FOLDERS = folders()


@pytest.mark.parametrize("name", FOLDERS)
def test_prose_of_a_folder_keeps_the_limits(name: str) -> None:
    found = count(FOLDERS[name])
    if found.words < FEWEST_WORDS:
        pytest.skip(f"{found.words} words are too few for a rate")
    above = [
        f"{habit}: {found.rate(habit):.1f}, limit {each.limit}: {each.advice}"
        for habit, each in HABITS.items()
        if found.rate(habit) > each.limit
    ]
    named = {line.partition(":")[0] for line in above}
    worst = [each for each in found.worst(len(found.sentences)) if named.intersection(each.habits)]
    assert not above, "\n".join([name, *above, *map(str, worst[:20])])


@pytest.mark.parametrize("term", TERMS)
def test_term_occurs_on_its_page_in_its_rule_and_in_its_module(term: str) -> None:
    rules = (ROOT / "docs/rules.md").read_text().lower()
    for kind, place in TERMS[term].items():
        text = rules if kind == "rule" else (ROOT / place).read_text().lower()
        wanted = place.lower() if kind == "rule" else term.lower()
        assert wanted in text, f"{term}: not in the {kind} {place!r}"
    if "rule" in TERMS[term]:
        assert term.lower() in TERMS[term]["rule"].lower()


def test_each_habit_is_found_in_every_kind_of_text(tmp_path: Path) -> None:
    words = "It returns {}. The leader {}. One fact{} a fact. {}. It starts {}. The lease {}."
    habits = words.format(
        "what " + "it waits for",
        "kno" + "ws",
        ";",
        "Nobody" + " is here",
        "an" + "ew",
        "is " + "over",
    )
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text(f"{habits}\n\n{'Note' + ' that'} it runs.\n")
    module.write_text(
        f'"""{habits}"""\n# {"Note" + " that"} it runs.\nlogger.error("it {"kno" + "ws"}")\n'
        f'def test_it_{"kno" + "ws"}(): raise ValueError(f"{{it}} {"kno" + "ws"}")\n'
    )
    assert all(count([page]).hits[habit] == 1 for habit in HABITS)
    assert count([module]).hits["person"] == 4
    assert all(count([module]).hits[habit] == 1 for habit in HABITS if habit != "person")
