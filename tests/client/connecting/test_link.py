"""The one connection of a process to a broker, shared by its clients while it is used."""

from __future__ import annotations

import os
import threading

import psutil
import pytest

import isolog
from isolog.errors import InvalidOption
from tests.support import BrokerProcess, eventually, values


def connections_to(broker: BrokerProcess) -> int:
    port = int(broker.address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in found)


def test_all_clients_of_a_process_share_a_connection_and_a_thread(broker):
    logs = [broker.connect() for _ in range(10)]
    logs[0].create_topic("t")
    producers = [log.producer() for log in logs]
    for producer in producers:
        producer.send("t", b"v").result(20)
    consumers = [log.consumer("t") for log in logs]
    batches = [consumer.batches() for consumer in consumers]
    assert all(next(each).num_rows for each in batches)
    assert connections_to(broker) == 1
    names = [each.name for each in threading.enumerate()]
    assert names.count("isolog-io") == 1
    for each in (*consumers, *producers, *logs[1:]):
        each.close()
    assert logs[0].read("t").num_rows == 10
    logs[0].close()
    eventually(lambda: connections_to(broker) == 0)


def test_a_collected_log_closes_its_connection(broker):
    log = broker.connect()
    assert connections_to(broker) == 1
    del log
    eventually(lambda: connections_to(broker) == 0)


@pytest.mark.rule(
    "connections of a process, also after a fork",
    "client/connecting/link.py",
    "transport/client.py",
)
def test_a_forked_child_opens_its_own_connection(broker):
    """As in Spark's workers. The parent's connection stays open although its child had a copy."""
    with broker.connect() as log:
        log.create_topic("t")
        producer = log.producer()
        producer.append("t", values("parent")).result(20)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if connections_to(broker) == 0:
                    with isolog.connect(broker.address) as own, own.producer() as writer:
                        writer.append("t", values("child")).result(20)
                        code = 0 if own.read("t").num_rows == 2 else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert connections_to(broker) == 1
        producer.append("t", values("parent")).result(20)
        assert log.read("t")["value"].to_pylist() == [b"parent", b"child", b"parent"]
        producer.close()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e12, "5"])
def test_an_invalid_timeout_is_refused(seconds):
    with pytest.raises(InvalidOption, match="timeout takes seconds, above 0 and up to"):
        isolog.connect("127.0.0.1:9", timeout=seconds)
