"""The table of options in docs/spark.md is what the code gives; every option is sound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_stream.datasource.options.page import begin, with_tables
from spark_stream.datasource.options.sink import SinkOptions, sink_options
from spark_stream.datasource.options.source import SourceOptions, source_options
from spark_stream.datasource.options.table import OPTIONS, Use
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "spark.md"


def test_the_page_has_the_table_of_the_code() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run `make docs`"


def test_the_command_mends_a_page_that_is_out_of_date(tmp_path: Path) -> None:
    copy = tmp_path / "spark.md"
    copy.write_text(PAGE.read_text().replace("| `failOnDataLoss` |", "| `failOnLoss` |"))
    command = [sys.executable, "-m", "spark_stream.datasource.options", str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert copy.read_text() == PAGE.read_text()
    assert "is changed" in ran.stdout


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks"):
        with_tables(PAGE.read_text().replace(begin("options"), ""))


def test_no_option_is_declared_twice_for_one_side() -> None:
    for use in (Use.BATCH_SOURCE, Use.STREAM_SOURCE, Use.BATCH_SINK, Use.STREAM_SINK):
        names = [each.name.lower() for each in OPTIONS if each.uses & use]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: f"{each.name}-{each.uses.value}")
def test_a_default_is_a_text_that_the_option_takes(option) -> None:
    assert option.uses
    assert option.meaning
    if option.default is not None:
        option.parse(option.name, option.default)


def test_defaults_of_the_table_are_those_of_the_values() -> None:
    """Who makes the options by hand gets what a query gets that gives none."""
    source = source_options({"path": "x", "subscribe": "t"})
    assert source == SourceOptions(source.place, source.selection)
    sink = sink_options({"path": "x", "topic": "t"})
    assert sink == SinkOptions(sink.place, sink.topic)
