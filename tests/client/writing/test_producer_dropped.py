"""The cost of producers: idle ones, and those that were collected without ``close()``."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import isolog
from spark_stream.client.connecting.threads import THREADS_MAX, call_elsewhere
from tests.support import BrokerProcess, eventually, free_port, values


@pytest.mark.quick("True")
@pytest.mark.parametrize("transactional", [False, True])
def test_a_collected_producer_sends_its_records_and_is_freed(log, topic, transactional):
    log.create_topic(topic)
    senders = []
    for number in range(5):
        producer = log.producer(
            transactional_id=f"{topic}-{number}" if transactional else None, linger_ms=60_000
        )
        if transactional:
            producer.begin_transaction()
        producer.send(topic, b"1")
        senders.append(weakref.ref(producer._sender))
    del producer
    gc.collect()
    eventually(lambda: len(log.read(topic)) == 5)
    eventually(lambda: gc.collect() is not None and not any(each() for each in senders))


@pytest.mark.rule(
    "threads of producers, and collected producers",
    "client/writing/loop.py",
    "client/connecting/threads.py",
)
def test_two_hundred_producers_share_a_handful_of_threads(log, topic):
    log.create_topic(topic, partitions=4)
    before = {each.ident for each in threading.enumerate() if each.name != "isolog-io"}
    producers = [log.producer(linger_ms=number % 2) for number in range(200)]
    most = 0
    for turn in range(2):
        sent = [each.append(topic, values("v"), turn) for each in producers]
        sent += [each.send(topic, b"v") for each in producers]
        for future in sent:
            future.result(30)
            most = max(most, sum(each.ident not in before for each in threading.enumerate()))
    assert most <= 6
    for each in producers:
        each.close()
    assert len(log.read(topic)) == 800


@pytest.mark.full  # a quicker one has two hundred producers of a live broker
def test_producers_of_dead_brokers_share_the_threads_too(broker: BrokerProcess):
    with broker.connect(timeout=1) as log:
        log.create_topic("t")
        producers = [log.producer(timeout_ms=1500) for _ in range(20)]
        for each in producers:
            each.send("t", b"v").result(20)
        broker.kill()
        for each in producers:
            each.send("t", b"v")
        del each
        producers.clear()
        gc.collect()
        calls = [each for each in threading.enumerate() if each.name == "isolog-calls"]
        assert len(calls) <= THREADS_MAX
        eventually(lambda: sum(each.name == "isolog-calls" for each in threading.enumerate()) == 1)


def test_calls_with_one_key_occupy_one_thread():
    stuck, done, order = threading.Event(), threading.Event(), []
    for number in range(10):
        call_elsewhere(
            "a dead broker", lambda number=number: (stuck.wait(30), order.append(number))
        )
    call_elsewhere("a live broker", done.set)
    assert done.wait(10)
    assert order == []
    stuck.set()
    eventually(lambda: order == list(range(10)))


def test_a_producer_works_where_no_thread_can_be_started(log, topic, monkeypatch):
    """As in the shutdown of the interpreter. The thread of the connection is sufficient."""
    log.create_topic(topic, partitions=4)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    called = threading.Event()
    with log.producer() as producer:
        written = producer.append(topic, values("v"), 0)
        written.add_done_callback(lambda _: called.set())
        assert called.wait(20)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert producer.append(topic, values("v"), 1).result(20).offset == 0
        with log.producer() as other:
            assert other.send(topic, b"v", partition=2).result(20).offset == 0
        called.clear()
        producer.send(topic, b"v").add_done_callback(lambda _: called.set())
        assert called.wait(20)
        assert log.read(topic).num_rows == 4


def test_a_producer_without_a_broker_fails_in_time(tmp_path):
    """As when the broker of its log was removed. It retries, and gives up in time."""
    with BrokerProcess(tmp_path / "log", f"127.0.0.1:{free_port()}") as broker:
        log = isolog.connect(broker.address, timeout=1)
        log.create_topic("t")
        broker.kill()
        with log, log.producer(timeout_ms=700) as producer:
            assert producer.append("t", values("v")).exception(30) is not None
