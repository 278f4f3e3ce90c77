"""The leaders in the answers of any broker, and the leader epochs of requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import isolog
from spark_stream.errors import (
    DataLoss,
    IsologError,
    LeaderEpochFenced,
    UnknownLeaderEpoch,
    UnknownTopic,
    from_wire,
)
from tests.broker.stamped import Appender, refused
from tests.brokers import brokers_on
from tests.support import NUMBERS, BrokerProcess, Channel, act, fetched, listed, numbers


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    """A leads topic ``a`` and B leads topic ``b``. Each topic has two partitions."""
    with brokers_on(tmp_path_factory.mktemp("leaders"), a="a", b="b") as found:
        yield found


def test_any_broker_returns_all_leaders(brokers):
    for asked in brokers:
        channel = asked.channel()
        for topic, leader in zip("ab", brokers, strict=True):
            found = act(channel, "find-leaders", topic=topic)
            addresses = {each["address"] for each in found["partitions"]}
            assert addresses == {leader.address}
            assert [each["partition"] for each in found["partitions"]] == [0, 1]
            assert {each["leader"] for each in found["partitions"]} == {topic}
            assert [each["leader_epoch"] for each in found["partitions"]] == [0, 0]


def test_leaders_are_not_returned_for_an_old_topic_id(brokers):
    error = refused(lambda: act(brokers[0].channel(), "find-leaders", topic="a", topic_id="old"))
    assert isinstance(error, UnknownTopic)


def test_any_broker_lists_all_brokers(brokers):
    for asked in brokers:
        found = act(asked.channel(), "list-brokers")["brokers"]
        assert sorted(each["address"] for each in found) == sorted(each.address for each in brokers)
        assert len({each["id"] for each in found}) == 2


def test_broker_lists_only_offsets_of_its_partitions(brokers):
    for asked in brokers:
        channel = asked.channel()
        for topic, leader in zip("ab", brokers, strict=True):
            found = listed(channel, topic, partitions=[1])
            here = asked is leader
            assert list(found.offsets) == ([1] if here else [])
            elsewhere = [(each.partition, each.address) for each in found.elsewhere]
            assert elsewhere == ([] if here else [(1, leader.address)])


def test_client_gets_all_offsets_through_any_broker(brokers):
    for asked in brokers:
        with asked.connect() as log:
            for topic in "ab":
                assert log.read(topic).num_rows == 0
                with log.consumer(topic, start="latest") as consumer:
                    assert consumer.position() == {(topic, 0): 0, (topic, 1): 0}


# -- the leader epoch in requests and answers ------------------------------------------------------


@pytest.fixture
def led(tmp_path) -> Iterator[tuple[isolog.Log, BrokerProcess]]:
    """A broker in its second leader epoch, with a topic ``t`` of ten numbers from the first."""
    with BrokerProcess(tmp_path / "log") as broker:
        with broker.connect() as log:
            log.create_topic("t", schema=NUMBERS)
            with log.producer() as producer:
                producer.append("t", numbers(0, 10))
        broker.restart_in_a_new_epoch()
        with broker.connect() as log:
            yield log, broker


def put(channel: Channel, leader_epoch: int | None) -> dict[str, Any]:
    envelope = {} if leader_epoch is None else {"leader_epoch": leader_epoch}
    return Appender(channel).append(0, numbers(0, 1), **envelope)


def epoch_of(channel: Channel) -> int:
    return int(act(channel, "find-leaders", topic="t")["partitions"][0]["leader_epoch"])


@pytest.mark.rule("the leader epoch of a request", "broker/partition/partition.py")
def test_fetch_in_another_epoch_is_refused_with_the_current_one(led):
    channel = led[1].channel()
    present = epoch_of(channel)
    assert present > 0
    assert fetched(channel, "t", leader_epoch=present)[1]["leader_epoch"] == present
    assert fetched(channel, "t")[1]["leader_epoch"] == present
    for asked, kind in ((present - 1, LeaderEpochFenced), (present + 1, UnknownLeaderEpoch)):
        error = refused(lambda asked=asked: fetched(channel, "t", leader_epoch=asked))
        assert type(error) is kind
        assert error.retriable
        assert error.details["leader_epoch"] == present


def test_append_in_another_epoch_is_refused(led):
    channel = led[1].channel()
    present = epoch_of(channel)
    for asked, kind in ((present - 1, LeaderEpochFenced), (present + 1, UnknownLeaderEpoch)):
        ack = put(channel, asked)
        error: IsologError = from_wire(ack["error"])
        assert type(error) is kind
    assert led[0].read("t").num_rows == 10
    for asked in (None, present):
        assert put(channel, asked)["leader_epoch"] == present
    assert led[0].read("t").num_rows == 12


def test_start_above_the_end_of_its_epoch_is_a_data_loss_with_its_offset(led):
    channel = led[1].channel()
    put(channel, None)  # offset 10 is in the second epoch
    batches, end = fetched(channel, "t", start=10, start_lineage=[[0, 10]])
    assert (sum(each.num_rows for each, _ in batches), end["next"]) == (1, 11)
    assert end["lineage"] == [[epoch_of(channel), 11]]
    error = refused(lambda: fetched(channel, "t", start=11, start_lineage=[[0, 11]]))
    assert type(error) is DataLoss
    assert error.details["left"] == 10
    assert fetched(channel, "t", start=11, start_lineage=end["lineage"])[1]["next"] == 11
