"""Transactions of Kafka's producers: outcomes, fencing, exactly-once copies, and other gateways."""

from __future__ import annotations

import threading
from contextlib import closing
from functools import partial
from typing import Any

import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from spark_stream.kafka.refusals import KafkaCode
from tests.kafka.clients import (
    WAIT_S,
    asked,
    batch,
    create_topic,
    positions_at,
    produced,
    producer_at,
    started_together,
    values_at,
)
from tests.kafka.kafka_batches import rebuilt
from tests.kafka.test_groups import committed, consumer_at, fill, position
from tests.support import eventually

pytestmark = pytest.mark.slow


def transactional(address: str, name: str, **settings: Any) -> Any:
    producer = producer_at(address, **{"transactional.id": name, "linger.ms": 0, **settings})
    producer.init_transactions(WAIT_S)
    return producer


def send(producer: Any, topic: str, values: list[int], partition: int = 0) -> None:
    for each in values:
        producer.produce(topic, b"%d" % each, partition=partition)
    assert producer.flush(WAIT_S) == 0


def values(log, topic: str) -> list[int]:
    found = log.read(topic, isolation="read_committed")["value"].to_pylist()
    return [int(each) for each in found]


def read(
    address: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> list[int]:
    found = values_at(address, topic, partitions, **{"isolation.level": isolation})
    return sorted(map(int, found))


def test_transactions_commit_and_abort(topic, server):
    create_topic(server, topic, 2)
    producer = transactional(server, topic)
    for number in range(6):
        producer.begin_transaction()
        send(producer, topic, [number * 10, number * 10 + 1], number % 2)
        if number % 3 == 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    send(producer, topic, [99])
    wanted = [0, 1, 10, 11, 30, 31, 40, 41]
    assert read(server, topic, 2) == wanted
    assert read(server, topic, 2, "read_uncommitted") == sorted([*wanted, 20, 21, 50, 51, 99])
    producer.commit_transaction(WAIT_S)
    assert read(server, topic, 2) == sorted([*wanted, 99])


def test_a_later_producer_fences_the_earlier_one(topic, server):
    create_topic(server, topic)
    earlier = transactional(server, topic)
    earlier.begin_transaction()
    send(earlier, topic, [1])
    later = transactional(server, topic)
    later.begin_transaction()
    send(later, topic, [2])
    with pytest.raises(KafkaException) as refused:
        earlier.commit_transaction(WAIT_S)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    later.commit_transaction(WAIT_S)
    assert read(server, topic) == [2]


def test_a_transaction_that_times_out_is_aborted_and_the_next_one_works(log, topic, gateway):
    log.create_topic(topic)
    producer = transactional(gateway, topic, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    send(producer, topic, [1])
    log.abort_transaction(topic)  # as its timeout does, without the wait
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(WAIT_S)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    send(producer, topic, [2])
    producer.commit_transaction(WAIT_S)
    assert values(log, topic) == [2]


def copy(address: str, source: str, target: str, name: str, count: int, aborts: int = 0) -> None:
    """Copy records exactly once: their positions are part of the transactions."""
    producer = transactional(address, name)
    consumer = consumer_at(
        address, name, **{"enable.auto.commit": False, "isolation.level": "read_committed"}
    )
    with closing(consumer):
        consumer.subscribe([source])
        copied = 0
        while copied < count:
            messages = consumer.consume(50, 1.0)
            good = [each for each in messages if each.error() is None]
            if not good:
                continue
            producer.begin_transaction()
            for each in good:
                producer.produce(target, each.value(), partition=each.partition())
            places = consumer.position(consumer.assignment())
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(places, group, WAIT_S)
            if aborts:
                aborts -= 1
                producer.abort_transaction(WAIT_S)
                for place in consumer.committed(consumer.assignment(), WAIT_S):
                    place.offset = max(0, place.offset)
                    consumer.seek(place)
                continue
            producer.commit_transaction(WAIT_S)
            copied += len(good)


def test_a_copy_with_positions_is_exactly_once(topic, server):
    fill(server, topic, 2, 500)
    target = f"{topic}-copy"
    create_topic(server, target, 2)
    copy(server, topic, target, topic, 300, aborts=2)
    before = len(read(server, target, 2))
    assert before >= 300
    if before < 500:
        copy(server, topic, target, topic, 500 - before)
    assert read(server, target, 2) == list(range(500))
    assert positions_at(server, topic, topic, 2) == [250, 250]


def test_positions_of_a_removed_member_cannot_commit(topic, server):
    fill(server, topic, 1, 10)
    producer = transactional(server, topic)
    consumer = consumer_at(server, topic, **{"enable.auto.commit": False})
    consumer.subscribe([topic])
    assert consumer.poll(WAIT_S).value() == b"0"
    places, group = consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
    consumer.close()
    producer.begin_transaction()
    send(producer, topic, [10])
    with pytest.raises(KafkaException) as refused:
        producer.send_offsets_to_transaction(places, group, WAIT_S)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(WAIT_S)
    assert read(server, topic) == list(range(10))
    assert position(server, topic, topic) == -1
    assert committed(server, topic, topic, 4) == 0


def test_writes_come_through_another_gateway_than_the_decision(shared, log, topic):
    """A partition is led by any of the gateways, and one of them coordinates all transactions."""
    log.create_topic(topic, partitions=8)
    with started_together(shared.address, 2) as found:
        producer = transactional(next(iter(found)), topic)
        for number in range(5):
            producer.begin_transaction()
            for partition in range(8):
                send(producer, topic, [number * 8 + partition], partition)
                send(producer, topic, [100 + number * 8 + partition], partition)
            if number == 3:
                producer.abort_transaction(WAIT_S)
            else:
                producer.commit_transaction(WAIT_S)
    kept = [n for n in range(40) if n // 8 != 3]
    assert sorted(values(log, topic)) == sorted(kept + [100 + n for n in kept])


def test_a_transaction_whose_gateway_ends_is_aborted_by_its_client(shared, log, topic):
    log.create_topic(topic, partitions=8)
    with started_together(shared.address, 2) as found:
        producer = producer_at(",".join(found), **{"transactional.id": topic, "linger.ms": 0})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for partition in range(8):
            send(producer, topic, [partition], partition)
        found[coordinator(found)].close()
        with pytest.raises(KafkaException) as refused:
            commit_with_retries(producer)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(WAIT_S)
        producer.begin_transaction()
        send(producer, topic, [7])
        producer.commit_transaction(WAIT_S)
    assert values(log, topic) == [7]


def test_positions_move_after_the_end_of_their_coordinator(shared, log, topic):
    """librdkafka waits without end for a cached coordinator that is not in the metadata."""
    log.create_topic(topic)
    with (
        started_together(shared.address, 2) as found,
        closing(consumer_at(",".join(found), topic)) as consumer,
    ):
        group = consumer.consumer_group_metadata()
        producer = transactional(",".join(found), topic)

        def copied(offset: int) -> None:
            producer.begin_transaction()
            send(producer, topic, [offset])
            place = TopicPartition(topic, 0, offset)
            producer.send_offsets_to_transaction([place], group, WAIT_S)
            producer.commit_transaction(WAIT_S)

        copied(1)
        ending = found.pop(coordinator(found))
        ending.close()
        [left] = found
        eventually(lambda: coordinator(found) == left)
        producer.list_topics(timeout=WAIT_S)  # the client reads the new metadata
        again = threading.Thread(target=copied, args=(2,), daemon=True)
        again.start()
        again.join(WAIT_S)
        assert not again.is_alive()
        assert values(log, topic) == [1, 2]
        assert position(left, topic, topic) == 2


def test_only_the_coordinator_begins_transactions_and_takes_their_positions(shared, log, topic):
    """A client may have two coordinators in its cache, for transactions and for a group."""
    log.create_topic(topic)
    with started_together(shared.address, 2) as found:
        at = coordinator(found)
        [other] = found.keys() - {at}
        own = initialised(at, topic)
        producer = {"producer_id": own["producer_id"], "producer_epoch": 0}
        producer["transactional_id"] = topic
        partitions = {"v3_and_below_topics": [{"name": topic, "partitions": [0]}]}
        begin = {f"v3_and_below_{key}": value for key, value in producer.items()} | partitions
        refused = KafkaCode.NOT_COORDINATOR
        answer = asked(other, "AddPartitionsToTxn", 3, begin)
        [added] = answer["results_by_topic_v3_and_below"][0]["results_by_partition"]
        assert added["partition_error_code"] == refused
        assert added_offsets(other, producer, topic) == refused
        assert log.describe_transaction(topic).state == "empty"
        assert added_offsets(at, producer, topic) == 0
        assert moved(other, producer, topic) == refused
        assert moved(at, producer, topic) == 0


def added_offsets(address: str, producer: dict[str, Any], group: str) -> int:
    found: int = asked(address, "AddOffsetsToTxn", 2, {**producer, "group_id": group})["error_code"]
    return found


def moved(address: str, producer: dict[str, Any], topic: str) -> int:
    """Move the position of a group with the name of the topic. Return the error code."""
    places = [{"partition_index": 0, "committed_offset": 1}]
    fields = {**producer, "group_id": topic, "topics": [{"name": topic, "partitions": places}]}
    found = asked(address, "TxnOffsetCommit", 3, fields | {"generation_id": -1})
    code: int = found["topics"][0]["partitions"][0]["error_code"]
    return code


def coordinator(found: dict[str, Any]) -> str:
    """Return the address of the coordinator, according to the first gateway."""
    at = asked(next(iter(found)), "FindCoordinator", 2, {"key": "k", "key_type": 1})
    return f"{at['host']}:{at['port']}"


def commit_with_retries(producer: Any) -> None:
    while True:
        try:
            return producer.commit_transaction(WAIT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def test_kafka_python_writes_transactions(topic, server):
    create_topic(server, topic)
    with closing(kafka.KafkaProducer(bootstrap_servers=server, transactional_id=topic)) as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert read(server, topic) == [0, 2]


# -- plain requests --------------------------------------------------------------------------------


def initialised(address: str, name: str, **fields: Any) -> dict[str, Any]:
    """Send InitProducerId, again while the coordinator starts. Return the fields of its answer."""
    given = {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1}
    given |= {"producer_epoch": -1, **fields}
    # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
    starting = (14, 15, 16)

    def answer() -> dict[str, Any] | None:
        asked(address, "FindCoordinator", 2, {"key": name, "key_type": 1})
        found = asked(address, "InitProducerId", 4, given)
        return None if found["error_code"] in starting else found

    found: dict[str, Any] = eventually(answer)
    return found


def described(address: str, *names: str) -> list[dict[str, Any]]:
    found = asked(address, "DescribeTransactions", 0, {"transactional_ids": list(names)})
    states: list[dict[str, Any]] = found["transaction_states"]
    return states


def test_a_producer_may_take_other_sequences_only_while_it_owns_the_id(topic, server):
    first = initialised(server, topic)
    second = initialised(server, topic, **owner(first))
    assert initialised(server, topic, **owner(first)) == second  # its answer was lost
    third = initialised(server, topic, **owner(second))
    assert [each["error_code"] for each in (first, second, third)] == [0, 0, 0]
    late = initialised(server, topic, **owner(first))
    assert late["error_code"] == KafkaCode.PRODUCER_FENCED


def owner(found: dict[str, Any]) -> dict[str, int]:
    return {name: found[name] for name in ("producer_id", "producer_epoch")}


@pytest.mark.parametrize("timeout_ms", [0, -1, 2_000_000_000])
def test_a_timeout_out_of_range_is_refused(topic, server, timeout_ms):
    found = initialised(server, topic, transaction_timeout_ms=timeout_ms)
    assert found["error_code"] == KafkaCode.INVALID_TRANSACTION_TIMEOUT


def test_a_repeated_end_has_the_same_answer(log, topic, gateway, other_gateway):
    log.create_topic(topic)
    own = initialised(gateway, topic)
    producer = {"producer_id": own["producer_id"], "producer_epoch": 0, "transactional_id": topic}
    fields = {
        f"v3_and_below_{name}": value
        for name, value in {**producer, "topics": [{"name": topic, "partitions": [0]}]}.items()
    }

    def end(address: str, is_commit: bool) -> int:
        found = asked(address, "EndTxn", 2, {**producer, "committed": is_commit})
        code: int = found["error_code"]
        return code

    def begin(address: str) -> int:
        found = asked(address, "AddPartitionsToTxn", 2, fields)
        [each] = found["results_by_topic_v3_and_below"][0]["results_by_partition"]
        code: int = each["partition_error_code"]
        return code

    assert begin(gateway) == 0
    assert begin(gateway) == 0
    # The positions of the transaction are in the memory of the first gateway. So it is aborted.
    assert end(other_gateway, True) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert end(gateway, True) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert end(gateway, False) == 0
    assert begin(gateway) == 0
    assert end(gateway, True) == 0
    assert end(gateway, True) == 0
    assert end(other_gateway, True) == 0
    assert end(other_gateway, False) == 0  # of the next one, which has not begun
    assert begin(other_gateway) == 0
    assert end(other_gateway, False) == 0
    assert end(gateway, False) == 0
    later = initialised(gateway, topic)
    assert later["error_code"] == 0
    assert begin(gateway) == KafkaCode.PRODUCER_FENCED
    assert end(gateway, True) == KafkaCode.UNKNOWN_PRODUCER_ID


def test_a_batch_that_is_repeated_in_a_later_transaction_is_stored_once(
    log, topic, gateway, other_gateway
):
    """A paused gateway may send it when its transaction has ended long ago."""
    log.create_topic(topic)
    own = initialised(gateway, topic)
    producer = {"producer_id": own["producer_id"], "transactional_id": topic}
    producer["producer_epoch"] = own["producer_epoch"]

    def write(address: str, first: int, **fields: int) -> dict[str, Any]:
        data = batch(first, 5, own["producer_id"], own["producer_epoch"])
        data = rebuilt(data, data[61:], attributes=1 << 4, **fields)
        return produced(address, topic, data, transactional_id=topic)

    def begin(address: str) -> None:
        assert added_offsets(address, producer, topic) == 0

    def commit(address: str) -> None:
        assert asked(address, "EndTxn", 2, {**producer, "committed": True})["error_code"] == 0

    begin(gateway)
    assert write(gateway, 0)["base_offset"] == 0
    assert write(other_gateway, 5)["base_offset"] == 5
    commit(gateway)
    begin(gateway)
    for late in (0, 5):
        assert write(other_gateway, late)["base_offset"] == late  # as the first time
    assert write(gateway, 10)["error_code"] == 0
    for late in (0, 5):
        found = write(other_gateway, late)["error_code"]
        assert found == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(other_gateway, 20)["error_code"] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    commit(gateway)
    assert values(log, topic) == list(range(15))
    own |= initialised(gateway, topic)  # its sequences begin again
    producer |= owner(own)
    begin(other_gateway)
    assert write(gateway, 0)["error_code"] == 0
    commit(other_gateway)
    assert values(log, topic) == [*range(15), *range(5)]


def test_an_abort_ends_a_transaction_that_another_gateway_began(log, topic, gateway, other_gateway):
    """Also if this gateway still has an earlier one, which the other has ended."""
    log.create_topic(topic)
    own = initialised(gateway, topic)
    producer = {"producer_id": own["producer_id"], "producer_epoch": 0, "transactional_id": topic}

    def code(address: str, api: str, **fields: Any) -> int:
        found: int = asked(address, api, 2, {**producer, **fields})["error_code"]
        return found

    assert code(gateway, "EndTxn", committed=False) == 0  # there is none
    assert code(gateway, "AddOffsetsToTxn", group_id=topic) == 0
    assert code(other_gateway, "EndTxn", committed=False) == 0
    assert code(other_gateway, "AddOffsetsToTxn", group_id=topic) == 0
    assert code(gateway, "EndTxn", committed=False) == 0
    assert log.describe_transaction(topic).state == "aborted"


def test_two_gateways_never_have_the_same_transaction(log, topic, gateway, other_gateway):
    """A client may change its coordinator and return, and each gateway takes itself for it."""
    log.create_topic(topic)
    own = initialised(gateway, topic)
    producer = {"producer_id": own["producer_id"], "producer_epoch": 0, "transactional_id": topic}

    add = partial(added_offsets, producer=producer, group=topic)
    move = partial(moved, producer=producer, topic=topic)

    def end(address: str) -> int:
        code: int = asked(address, "EndTxn", 2, {**producer, "committed": True})["error_code"]
        return code

    assert add(gateway) == 0
    assert move(other_gateway) == KafkaCode.ILLEGAL_GENERATION
    assert add(other_gateway) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert move(gateway) == 0
    assert end(gateway) == 0
    assert position(gateway, topic, topic) == 1
    # The first one still has a transaction that the other ends, and must not take its positions.
    assert add(gateway) == 0
    assert end(other_gateway) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert add(other_gateway) == 0
    assert move(gateway) == KafkaCode.ILLEGAL_GENERATION
    assert move(other_gateway) == 0
    assert end(other_gateway) == 0
    assert add(other_gateway) == 0
    # The first gateway has committed the transaction before, and must not answer for this one.
    assert end(gateway) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert end(other_gateway) == KafkaCode.UNKNOWN_PRODUCER_ID
    assert log.describe_transaction(topic).state == "aborted"


def test_partitions_that_do_not_exist_begin_no_transaction(topic, server):
    create_topic(server, topic)
    own = initialised(server, topic)
    fields = {
        "v3_and_below_transactional_id": topic,
        "v3_and_below_producer_id": own["producer_id"],
        "v3_and_below_topics": [{"name": topic, "partitions": [0, 1]}],
    }
    found = asked(server, "AddPartitionsToTxn", 2, fields)
    [each] = found["results_by_topic_v3_and_below"]
    codes = {
        each["partition_index"]: each["partition_error_code"]
        for each in each["results_by_partition"]
    }
    assert codes == {
        0: KafkaCode.OPERATION_NOT_ATTEMPTED,
        1: KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    [shown] = described(server, topic)
    assert shown["transaction_state"] == "Empty"


def test_transactions_are_listed_and_described(topic, server):
    create_topic(server, topic)
    producer = transactional(server, topic)
    producer.begin_transaction()
    send(producer, topic, [1])
    here, missing = described(server, topic, "missing")
    assert (here["transaction_state"], here["topics"]) == (
        "Ongoing",
        [{"topic": topic, "partitions": [0]}],
    )
    assert missing["error_code"] == KafkaCode.TRANSACTIONAL_ID_NOT_FOUND
    listed = asked(server, "ListTransactions", 1, {"state_filters": ["Ongoing", "Odd"]})
    assert listed["unknown_state_filters"] == ["Odd"]
    assert topic in [each["transactional_id"] for each in listed["transaction_states"]]
    producer.abort_transaction(WAIT_S)
