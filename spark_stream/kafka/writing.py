"""Writes of a Kafka client: its record batches become appends to a topic.

A batch of an idempotent producer keeps its producer id, its epoch and its sequences. So the leader
recognises a duplicate, whichever gateway it comes through. Other batches become appends of a
producer of the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from spark_stream.consistency.partition.producers import SEQUENCE_MAX, Stamp
from spark_stream.errors import (
    IsologError,
    ProducerFenced,
    RecordTooLarge,
    SchemaMismatch,
    TransactionAborted,
)
from spark_stream.kafka.calls import Answer, KafkaCall
from spark_stream.kafka.producers import LEVELS, Pending
from spark_stream.kafka.reading import topic_of
from spark_stream.kafka.records.batches import Batch, read_batches
from spark_stream.kafka.records.decoding import decode_records
from spark_stream.kafka.refusals import (
    InvalidAcks,
    InvalidRecords,
    KafkaCode,
    Refusal,
    UnansweredFailure,
    UnsupportedBatch,
    code_of,
)
from spark_stream.kafka.transactions import stamp_in
from spark_stream.kafka.typed import as_rows
from spark_stream.loggers import logger_of
from spark_stream.schema.schemas import is_default
from spark_stream.schema.values import record_sizes
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

RECORDS_MAX: Final = 64 << 20
"""The most bytes of the records of a batch, after decompression."""

REQUEST_BYTES_MAX: Final = 256 << 20
"""The most bytes of all records of a request, after decompression."""

# A record has seven bytes or more beside its key, value and headers. The check counts eight for its
# time instead, so at most 8/7 of the bytes.
_COUNTED_PER_BYTE_MAX: Final = 2

_NO_ACKS: Final = 0

Sent = Pending | Answer
"""The append of a partition, or the answer about one that cannot be appended."""


def produce(call: KafkaCall) -> Answer | None:
    """Append the batches of a request. Return the fields of the answer, or None without ``acks``.

    The appends of all partitions run at the same time.

    Raises:
        UnansweredFailure: An append without ``acks`` failed.
    """
    fields = call.fields
    deadline = time.monotonic() + fields["timeout_ms"] / 1_000
    sent: dict[str, dict[int, Sent]] = {}
    room = Room(REQUEST_BYTES_MAX)
    for topic in fields["topic_data"]:
        for each in topic["partition_data"]:
            of_topic = sent.setdefault(topic["name"], {})
            try:
                of_topic[each["index"]] = _append(call, topic["name"], each, room)
            except Exception as error:
                of_topic[each["index"]] = _failed(error)
    answers = {
        name: [
            {"index": index} | (settled(each, deadline) if callable(each) else each)
            for index, each in partitions.items()
        ]
        for name, partitions in sent.items()
    }
    if fields["acks"] == _NO_ACKS:
        _check_settled(answers)
        return None
    return {
        "responses": [
            {"name": name, "partition_responses": partitions}
            for name, partitions in answers.items()
        ]
    }


def _check_settled(answers: Mapping[str, list[Answer]]) -> None:
    for name, partitions in answers.items():
        for each in partitions:
            if code := each.get("error_code"):
                text = each.get("error_message") or KafkaCode(code).name
                raise UnansweredFailure(f"{name}/{each['index']}: {text}")


class Room:
    """The bytes that the records of a request may still have after their decompression."""

    def __init__(self, size: int) -> None:
        self.left = size


def _append(call: KafkaCall, name: str, given: Mapping[str, Any], room: Room) -> Pending:
    level = LEVELS.get(call.fields["acks"])
    if level is None:
        raise InvalidAcks(f"acks is {call.fields['acks']}, and may be -1, 0 or 1")
    partition = given["index"]
    topic = topic_of(call.log, name, partition)
    data = pa.py_buffer(given["records"] or b"")
    batches = list(islice(read_batches(data, min(RECORDS_MAX, room.left)), 2))
    if len(batches) != 1:
        raise InvalidRecords("a request has one batch for a partition")
    batch = batches[0]
    room.left -= batch.records.size
    if batch.is_control:
        raise UnsupportedBatch("only brokers write markers")
    records = decode_records(batch)
    try:
        rows = as_rows(records, topic.schema)
    except SchemaMismatch:  # the columns of the topic may have changed
        call.log._topics.drop(name)
        topic = topic_of(call.log, name, partition)
        rows = as_rows(records, topic.schema)
    check_sizes(rows, topic, batch.records.size)
    append = call.user.producers.append
    call.counts.appended.add(1, rows.num_rows, batch.records.size)
    transactional_id = call.fields["transactional_id"]
    if not batch.is_transactional:
        return append(topic, partition, rows, level, _stamp(batch, rows.num_rows))
    if transactional_id is None or batch.producer_id < 0:
        raise UnsupportedBatch("a batch of a transaction needs a transactional id")
    stamp = stamp_in(call, transactional_id, batch, rows.num_rows)
    pending = append(topic, partition, rows, level, stamp, transactional_id)

    def offset(timeout_s: float) -> int:
        try:
            return pending(timeout_s)
        except (ProducerFenced, TransactionAborted):  # it may have ended at another gateway
            call.transactions.forget(transactional_id, batch.producer_id)
            raise

    return offset


def _stamp(batch: Batch, rows: int) -> Stamp | None:
    """Return the stamp of a batch outside transactions, None without an idempotent producer."""
    if batch.producer_id < 0:
        return None
    first = batch.base_sequence
    last = (first + rows - 1) % (SEQUENCE_MAX + 1)
    return Stamp(batch.producer_id, batch.producer_epoch, last, first=first)


def check_sizes(rows: pa.RecordBatch, topic: TopicDescription, records_bytes: int) -> None:
    """Check the records of a batch, which is stored as a whole.

    ``records_bytes``: the bytes of its records in Kafka's form, without compression.

    Raises:
        RecordTooLarge: A record is larger than ``max.record.bytes`` of the topic.
    """
    largest = int(topic.config["max.record.bytes"])
    is_small = is_default(topic.schema) and records_bytes * _COUNTED_PER_BYTE_MAX <= largest
    if is_small or rows.nbytes <= largest:
        return
    greatest = int(record_sizes(rows).max())
    if greatest > largest:
        raise RecordTooLarge(
            f"a record has {greatest} bytes, and max.record.bytes of {topic.name!r} is {largest}"
        )


def settled(pending: Pending, deadline: float) -> Answer:
    """Return the answer about a partition when its append is acknowledged."""
    try:
        offset = pending(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return {"error_code": int(KafkaCode.REQUEST_TIMED_OUT), "base_offset": -1}
    except IsologError as error:
        return _failed(error)
    return {"base_offset": offset, "log_append_time_ms": -1}


def _failed(error: Exception) -> Answer:
    code = code_of(error)
    message = error.message if isinstance(error, IsologError) else str(error)
    if not isinstance(error, IsologError | Refusal):
        logger.exception("a batch of a Kafka client could not be appended")
    elif code is KafkaCode.UNKNOWN_SERVER_ERROR:  # librdkafka does not show the message
        logger.warning("a batch of a Kafka client could not be appended: %s", error)
    return {"error_code": int(code), "base_offset": -1, "error_message": message}
