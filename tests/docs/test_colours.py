"""The colours that console, site and pictures share have enough contrast, and no copies."""

from __future__ import annotations

import re

import pytest

from docs_site.colours import ICON, TABLE, colours
from docs_site.pictures import FOLDER
from tests.conftest import ROOT

TEXT = 4.5
"""The ratio that WCAG AA requires of text."""
SHAPE = 3.0
"""The ratio that WCAG AA requires of lines, dots and the focus."""
SITE = ROOT / "docs" / "assets" / "site.css"
GROUNDS = ("ground", "sheet", "sunk")


def luminance(colour: str) -> float:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_of_wcag_aa(scheme: int) -> None:
    table = {name: pair[scheme] for name, pair in colours().items()}
    records = ("record", "committed", "open", "aborted")
    pairs = [
        *((text, ground, TEXT) for text in ("ink", "quiet", "link") for ground in GROUNDS),
        *((text, ground, TEXT) for text in ("good", "wait", "bad") for ground in ("sheet", "sunk")),
        *(("ink", ground, TEXT) for ground in records),
        ("brand-ink", "brand", TEXT),
        *(("focus", ground, SHAPE) for ground in GROUNDS),
        *(("strong-edge", ground, SHAPE) for ground in GROUNDS),
    ]
    weak = [
        (text, ground, round(contrast(table[text], table[ground]), 2))
        for text, ground, least in pairs
        if contrast(table[text], table[ground]) < least
    ]
    assert weak == []


def test_ratio_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_site_and_console_have_no_colours_beside_the_table() -> None:
    style = (TABLE.parent / "style.css").read_text()
    site = "\n".join(each for each in SITE.read_text().splitlines() if "benchmarks.svg" not in each)
    known = colours()
    for text in (style, site):
        assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;,\s)])", text) == []
    for name in re.findall(r": var\(--(?!md-)([\w-]+)\)", site):
        assert name in known, name


def test_icon_and_pictures_have_colours_of_the_table() -> None:
    known = {colour for pair in colours().values() for colour in pair}
    assert set(re.findall(r'fill="(#\w{6})"', ICON.read_text())) <= known
    for picture in FOLDER.glob("*.svg"):
        assert set(re.findall(r"#\w{6}", picture.read_text())) <= known, picture.name
