"""The values that the console computes from answers of brokers: no clock, no broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.leaders import PartitionSeen
from spark_stream.console.client import (
    BrokerAnswers,
    ConsoleClient,
    RecentSamples,
    answers_of,
    failovers,
    full_in_s,
    growth,
    leader_changes,
    note_leaders,
    on_disks,
    partition_shown,
)
from spark_stream.wire.topic_messages import (
    EpochStart,
    OpenExtent,
    PartitionFacts,
    PartitionOffset,
)


def test_a_partition_shows_records_held_back_up_to_the_high_watermark():
    open_ = [OpenExtent(transaction=7, first_offset=10), OpenExtent(transaction=8, first_offset=20)]
    facts = PartitionFacts(
        high_watermark=40, last_stable_offset=10, size=0, followers={}, epochs=[], open=open_
    )
    found = PartitionOffset(
        offset=100, epoch=1, log_start_offset=0, log_end_offset=100, facts=facts
    )
    shown = partition_shown(0, PartitionSeen("1", 0.0, "id", found), {})
    assert [(each["transaction"], each["held_back"]) for each in shown["open"]] == [(7, 30), (8, 0)]


def test_unanswered_requests_of_an_earlier_process_of_a_broker_do_not_count():
    client = ConsoleClient(cast("ClusterConnection", None))
    client.note_process("1", 40.0, 41.0)
    for action in ("status", "list-offsets"):
        client.answers.add(("1", action), 1.0, None)
        client.answers.add(("2", action), 1.0, None)
    client.note_process("1", 38.0, 40.5)  # the answer was slow
    assert client.answers_of("1").unanswered == 2
    client.note_process("1", 40.6, 41.5)  # it started after that
    assert client.answers_of("1") == BrokerAnswers(0, 0, None)
    assert client.answers_of("2").unanswered == 2


def test_rate_covers_the_last_seconds():
    recent: RecentSamples[str, float] = RecentSamples(10.0)
    for second in range(30):
        recent.add("a", float(second), 5.0 * second if second < 15 else 75.0)
    assert growth(recent.of("a")) == 0.0
    recent.add("a", 30.0, 75.0)
    recent.add("a", 30.0, 990.0)  # the same sample again
    assert growth(recent.of("a")) == 0.0
    assert growth(recent.of("b")) == 0.0
    recent.keep(["b"])
    assert not recent.of("a")


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        ([], None),
        ([(0.0, 100.0)], None),
        ([(0.0, 100.0), (10.0, 50.0)], None),  # too early
        ([(0.0, 100.0), (60.0, 100.0)], None),
        ([(0.0, 100.0), (60.0, 130.0)], None),  # retention freed space
        ([(0.0, 100.0), (30.0, 90.0), (60.0, 40.0)], 40.0),
    ],
)
def test_a_disk_is_forecast_to_be_full_by_its_growth(free, expected):
    assert full_in_s(free) == expected


def test_the_answers_of_a_broker_are_summarised():
    assert answers_of([]) == BrokerAnswers(0, 0, None)
    assert answers_of([(0.0, None), (1.0, None)]) == BrokerAnswers(2, 2, None)
    assert answers_of([(0.0, 0.1), (1.0, None), (2.0, 0.3), (3.0, 0.2)]) == BrokerAnswers(4, 1, 0.2)


def seen(leader: str, epoch: int, *epochs: int, size: int = 100) -> PartitionSeen:
    starts = [EpochStart(epoch=each, offset=10 * each, began_ms=each) for each in epochs]
    facts = PartitionFacts(
        high_watermark=0,
        last_stable_offset=0,
        size=size,
        followers={"9": 0},
        epochs=starts,
        open=[],
    )
    found = PartitionOffset(
        offset=0, epoch=epoch, log_start_offset=0, log_end_offset=9, facts=facts
    )
    return PartitionSeen(leader, 1.0, "id", found)


def test_leader_change_names_observed_leaders():
    first, second = {"t": {0: seen("1", 3, 0, 3)}}, {"t": {0: seen("2", 4, 0, 3, 4)}}
    leaders = note_leaders(note_leaders({}, first), second)
    changes = leader_changes(second, leaders)
    found = [(each["epoch"], each["before"], each["leader"]) for each in changes]
    assert found == [(4, "1", "2"), (3, None, "1"), (2, None, None), (1, None, None)]
    assert note_leaders(leaders, {}) == {}


def test_observed_leaders_survive_an_unavailable_partition():
    leaders = note_leaders({}, {"t": {0: seen("1", 3, 0, 3)}})
    leaders = note_leaders(leaders, {"t": {}})
    after = {"t": {0: seen("2", 4, 0, 3, 4)}}
    change = leader_changes(after, note_leaders(leaders, after))[0]
    assert (change["before"], change["leader"]) == ("1", "2")


def test_leader_changes_without_records_are_listed():
    """A log has no entry of an epoch without appends."""
    first, second = {"t": {0: seen("1", 1, 0)}}, {"t": {0: seen("2", 5, 0, 3)}}
    leaders = note_leaders(note_leaders({}, first), second)
    changes = leader_changes(second, leaders)
    found = [(each["epoch"], each["before"], each["leader"], each["offset"]) for each in changes]
    assert found == [
        (5, None, "2", None),
        (4, None, None, None),
        (3, None, None, 30),
        (2, "1", None, None),
        (1, None, "1", None),
    ]
    assert [each["began_ms"] for each in changes] == [1000, None, 3, None, 1000]
    assert [each["epoch"] for each in leader_changes({"t": {0: seen("1", 2)}}, {})] == [2, 1]


def test_topics_on_a_disk_are_sorted_by_growth():
    partitions = {"big": {0: seen("1", 0, size=900)}, "grows": {0: seen("2", 0), 1: seen("1", 0)}}
    found = on_disks(partitions, {("grows", 0): 5.0, ("grows", 1): 7.0})
    assert [(each["topic"], each["size"], each["bytes_per_s"]) for each in found["1"]] == [
        ("grows", 100, 7),
        ("big", 900, 0),
    ]
    assert found["9"][0] == {"topic": "grows", "size": 200, "bytes_per_s": 12}


def change(partition: int, at_ms: int | None, before: str | None, leader: str) -> dict[str, Any]:
    names = {"topic": "t", "partition": partition, "began_ms": at_ms, "offset": 0, "epoch": 1}
    return names | {"before": before, "leader": leader}


def test_failover_has_all_partitions_of_a_leader_and_time():
    changes = [
        change(0, 90_000, "1", "2"),
        change(1, 89_000, "3", "2"),
        change(2, 70_000, "1", "3"),
        change(3, 41_000, "1", "3"),
        change(4, 10_000, "1", "1"),
        change(5, None, None, "2"),
        change(6, None, None, "3"),
    ]
    found = failovers(changes, {"1": 95_000, "3": 20_000, "2": 0})
    shown = [(each["reason"], [one["partition"] for one in each["changes"]]) for each in found]
    assert shown == [
        ("restarted", [0, 2, 3]),
        ("moved", [1]),
        ("reelected", [4]),
        ("unknown", [5, 6]),
    ]
    assert (found[0]["first_ms"], found[0]["last_ms"]) == (41_000, 90_000)
    assert failovers(changes[:1], {})[0]["reason"] == "died"


def test_failover_is_never_cut():
    many = [change(number, 0, "1", "2") for number in range(3_000)]
    found = failovers([*many, change(9, -90_000, "1", "2")], {})
    assert [len(each["changes"]) for each in found] == [3_000]
