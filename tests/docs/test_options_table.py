"""Every option of ``format("isolog")`` is sound. Its table: ``test_tables.py``."""

from __future__ import annotations

import pytest

from spark_stream.datasource.options.sink import SinkOptions, sink_options
from spark_stream.datasource.options.source import SourceOptions, source_options
from spark_stream.datasource.options.table import OPTIONS, Use


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
