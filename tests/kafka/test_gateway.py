"""Real Kafka clients through a gateway: confluent-kafka, kafka-python and kcat."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import confluent_kafka
import pytest

from spark_stream.client.reading.loop import Fetcher
from spark_stream.client.writing.loop import AppendStream
from spark_stream.kafka import gateway as gateway_module
from spark_stream.kafka import writing
from spark_stream.kafka.gateway import ClientSocket
from spark_stream.kafka.records.batches import Compression
from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.clients import (
    MOMENT_MS,
    WAIT_S,
    asked,
    batch,
    connected,
    create_topic,
    produced,
    producer_at,
    read_at,
    sent,
    started,
    values_at,
)
from tests.kafka.kafka_batches import by_kafka, compressed, rebuilt
from tests.kafka.test_connection import framed
from tests.support import eventually, needs_epoll, note_threads

pytestmark = pytest.mark.slow

ROWS: list[dict[str, Any]] = [
    {"key": b"k", "value": b"v", "timestamp": MOMENT_MS, "headers": [("a", b"1"), ("a", None)]},
    {"key": None, "value": b"", "timestamp": MOMENT_MS + 1},
    {"key": b"", "value": None, "timestamp": MOMENT_MS + 2},
    {"key": b"k" * 300, "value": b"v" * 70_000, "timestamp": MOMENT_MS + 3},
]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_are_the_same_after_both_ways(topic, server, compression, idempotent):
    create_topic(server, topic)
    settings = {"compression.type": compression, "enable.idempotence": idempotent}
    rows = [each | {"partition": 0} for each in ROWS]
    messages = sent(producer_at(server, **settings), topic, rows)
    assert [each.offset() for each in messages] == [0, 1, 2, 3]
    [messages] = read_at(server, topic).values()
    assert [(each.key(), each.value(), each.timestamp()[1]) for each in messages] == [
        (each["key"], each["value"], each["timestamp"]) for each in ROWS
    ]
    assert [each.headers() for each in messages] == [[("a", b"1"), ("a", None)], None, None, None]
    assert [each.offset() for each in messages] == [0, 1, 2, 3]


@needs_epoll
def test_threads_of_waiting_clients_read_the_answers_of_brokers(log, topic, gateway, monkeypatch):
    """So a record needs no change to another thread of the gateway."""
    log.create_topic(topic)
    noted = [
        note_threads(monkeypatch, AppendStream, "_take"),
        note_threads(monkeypatch, Fetcher, "_receive"),
    ]
    producer = producer_at(gateway, **{"enable.idempotence": True})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway, "group.id": "none"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def are_read() -> bool:
        sent(producer, topic, [{"value": b"v"}])
        assert consumer.poll(WAIT_S).value() == b"v"
        return all(any(each.name == "isolog-kafka" for each in threads) for threads in noted)

    with closing(consumer):
        eventually(are_read)


def test_isolog_reads_the_records_of_kafkas_clients(log, topic, gateway):
    log.create_topic(topic)
    sent(producer_at(gateway), topic, [each | {"partition": 0} for each in ROWS])
    found = log.read(topic, columns=["key", "value", "offset"], headers=True).to_pylist()
    assert [(each["key"], each["value"]) for each in found] == [
        (each["key"], each["value"]) for each in ROWS
    ]
    assert found[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert found[1]["headers"] is None


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_many_records_over_partitions(topic, server, acks):
    """Only an idempotent producer keeps the order when it sends batches again."""
    create_topic(server, topic, 3)
    rows = [{"value": b"%d" % number, "partition": number % 3} for number in range(6_000)]
    settings = {"acks": acks, "enable.idempotence": acks == "all", "linger.ms": 1}
    sent(producer_at(server, **settings), topic, rows)
    for number, messages in read_at(server, topic, 3).items():
        found, wanted = [int(each.value()) for each in messages], range(number, 6_000, 3)
        if acks == "all":
            assert found == list(wanted)
        assert set(found) <= set(wanted) if acks == "0" else set(found) == set(wanted)


def test_readers_see_the_records_of_their_level(log, topic, gateway):
    """Records of aborted transactions are gaps for ``read_committed``."""
    log.create_topic(topic)
    for number in range(4):
        with log.producer(transactional_id="writer") as producer:
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0).result()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    with log.producer(transactional_id="open") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result()
        levels = ("read_committed", "read_uncommitted")
        committed, replicated = (
            [(each.offset(), each.value()) for each in found[0]]
            for found in (read_at(gateway, topic, **{"isolation.level": level}) for level in levels)
        )
    assert committed == [(0, b"0"), (2, b"2")]
    assert replicated == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3"), (4, b"open")]


def test_offsets_are_found_by_place_and_time(topic, server, admin_client):
    create_topic(server, topic)
    sent(producer_at(server), topic, [each | {"partition": 0} for each in ROWS])
    [trimmed] = admin_client.delete_records([confluent_kafka.TopicPartition(topic, 0, 1)]).values()
    assert trimmed.result(WAIT_S).low_watermark == 1
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "none"})
    with closing(consumer):
        place = confluent_kafka.TopicPartition(topic, 0)
        assert consumer.get_watermark_offsets(place, WAIT_S) == (1, 4)
        for after, offset in ((-5, 1), (2, 2), (1_000, confluent_kafka.OFFSET_END)):
            at = confluent_kafka.TopicPartition(topic, 0, MOMENT_MS + after)
            [found] = consumer.offsets_for_times([at], WAIT_S)
            assert found.offset == offset
    [messages] = read_at(server, topic, start=confluent_kafka.OFFSET_BEGINNING).values()
    assert [each.offset() for each in messages] == [1, 2, 3]


def test_a_reader_waits_for_the_next_record(topic, server):
    create_topic(server, topic)
    producer = producer_at(server)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server, "group.id": "none"})
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        for number in range(20):
            sent(producer, topic, [{"value": b"%d" % number, "partition": 0}])
            message = consumer.poll(WAIT_S)
            assert (message.offset(), message.value()) == (number, b"%d" % number)
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, 5))
        assert consumer.poll(WAIT_S).offset() == 5


def test_kafka_python_writes_and_reads(topic, server):
    import kafka

    create_topic(server, topic)
    with closing(kafka.KafkaProducer(bootstrap_servers=server)) as producer:
        for number in range(100):
            written = producer.send(topic, b"%d" % number, key=b"k", partition=0)
        assert written.get(WAIT_S).offset == 99
    consumer = kafka.KafkaConsumer(bootstrap_servers=server, group_id=None)
    with closing(consumer):
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes] = []
        while len(found) < 100:
            for messages in consumer.poll(1_000).values():
                found += [each.value for each in messages]
    assert found == [b"%d" % number for number in range(100)]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="there is no kcat")
def test_kcat_writes_and_reads(topic, server):
    create_topic(server, topic)
    written = subprocess.run(
        ["kcat", "-b", server, "-t", topic, "-P", "-K", ":"], input="a:1\nb:2\n", text=True
    )
    assert written.returncode == 0
    read = ["kcat", "-b", server, "-t", topic, "-C", "-e", "-q", "-f", "%o %k %s\n"]
    assert subprocess.check_output(read, text=True, timeout=WAIT_S) == "0 a 1\n1 b 2\n"
    listed = ["kcat", "-b", server, "-L", "-m", f"{WAIT_S:.0f}"]
    assert topic in subprocess.check_output(listed, text=True, timeout=2 * WAIT_S)


# -- requests of our own ---------------------------------------------------------------------------


def test_a_batch_that_is_sent_again_through_another_gateway_is_stored_once(topic, servers):
    gateway, other_gateway = servers
    create_topic(gateway, topic)
    identity = asked(gateway, "InitProducerId", 1, {"transactional_id": None})
    number = identity["producer_id"]
    offset = 0
    for first, count in ((0, 3), (3, 1), (4, 10), (14, 2)):
        data = batch(first, count, number)
        for address in (gateway, other_gateway, gateway):
            answer = produced(address, topic, data)
            assert (answer["error_code"], answer["base_offset"]) == (0, offset)
        offset += count
    missing = produced(gateway, topic, batch(20, 1, number))
    assert missing["error_code"] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produced(gateway, topic, batch(0, 1, number, epoch=1))["error_code"] == 0
    fenced = produced(other_gateway, topic, batch(16, 1, number))
    assert fenced["error_code"] == KafkaCode.INVALID_PRODUCER_EPOCH
    expected = [b"%d" % each for each in range(16)] + [b"0"]
    assert values_at(gateway, topic) == expected


RECORDS = by_kafka([(None, b"v", [], 0)])


def test_refusals_have_kafkas_error_codes(topic, server):
    create_topic(server, topic, max_message_bytes="1000")
    large = by_kafka([(None, b"small", [], 0), (None, bytes(1_001), [], 0)])
    for name, records, fields, code in [
        ("missing", RECORDS, {}, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, RECORDS, {"partition": 7}, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, RECORDS[:-1] + b"!", {}, KafkaCode.CORRUPT_MESSAGE),
        (topic, large, {}, KafkaCode.MESSAGE_TOO_LARGE),
        (topic, RECORDS, {"acks": 2}, KafkaCode.INVALID_REQUIRED_ACKS),
    ]:
        assert produced(server, name, records, **fields)["error_code"] == code, (name, fields)
    assert values_at(server, topic) == []
    found = asked(server, "Metadata", 5, {"topics": [{"name": "missing"}, {"name": topic}]})
    assert {each["name"]: each["error_code"] for each in found["topics"]} == {
        "missing": KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
        topic: 0,
    }
    listed = asked(server, "Metadata", 5, {"topics": None})
    assert topic in {each["name"] for each in listed["topics"]}


def test_a_batch_of_a_transaction_needs_a_transactional_id(log, topic, gateway):
    """A real Kafka refuses it with TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
    log.create_topic(topic)
    transactional = rebuilt(RECORDS, RECORDS[61:], attributes=1 << 4)
    found = produced(gateway, topic, transactional)
    assert found["error_code"] == KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert len(log.read(topic)) == 0


