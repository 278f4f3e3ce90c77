"""The README as the text of an index: no link depends on the repository around it."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.demo.test_readme import README

SETUP: dict[str, Any] = runpy.run_path(str(ROOT / "setup.py"))
TARGET = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("source", ["", "https://git.example.org/isolog"])
def test_links_of_the_readme_are_absolute(source: str) -> None:
    assert "](docs/" in README
    text = SETUP["long_description"](README, source, "1.2.3")
    assert [each for each in TARGET.findall(text) if not each.startswith("https://")] == []
    assert bool(TARGET.findall(text)) is bool(source)
    assert "mermaid" not in text
    assert "<!--" not in text


def test_links_lead_to_the_tag_of_the_release() -> None:
    source = "https://git.example.org/isolog"
    text = SETUP["long_description"](README, source, "1.2.3")
    assert f"({source}/blob/v1.2.3/docs/tutorial.md)" in text
    assert re.search(rf"!\[[^]]*\]\({source}/raw/v1.2.3/docs/[^)]*\.svg\)", text)


def test_without_a_repository_the_words_of_a_link_remain() -> None:
    found = SETUP["long_description"]("![a\nb](c.svg)\n\nSee [the\npage](docs/a.md#b).", "", "1")
    assert found == "See the\npage."


def test_addresses_of_the_project_have_one_source() -> None:
    assert SETUP["project_urls"]("", "1") == {}
    addresses = SETUP["project_urls"]("https://git.example.org/isolog", "1").values()
    assert all(each.startswith("https://git.example.org/isolog") for each in addresses)
