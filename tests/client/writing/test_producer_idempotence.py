"""Idempotent producers: a batch is in the log once and in order, after any number of retries."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

import isolog
from isolog.errors import IsologError, RecordTooLarge, UnknownOutcome
from spark_stream.client.writing.lanes import ProducerIdentity
from tests.client.proxy import Proxy
from tests.support import BrokerProcess, eventually, numbers, values


def found(log: isolog.Log, topic: str = "t", partition: int | None = None) -> list[int]:
    """Return the values of a partition in the order of their offsets."""
    with log.consumer(topic) as consumer:
        records = list(consumer.records(until="latest"))
    return [int(each.value) for each in records if partition in (None, each.partition)]


def end(log: isolog.Log, partition: int = 0) -> int:
    return log.describe("t").partitions[partition].log_end_offset


@pytest.fixture
def proxy(broker: BrokerProcess) -> Iterator[Proxy]:
    with Proxy(broker.address) as relay:
        yield relay


@pytest.fixture
def direct(broker: BrokerProcess) -> Iterator[isolog.Log]:
    """A log without the proxy, with a topic ``t`` of two partitions."""
    with broker.connect() as log:
        log.create_topic("t", partitions=2)
        yield log


def test_a_batch_is_retried_after_a_lost_acknowledgement(direct, proxy):
    with isolog.connect(proxy.address) as log, log.producer() as producer:
        producer.append("t", values("0"), 0).result(20)
        proxy.lose_answers()
        sent = producer.append("t", values("1", "2"), 0)
        eventually(lambda: end(direct) == 3)
        assert not sent.done()
        proxy.cut()
        written = sent.result(20)
        assert (written.offset, written.count) == (1, 2)
        assert producer.append("t", values("3"), 0).result(20).offset == 3
    assert found(direct) == [0, 1, 2, 3]


def test_many_lost_acknowledgements_keep_the_order(direct, proxy):
    """There are more batches than the window, and at most a window of them is in flight."""
    with isolog.connect(proxy.address) as log, log.producer() as producer:
        for partition in range(2):
            producer.append("t", values("0"), partition).result(20)
        proxy.lose_answers()
        sent = [producer.append("t", values(str(n)), n % 2) for n in range(2, 102)]
        eventually(lambda: end(direct) == end(direct, 1) == 6)
        proxy.cut()
        offsets = [future.result(20).offset for future in sent]
        assert offsets == [1 + n // 2 for n in range(100)]
    assert found(direct, partition=0) == [0, *range(2, 102, 2)]
    assert found(direct, partition=1) == [0, *range(3, 102, 2)]


def test_repeatedly_lost_connections_cause_no_duplicates(direct, proxy):
    """Connections are closed at random times. Each record occurs once, in order."""
    chance = random.Random(7)
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(chance.uniform(0.05, 0.2)):
            if chance.random() < 0.5:
                proxy.lose_answers()
                stop.wait(0.05)
            proxy.cut()

    with isolog.connect(proxy.address) as log, log.producer() as producer:
        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            futures = []
            for n in range(600):
                futures.append(producer.append("t", values(str(n)), n % 2))
                if n % 20 == 0:
                    futures[-1].result(30)
            offsets = [future.result(30).offset for future in futures]
        finally:
            stop.set()
            cutter.join()
    assert offsets == [n // 2 for n in range(600)]
    for partition in range(2):
        assert found(direct, partition=partition) == list(range(partition, 600, 2))


@pytest.mark.quick("send")
@pytest.mark.parametrize("way", ["append", "send"])
def test_a_killed_broker_causes_no_loss_and_no_duplicates(broker, way):
    with broker.connect() as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            futures, stop = [], threading.Event()

            def write() -> None:
                while not stop.is_set():
                    n = len(futures)
                    if way == "append":
                        futures.append(producer.append("t", values(str(n)), n % 2))
                    else:
                        futures.append(producer.send("t", str(n), partition=n % 2))
                    if n % 50 == 49:
                        futures[n - 30].result(60)

            writer = threading.Thread(target=write)
            writer.start()
            for _ in range(3):
                before = len(futures)
                eventually(lambda before=before: len(futures) > before + 100)
                broker.kill()
                broker.restart()
            stop.set()
            writer.join(60)
            assert not writer.is_alive()
            offsets = [future.result(60).offset for future in futures]
        for partition in range(2):
            mine = offsets[partition::2]
            assert mine == list(range(len(mine)))
            assert found(log, partition=partition) == list(range(partition, len(futures), 2))


def test_a_producer_waits_for_a_restarting_broker(broker):
    with broker.connect() as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.append("t", values("0")).result(20)
            broker.pause()
            sent = [producer.append("t", values(str(n))) for n in range(1, 9)]
            broker.kill()
            assert not any(future.done() for future in sent)
            broker.restart()
            assert [future.result(20).offset for future in sent] == list(range(1, 9))
        assert found(log) == list(range(9))


def test_batches_after_an_unknown_outcome_keep_their_order(broker):
    """The batch may be in the log or not. Later batches do not depend on it."""
    with broker.connect(timeout=1) as log:
        log.create_topic("t")
        producer = log.producer(timeout_ms=1000)
        producer.append("t", values("0")).result(20)
        broker.pause()
        lost = [producer.append("t", values(str(n))) for n in range(1, 4)]
        for future in lost:
            assert isinstance(future.exception(10), UnknownOutcome)
        producer.flush()
        broker.resume()
        eventually(lambda: _answers(log))
        sent = [producer.append("t", values(str(n))) for n in range(4, 14)]
        offsets = [future.result(20).offset for future in sent]
        producer.close()
        assert offsets == list(range(offsets[0], offsets[0] + 10))
        there = found(log)
    assert there[0] == 0
    assert there == sorted(set(there))
    assert there[-10:] == list(range(4, 14))


def _answers(log: isolog.Log) -> bool:
    try:
        return bool(log.topics())
    except IsologError:
        return False


def test_a_refusal_before_a_restart_leaves_no_gap(broker):
    """A refused batch used a sequence that is not in the log. Later batches use new ones."""
    with broker.connect() as log:
        log.create_topic("t", config={"max.record.bytes": 100})
        producer = log.producer()
        producer.append("t", values("0")).result(20)
        for _ in range(2):
            refused = producer.append("t", values(b"x" * 1000))
            assert isinstance(refused.exception(20), RecordTooLarge)
        broker.kill()
        broker.restart()
        sent = [producer.append("t", values(str(n))) for n in range(1, 11)]
        assert [future.result(20).offset for future in sent] == list(range(1, 11))
        producer.close()
        assert found(log) == list(range(11))


def test_a_retried_batch_with_an_invalid_record_keeps_its_first_records_once(direct, proxy):
    """The kept records occur once, and the error is the same."""
    direct.create_topic("u", config={"max.record.bytes": 100})
    with isolog.connect(proxy.address) as log:
        producer = log.producer()
        producer.append("u", values("0")).result(20)
        proxy.lose_answers()
        sent = producer.append("u", values("1", "2", b"x" * 1000, "3"))
        eventually(lambda: direct.describe("u").partitions[0].log_end_offset == 3)
        proxy.cut()
        error = sent.exception(30)
        assert isinstance(error, RecordTooLarge)
        assert (error.kept, error.offset) == (2, 1)
        assert producer.append("u", values("3")).result(20).offset == 3
        producer.close()
    assert found(direct, "u") == [0, 1, 2, 3]


def test_a_gap_in_the_sequences_starts_a_new_epoch(log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.append(topic, values("0")).result(20)
        (target,) = producer._sender._core._targets.values()
        lane = target.lanes[0].lane
        identity = lane._used
        assert isinstance(identity, ProducerIdentity)
        assert lane._sequence == 1
        # A gap looks like a lost refusal to the leader: the lane begins the next epoch at 0.
        lane._sequence = 1000
        for n in range(1, 8):
            assert producer.append(topic, values(str(n))).result(20).offset == n
        assert lane._used == ProducerIdentity(identity.producer_id, identity.epoch + 1)
    assert found(log, topic) == list(range(8))


def test_every_producer_requests_its_own_id_once(log, topic):
    log.create_topic(topic, partitions=2)
    ids = set()
    for _ in range(2):
        with log.producer() as producer:
            assert producer._sender.identity is None
            for partition in range(2):
                producer.append(topic, values("v"), partition).result(20)
            ids.add(producer._sender.identity)
    assert len(ids) == 2


def test_a_recreated_topic_starts_its_sequences_at_zero(log, topic):
    """A topic that was deleted and created again starts every sequence at 0."""
    producer = log.producer()
    for turn in range(2):
        log.create_topic(topic)
        for n in range(3):
            if turn and n == 0:
                producer._topics.drop(topic)
            assert producer.append(topic, values(str(n))).result(20).offset == n
        log.delete_topic(topic)
    producer.close()


def test_a_retried_batch_of_a_typed_topic_is_stored_once(log, topic):
    log.create_topic(topic, schema=numbers(0, 1).schema)
    with log.producer() as producer:
        futures = [producer.append(topic, numbers(n, 1)) for n in range(100)]
    assert [future.result().offset for future in futures] == list(range(100))