def test_a_request_has_one_batch_for_a_partition(topic, server):
    """So a small request cannot have any number of large batches."""
    create_topic(server, topic)
    for records in (RECORDS * 2, b""):
        assert produced(server, topic, records)["error_code"] == KafkaCode.INVALID_RECORD
    assert values_at(server, topic) == []


def test_the_decompressed_bytes_of_a_request_are_limited(log, topic, gateway, monkeypatch):
    log.create_topic(topic, partitions=8)
    data = compressed(by_kafka([(None, bytes(1_000), [], 0)]), Compression.GZIP)
    monkeypatch.setattr(writing, "REQUEST_BYTES_MAX", 3_500)
    partitions = [{"index": each, "records": data} for each in range(8)]
    fields = {"acks": -1, "timeout_ms": 30_000}
    found = asked(
        gateway,
        "Produce",
        7,
        fields | {"topic_data": [{"name": topic, "partition_data": partitions}]},
    )
    codes = [each["error_code"] for each in found["responses"][0]["partition_responses"]]
    assert codes == [0] * 3 + [KafkaCode.MESSAGE_TOO_LARGE] * 5


def test_a_failure_without_acks_ends_the_connection(topic, server):
    """The producer then looks the topic up again."""
    topic_data = [{"name": topic, "partition_data": [{"index": 0, "records": RECORDS}]}]
    data = framed("Produce", 7, {"acks": 0, "timeout_ms": 1_000, "topic_data": topic_data})
    with connected(server) as sock:
        sock.settimeout(WAIT_S)
        sock.sendall(data)
        assert sock.recv(1) == b""
    create_topic(server, topic)
    with connected(server) as sock:
        sock.sendall(data + framed("ApiVersions", 0, {}))
        assert sock.recv(1)
    assert values_at(server, topic) == [b"v"]


