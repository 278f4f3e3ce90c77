"""Groups of Kafka's consumers: joins, rebalances, positions, and the late requests of members."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack, closing
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from spark_stream.kafka.messages.reading import read_message
from spark_stream.kafka.messages.schemas import load_schema
from spark_stream.kafka.messages.writing import write_message
from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.clients import WAIT_S, asked, create_topic, positions_at, producer_at, sent
from tests.support import eventually

pytestmark = pytest.mark.slow

SESSION_MS = 6_000


def fill(address: str, topic: str, partitions: int, count: int) -> None:
    create_topic(address, topic, partitions)
    rows = [{"value": b"%d" % n, "partition": n % partitions} for n in range(count)]
    sent(producer_at(address), topic, rows)


def consumer_at(address: str, group: str, **settings: Any) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            **settings,
        }
    )


def described(admin_client: AdminClient, group: str) -> Any:
    return admin_client.describe_consumer_groups([group])[group].result(WAIT_S)


class Reader(threading.Thread):
    """A member that reads until it is stopped. ``found``: the values of its records."""

    def __init__(self, address: str, topic: str, group: str, **settings: Any) -> None:
        super().__init__(daemon=True)
        self.found: list[int] = []
        self.assigned = 0
        self._over = threading.Event()
        self._consumer = consumer_at(address, group, **settings)
        self._consumer.subscribe([topic])
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.found.append(int(message.value()))
            self.assigned = len(self._consumer.assignment())
        self._consumer.close()

    def stop(self) -> None:
        self._over.set()
        self.join(WAIT_S)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_the_partitions_and_read_each_record_once(
    topic, server, admin_client, strategy
):
    fill(server, topic, 4, 4_000)
    settings = {"partition.assignment.strategy": strategy}
    with ExitStack() as stopped:
        readers = [Reader(server, topic, topic, **settings)]
        stopped.callback(readers[0].stop)
        eventually(lambda: len(readers[0].found) > 100)
        readers.append(Reader(server, topic, topic, **settings))
        stopped.callback(readers[1].stop)
        eventually(lambda: [each.assigned for each in readers] == [2, 2], WAIT_S)
        eventually(lambda: sum(len(each.found) for each in readers) >= 4_000, WAIT_S)
    found = Counter(n for each in readers for n in each.found)
    assert found == Counter(range(4_000))
    assert positions_at(server, topic, topic, 4) == [1_000] * 4
    assert described(admin_client, topic).state is ConsumerGroupState.EMPTY


def test_a_member_that_leaves_returns_its_partitions(topic, server):
    fill(server, topic, 2, 100)
    staying, leaving = (Reader(server, topic, topic) for _ in range(2))
    try:
        eventually(lambda: [staying.assigned, leaving.assigned] == [1, 1], WAIT_S)
        leaving.stop()
        eventually(lambda: staying.assigned == 2, WAIT_S)
    finally:
        staying.stop()


def test_a_group_of_kafka_and_of_isolog_has_members_of_both(log, topic, gateway):
    """A group may move to isolog's consumers member by member."""
    fill(gateway, topic, 2, 1_000)
    theirs = Reader(gateway, topic, topic)
    try:
        eventually(lambda: len(theirs.found) == 1_000, WAIT_S)
        with log.consumer(topic, group=topic, isolation="read_committed") as ours:
            deadline = time.monotonic() + WAIT_S
            while theirs.assigned != 1 and time.monotonic() < deadline:
                assert ours.poll(0.1) == []
            assert theirs.assigned == 1
            rows = [{"value": b"%d" % n, "partition": n % 2} for n in range(1_000, 1_100)]
            sent(producer_at(gateway), topic, rows)
            found: list[int] = []
            while len(found) < 50:
                found += [int(each.value) for each in ours.poll(WAIT_S)]
            eventually(lambda: len(theirs.found) == 1_050, WAIT_S)
    finally:
        theirs.stop()
    assert sorted(theirs.found + found) == list(range(1_100))


def test_a_member_continues_at_another_gateway(log, topic, gateway, other_gateway):
    """The brokers have all state of a group, so no member has to join again."""
    fill(gateway, topic, 1, 10)
    member, generation = joined(gateway, topic, [topic])
    fields = {"group_id": topic, "member_id": member, "generation_id": generation}
    assert asked(other_gateway, "Heartbeat", 2, fields)["error_code"] == 0
    assert committed(other_gateway, topic, topic, 7, member, generation) == 0
    assert committed(other_gateway, topic, topic, 3, member, generation) == 0  # it moved back
    assert position(gateway, topic, topic) == 3


