"""A member of a group that is closed while the metadata store does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from isolog.errors import MetadataUnavailable
from spark_stream.broker.process import Broker
from spark_stream.client import groups
from spark_stream.consistency.isolation import ReaderState
from tests.brokers import broker_here
from tests.support import NUMBERS, eventually, numbers


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """In this process, so that a test can make its store fail."""
    with broker_here(tmp_path) as found:
        yield found


def test_a_closed_member_leaves_when_the_store_answers_again(broker, monkeypatch):
    def unavailable(*_: object, **__: object) -> None:
        raise MetadataUnavailable("the store does not answer")

    monkeypatch.setattr(groups, "LEAVE_S", 0.1)
    with isolog.connect(broker.address) as log:
        log.create_topic("t", schema=NUMBERS)
        with log.producer() as producer:
            producer.append("t", numbers(0, 3))
        consumer = log.consumer("t", group="g")
        next(consumer.batches())
        consumer.commit()
        with monkeypatch.context() as outage:
            outage.setattr(broker.core.store, "put", unavailable)
            consumer.close()
        eventually(lambda: not log.describe_consumer("g")[0].group.members)
        assert log.describe_consumer("g")[0].state is ReaderState.EMPTY
