"""CONTRIBUTING.md names places that are there, and targets that make has."""

from __future__ import annotations

import re

import pytest

from tests.house.test_layers import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
ADDING = PAGE.partition("## Add something")[2]
FOLDERS = "|".join(("spark_stream", "tests", "docs", "conf"))
PLACES = re.findall(rf"`((?:{FOLDERS})/[\w./-]*(?:::\w+)?|[A-Z]+\.md)`", PAGE)


@pytest.mark.parametrize("place", sorted(set(PLACES)))
def test_a_place_that_the_page_names_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert (ROOT / file).exists(), f"there is no {file}"
    if name:
        text = (ROOT / file).read_text()
        assert re.search(rf"^(?:def |class )?{name}\b", text, re.MULTILINE), f"{file} has no {name}"


@pytest.mark.parametrize(
    "what",
    ["option of `format", "remote call", "setting of a topic", "rule", "error", "command line"],
)
def test_there_is_a_list_of_places_for_each_thing_that_people_add(what: str) -> None:
    section = next(each for each in ADDING.split("\n### ")[1:] if what in each.partition("\n")[0])
    assert re.findall(rf"`(?:{FOLDERS})/", section)
    assert "1. " in section


def test_every_target_that_the_page_names_is_one_of_makes() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", PAGE))
    assert len(named) >= 6
    assert named - made == set()
