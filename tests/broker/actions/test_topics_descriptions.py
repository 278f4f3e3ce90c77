"""The high watermark in a topic's description never goes backwards."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.console import Console

from isolog.errors import IsologError, LeaderUnavailable, StorageFailure, UnknownPartition
from spark_stream.access.callers import NOBODY
from spark_stream.broker.actions.context import BrokerContext
from spark_stream.broker.actions.topics import list_offsets, partition_facts
from spark_stream.broker.partition.partition import Partition
from spark_stream.cli.options import Listing
from spark_stream.cli.output.topics import show_topic
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.replication.bounds import BoundsState
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.scripts.steps import Describe
from spark_stream.wire.topic_messages import (
    AskedTopic,
    ListOffsets,
    PartitionDescription,
    PartitionFacts,
    PartitionOffsets,
    TopicDescription,
)
from tests.broker.clusters import around, make, see
from tests.broker.local_broker import LocalBroker, Surroundings, replicate
from tests.support import NUMBERS, numbers

__all__ = ["around"]


def described(broker: LocalBroker) -> PartitionDescription:
    topic = broker.host.find("t")
    answer = broker.table.run_here(Describe(Joined("t", topic.id, 0)))
    return partition_facts(0, broker.host.record(topic, 0), answer)


def test_a_new_leader_shows_no_high_watermark_before_it_is_exact(around: Surroundings):
    """The earlier leader had its followers' acknowledgements, and had shown the entries."""
    a, b, c = (around.start(each) for each in "abc")
    make(a, "t", "abc")
    for number in range(3):
        a.partition("t").append(numbers(number, 1))
        for follower in (b, c):
            replicate(a, follower, "t")
    a.partition("t").append(numbers(3, 1))
    for follower in (b, c):  # a frame carries the high watermark of before the frame
        session = replicate(a, follower, "t")
        session.close()
    seen = [described(a).high_watermark]
    assert seen == [4]
    b.replica("t").core.bounds_state = _without_high_watermark(b)
    a.die()
    b.control_once()
    see(around)
    facts = described(b)
    assert (facts.high_watermark, facts.last_stable_offset) == (None, None)
    assert facts.log_end_offset == 4
    replicate(b, c, "t")
    facts = described(b)
    assert (facts.high_watermark, facts.last_stable_offset) == (4, 4)


def _without_high_watermark(broker: LocalBroker) -> BoundsState:
    """The state of a follower without a high watermark from its leader."""
    state: BoundsState = broker.replica("t").core.bounds_state
    return replace(state, high_watermark=state.log_start)


def test_an_unreachable_partition_is_described_without_numbers(around: Surroundings):
    a = around.start("a")
    make(a, "t", "a")
    error = LeaderUnavailable("nobody leads it")
    facts = partition_facts(0, a.host.record(a.host.find("t"), 0), error)
    found = PartitionDescription.from_bytes(facts.to_bytes())  # as a client gets it
    assert (found.log_start_offset, found.log_end_offset) == (None, None)
    assert (found.high_watermark, found.last_stable_offset) == (None, None)
    assert (found.size, found.open_transactions) == (None, None)
    assert found.error is not None


def offsets(broker: LocalBroker, **asked: Any) -> PartitionOffsets:
    """The broker's answer about the offsets of topic ``t``."""
    allowing = SimpleNamespace(check=lambda *_: None)
    context = SimpleNamespace(host=broker.host, authorizer=allowing, caller=NOBODY)
    request = ListOffsets(topics=[AskedTopic(topic="t", **asked)])
    return list_offsets(cast(BrokerContext, context), request).topics["t"]


@pytest.mark.parametrize("error", [LeaderUnavailable("no leader"), StorageFailure("cannot open")])
def test_facts_of_led_partitions_need_no_leader_of_the_others(
    around: Surroundings, error: IsologError
):
    """A partition without a leader, or with files that cannot be opened, hides no other one."""
    a = around.start("a")
    make(a, "t", "a", "a", "a")
    if isinstance(error, StorageFailure):
        a.host.topic("t").replicas[1] = error
    else:
        del a.host.topic("t").replicas[1]
    found = offsets(a, facts=True)
    assert list(found.partitions) == [0, 2]
    assert [each.partition for each in found.elsewhere] == [1]
    with pytest.raises(type(error)):  # of a reader, which needs all of them
        offsets(a)
    with pytest.raises(UnknownPartition):
        offsets(a, facts=True, partitions=[7])


def test_the_bounds_of_an_answer_are_of_one_observation(around: Surroundings, monkeypatch):
    """Also if records are appended while the answer is made."""
    a = around.start("a")
    make(a, "t", "a")
    partition = a.partition("t")
    partition.append(numbers(0, 5))
    facts = Partition.facts

    def later(self: Partition) -> PartitionFacts:
        found = facts(self)
        partition.append(numbers(5, 5))
        return found if len(calls) else facts(self)

    calls: list[int] = []
    for _ in range(2):
        monkeypatch.setattr(Partition, "facts", later)
        found = offsets(a, facts=True).partitions[0]
        assert found.facts is not None
        assert found.facts.high_watermark is not None
        assert found.log_start_offset <= found.facts.high_watermark <= found.log_end_offset
        assert found.facts.last_stable_offset == found.facts.high_watermark
        calls.append(1)


@pytest.mark.parametrize("isolation", list(Isolation))
def test_an_offset_is_not_above_the_log_end_of_its_answer(
    around: Surroundings, monkeypatch, isolation: Isolation
):
    """Otherwise a query takes the records between them for truncated ones."""
    a = around.start("a")
    make(a, "t", "a")
    partition = a.partition("t")
    partition.append(numbers(0, 5))
    bounds = Partition.bounds

    def later(self: Partition, *isolation: Isolation) -> Bounds:
        found = bounds(self, *isolation)
        partition.append(numbers(5, 5))
        return found

    monkeypatch.setattr(Partition, "bounds", later)
    found = offsets(a, isolation=isolation).partitions[0]
    assert found.offset <= found.log_end_offset


@pytest.mark.parametrize("shape", list(Listing))
def test_the_command_line_shows_an_unknown_high_watermark(shape, capsys):
    partition = PartitionDescription(0, "b", 1, ("a", "b"), ("b",), 0, 4, None, None)
    topic = TopicDescription("t", "id", NUMBERS, {}, (partition,))
    out = io.StringIO()
    show_topic(topic, shape, Console(file=out, width=200))
    shown = out.getvalue() + capsys.readouterr().out
    if shape is Listing.JSON:
        assert '"high_watermark": null' in shown
    else:
        assert "None" not in shown
        assert "partition 0: the new leader has not determined HW and LSO yet" in shown
