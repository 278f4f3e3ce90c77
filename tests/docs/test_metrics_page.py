"""The table of series in docs/operations.md is what the code gives."""

from __future__ import annotations

import re

from spark_stream.datasource.options.page import with_tables
from tests.metrics_page import PAGE, TABLES


def test_the_page_has_the_series_of_the_code() -> None:
    page = PAGE.read_text()
    assert with_tables(page, TABLES) == page, "run `make docs`"


def test_the_text_around_the_table_names_only_series_that_there_are() -> None:
    page = PAGE.read_text()
    table = TABLES["series"]()
    around = page.replace(table, "")
    named = set(re.findall(r"`(isolog_\w+)", around))
    assert named
    assert named <= set(re.findall(r"`(isolog_\w+)", table))