def test_positions_move_back_at_alternating_gateways(log, topic, gateway, other_gateway):
    fill(gateway, topic, 1, 10)
    member, generation = joined(gateway, topic, [topic])
    for offset, at in enumerate([gateway, other_gateway] * 4):
        assert committed(at, topic, topic, 9 - offset, member, generation) == 0
        assert position(gateway, topic, topic) == 9 - offset


@pytest.mark.parametrize("enable", [True, False])
def test_kafka_python_reads_as_a_group(topic, server, enable):
    fill(server, topic, 2, 200)
    settings = {
        "bootstrap_servers": server,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": enable,
    }
    found: list[int] = []
    with closing(kafka.KafkaConsumer(topic, **settings)) as consumer:
        while len(found) < 200:
            for records in consumer.poll(timeout_ms=1_000).values():
                found += [int(each.value) for each in records]
        consumer.commit()
    assert sorted(found) == list(range(200))
    with closing(kafka.KafkaConsumer(topic, **settings)) as consumer:
        eventually(lambda: consumer.poll(timeout_ms=200) == {} and consumer.assignment(), WAIT_S)
        assert consumer.poll(timeout_ms=500) == {}


# -- plain requests --------------------------------------------------------------------------------


def joined(
    address: str, group: str, topics: list[str], member: str = "", owned: Any = ()
) -> tuple[str, int]:
    """Join a group as a plain member. Return its id and its generation."""
    values = {"topics": topics, "owned_partitions": list(owned)}
    data = b"".join(write_message(load_schema("ConsumerProtocolSubscription"), 1, values))
    fields = {
        "group_id": group,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\1" + data}],
    }
    found = asked(address, "JoinGroup", 4, fields)
    if found["error_code"] == KafkaCode.MEMBER_ID_REQUIRED:
        found = asked(address, "JoinGroup", 4, fields | {"member_id": found["member_id"]})
    assert found["error_code"] == 0
    return found["member_id"], found["generation_id"]


def committed(
    address: str, group: str, topic: str, offset: int, member: str = "", generation: int = -1
) -> int:
    """Commit the position of partition 0. Return the error code."""
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": [
            {"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}
        ],
    }
    found = asked(address, "OffsetCommit", 6, fields)
    code: int = found["topics"][0]["partitions"][0]["error_code"]
    return code


def position(address: str, group: str, topic: str) -> int:
    fields = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    found = asked(address, "OffsetFetch", 7, fields)
    offset: int = found["topics"][0]["partitions"][0]["committed_offset"]
    return offset


def test_a_late_commit_of_a_member_is_refused(log, topic, gateway):
    log.create_topic(topic)
    old, first = joined(gateway, topic, [topic])
    assert committed(gateway, topic, topic, 5, old, first) == 0
    leave = {"group_id": topic, "member_id": old}
    assert asked(gateway, "LeaveGroup", 2, leave)["error_code"] == 0
    assert committed(gateway, topic, topic, 6, old, first) == KafkaCode.UNKNOWN_MEMBER_ID
    again, second = joined(gateway, topic, [topic], old)  # the same id once more
    assert (again, second > first) == (old, True)
    assert committed(gateway, topic, topic, 7, old, first) == KafkaCode.ILLEGAL_GENERATION
    assert position(gateway, topic, topic) == 5
    assert committed(gateway, topic, topic, 8, old, second) == 0
    assert committed(gateway, topic, topic, 9) == KafkaCode.UNKNOWN_MEMBER_ID  # it has members


def test_a_partition_moves_only_after_its_member_has_joined_again(log, topic, gateway):
    log.create_topic(topic, partitions=2)
    first, generation = joined(gateway, topic, [topic])
    second, later = joined(gateway, topic, [topic])

    def sync(member: str, at: int) -> list[int]:
        fields = {"group_id": topic, "member_id": member, "generation_id": at}
        found = asked(gateway, "SyncGroup", 2, fields)
        assert found["error_code"] == 0
        data = memoryview(found["assignment"])
        values = read(data[2:])
        return [number for each in values["assigned_partitions"] for number in each["partitions"]]

    def beat(member: str, at: int) -> int:
        fields = {"group_id": topic, "member_id": member, "generation_id": at}
        code: int = asked(gateway, "Heartbeat", 2, fields)["error_code"]
        return code

    assert sync(second, later) == []
    assert beat(first, generation) == KafkaCode.REBALANCE_IN_PROGRESS
    owned = [{"topic": topic, "partitions": [0, 1]}]
    _, again = joined(gateway, topic, [topic], first, owned)  # it still reads both
    kept = sync(first, again)
    assert len(kept) == 1
    assert sync(second, later) == []
    owned = [{"topic": topic, "partitions": kept}]
    _, last = joined(gateway, topic, [topic], first, owned)
    assert beat(first, last) == 0
    assert beat(second, later) == KafkaCode.REBALANCE_IN_PROGRESS
    _, now = joined(gateway, topic, [topic], second)
    assert sorted(sync(second, now) + kept) == [0, 1]


