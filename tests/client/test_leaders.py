"""Requests that go to all brokers, or to the leaders of partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from isolog.errors import (
    BrokerUnavailable,
    IsologError,
    LeaderUnavailable,
    PermissionDenied,
    RequestTimeout,
)
from spark_stream.client.connecting.router import Router
from spark_stream.client.leaders import call_each, look_up_offsets
from spark_stream.wire.cluster_messages import GetStatus
from spark_stream.wire.topic_messages import (
    AskedTopic,
    LeaderFacts,
    ListedOffsets,
    ListOffsets,
    PartitionOffset,
    PartitionOffsets,
)


class Refusing:
    """A connection whose brokers all raise the same error."""

    def __init__(self, error: IsologError) -> None:
        self.error = error

    def to(self, broker: str, address: str) -> Refusing:
        return self

    def call(self, *_: object) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (LeaderUnavailable("a/0 has no leader at the moment"), True),
        (PermissionDenied("not for you"), True),
        (RequestTimeout("no answer"), False),
        (BrokerUnavailable("no connection"), False),
    ],
    ids=lambda each: each.code if isinstance(each, IsologError) else "",
)
def test_a_refused_call_counts_as_an_answer(error: IsologError, is_answer: bool) -> None:
    noted: list[tuple[str, bool]] = []
    connection: Any = Refusing(error)
    found = call_each(
        connection,
        {"1": "127.0.0.1:1"},
        GetStatus(),
        lambda broker, _, took_s: noted.append((broker, took_s is not None)),
    )
    assert (found, noted) == ({}, [("1", is_answer)])


class Answering:
    """A connection with one broker, which leads two partitions and gives these answers in turn."""

    timeout_s = 10.0
    rack = None

    def __init__(self, *epochs: tuple[int, int]) -> None:
        self.answers = [offsets_in(each) for each in epochs]

    def call(self, *_: object) -> ListedOffsets:
        return self.answers.pop(0)


def offsets_in(epochs: tuple[int, int]) -> ListedOffsets:
    """The answer of leaders in these epochs, in which each partition ends at 10 times its epoch."""
    found = {
        number: PartitionOffset(
            offset=10 * epoch, epoch=epoch, log_start_offset=0, log_end_offset=10 * epoch
        )
        for number, epoch in enumerate(epochs)
    }
    of_topic = PartitionOffsets(topic_id="id", partitions=found, schema_version=max(epochs))
    return ListedOffsets(topics={"a": of_topic}, unknown={})


def test_an_answer_of_a_replaced_leader_is_not_used() -> None:
    connection: Any = Answering((1, 2), (3, 1), (3, 1), (3, 4))
    router = Router(connection)
    asked = [AskedTopic(topic="a")]

    def offsets() -> dict[int, int]:
        return look_up_offsets(connection, router, asked).topics["a"].offsets

    assert offsets() == {0: 10, 1: 20}
    assert offsets() == {0: 30, 1: 40}
    assert not connection.answers


class TwoLeaders:
    """A connection with two brokers that lead a partition each, and a view of the schema each."""

    timeout_s = 10.0
    rack = None

    def __init__(self, *schema_versions: int) -> None:
        self.schema_versions = schema_versions

    def add_brokers(self, addresses: Iterable[str]) -> None: ...

    def at(self, address: str) -> TwoLeaders:
        return self

    def turn(self, *_: object) -> float:
        return 10.0

    def call(self, request: ListOffsets, _: float) -> ListedOffsets:
        number = 0 if request.topics[0].partitions is None else 1
        found = PartitionOffset(offset=5, epoch=1, log_start_offset=0, log_end_offset=5)
        other = LeaderFacts(partition=1, leader="2", address="127.0.0.1:2", leader_epoch=1)
        of_topic = PartitionOffsets(
            topic_id="id",
            partitions={number: found},
            elsewhere=[other] if number == 0 else [],
            schema_version=self.schema_versions[number],
        )
        return ListedOffsets(topics={"a": of_topic}, unknown={})


@pytest.mark.parametrize("schema_versions", [(1, 2), (2, 1)])
def test_the_latest_schema_of_all_leaders_is_returned(schema_versions: tuple[int, int]) -> None:
    connection: Any = TwoLeaders(*schema_versions)
    (found,) = look_up_offsets(
        connection, Router(connection), [AskedTopic(topic="a")]
    ).topics.values()
    assert (found.offsets, found.schema_version) == ({0: 5, 1: 5}, 2)
