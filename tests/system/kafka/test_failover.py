"""Kafka clients while leaders die: each acknowledged record is stored once, in order."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest

from isolog.testing import LocalCluster
from spark_stream.client.connecting.access import Access
from spark_stream.kafka.gateway import KafkaGateway
from spark_stream.kafka.logins import ClusterUsers, connector
from spark_stream.kafka.peers import GatewayAddress, Gateways
from tests.examples import is_quick

pytestmark = pytest.mark.slow

RECORDS = 3_000 if is_quick() else 30_000
PARTITIONS = 3
WAIT_S = 120.0


def test_an_idempotent_producer_leaves_no_duplicate_and_no_gap(tmp_path):
    with (
        LocalCluster(3, cuttable=False, folder=tmp_path / "log") as cluster,
        cluster.connect() as log,
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
    ):
        log.create_topic("t", partitions=PARTITIONS, replication_factor=3)
        port = listener.getsockname()[1]
        users = ClusterUsers(connector(cluster.bootstrap, None, Access()), needs_login=False)
        with closing(KafkaGateway(users, listener, Gateways(GatewayAddress("127.0.0.1", port)))):
            producer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{port}",
                    "enable.idempotence": True,
                    "linger.ms": 1,
                }
            )
            failed: list[Any] = []
            for number in range(RECORDS):
                if number == RECORDS // 3:
                    leader = log.describe("t").partitions[0].leader
                    assert leader is not None
                    cluster.kill(int(leader))
                producer.produce(
                    "t",
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0.002 if number % 10 == 0 else 0)
            assert producer.flush(WAIT_S) == 0
        found = log.read("t", isolation="read_committed").select(["partition", "value"]).to_pylist()
    assert failed == []
    for partition in range(PARTITIONS):
        values = [int(each["value"]) for each in found if each["partition"] == partition]
        assert values == list(range(partition, RECORDS, PARTITIONS))
