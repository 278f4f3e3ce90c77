"""A member of a group that is closed while the metadata store does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from isolog.errors import MetadataUnavailable
from spark_stream.broker.config import BrokerConfig
from spark_stream.broker.process import Broker
from spark_stream.client import groups
from spark_stream.consistency.reader_states import ReaderState
from tests.support import NUMBERS, eventually, numbers


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """In this process, so that a test can make its store fail."""
    mask = os.umask(0o077)
    found = Broker(BrokerConfig(dir=tmp_path / "log", listen="127.0.0.1:0"))
    yield found
    found.stop()
    os.umask(mask)


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