def fetch_of(topic: str, least: int = 1, most: int = 1 << 20, **place: int) -> dict[str, Any]:
    """A fetch of so many bytes of a partition. ``place``: its number and offset, else 0."""
    place = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": most} | place
    fields = {"max_wait_ms": 20_000, "min_bytes": least, "max_bytes": most, "isolation_level": 1}
    return fields | {"topics": [{"topic": topic, "partitions": [place]}]}


def test_fetches_of_wrong_places_have_kafkas_error_codes(topic, server, admin_client):
    create_topic(server, topic)
    sent(producer_at(server), topic, [{"value": b"v", "partition": 0}])
    [trimmed] = admin_client.delete_records([confluent_kafka.TopicPartition(topic, 0, 1)]).values()
    assert trimmed.result(WAIT_S).low_watermark == 1
    for number, offset, code in ((0, 0, 1), (1, 0, 3), (0, 9, 1), (0, -5, 1)):
        fields = fetch_of(topic, partition=number, fetch_offset=offset)
        found = asked(server, "Fetch", 4, fields)
        assert found["responses"][0]["partitions"][0]["error_code"] == code


def test_a_fetch_waits_for_the_least_number_of_bytes(topic, server):
    create_topic(server, topic)
    producer, row = producer_at(server), {"value": bytes(300), "partition": 0}

    def fetched(least: int) -> int:
        found = asked(server, "Fetch", 4, fetch_of(topic, least))
        return len(found["responses"][0]["partitions"][0]["records"])

    with ThreadPoolExecutor(1) as pool:
        sent(producer, topic, [row])
        waiting = pool.submit(fetched, 1_000)
        for _ in range(3):
            sent(producer, topic, [row])
        assert waiting.result(WAIT_S) >= 1_000
        assert fetched(1) >= 1_200  # all that is there


