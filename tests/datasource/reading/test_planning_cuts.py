"""The ends of a read_atomic query: cuts within its limits, and progress in any case."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from spark_stream.datasource.options import source_options
from spark_stream.datasource.reading import planning
from spark_stream.datasource.reading.planning import Planner
from spark_stream.datasource.values.offsets import LogState, TopicOffsets
from spark_stream.wire.topic_messages import (
    AtomicCut,
    Cut,
    CutTopic,
    PartitionOffset,
    PartitionOffsets,
)

OPTIONS = source_options({"path": "x", "subscribe": "a,b", "isolation": "read_atomic"})


class Leader:
    """A leader with one cut, which records the requests."""

    def __init__(self, cut: Mapping[str, Mapping[int, int]]) -> None:
        self.answer = cut
        self.asked: list[CutTopic] = []

    def call(self, asked: AtomicCut) -> Cut:
        self.asked = asked.topics
        return Cut(offsets=self.answer)


def at(name: str, *offsets: int) -> TopicOffsets:
    return TopicOffsets(f"id of {name}", dict(enumerate(offsets)), {})


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    found = Leader({"a": {0: 5, 1: 5}, "b": {0: 5}})
    monkeypatch.setattr(planning, "session", lambda place: SimpleNamespace(connection=found))
    return found


BEGIN = {"a": at("a", 0, 0), "b": at("b", 0)}
ENDS = {"a": at("a", 10, 10), "b": at("b", 10)}
END = PartitionOffset(offset=20, epoch=0, log_start_offset=0, log_end_offset=20)
NOW = LogState(
    {
        "a": PartitionOffsets(topic_id="id of a", partitions={0: END, 1: END, 2: END}),
        "b": PartitionOffsets(topic_id="id of b", partitions={0: END}),
    },
    frozenset(),
)


def test_cut_within_the_limit_is_requested(leader: Leader) -> None:
    limited = {"a": at("a", 7, 7), "b": at("b", 6)}
    cut = Planner(OPTIONS).cut_between(BEGIN, limited, ENDS)
    assert [each.lower for each in leader.asked] == [{0: 0, 1: 0}, {0: 0}]
    assert [each.upper for each in leader.asked] == [{0: 7, 1: 7}, {0: 6}]
    assert [each.topic_id for each in leader.asked] == ["id of a", "id of b"]
    assert cut == {"a": at("a", 5, 5), "b": at("b", 5)}


def test_a_larger_transaction_may_pass_the_limit_but_not_the_ends(leader: Leader) -> None:
    """The ends may be those of Trigger.AvailableNow, while the leader has later records."""
    leader.answer = {"a": {0: 50, 1: 8}, "b": {0: 8}}
    cut = Planner(OPTIONS).cut_between(BEGIN, BEGIN, ENDS)
    assert cut == {"a": at("a", 10, 8), "b": at("b", 8)}


def test_without_a_cut_in_between_the_query_goes_to_its_ends(leader: Leader) -> None:
    leader.answer = {"a": {0: 0, 1: 0}, "b": {0: 0}}
    assert Planner(OPTIONS).cut_between(BEGIN, BEGIN, ENDS) == ENDS


def test_topic_without_new_records_may_be_deleted(leader: Leader) -> None:
    ends = {"a": ENDS["a"], "b": BEGIN["b"]}
    leader.answer = {"a": {0: 5, 1: 5}}
    assert Planner(OPTIONS).cut_between(BEGIN, ends, ends) == {
        "a": at("a", 5, 5),
        "b": at("b", 0),
    }
    assert [each.topic for each in leader.asked] == ["a"]


def test_topic_created_again_begins_at_its_start(leader: Leader) -> None:
    begin = {"a": TopicOffsets("another id", {0: 3, 1: 3}, {}), "b": BEGIN["b"]}
    Planner(OPTIONS).cut_between(begin, ENDS, ENDS)
    assert leader.asked[0].lower == {}


def test_requested_ends_are_lowered_to_a_cut(leader: Leader) -> None:
    """Partition 2 was added after the resolution of the ends."""
    leader.answer = {"a": {0: 5, 1: 5, 2: 0}, "b": {0: 5}}
    assert Planner(OPTIONS).cut_below(BEGIN, ENDS, NOW) == {"a": at("a", 5, 5), "b": at("b", 5)}
    assert [(each.lower, each.upper) for each in leader.asked] == [
        ({0: 0, 1: 0}, {0: 10, 1: 10, 2: 0}),
        ({0: 0}, {0: 10}),
    ]


def test_a_transaction_beyond_the_requested_ends_is_not_read(leader: Leader) -> None:
    leader.answer = {"a": {0: 11, 1: 5, 2: 0}, "b": {0: 5}}
    assert Planner(OPTIONS).cut_below(BEGIN, ENDS, NOW) == BEGIN
