"""Names that are nearly right."""

from __future__ import annotations

import pytest

from spark_stream.schema.nearest import meant


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CARRIER", " (is 'carrier' meant?)"),
        ("carier", " (is 'carrier' meant?)"),
        ("offset", " (is '_offset' meant?)"),
        ("delay", " (is 'Delay' meant?)"),
        ("x", ""),
    ],
)
def test_the_nearest_name_is_told_in_any_case(name, told):
    assert meant(name, ["carrier", "_offset", "Delay"]) == told
