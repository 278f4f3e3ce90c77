"""The text around the table of series in docs/operations.md; the table: test_tables.py."""

from __future__ import annotations

import re

from docs_site.series import rendered
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "operations.md"


def test_the_text_around_the_table_names_only_series_that_there_are() -> None:
    page = PAGE.read_text()
    table = rendered()
    around = page.replace(table, "")
    named = set(re.findall(r"`(isolog_\w+)", around))
    assert named
    assert named <= set(re.findall(r"`(isolog_\w+)", table))