def test_a_connection_that_sends_no_request_is_closed(gateway):
    with connected(gateway) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        sock.settimeout(WAIT_S)
        assert sock.recv(1) == b""


def test_large_requests_share_a_limit_and_silent_ones_end(shared, log, topic, monkeypatch):
    monkeypatch.setattr(gateway_module, "FRAMES_MAX", 3 << 20)
    monkeypatch.setattr(gateway_module, "SILENCE_S", 1.0)
    log.create_topic(topic, config={"max.record.bytes": str(4 << 20)})
    large = by_kafka([(None, bytes(2 << 20), [], 0)])
    with started(shared.address) as address, connected(address) as silent:
        silent.sendall(struct.pack(">i", 2 << 20) + bytes(1_000))
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: produced(address, topic, large), range(8)))
        assert [each["error_code"] for each in answers] == [0] * 8
        silent.settimeout(WAIT_S)
        assert silent.recv(1) == b""
    assert sorted(each["base_offset"] for each in answers) == list(range(8))


def test_a_slow_large_request_ends(shared, monkeypatch):
    """Otherwise some slow connections would keep the memory for large requests."""
    monkeypatch.setattr(gateway_module, "SILENCE_S", 1.0)
    with started(shared.address) as address, connected(address) as slow:
        slow.settimeout(0.2)
        slow.sendall(struct.pack(">i", 2 << 20))
        ends = time.monotonic() + WAIT_S
        has_ended = False
        while not has_ended and time.monotonic() < ends:
            try:
                slow.sendall(b"x")
                has_ended = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                has_ended = True
        assert has_ended


def test_slow_readers_share_a_limit(shared, log, topic, monkeypatch):
    """A client that does not read its answer occupies memory, so others get small answers."""
    monkeypatch.setattr(gateway_module, "ANSWERS_MAX", 24 << 20)
    log.create_topic(topic)
    with log.producer() as producer:
        for _ in range(3_000):
            producer.send(topic, bytes(16 << 10), partition=0)
    whole = fetch_of(topic, 24 << 20, 64 << 20)
    with started(shared.address) as address:

        def size() -> int:
            answer = asked(address, "Fetch", 4, whole)
            return len(answer["responses"][0]["partitions"][0]["records"])

        assert size() >= 23 << 20
        with connected(address) as slow:
            slow.sendall(framed("Fetch", 4, whole))
            assert slow.recv(1)  # its answer is complete
            assert size() < 2 << 20
        eventually(lambda: size() >= 23 << 20)


def test_the_command_serves_until_it_is_terminated(shared, log, topic):
    log.create_topic(topic)
    command = [sys.executable, "-m", "isolog", "kafka-gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--bootstrap", shared.address], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        try:
            sent(producer_at(address), topic, [{"value": b"v", "partition": 0}])
        finally:
            process.terminate()
        assert process.wait(WAIT_S) == 0
    assert len(log.read(topic)) == 1


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_a_slow_client_receives_a_large_answer_whole(family):
    ours, theirs = _pair(family)
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        sock, data = ClientSocket(ours), bytes(range(256)) * (40 << 10)
        sending = pool.submit(sock.send, data)
        theirs.settimeout(WAIT_S)
        found = bytearray()
        while len(found) < len(data):
            found += theirs.recv(100_000)
        sending.result(WAIT_S)
        assert bytes(found) == data
        theirs.sendall(b"next")
        assert sock.receive(WAIT_S) == b"next"


def test_a_client_that_receives_and_sends_nothing_has_a_limit():
    """Before its login too, where the limit is short."""
    ours, theirs = _pair("tcp")
    with ours, theirs:
        sock = ClientSocket(ours)
        with pytest.raises(TimeoutError, match="no byte"):
            sock.receive(0.2)
        with pytest.raises(TimeoutError):
            sock.send(bytes(64 << 20))
        with pytest.raises(TimeoutError):  # also for a time that the kernel would round to none
            sock.receive(1e-9)


def _pair(family: str) -> tuple[socket.socket, socket.socket]:
    if family == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        return listener.accept()[0], theirs
