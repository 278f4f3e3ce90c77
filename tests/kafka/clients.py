"""Clients of a gateway for tests: confluent-kafka, and plain requests."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient

from bench.kafka import broker
from spark_stream.client.connecting.access import Access
from spark_stream.kafka.gateway import KafkaGateway
from spark_stream.kafka.logins import ClusterUsers, connector
from spark_stream.kafka.peers import GatewayAddress, Gateways
from tests.kafka.kafka_batches import by_kafka, rebuilt
from tests.kafka.test_connection import answered, framed

WAIT_S = 60.0
MOMENT_MS = 1_700_000_000_123


@contextmanager
def started_together(
    address: str, count: int, *, needs_login: bool = False, tls: Any = None
) -> Iterator[dict[str, KafkaGateway]]:
    """Gateways in this process that serve one cluster together. Yield them by their addresses."""
    with ExitStack() as ended:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        found = {}
        places = [GatewayAddress(*each.getsockname()) for each in listeners]
        for place, listener in zip(places, listeners, strict=True):
            ended.callback(listener.close)
            users = ClusterUsers(connector(address, None, Access()), needs_login=needs_login)
            gateways = Gateways(place, places, has_tls=tls is not None)
            found[str(place)] = KafkaGateway(users, listener, gateways, tls)
            ended.callback(found[str(place)].close)
        yield found


@contextmanager
def started(address: str, *, needs_login: bool = False, tls: Any = None) -> Iterator[str]:
    """A gateway in this process, in front of a broker. Yield its address."""
    with started_together(address, 1, needs_login=needs_login, tls=tls) as found:
        yield from found


def producer_at(address: str, **settings: Any) -> Any:
    return confluent_kafka.Producer({"bootstrap.servers": address, **settings})


def create_topic(address: str, name: str, partitions: int = 1, **config: str) -> None:
    """Create a topic by Kafka's protocol. The names of ``config`` have ``_`` for dots."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    broker.create_topic(AdminClient({"bootstrap.servers": address}), name, partitions, settings)


def sent(producer: Any, topic: str, rows: list[dict[str, Any]]) -> list[Any]:
    """Send rows. Return the messages as they were acknowledged, in order."""
    found: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        found.append(message)

    for row in rows:
        producer.produce(topic, on_delivery=delivered, **row)
    assert producer.flush(WAIT_S) == 0
    return found


def positions_at(address: str, topic: str, group: str, partitions: int = 1) -> list[int]:
    """Return the committed offsets of a group, by partition."""
    places = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
    settings = {"bootstrap.servers": address, "group.id": group}
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        return [each.offset for each in consumer.committed(places, WAIT_S)]


def values_at(
    address: str, topic: str, partitions: int = 1, start: int = 0, **settings: Any
) -> list[bytes]:
    """Read a topic. Return the values of its records, in the order of the partitions."""
    found = read_at(address, topic, partitions, start, **settings)
    return [each.value() for number in sorted(found) for each in found[number]]


def read_at(address: str, topic: str, partitions: int = 1, start: int = 0, **settings: Any) -> Any:
    """Read partitions up to their ends. Return the messages of each."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **settings,
        }
    )
    found: dict[int, list[Any]] = {number: [] for number in range(partitions)}
    left = set(found)
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, each, start) for each in found])
        while left:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"no message in {WAIT_S} s"
            if message.error() is None:
                found[message.partition()].append(message)
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                left.discard(message.partition())
    return found


def connected(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)))


def asked_at(sock: socket.socket, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Send a request, and return the fields of its answer."""
    sock.sendall(framed(api, version, fields))
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        part = sock.recv(1 << 20)
        assert part, "the connection was closed"
        data += part
    return answered(api, version, data)[1]


def asked(address: str, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Send a request on a new connection, and return the fields of its answer."""
    with connected(address) as sock:
        return asked_at(sock, api, version, fields)


def produced(address: str, topic: str, records: bytes, **fields: Any) -> dict[str, Any]:
    partition = {"index": fields.pop("partition", 0), "records": records}
    request = {"acks": -1, "timeout_ms": 30_000} | fields
    request["topic_data"] = [{"name": topic, "partition_data": [partition]}]
    found = asked(address, "Produce", 7, request)
    answer: dict[str, Any] = found["responses"][0]["partition_responses"][0]
    return answer


def batch(first: int, count: int, producer_id: int, epoch: int = 0) -> bytes:
    """A batch of an idempotent producer."""
    data = by_kafka([(None, b"%d" % (first + each), [], MOMENT_MS) for each in range(count)])
    return rebuilt(data, data[61:], producer=producer_id, producer_epoch=epoch, sequence=first)
