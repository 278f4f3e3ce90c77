"""Two brokers on one store: each has the logs that it leads, and serves all control calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_stream.errors import (
    LeaderUnavailable,
    NotLeader,
    TopicExists,
    UnknownTopic,
    WrongCluster,
    from_wire,
)
from spark_stream.transport.streams import ConnectionLost
from tests.broker.stamped import Appender, Owner, bounds, refused, seen
from tests.brokers import brokers_on, conf, make_topic
from tests.support import BrokerProcess, Channel, act, eventually, fetched

COMMITTED = "read_committed"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BrokerProcess]]:
    with brokers_on(tmp_path_factory.mktemp("pair"), a="a", b="b") as found:
        yield found


class SpanningTransaction:
    """One transaction over both topics, begun at one broker and written at the leaders."""

    def __init__(self, begun_at: Any, a: Any, b: Any) -> None:
        self.owner = Owner(begun_at).begin()
        self.leaders = {"a": a, "b": b}

    def put(self, topic: str, first: int) -> None:
        owner = self.owner
        stream = Appender(self.leaders[topic], topic, owner.name)
        ack = stream.put(first, 1, owner.producer, 0, epoch=owner.epoch, transaction=owner.number)
        assert "error" not in ack, ack
        stream.close()


def put_alone(channel: Channel, topic: str, value: int) -> None:
    """Append a record outside any transaction. Raise the error of a refusal."""
    stream = Appender(channel, topic)
    ack = stream.put(value, 1, act(channel, "new-producer")["producer_id"], 0)
    stream.close()
    if "error" in ack:
        raise from_wire(ack["error"])


@pytest.mark.parametrize("begun_at", [0, 1])
@pytest.mark.parametrize("asked", [0, 1])
def test_commit_by_either_broker_writes_markers_at_both(brokers, begun_at, asked):
    a, b = (each.channel() for each in brokers)
    flights = (a, b)
    before = [bounds(each, topic)[2] for each, topic in ((a, "a"), (b, "b"))]
    both = SpanningTransaction(flights[begun_at], a, b)
    value = 100 + 10 * begun_at + asked
    both.put("a", value)
    both.put("b", value)
    assert bounds(a, "a")[0] == before[0]
    both.owner.channel = flights[asked]
    assert both.owner.commit()["state"] == "committed"
    for each, topic, start in ((a, "a", before[0]), (b, "b", before[1])):
        assert bounds(each, topic) == (start + 1,) * 3
        assert seen(each, topic, COMMITTED)[-1] == value
        assert seen(each, topic, "read_atomic")[-1] == value
    again = both.owner.begin()
    assert again.number > 0
    again.abort()


def test_cut_over_both_brokers_splits_no_transaction(brokers):
    a, b = (each.channel() for each in brokers)
    both = SpanningTransaction(a, a, b)
    both.put("a", 1)
    both.put("b", 1)
    topics = [{"topic": "a"}, {"topic": "b"}]
    before = [act(each, "atomic-cut", topics=topics)["offsets"] for each in (a, b)]
    assert before[0] == before[1]
    both.owner.commit()
    ends = {"a": bounds(a, "a")[2], "b": bounds(b, "b")[2]}
    for each in (a, b):
        cut = act(each, "atomic-cut", topics=topics)["offsets"]
        assert {topic: cut[topic]["0"] for topic in ends} == ends
        assert before[0]["a"]["0"] == ends["a"] - 1
        upper = [{"topic": "a", "upper": {"0": ends["a"] - 1}}, {"topic": "b"}]
        lowered = act(each, "atomic-cut", topics=upper)["offsets"]
        assert lowered["b"]["0"] == ends["b"] - 1


def test_partition_is_written_and_read_only_at_its_leader(brokers):
    """The error of another broker contains the leader, its address and its epoch."""
    first, second = brokers
    with first.channel() as a:
        with pytest.raises(NotLeader) as caught:
            put_alone(a, "b", 1)
        for error in (caught.value, refused(lambda: fetched(a, "b"))):
            assert isinstance(error, NotLeader), error
            assert error.retriable
            assert second.address in str(error)
            assert (error.details["leader"], error.details["epoch"]) == ("b", 0)


def test_any_broker_creates_describes_alters_and_deletes_any_topic(brokers):
    first, second = brokers
    with first.channel() as a, second.channel() as b:
        make_topic(a, "far", [["b"]])
        put_alone(b, "far", 7)
        described = act(a, "describe-topic", topic="far")
        assert described == act(b, "describe-topic", topic="far")
        (partition,) = described["partitions"]
        assert (partition["leader"], partition["replicas"], partition["isr"]) == ("b", ["b"], ["b"])
        assert partition["log_end_offset"] == 1
        for each in (a, b):
            assert act(each, "list-topics") == {"topics": ["a", "b", "far"]}
        act(a, "alter-topic", topic="far", partitions=2, config={"retention.ms": "7000"})
        altered = act(b, "describe-topic", topic="far")
        assert len(altered["partitions"]) == 2
        assert altered["config"]["retention.ms"] == "7000"
        act(a, "delete-topic", topic="far")
        assert isinstance(refused(lambda: act(b, "describe-topic", topic="far")), UnknownTopic)
    eventually(lambda: not (second.directory / "topics" / "far").exists())


def test_brokers_create_files_only_for_their_topics(brokers):
    first, second = brokers
    for broker, topic in ((first, "a"), (second, "b")):
        with broker.channel() as channel:
            put_alone(channel, topic, 1)
    assert sorted(each.name for each in (first.directory / "topics").iterdir()) == ["a"]
    assert sorted(each.name for each in (second.directory / "topics").iterdir()) == ["b"]


def test_topic_name_is_unique_over_both_brokers(brokers):
    a, b = (each.channel() for each in brokers)
    make_topic(a, "once", [["a"]])
    made_anew = refused(lambda: make_topic(b, "once", [["b"]]))
    assert isinstance(made_anew, TopicExists)
    act(a, "delete-topic", topic="once")
    make_topic(b, "once", [["b"]])
    assert [each["leader"] for each in act(a, "describe-topic", topic="once")["partitions"]] == [
        "b"
    ]
    act(b, "delete-topic", topic="once")


@pytest.mark.rule(
    "calls to a partition that another broker leads",
    "broker/scripting/driver.py",
    "broker/scripting/peers.py",
)
def test_dropped_branch_is_aborted_at_both_brokers(brokers):
    a, b = (each.channel() for each in brokers)
    name = "sink-of-both"
    who = {"transactional_id": name, "query": "q", "instance": "run", "batch": 0}
    branch = act(a, "open-branch", **who)
    number, producer = branch["number"], branch["producer_id"]
    for each, topic in ((a, "a"), (b, "b")):
        stream = Appender(each, topic, name)
        stream.put(9, 1, producer, 0, transaction=number)
        stream.close()
    drop = {"instance": "run", "number": number, "producer_id": producer}
    act(a, "drop-branch", transactional_id=name, **drop)
    for each, topic in ((a, "a"), (b, "b")):
        assert bounds(each, topic)[0] == bounds(each, topic)[2]
    act(b, "kill-transaction", transactional_id=name)


# -- killed and restarted brokers -----------------------------------------------------------------


def test_restarted_brokers_open_only_their_topics(tmp_path: Path):
    """Otherwise a broker would create and serve empty logs of the other's topics."""
    with brokers_on(tmp_path, a="a", b="b") as (first, second):
        for broker, topic in ((first, "a"), (second, "b")):
            with broker.channel() as channel:
                put_alone(channel, topic, 1)
        first.restart()
        second.kill()
        second.restart()
        assert [each.name for each in (first.directory / "topics").iterdir()] == ["a"]
        with first.channel() as a, second.channel() as b:
            assert seen(b, "b", COMMITTED) == [1]
            assert isinstance(refused(lambda: fetched(a, "b")), NotLeader)


