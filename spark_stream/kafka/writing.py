"""Writes of a Kafka client: its record batches become appends to a topic.

A batch of an idempotent producer keeps its producer id, its epoch and its sequences. So the leader
recognises a duplicate, whichever gateway it comes through. Other batches become appends of a
producer of the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_stream.client.log import Log
from spark_stream.client.values import Written
from spark_stream.client.writing.producer import Producer
from spark_stream.client.writing.stamped import StampedWriter
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.producers import SEQUENCE_MAX, Stamp
from spark_stream.errors import IsologError, RecordTooLarge
from spark_stream.kafka.reading import topic_of
from spark_stream.kafka.records.batches import Batch, read_batches
from spark_stream.kafka.records.decoding import decode_records
from spark_stream.kafka.refusals import (
    InvalidAcks,
    KafkaCode,
    Refusal,
    UnsupportedBatch,
    code_of,
)
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.topic_messages import TopicDescription
from spark_stream.wire.transaction_messages import NewProducer

logger = logger_of(__name__)

ACKNOWLEDGED_MS: Final = 30_000
"""The longest wait of a leader for its followers."""

RECORDS_MAX: Final = 64 << 20
"""The most bytes of the records of a batch, after decompression."""

_LEVELS: Final = {
    -1: Isolation.READ_COMMITTED,
    0: Isolation.READ_UNCOMMITTED,
    1: Isolation.READ_UNCOMMITTED,
}
"""The level of an acknowledgement, by the client's ``acks``: -1 waits for all in-sync replicas."""

Answer = dict[str, Any]
Pending = Callable[[float], int]
"""A function that waits for an append, up to some seconds, and returns its first offset."""

Sent = tuple[list[Pending], Answer | None]
"""The appends of a partition, or the answer about one that cannot be appended."""


class Producers:
    """The writers of a gateway's connection to the brokers, two for each level. Thread-safe."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = new_lock(is_brief=False)
        self._by_level: dict[Isolation, Producer] = {}
        self._stamped = {
            each: StampedWriter(log._topics, each, ACKNOWLEDGED_MS) for each in {*_LEVELS.values()}
        }

    def append(
        self, topic: TopicDescription, partition: int, batch: Batch, level: Isolation
    ) -> Pending:
        """Append a batch. Return a function that waits for its first offset."""
        rows = decode_records(batch).rows
        check_sizes(rows, topic)
        if batch.producer_id < 0:
            return _offset_of(self.get(level).append(topic.name, rows, partition=partition))
        first = batch.base_sequence
        last = (first + rows.num_rows - 1) % (SEQUENCE_MAX + 1)
        stamp = Stamp(batch.producer_id, batch.producer_epoch, last, first=first)
        return _offset_in(self._stamped[level].append(topic, partition, rows, stamp))

    def get(self, level: Isolation) -> Producer:
        """Return the producer of a level."""
        with self._lock:
            found = self._by_level.get(level)
            if found is None:
                found = self._by_level[level] = self._log.producer(isolation=level.value)
            return found

    def close(self) -> None:
        """Flush and close all writers. Each record has its answer already."""
        for each in self._by_level.values():
            try:
                each.close()
            except IsologError as error:
                logger.debug("a producer of the gateway was closed with an error: %s", error)
        for writer in self._stamped.values():
            writer.close()


def _offset_of(written: Future[Written]) -> Pending:
    return lambda timeout_s: written.result(timeout_s).offset


def _offset_in(answer: Future[Ack]) -> Pending:
    def offset(timeout_s: float) -> int:
        ack = answer.result(timeout_s)
        if isinstance(ack, BatchRefused):
            raise ack.error
        return ack.offset

    return offset


def check_sizes(rows: pa.RecordBatch, topic: TopicDescription) -> None:
    """Check that all records fit, so that a batch is stored as a whole or not at all.

    Raises:
        RecordTooLarge: A record is larger than ``max.record.bytes`` of the topic.
    """
    largest = int(topic.config["max.record.bytes"])
    if rows.nbytes <= largest:
        return
    sizes = [pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value")]
    greatest = pc.max(pc.add(*sizes)).as_py()
    if greatest > largest:
        raise RecordTooLarge(
            f"a record has {greatest} bytes, and max.record.bytes of {topic.name!r} is {largest}"
        )


def init_producer_id(log: Log, fields: Mapping[str, Any]) -> Answer:
    """Return the fields of the answer with a new producer id.

    Raises:
        UnsupportedBatch: The producer has a transactional id.
    """
    if fields["transactional_id"] is not None:
        raise UnsupportedBatch("the gateway has no transactions yet")
    found = log._connection.call(NewProducer())
    return {"producer_id": found.producer_id, "producer_epoch": found.epoch}


def produce(log: Log, producers: Producers, fields: Mapping[str, Any]) -> Answer:
    """Append the batches of a request. Return the fields of the answer.

    The appends of all partitions run at the same time.
    """
    acks, deadline = fields["acks"], time.monotonic() + fields["timeout_ms"] / 1_000
    sent: dict[str, dict[int, Sent]] = {}
    for topic in fields["topic_data"]:
        for each in topic["partition_data"]:
            of_topic = sent.setdefault(topic["name"], {})
            try:
                futures = _append(log, producers, acks, topic["name"], each)
                of_topic[each["index"]] = futures, None
            except Exception as error:
                of_topic[each["index"]] = [], _failed(error)
    return {
        "responses": [
            {
                "name": name,
                "partition_responses": [
                    {"index": index} | (answer or _settled(futures, deadline))
                    for index, (futures, answer) in partitions.items()
                ],
            }
            for name, partitions in sent.items()
        ]
    }


def _append(
    log: Log, producers: Producers, acks: int, name: str, given: Mapping[str, Any]
) -> list[Pending]:
    level = _LEVELS.get(acks)
    if level is None:
        raise InvalidAcks(f"acks is {acks}, and may be -1, 0 or 1")
    partition = given["index"]
    topic = topic_of(log, name, partition)
    batches = list(read_batches(pa.py_buffer(given["records"] or b""), RECORDS_MAX))
    if any(each.is_control or each.is_transactional for each in batches):
        raise UnsupportedBatch("the gateway has no transactions yet")
    return [producers.append(topic, partition, each, level) for each in batches]


def _settled(pending: Iterable[Pending], deadline: float) -> Answer:
    """Return the answer about a partition when its appends are acknowledged."""
    first = None
    try:
        for each in pending:
            offset = each(max(0.0, deadline - time.monotonic()))
            first = offset if first is None else first
    except TimeoutError:
        return {"error_code": int(KafkaCode.REQUEST_TIMED_OUT), "base_offset": -1}
    except IsologError as error:
        return _failed(error)
    return {"base_offset": -1 if first is None else first, "log_append_time_ms": -1}


def _failed(error: Exception) -> Answer:
    if not isinstance(error, IsologError | Refusal):
        logger.exception("a batch of a Kafka client could not be appended")
    message = error.message if isinstance(error, IsologError) else str(error)
    return {"error_code": int(code_of(error)), "base_offset": -1, "error_message": message}
