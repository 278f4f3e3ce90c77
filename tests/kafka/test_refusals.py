"""The permissions, the quotas and the audit of users that are clients of a gateway."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from spark_stream.errors import PermissionDenied, Unauthenticated
from spark_stream.kafka.refusals import KafkaCode, LoginEnded, code_of
from tests.kafka.clients import WAIT_S, asked_at, connected, producer_at, read_at, sent, started
from tests.kafka.test_logins import ANN, logged_in, settings
from tests.secure_brokers import PASSWORD, admin, as_, asking

pytestmark = pytest.mark.slow
__all__ = ["admin", "asking"]


@pytest.fixture
def gateway(asking) -> Iterator[str]:
    with started(asking.address, needs_login=True) as address:
        yield address


@pytest.fixture
def allow(admin) -> Callable[..., None]:
    """A function that allows the user ann an operation on each of some resources."""
    admin.add_user("ann", PASSWORD)

    def add(operation: str, *resources: str) -> None:
        for each in resources:
            admin.add_rule("allow", "ann", operation, each)

    return add


@pytest.fixture
def known(asking, allow, topic) -> str:
    """A topic that ann may only describe."""
    with as_(asking, "root") as log:
        log.create_topic(topic)
        with log.producer() as producer:
            producer.send(topic, b"v").result()
    allow("describe", f"topic:{topic}")
    return topic


def consumer_of(address: str, group: str) -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings(),
        }
    )


def error_of(consumer: Any) -> int:
    """Return the code of the next error of a consumer."""
    found = consumer.poll(WAIT_S)
    assert found is not None
    assert found.error() is not None
    return int(found.error().code())


def code_raised(act: Callable[[], Any]) -> int:
    """Return the code of the error that a call of librdkafka raises."""
    with pytest.raises(KafkaException) as raised:
        act()
    error = raised.value.args[0]
    assert not error.fatal()
    return int(error.code())


def not_written(producer: Any, topic: str) -> int:
    """Return the code of the error about a record."""
    errors: list[Any] = []
    producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    return int(errors[0].code())


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_writes_need_a_permission_on_the_topic(asking, known, gateway, acks):
    producer = producer_at(gateway, acks=acks, **settings())
    if acks == "0":
        sent(producer, known, [{"value": b"v", "partition": 0}])
    else:
        assert not_written(producer, known) == KafkaCode.TOPIC_AUTHORIZATION_FAILED
    with as_(asking, "root") as log:
        assert len(log.read(known)) == 1


def test_reads_need_a_permission_on_the_topic(known, gateway):
    with closing(consumer_of(gateway, "none")) as consumer:
        consumer.assign([TopicPartition(known, 0, 0)])
        assert error_of(consumer) == KafkaCode.TOPIC_AUTHORIZATION_FAILED


def test_groups_need_a_permission_on_the_group(allow, known, gateway):
    """The denied group has the same answer whether it exists or not."""
    allow("read", f"topic:{known}")
    denied = KafkaCode.GROUP_AUTHORIZATION_FAILED
    with closing(consumer_of(gateway, known)) as consumer:
        consumer.subscribe([known])
        assert error_of(consumer) == denied
        place = TopicPartition(known, 0, 1)
        assert code_raised(lambda: consumer.commit(offsets=[place], asynchronous=False)) == denied
        assert code_raised(lambda: consumer.committed([place], WAIT_S)) == denied
    client = AdminClient({"bootstrap.servers": gateway, **settings()})
    for future in (
        client.describe_consumer_groups([known])[known],
        client.delete_consumer_groups([known])[known],
    ):
        assert code_raised(lambda future=future: future.result(WAIT_S)) == denied
    assert known not in [each.group_id for each in client.list_consumer_groups().result().valid]
    allow("read", f"consumer:{known}")
    with closing(consumer_of(gateway, known)) as consumer:
        consumer.subscribe([known])
        found = consumer.poll(WAIT_S)
        assert found is not None
        assert found.value() == b"v"


def test_groups_need_a_permission_on_their_topics(allow, known, gateway):
    allow("read", f"consumer:{known}")
    denied = KafkaCode.TOPIC_AUTHORIZATION_FAILED
    with closing(consumer_of(gateway, known)) as consumer:
        consumer.subscribe([known])
        assert error_of(consumer) == denied
    with closing(consumer_of(gateway, known)) as consumer:
        place = TopicPartition(known, 0, 1)
        assert code_raised(lambda: consumer.commit(offsets=[place], asynchronous=False)) == denied


def test_a_client_of_kafka_python_gets_the_same_errors(allow, known, gateway):
    given = {
        "bootstrap_servers": gateway,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "ann",
        "sasl_plain_password": PASSWORD,
    }
    with closing(kafka.KafkaProducer(**given)) as producer:
        future = producer.send(known, b"v", partition=0)
        with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
            future.get(WAIT_S)
    allow("read", f"topic:{known}")
    with (
        closing(kafka.KafkaConsumer(known, group_id=known, **given)) as consumer,
        pytest.raises(kafka.errors.GroupAuthorizationFailedError),
    ):
        consumer.poll(WAIT_S * 1_000)


def test_transactions_need_a_permission_on_their_id(asking, allow, known, gateway):
    allow("write", f"topic:{known}")
    denied = KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as raised:
        producer_at(gateway, **{"transactional.id": known, **settings()}).init_transactions(WAIT_S)
    assert raised.value.args[0].code() == denied
    with connected(gateway) as sock:
        assert logged_in(sock, ANN)["error_code"] == 0
        fields = {"transactional_id": known, "producer_id": 1, "producer_epoch": 0}
        assert asked_at(sock, "AddOffsetsToTxn", 3, fields)["error_code"] == denied
        fields["committed"] = True
        assert asked_at(sock, "EndTxn", 3, fields)["error_code"] == denied
        names = {"transactional_ids": [known]}
        [found] = asked_at(sock, "DescribeTransactions", 0, names)["transaction_states"]
        assert found["error_code"] == denied


def test_a_transactional_id_of_another_user_is_refused(admin, allow, known, gateway):
    """Both may write transactions with this id. The first one owns it."""
    admin.add_user("bob", PASSWORD)
    for user in ("ann", "bob"):
        admin.add_rule("allow", user, "write", f"transaction:{known}")
    bob = settings(**{"sasl.username": "bob"})
    producer_at(gateway, **{"transactional.id": known, **bob}).init_transactions(WAIT_S)
    with pytest.raises(KafkaException) as raised:
        producer_at(gateway, **{"transactional.id": known, **settings()}).init_transactions(WAIT_S)
    assert raised.value.args[0].code() == KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_transaction_needs_permissions_on_its_topics_and_groups(allow, known, gateway):
    """The producer can abort the transaction, and begin another one."""
    allow("write", f"transaction:{known}")
    given = {"transactional.id": known, **settings()}
    producer = producer_at(gateway, **given)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    assert not_written(producer, known) == KafkaCode.TOPIC_AUTHORIZATION_FAILED
    producer.abort_transaction(WAIT_S)
    allow("write", f"topic:{known}")
    producer = producer_at(gateway, **given)  # the other one does not ask again for a while
    producer.init_transactions(WAIT_S)
    with closing(consumer_of(gateway, known)) as consumer:
        producer.begin_transaction()
        sent(producer, known, [{"value": b"v", "partition": 0}])
        place, group = TopicPartition(known, 0, 1), consumer.consumer_group_metadata()
        code = code_raised(lambda: producer.send_offsets_to_transaction([place], group, WAIT_S))
        assert code == KafkaCode.GROUP_AUTHORIZATION_FAILED
        producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    sent(producer, known, [{"value": b"w", "partition": 0}])
    producer.commit_transaction(WAIT_S)


def test_administration_needs_permissions_on_topics(asking, allow, known, gateway):
    client = AdminClient({"bootstrap.servers": gateway, **settings()})
    change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", known, incremental_configs=[change])
    hidden = f"{known}-hidden"
    with as_(asking, "root") as log:
        log.create_topic(hidden)
    refused = [
        client.create_topics([NewTopic(f"{known}-new", 1)]),
        client.delete_topics([known]),
        client.create_partitions([NewPartitions(known, 3)]),
        client.incremental_alter_configs([resource]),
        client.delete_records([TopicPartition(known, 0, 1)]),
    ]
    for futures in refused:
        [future] = futures.values()
        code = code_raised(lambda future=future: future.result(WAIT_S))
        assert code == KafkaCode.TOPIC_AUTHORIZATION_FAILED
    unknown = client.describe_configs([ConfigResource("topic", hidden)])
    [future] = unknown.values()
    assert code_raised(lambda: future.result(WAIT_S)) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hidden not in client.list_topics(timeout=WAIT_S).topics
    with connected(gateway) as sock:
        assert logged_in(sock, ANN)["error_code"] == 0
        sizes = asked_at(sock, "DescribeLogDirs", 1, {"topics": None})["results"][0]["topics"]
        assert [each["name"] for each in sizes] == [known]
        given = {"topics": [{"topic": hidden, "partitions": [0]}]}
        assert asked_at(sock, "DescribeLogDirs", 1, given)["results"][0]["topics"] == []
    allow("create", f"topic:{known}-new")
    [future] = client.create_topics([NewTopic(f"{known}-new", 1)]).values()
    assert future.result(WAIT_S) is None


def test_a_quota_delays_a_client_without_an_error(asking, admin, allow, known, gateway):
    """The brokers sum the delays. The first 8 MiB of a stream are not delayed."""
    allow("write", f"topic:{known}")
    allow("read", f"topic:{known}")
    admin.set_quota("ann", write_bytes_per_s=8 << 20, read_bytes_per_s=8 << 20)
    producer = producer_at(gateway, **{"linger.ms": 0, **settings()})
    values = [random.Random(number).randbytes(900_000) for number in range(30)]
    for each in values:
        sent(producer, known, [{"value": each, "partition": 0}])
    with as_(asking, "root") as log:
        assert log.status().principals["ann"].write_delayed_s > 0
    [messages] = read_at(gateway, known, **settings()).values()
    assert [each.value() for each in messages] == [b"v", *values]
    with as_(asking, "root") as log:
        assert log.status().principals["ann"].read_delayed_s > 0


def test_the_audit_names_the_user(asking, allow, known, gateway):
    before = len((asking.directory / "audit.log").read_text().splitlines())
    allow("create", f"topic:{known}-*")
    allow("delete", f"topic:{known}-*")
    client = AdminClient({"bootstrap.servers": gateway, **settings()})
    new = f"{known}-new"
    [future] = client.create_topics([NewTopic(new, 1)]).values()
    assert future.result(WAIT_S) is None
    [future] = client.delete_topics([new]).values()
    assert future.result(WAIT_S) is None
    producer = producer_at(gateway, **settings())
    assert not_written(producer, known) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with closing(consumer_of(gateway, known)) as consumer:
        consumer.subscribe([known])
        error_of(consumer)
    with connected(gateway) as sock:
        assert logged_in(sock, b"\0ann\0wrong")["error_code"] != 0
    lines = (asking.directory / "audit.log").read_text().splitlines()[before:]
    found = [json.loads(line) for line in lines]
    assert {each["principal"] for each in found} == {"root", "ann", None}
    rows = [[each[name] for name in ("principal", "action", "on", "outcome")] for each in found]
    assert ["ann", "create-topic", f"topic={new}", "done"] in rows
    assert ["ann", "delete-topic", f"topic={new}", "done"] in rows
    assert ["ann", "write", f"topic:{known}", "PERMISSION_DENIED"] in rows
    assert ["ann", "read", f"consumer:{known}", "PERMISSION_DENIED"] in rows
    assert [None, "authenticate", "ann", "UNAUTHENTICATED"] in rows


def test_codes_of_denied_operations_and_refused_credentials():
    for resource, code in [
        ("topic:t", KafkaCode.TOPIC_AUTHORIZATION_FAILED),
        ("consumer:a:b", KafkaCode.GROUP_AUTHORIZATION_FAILED),
        ("transaction:t", KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("cluster", KafkaCode.CLUSTER_AUTHORIZATION_FAILED),
    ]:
        assert code_of(PermissionDenied("no", resource=resource)) == code
    assert code_of(PermissionDenied("no")) == KafkaCode.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(LoginEnded, match="revoked"):
        code_of(Unauthenticated("revoked"))