def read(data: memoryview) -> dict[str, Any]:
    return read_message(load_schema("ConsumerProtocolAssignment"), 0, data)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"protocol_type": "connect"}, KafkaCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": []}, KafkaCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 1}, KafkaCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "no member@1.2"}, KafkaCode.UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, KafkaCode.INVALID_GROUP_ID),
        ({"protocols": [{"name": "range", "metadata": b"\0"}]}, KafkaCode.INVALID_REQUEST),
    ],
)
def test_joins_that_are_refused(gateway, changed, code):
    fields = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": SESSION_MS,
        "member_id": "me",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}],
    }
    assert asked(gateway, "JoinGroup", 4, fields | changed)["error_code"] == code


def test_positions_in_unknown_topics_have_an_error(log, topic, gateway):
    log.create_topic(topic)
    fields = {
        "group_id": topic,
        "topics": [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 4}]}
            for name in (topic, "missing")
        ],
    }
    found = asked(gateway, "OffsetCommit", 6, fields)
    codes = {each["name"]: each["partitions"][0]["error_code"] for each in found["topics"]}
    assert codes == {topic: 0, "missing": KafkaCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert position(gateway, topic, topic) == 4
    log.delete_topic(topic)
    log.create_topic(topic)
    assert committed(gateway, topic, topic, 2) == 0  # the gateway looks the topic up again
    assert position(gateway, topic, topic) == 2


def test_faults_of_single_positions_leave_the_others(log, topic, gateway):
    log.create_topic(topic, partitions=2)
    member, generation = joined(gateway, topic, [topic])
    places = [
        {"partition_index": number, "committed_offset": offset}
        for number, offset in ((0, 5), (1, -1), (7, 5))
    ]
    fields = {"group_id": topic, "topics": [{"name": topic, "partitions": places}]}
    fields |= {"member_id": member, "generation_id_or_member_epoch": generation}
    found = asked(gateway, "OffsetCommit", 6, fields)
    assert [each["error_code"] for each in found["topics"][0]["partitions"]] == [
        0,
        KafkaCode.OFFSET_OUT_OF_RANGE,
        KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert position(gateway, topic, topic) == 5
    code = committed(gateway, topic, topic, 6, member, generation + 5)
    assert code == KafkaCode.ILLEGAL_GENERATION


# -- operators -------------------------------------------------------------------------------------


def test_groups_are_listed_described_and_deleted(topic, server, admin_client):
    fill(server, topic, 2, 100)
    reader = Reader(server, topic, topic, **{"client.id": "my-reader"})
    try:
        eventually(lambda: len(reader.found) == 100, WAIT_S)
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            admin_client.delete_consumer_groups([topic])[topic].result(WAIT_S)
        assert refused.value.args[0].code() == KafkaCode.NON_EMPTY_GROUP
        found = described(admin_client, topic)
        assert found.state is ConsumerGroupState.STABLE
        assert [each.client_id for each in found.members] == ["my-reader"]
    finally:
        reader.stop()
    listed = admin_client.list_consumer_groups().result(WAIT_S).valid
    assert topic in [each.group_id for each in listed]
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(topic)
    [offsets] = [
        each.result(WAIT_S) for each in admin_client.list_consumer_group_offsets([wanted]).values()
    ]
    assert [each.offset for each in offsets.topic_partitions] == [50, 50]
    admin_client.delete_consumer_groups([topic])[topic].result(WAIT_S)
    listed = admin_client.list_consumer_groups().result(WAIT_S).valid
    assert topic not in [each.group_id for each in listed]
    assert described(admin_client, topic).state is ConsumerGroupState.DEAD
    assert positions_at(server, topic, topic, 2) == [confluent_kafka.OFFSET_INVALID] * 2
