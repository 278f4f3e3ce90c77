"""Topics for Kafka's administration clients.

Each topic of a request succeeds or fails separately. A failed one has Kafka's error code and the
message of the broker. isolog places the replicas of new partitions itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from spark_stream.client.log import Log
from spark_stream.consistency.isolation import Isolation
from spark_stream.errors import (
    InvalidTopic,
    IsologError,
    OffsetOutOfRange,
    UnknownPartition,
)
from spark_stream.kafka.administration.configurations import (
    answer_each,
    parse_settings,
    shown_settings,
)
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.refusals import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    Refusal,
    code_of,
)
from spark_stream.wire.messages import LATEST
from spark_stream.wire.topic_messages import TopicDescription

_BY_DEFAULT: Final = -1
_TO_THE_END: Final = -1


def create_topics(call: KafkaCall) -> Answer:
    """Create topics with Kafka's columns. Return the fields of the answer."""
    return {"topics": answer_each(call.fields["topics"], ["name"], partial(_create, call))}


def _create(call: KafkaCall, item: Answer) -> Answer:
    count, factor = item["num_partitions"], item["replication_factor"]
    _check_not_assigned(item)
    if count < 1 and count != _BY_DEFAULT:
        raise InvalidPartitions(f"a topic has at least 1 partition, not {count}")
    if factor < 1 and factor != _BY_DEFAULT:
        raise InvalidReplicationFactor(f"a topic has at least 1 replica, not {factor}")
    config = parse_settings((each["name"], each["value"]) for each in item["configs"])
    with _partitions_counted():
        topic = call.log._topics.create(
            item["name"],
            None if count == _BY_DEFAULT else count,
            None if factor == _BY_DEFAULT else factor,
            None,
            config,
            dry_run=call.fields["validate_only"],
        )
    return {
        "num_partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": [*shown_settings(topic).values()],
    }


def _check_not_assigned(item: Answer) -> None:
    if item["assignments"]:
        raise InvalidReplicaAssignment(
            "isolog chooses the brokers of new partitions: leave the assignment out"
        )


@contextmanager
def _partitions_counted() -> Iterator[None]:
    """Raise InvalidPartitions, not InvalidTopic, for too many partitions."""
    try:
        yield
    except InvalidTopic as error:
        if "partitions_max" not in error.details:
            raise
        raise InvalidPartitions(error.message) from None


def delete_topics(call: KafkaCall) -> Answer:
    """Delete topics by their names. Return the fields of the answer."""

    def delete(item: Answer) -> Answer:
        call.log.delete_topic(item["name"])
        return {}

    items = [{"name": each} for each in call.fields["topic_names"]]
    return {"responses": answer_each(items, ["name"], delete)}


def create_partitions(call: KafkaCall) -> Answer:
    """Add partitions to topics. Return the fields of the answer."""

    def add(item: Answer) -> Answer:
        topic, count = call.log.describe(item["name"]), item["count"]
        _check_not_assigned(item)
        if count <= len(topic.partitions):
            raise InvalidPartitions(
                f"topic {topic.name!r} has {len(topic.partitions)} partitions already, and cannot"
                f" get {count}"
            )
        with _partitions_counted():
            call.log._topics.alter(
                topic.name, count, {}, topic_id=topic.id, dry_run=call.fields["validate_only"]
            )
        return {}

    return {"results": answer_each(call.fields["topics"], ["name"], add)}


def delete_records(call: KafkaCall) -> Answer:
    """Delete the records below an offset of partitions. Return the fields of the answer.

    The offset -1 means the last stable offset: records of open transactions stay.
    """
    return {
        "topics": [
            {"name": each["name"], "partitions": _trim(call.log, each["name"], each["partitions"])}
            for each in call.fields["topics"]
        ]
    }


def _trim(log: Log, name: str, asked: Sequence[Answer]) -> list[Answer]:
    topic: TopicDescription | Exception
    try:
        topic = log.describe(name)
    except (IsologError, Refusal) as error:
        topic = error
    found = []
    for each in asked:
        number = each["partition_index"]
        try:
            if isinstance(topic, Exception):
                raise topic
            answer = {"low_watermark": _log_start(log, topic, number, each["offset"])}
        except (IsologError, Refusal) as error:
            answer = {"error_code": int(code_of(error)), "low_watermark": -1}
        found.append({"partition_index": number, **answer})
    return found


def _log_start(log: Log, topic: TopicDescription, number: int, offset: int) -> int:
    """Trim a partition below an offset, and return its log start."""
    if number not in range(len(topic.partitions)):
        raise UnknownPartition(f"topic {topic.name!r} has no partition {number}")
    if offset == _TO_THE_END:
        level = Isolation.READ_COMMITTED
        at = log._topics.offsets(topic.name, at=LATEST, isolation=level, partitions=[number])
        offset = at.offsets[number]
    if offset < 0:
        raise OffsetOutOfRange(f"an offset is at least 0, not {offset}")
    return log._topics.trim(topic.name, topic.id, {number: offset})[number]