def test_commit_fails_and_abort_finishes_after_the_restart_of_a_leader(tmp_path: Path):
    """A commit decided without that leader could become visible in part."""
    with brokers_on(tmp_path, a="a", b="b") as (first, second):
        a, b = first.channel(), second.channel()
        both = SpanningTransaction(a, a, b)
        both.put("a", 1)
        both.put("b", 1)
        # A commit fsyncs all partitions before its decision. An abort needs no fsync.
        second.kill()
        refusal = refused(both.owner.commit)
        assert isinstance(refusal, LeaderUnavailable), refusal
        assert both.owner.described()["state"] == "open"
        assert isinstance(refused(both.owner.abort), LeaderUnavailable)
        assert both.owner.described()["state"] == "aborting"
        assert bounds(a, "a") == (0, 1, 1)
        second.restart()
        eventually(lambda: both.owner.described()["state"] == "aborted")
        assert bounds(a, "a") == (1, 1, 1)
        with second.channel() as b:
            assert bounds(b, "b") == (1, 1, 1)
            assert seen(b, "b", COMMITTED) == []


def test_transaction_decided_by_a_killed_broker_is_finished_by_the_other(tmp_path: Path):
    """B writes no marker before the partition of A is sealed. Then it finishes the transaction."""
    with brokers_on(tmp_path, point="decided", a="a", b="b") as (first, second):
        a, b = first.channel(), second.channel()
        both = SpanningTransaction(b, a, b)  # so B is its coordinator
        both.put("a", 1)
        both.put("b", 1)
        first.arm()
        both.owner.channel = a
        with pytest.raises(ConnectionLost):
            both.owner.commit()
        eventually(lambda: first.died)
        both.owner.channel = b
        assert both.owner.described()["state"] == "committing"
        assert bounds(b, "b") == (0, 1, 1)
        first.restart()
        eventually(lambda: both.owner.described()["state"] == "committed")
        with first.channel() as again:
            assert seen(again, "a", COMMITTED) == [1]
            assert seen(b, "b", COMMITTED) == [1]


def test_directory_of_another_cluster_is_refused(tmp_path: Path):
    with BrokerProcess(tmp_path / "alone"):
        pass
    with BrokerProcess(tmp_path / "a", conf=conf(tmp_path, "a")):
        pass
    elsewhere = f'metadata = "{tmp_path / "metadata.sqlite"}"\n'
    with pytest.raises(WrongCluster):
        BrokerProcess(tmp_path / "alone", conf=elsewhere).start()
