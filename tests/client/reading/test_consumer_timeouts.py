"""The timeout of a consumer without records."""

from __future__ import annotations

import threading
import time

import pytest

from isolog.errors import InvalidOption

LEVELS = ["read_uncommitted", "read_replicated", "read_committed", "read_atomic"]


@pytest.mark.quick("read_committed")
@pytest.mark.parametrize("isolation", LEVELS)
def test_iteration_ends_after_its_timeout_without_a_record(log, topic, isolation):
    log.create_topic(topic, partitions=2)
    with log.producer(isolation="read_committed") as producer:
        for number in range(4):
            producer.send(topic, b"x", partition=number % 2)
    with log.consumer(topic, isolation=isolation) as consumer:
        began = time.monotonic()
        assert len(list(consumer.records(timeout=1))) == 4
        assert time.monotonic() - began >= 1
        assert list(consumer.batches(timeout=0)) == []
        assert sum(consumer.position().values()) == 4


def test_each_record_restarts_the_timeout(log, topic):
    log.create_topic(topic)
    stopped = threading.Event()
    with log.producer() as producer, log.consumer(topic) as consumer:

        def send() -> None:
            for _ in range(4):
                producer.send(topic, b"x").result(20)
                stopped.wait(0.35)

        sender = threading.Thread(target=send)
        sender.start()
        found = list(consumer.records(timeout=1))  # less than the sum of the pauses
        sender.join()
    assert len(found) == 4


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_an_invalid_timeout_is_refused(log, topic, timeout):
    log.create_topic(topic)
    with log.consumer(topic) as consumer, pytest.raises(InvalidOption, match="timeout takes"):
        next(consumer.records(timeout=timeout))
