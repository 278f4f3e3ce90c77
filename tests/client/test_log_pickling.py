"""Clients and their objects cannot be pickled or copied. Plain data can."""

from __future__ import annotations

import copy
import pickle

import pytest

from isolog.errors import NotPicklable, UnknownTopic
from spark_stream.aio.log import AsyncLog, AsyncProducer, SentWrite
from tests.support import values


@pytest.mark.rule(
    "objects that can be pickled and copied",
    "transport/lifetime.py",
)
def test_clients_and_futures_cannot_be_pickled_or_copied(log, topic):
    log.create_topic(topic)
    with (
        log.producer() as producer,
        log.producer(transactional_id=topic) as transactional,
        log.consumer(topic) as consumer,
        log.consumer(topic, group=topic) as member,
    ):
        appended = producer.append(topic, values("v"))
        sent = producer.send(topic, b"v")
        objects = [log, log._connection, producer, transactional, consumer, member, appended, sent]
        objects += [transactional.transaction(), SentWrite(sent)]
        objects += [AsyncLog(log), AsyncProducer(producer), AsyncLog(log).producer()]
        for each in objects:
            name = type(each).__name__
            for call in (pickle.dumps, copy.copy, copy.deepcopy, lambda one: pickle.dumps([one])):
                with pytest.raises(NotPicklable, match=rf"^\[NOT_PICKLABLE\] a {name} cannot"):
                    call(each)
            with pytest.raises(NotPicklable, match="foreachPartition"):
                pickle.dumps(holder_of(each))


class Holder:
    """An object of a user, which refers to a client."""


def holder_of(of: object) -> Holder:
    holder = Holder()
    holder.of = of
    return holder


def test_answers_records_and_errors_can_be_pickled(log, topic):
    created = log.create_topic(topic)
    with log.producer() as producer:
        written = producer.send(topic, b"v", key=b"k").result(20)
    with log.consumer(topic) as consumer:
        [record] = consumer.poll(20)
    objects = [
        created,
        log.describe(topic),
        written,
        record,
        log.cluster(),
        log.plan_trim(topic, 0),
    ]
    for each in objects:
        for again in (pickle.loads(pickle.dumps(each)), copy.copy(each), copy.deepcopy(each)):
            assert again == each
    error = pickle.loads(pickle.dumps(UnknownTopic("no topic", topic=topic)))
    assert (type(error), error.message, error.details) == (
        UnknownTopic,
        "no topic",
        {"topic": topic},
    )
