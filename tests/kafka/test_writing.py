"""The limits of a gateway: the sizes of records, and the memory that connections share."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from spark_stream.errors import (
    InternalError,
    IsologError,
    NotLeader,
    OutOfOrderSequence,
    RecordTooLarge,
    UnknownOutcome,
)
from spark_stream.kafka.memory.budget import MemoryBudget
from spark_stream.kafka.producers import offset_in
from spark_stream.kafka.records.batches import Batch, read_batches
from spark_stream.kafka.records.decoding import decode_records
from spark_stream.kafka.refusals import KafkaCode
from spark_stream.kafka.typed import as_rows
from spark_stream.kafka.writing import check_sizes, settled
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.topic_messages import TopicDescription
from tests.kafka.kafka_batches import Row, by_kafka
from tests.support import eventually

LARGEST = 1_000
TIME_BYTES = 8


def batch_of(rows: list[Row]) -> Batch:
    (found,) = read_batches(pa.py_buffer(by_kafka(rows)), 1 << 20)
    return found


def topic_of(schema: pa.Schema) -> TopicDescription:
    return TopicDescription("t", "id", schema, {"max.record.bytes": str(LARGEST)}, ())


@pytest.mark.parametrize("others", [0, 20])
@pytest.mark.parametrize("header", [0, 100])
def test_a_record_of_exactly_the_limit_is_taken(others: int, header: int) -> None:
    topic = topic_of(DEFAULT_SCHEMA)
    headers: list[tuple[str, bytes | None]] = [("h" * header, b"")] if header else []
    for excess in (0, 1):
        value = b"v" * (LARGEST - TIME_BYTES - header - 3 + excess)
        batch = batch_of([(b"", b"small", [], 0)] * others + [(b"key", value, headers, 0)])
        rows = decode_records(batch)
        if excess:
            with pytest.raises(RecordTooLarge, match=f"{LARGEST + 1} bytes"):
                check_sizes(rows, topic, batch.records.size)
        else:
            check_sizes(rows, topic, batch.records.size)


def test_a_typed_record_is_measured_by_its_columns() -> None:
    """An object of two bytes has a value of eight bytes in each column."""
    schema = pa.schema([pa.field(f"c{number}", pa.int64()) for number in range(LARGEST // 8 + 1)])
    batch = batch_of([(None, b"{}", [], 0)])
    rows = as_rows(decode_records(batch), schema)
    with pytest.raises(RecordTooLarge):
        check_sizes(rows, topic_of(schema), batch.records.size)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownOutcome("not replicated in time"), KafkaCode.REQUEST_TIMED_OUT),
        (InternalError("a defect"), KafkaCode.REQUEST_TIMED_OUT),
        (NotLeader("another broker leads now"), KafkaCode.NOT_LEADER_OR_FOLLOWER),
        (OutOfOrderSequence("sequence 7"), KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
    ids=lambda each: getattr(each, "code", ""),
)
@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "lost"])
def test_a_client_repeats_a_batch_with_an_unknown_outcome(
    error: IsologError, code: KafkaCode, is_refused: bool
) -> None:
    """For Kafka's clients UNKNOWN_SERVER_ERROR is final: the records would be reported as lost."""

    def answer(_: float) -> Ack:
        if is_refused:
            return BatchRefused(number=1, partition=0, error=error, count=0)
        raise error

    found = settled(offset_in(answer), time.monotonic() + 1.0)
    assert (found["error_code"], found["base_offset"]) == (code, -1)


def test_returned_memory_goes_to_a_connection_that_waits() -> None:
    budget = MemoryBudget(100)
    budget.take(60)
    taken = threading.Event()

    def take() -> None:
        budget.take(50)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    eventually(lambda: budget._waiting == 1)
    budget.give_back(5)
    assert budget.take_some(100, 0) == 45
    budget.give_back(45)
    assert not taken.is_set()
    budget.give_back(55)
    thread.join(20)
    assert taken.is_set()
