"""The declarations of all options of ``format("isolog")``. Their table: ``test_tables.py``."""

from __future__ import annotations

import pytest

from spark_stream.datasource.options.table import OPTIONS, Use


def test_each_option_is_declared_once_per_side() -> None:
    for use in (Use.BATCH_SOURCE, Use.STREAM_SOURCE, Use.BATCH_SINK, Use.STREAM_SINK):
        names = [each.name.lower() for each in OPTIONS if each.uses & use]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda each: f"{each.name}-{each.uses.value}")
def test_default_is_a_valid_value_of_its_option(option) -> None:
    assert option.uses
    assert option.meaning
    if option.default is not None:
        option.parse(option.name, option.default)
