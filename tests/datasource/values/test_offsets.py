"""Streaming offsets: their JSON, and the ranges between two of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidRequest
from spark_stream.consistency.replication.epochs import NO_LINEAGE
from spark_stream.datasource.values.offsets import (
    Range,
    TopicOffsets,
    from_checkpoint,
    from_json,
    ranges,
    to_json,
)

numbers = st.dictionaries(st.integers(0, 9), st.integers(0, 2**62), max_size=5)
topics = st.builds(
    lambda topic_id, offsets, lineages: TopicOffsets(
        topic_id, offsets, {n: lineages[n % len(lineages)](at) for n, at in offsets.items()}
    ),
    st.sampled_from(["id-a", "id-b"]),
    numbers,
    st.permutations(
        [
            lambda _: NO_LINEAGE,
            lambda at: ((3, at),),
            lambda at: ((3, at + 1),),
            lambda at: ((3, at // 2), (4, at)),
        ]
    ),
)
offsets = st.dictionaries(st.sampled_from(["t", "ü", "w.x-y_z"]), topics, max_size=3)


@given(offsets)
def test_offsets_survive_a_round_trip_through_json(value: dict[str, TopicOffsets]) -> None:
    assert from_json(json.loads(json.dumps(to_json(value, "log-1")))) == value


def test_the_json_is_the_public_one() -> None:
    lineages = {0: ((3, 42),), 1: ((3, 40), (5, 42)), 2: NO_LINEAGE}
    value = {"flights": TopicOffsets("a1b2", dict.fromkeys(lineages, 42), lineages)}
    partitions = {
        "0": {"offset": 42, "epoch": 3},
        "1": {"offset": 42, "epoch": 5, "lineage": [[3, 40], [5, 42]]},
        "2": {"offset": 42},
    }
    logged = {"flights": {"id": "a1b2", "cluster": "log-1", "partitions": partitions}}
    assert to_json(value, "log-1") == logged


@pytest.mark.parametrize(
    "value", [{"t": {"0": 1}}, {"t": 3}, {"t": {"id": "x", "partitions": {"a": {}}}}, {"t": None}]
)
def test_another_sources_offset_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="not isolog's"):
        from_json(value)


@pytest.mark.parametrize(
    "place",
    [
        {"offset": -1},
        {"offset": 2**63},
        {"offset": "5"},
        {"offset": 5.5},
        {"offset": True},
        {"offset": 5, "epoch": None},
        {"offset": 5, "epoch": -1},
        {"offset": 5, "epoch": float("inf")},
        {"offset": 5, "epoch": 2**63},
        {"offset": 5, "lineage": [[3, 5]]},
        {"offset": 5, "epoch": 4, "lineage": [[3, 5]]},
        {"offset": 5, "epoch": 3, "lineage": []},
        {"offset": 5, "epoch": 3, "lineage": "35"},
        {"offset": 5, "epoch": 4, "lineage": ["34", "45"]},
        {"offset": 5, "epoch": 4, "lineage": [["3", 4], [4, 5]]},
        {"offset": 5, "epoch": 4, "lineage": [[3, 4, 5], [4, 5]]},
        {"offset": 5, "epoch": 4, "lineage": [[5, 4], [4, 5]]},
        {"offset": 5, "epoch": 4, "lineage": [[3, 6], [4, 5]]},
        {"offset": 5, "epoch": 4, "lineage": [[3, 2**63], [4, 2**63]]},
    ],
)
def test_corrupted_offset_is_refused(place: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="not isolog's"):
        from_json({"t": {"id": "x", "cluster": "log-1", "partitions": {"0": place}}})


@pytest.mark.parametrize("cluster", [{}, {"cluster": None}, {"cluster": ""}, {"cluster": 7}])
def test_a_checkpoint_whose_offset_does_not_name_its_log_is_refused(
    cluster: dict[str, object],
) -> None:
    logged = {"id": "x", "partitions": {"0": {"offset": 5, "epoch": 3}}}
    with pytest.raises(InvalidRequest, match="not isolog's"):
        from_checkpoint({"t": logged | cluster})


@given(offsets, offsets)
def test_ranges_are_not_empty_and_stop_at_the_end(
    start: dict[str, TopicOffsets], end: dict[str, TopicOffsets]
) -> None:
    found = list(ranges(start, end))
    assert all(each.start < each.end == end[each.topic].offsets[each.partition] for each in found)
    assert len({(each.topic, each.partition) for each in found}) == len(found)
    for each in found:
        known = start.get(each.topic)
        if known is not None and known.id == each.topic_id:
            assert each.start == known.offsets.get(each.partition, 0)
        else:
            assert each.start == 0


def test_end_below_the_start_is_no_range() -> None:
    def at(offset: int) -> dict[str, TopicOffsets]:
        return {"t": TopicOffsets("i", {0: offset}, {0: ((0, offset),)})}

    assert list(ranges(at(30), at(10))) == []
    assert list(ranges(at(10), at(30))) == [Range("t", "i", 0, 10, 30, ((0, 30),))]
