"""Arguments of a producer: accepted and refused ones."""

from __future__ import annotations

import numpy as np
import pytest

from isolog.errors import InvalidOption, InvalidRecord, UnknownPartition
from spark_stream.client.options import check_setting
from spark_stream.client.writing.batches import as_headers, check_partition
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.topic_messages import PartitionDescription, TopicDescription


@pytest.mark.parametrize(
    "given",
    [
        {"ab": b"v", "h": None, "é": "text"},
        [("ab", b"v"), ["h", None], ("é", "text")],
        iter([("ab", b"v"), ("h", None), ("é", bytearray(b"text"))]),
    ],
)
def test_headers_are_a_mapping_or_pairs(given):
    assert as_headers(given) == [("ab", b"v"), ("h", None), ("é", b"text")]


def test_pairs_may_repeat_a_name():
    assert as_headers([("h", b"1"), ("h", b"2")]) == [("h", b"1"), ("h", b"2")]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["ab"], "'ab'"),
        ([("h",)], r"\('h',\)"),
        ([("h", b"v", b"w")], "b'w'"),
        ([(b"h", b"v")], "name is b'h'"),
        ({1: b"v"}, "name is 1"),
        ({"h": 1}, "value of header 'h' is 1"),
        ("ab", "'ab'"),
        (b"ab", "b'ab'"),
        (7, "7"),
    ],
)
def test_other_headers_are_refused_by_name(given, named):
    with pytest.raises(InvalidRecord, match=named) as refused:
        as_headers(given)
    assert '{"name": b"value"}' in refused.value.hint


@pytest.mark.parametrize("value", ["60s", None, True, float("nan"), -1])
def test_an_invalid_number_of_a_setting_is_refused_by_name(value):
    with pytest.raises(InvalidOption, match="timeout_ms takes a number from 1 to 10, not"):
        check_setting("timeout_ms", value, 1, 10)


def test_an_invalid_partition_is_refused():
    only = PartitionDescription(0, None, 0, (), (), 0, 0, 0, 0)
    topic = TopicDescription("t", "id", DEFAULT_SCHEMA, {}, (only,))
    check_partition(topic, np.int32(0))
    with pytest.raises(UnknownPartition, match="not 1"):
        check_partition(topic, 1)
    for wrong in ("0", 0.0, False):
        with pytest.raises(InvalidOption, match=f"partition takes a whole number, not {wrong!r}"):
            check_partition(topic, wrong)
