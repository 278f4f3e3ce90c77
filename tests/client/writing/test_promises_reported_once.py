"""A failure is reported once: by its future if the caller reads it, else by flush or close."""

from __future__ import annotations

from concurrent.futures import wait

import pytest

from isolog.errors import SchemaMismatch, TransactionAborted, UnknownTopic
from tests.support import numbers, values


def test_an_error_read_from_a_future_is_not_raised_again(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        assert isinstance(producer.append(topic, numbers(0, 1)).exception(20), SchemaMismatch)
        producer.flush()
        with pytest.raises(UnknownTopic):
            producer.send("no-such-topic", b"v").result(20)
        assert producer.send(topic, b"v").result(20).offset == 0


def test_an_unread_error_is_raised_by_flush_or_close(log, topic):
    log.create_topic(topic)
    producer = log.producer()
    taken, waited = (producer.append(topic, numbers(0, 1)) for _ in range(2))
    wait([taken, waited])
    taken.exception()
    with pytest.raises(SchemaMismatch):
        producer.flush()
    producer.send("no-such-topic", b"v")
    with pytest.raises(UnknownTopic):
        producer.close()


def test_a_reported_failed_write_still_aborts_the_commit(log, topic):
    log.create_topic(topic)
    with log.producer(transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.append(topic, values("a"))
        assert isinstance(producer.append(topic, numbers(0, 1)).exception(20), SchemaMismatch)
        producer.flush()
        with pytest.raises(TransactionAborted, match="a write failed"):
            producer.commit_transaction()
        with producer.transaction():
            producer.append(topic, values("b"))
    found = log.read(topic, isolation="read_committed")
    assert found["value"].to_pylist() == [b"b"]
