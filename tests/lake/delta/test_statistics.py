"""Statistics of files in the forms of isolog and of other writers."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from spark_stream.lake.delta.actions import Action, AddFile, decoded, encoded
from spark_stream.lake.delta.statistics import ANY, Statistics

TEXT = json.dumps(
    {
        "numRecords": 3,
        "minValues": {"_partition": 1, "_offset": 5, "cut": "a", "n": [1], "x": {"y": 1e400}},
        "maxValues": {"_partition": 1, "_offset": 7, "_timestamp": "1970-01-01T00:00:00.005Z"},
        "nullCount": {"n": 0},
        "tightBounds": True,
    }
).replace("Infinity", "1e9")


def test_statistics_of_isologs_columns_are_decoded():
    newest = datetime(1970, 1, 1, microsecond=5_000, tzinfo=UTC)
    assert Statistics.of(TEXT) == Statistics(3, (1, 1), (5, 7), newest)
    assert Statistics.of('{"minValues":{"cut":1},"maxValues":{"cut":4,"time":"x"}}').cuts == (1, 4)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        "no JSON",
        "[]",
        '{"numRecords": "3"}',
        '{"minValues": null, "maxValues": {"_offset": 1}}',
        '{"minValues": {"_offset": 1}}',
        '{"minValues": {"_offset": 1.5}, "maxValues": {"_offset": 2.5}}',
        '{"maxValues": {"_timestamp": "1970-01-01T00:00:00"}}',
    ],
)
def test_unknown_statistics_have_no_bounds(text):
    found = Statistics.of(text)
    assert found == Statistics()
    assert (found.partitions, found.offsets, found.cuts, found.newest) == (ANY, ANY, ANY, None)


def test_statistics_are_decoded_once_and_belong_to_no_version(monkeypatch):
    seen = []
    real = Statistics.of
    monkeypatch.setattr(Statistics, "of", lambda text: seen.append(text) or real(text))
    file = AddFile("a", 1, 2, stats=TEXT)
    before = encoded([Action(add=file)])
    assert [file.statistics.offsets for _ in range(3)] == [(5, 7)] * 3
    assert seen == [TEXT]
    assert encoded([Action(add=file)]) == before
    (again,) = decoded("t", 1, before)
    assert again.add == file
    assert replace(file, stats=None).statistics == Statistics()
