"""Places and targets of make in CONTRIBUTING.md exist."""

from __future__ import annotations

import re

import pytest

from tests.house.test_layers import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ADDING = PAGE.partition("## Add something")[2]
FOLDERS = "|".join(("spark_stream", "tests", "docs", "conf"))
PLACES = re.findall(rf"`((?:{FOLDERS})/[\w./-]*(?:::\w+)?|[A-Z]+\.md)`", PAGE)


@pytest.mark.parametrize("place", sorted(set(PLACES)))
def test_places_in_contributing_exist(place: str) -> None:
    file, _, name = place.partition("::")
    assert (ROOT / file).exists(), f"there is no {file}"
    if name:
        text = (ROOT / file).read_text()
        assert re.search(rf"^(?:def |class )?{name}\b", text, re.MULTILINE), f"{file} has no {name}"


@pytest.mark.parametrize(
    "what",
    ["option of `format", "remote call", "setting of a topic", "rule", "error", "command line"],
)
def test_contributing_has_each_recipe(what: str) -> None:
    section = next(each for each in ADDING.split("\n### ")[1:] if what in each.partition("\n")[0])
    assert re.findall(rf"`(?:{FOLDERS})/", section)
    assert "1. " in section


def test_targets_in_contributing_exist() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", PAGE))
    assert len(named) >= 6
    assert named - made == set()
