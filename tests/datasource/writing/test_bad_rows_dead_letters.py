"""Dead letters against a broker, without Spark: one transaction with the good rows, or none."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    DifferentReplay,
    InvalidOption,
    InvalidRecord,
    IsologError,
    SchemaMismatch,
    UnknownTopic,
)
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.writing.bad_rows import DEAD_LETTERS, RECORD_BYTES_MIN
from spark_stream.datasource.writing.writer import IsologWriter
from tests.support import BrokerProcess, log, shared, topic

__all__ = ["log", "shared", "topic"]

STRICT = pa.schema([pa.field("n", pa.int64(), nullable=False)])
LOOSE = to_spark(pa.schema([("n", pa.int64())]))
ROUTED = to_spark(pa.schema([("topic", pa.string()), ("value", pa.string())]))


def rows(*numbers: int | None) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def writer(
    broker: BrokerProcess, to: str | None, schema: Any = LOOSE, **more: object
) -> IsologWriter:
    given: dict[str, object] = {"bootstrap": broker.address, "onBadRecord": "deadLetter", **more}
    if to is not None:
        given |= {"topic": to}
    texts = {name: str(value) for name, value in given.items() if value is not None}
    return IsologWriter(sink_options(texts, streaming=False), schema)


@pytest.fixture
def dead(log: isolog.Log, topic: str) -> str:
    log.create_topic(topic, 2, schema=STRICT)
    log.create_topic(f"{topic}-dead", schema=DEAD_LETTERS)
    return f"{topic}-dead"


def committed(log: isolog.Log, name: str) -> list[dict[str, Any]]:
    return log.read(name, isolation="read_committed").to_pylist()


def numbers(log: isolog.Log, name: str) -> list[int]:
    return sorted(row["n"] for row in committed(log, name))


@pytest.mark.rule(
    "a dead letter is in the transaction of its batch's good rows",
    "datasource/writing/bad_rows.py",
)
def test_good_rows_and_dead_letters_become_visible_together(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = writer(shared, topic, deadLetterTopic=dead)
    lost = job.write(iter([rows(1, None)]))  # an attempt that the driver does not count
    kept = job.write(iter([rows(1, None), rows(2, None, 3)]))
    assert committed(log, topic) == committed(log, dead) == []
    assert lost.dead_letters == {"NULL_VALUE": 1}
    job.commit([None, kept])
    assert numbers(log, topic) == [1, 2, 3]
    letters = committed(log, dead)
    assert [(each["reason"], each["topic"], each["row"]) for each in letters] == [
        ("NULL_VALUE", topic, '{"n":null}')
    ] * 2
    assert letters[0]["message"] == "column 'n' takes no nulls"
    assert letters[0]["sink"].startswith("job/")
    (said,) = (each.message for each in caplog.records if "dead letters" in each.message)
    assert said == f"batch 0: dead letters in topic '{dead}': 2 rows (NULL_VALUE: 2)"


def test_aborted_batch_leaves_no_letter(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    job = writer(shared, topic, deadLetterTopic=dead)
    message = job.write(iter([rows(1, None)]))
    job.abort([message])
    assert committed(log, topic) == committed(log, dead) == []


def test_a_batch_of_bad_rows_alone_is_a_transaction_too(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    job = writer(shared, topic, deadLetterTopic=dead)
    job.commit([job.write(iter([rows(None, None)]))])
    assert committed(log, topic) == []
    assert len(committed(log, dead)) == 2


def test_replay_is_recognised_although_other_rows_are_bad_now(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    """The batch is measured before its bad rows are found."""
    log.create_topic(f"{topic}-text", schema=pa.schema([("v", pa.string())]))
    log.alter_topic(f"{topic}-text", config={"max.record.bytes": 10})
    texts = to_spark(pa.schema([("v", pa.string())]))
    sink = uuid.uuid4().hex

    def write(*values: str) -> None:
        more = {"sinkId": sink, "batchId": 0, "deadLetterTopic": dead}
        job = writer(shared, f"{topic}-text", texts, **more)
        job.commit([job.write(iter([pa.record_batch({"v": list(values)})]))])

    write("short", "x" * 20)
    log.alter_topic(f"{topic}-text", config={"max.record.bytes": 1000})
    write("x" * 20, "short")
    assert [each["v"] for each in committed(log, f"{topic}-text")] == ["short"]
    (letter,) = committed(log, dead)
    assert (letter["sink"], letter["batch"]) == (f"sink/{sink}", 0)
    assert letter["message"] == "the record is larger than max.record.bytes of the topic, 10"
    with pytest.raises(DifferentReplay):
        write("short", "y" * 20)


def test_next_task_uses_a_lowered_record_limit(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    """The task's process has the topic in its cache, with the same id."""
    texts = to_spark(pa.schema([("v", pa.string())]))
    log.create_topic(f"{topic}-text", schema=pa.schema([("v", pa.string())]))
    job = writer(shared, f"{topic}-text", texts, deadLetterTopic=dead)
    log.alter_topic(f"{topic}-text", config={"max.record.bytes": 10})
    job.commit([job.write(iter([pa.record_batch({"v": ["short", "x" * 20]})]))])
    assert [each["reason"] for each in committed(log, dead)] == ["RECORD_TOO_LARGE"]


def test_rows_with_a_wrong_topic_become_dead_letters(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    log.create_topic(f"{topic}-kafka")
    invalid = pa.array([b"\xff"], pa.binary()).view(pa.string())
    names = [f"{topic}-kafka", None, f"{topic}-none", topic, dead, "not a name", "", "x" * 300]
    batch = pa.record_batch(
        {
            "topic": pa.concat_arrays([pa.array(names, pa.string()), invalid]),
            "value": [f"v{number}" for number in range(9)],
        }
    )
    sink = uuid.uuid4().hex

    def write() -> None:
        more = {"sinkId": sink, "batchId": 0, "deadLetterTopic": dead}
        job = writer(shared, None, ROUTED, **more)
        job.commit([job.write(iter([batch]))])

    write()
    write()  # a replay
    found = log.read(f"{topic}-kafka", columns=["value"], isolation="read_committed")
    assert found["value"].to_pylist() == [b"v0"]
    letters = {json.loads(each["row"])["value"]: each for each in committed(log, dead)}
    assert len(committed(log, dead)) == 8
    assert {name: each["reason"] for name, each in letters.items()} == {
        "v1": "NO_TOPIC",
        "v2": "UNKNOWN_TOPIC",
        "v3": "SCHEMA_MISMATCH",
        "v4": "SCHEMA_MISMATCH",
        "v5": "UNKNOWN_TOPIC",
        "v6": "UNKNOWN_TOPIC",
        "v7": "UNKNOWN_TOPIC",
        "v8": "UNKNOWN_TOPIC",
    }
    assert letters["v1"]["topic"] is None
    assert letters["v2"]["topic"] == f"{topic}-none"
    assert letters["v4"]["message"] == f"topic '{dead}' is for dead letters only"


def test_without_dead_letters_rows_with_a_wrong_topic_fail_the_batch(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    def write(batch: pa.RecordBatch, to: str | None, schema: Any) -> None:
        writer(shared, to, schema, onBadRecord="fail").write(iter([batch]))

    with pytest.raises(InvalidRecord, match="its column 'topic' is null"):
        write(pa.record_batch({"topic": pa.nulls(1, pa.string()), "value": ["v"]}), None, ROUTED)
    with pytest.raises(UnknownTopic):
        write(pa.record_batch({"topic": [f"{topic}-none"], "value": ["v"]}), None, ROUTED)
    with pytest.raises(InvalidRecord, match="takes no nulls"):
        write(rows(None), topic, LOOSE)


def test_without_a_transaction_dead_letters_are_visible_immediately(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    job = writer(shared, topic, transactional="false", deadLetterTopic=dead)
    message = job.write(iter([rows(1, None)]))
    assert numbers(log, topic) == [1]
    (letter,) = committed(log, dead)
    assert (letter["sink"], letter["batch"], letter["task"]) == (None, None, None)
    job.commit([message])


def test_error_of_the_whole_query_is_no_dead_letter(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    for schema in (
        to_spark(pa.schema([("n", pa.string())])),
        to_spark(pa.schema([("m", pa.int64())])),
    ):
        with pytest.raises(SchemaMismatch):
            writer(shared, topic, schema, deadLetterTopic=dead)
    with pytest.raises(UnknownTopic):
        writer(shared, f"{topic}-none", deadLetterTopic=dead)


# -- the topic of dead letters --------------------------------------------------------------------


def test_missing_topic_of_dead_letters_is_created_only_with_create_topic(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    name = f"{topic}-dead"
    log.create_topic(topic, schema=STRICT)
    with pytest.raises(UnknownTopic, match="option deadLetterTopic: there is no topic") as caught:
        writer(shared, topic, deadLetterTopic=name)
    assert "reason string NOT NULL, message string NOT NULL, topic string" in caught.value.hint
    writer(shared, topic, deadLetterTopic=name, createTopic="true", partitions=3)
    made = log.describe(name)
    assert made.schema.equals(DEAD_LETTERS)
    assert len(made.partitions) == 1
    writer(shared, topic, deadLetterTopic=name)


def test_a_topic_that_does_not_take_dead_letters_is_refused(
    shared: BrokerProcess, log: isolog.Log, topic: str, dead: str
) -> None:
    def refused(name: str) -> IsologError:
        with pytest.raises(InvalidOption, match="option deadLetterTopic: ") as caught:
            writer(shared, topic, deadLetterTopic=name)
        return caught.value

    log.create_topic(f"{topic}-kafka")
    assert "reason string NOT NULL" in refused(f"{topic}-kafka").hint
    log.alter_topic(dead, config={"max.record.bytes": 8191})
    assert "Raise its max.record.bytes to 8192" in refused(dead).hint
    log.alter_topic(dead, config={"max.record.bytes": 8192})
    wider = pa.schema([*DEAD_LETTERS, pa.field("note", pa.string())])
    log.alter_topic(dead, schema=wider)  # a further column of the user
    job = writer(shared, topic, deadLetterTopic=dead)
    job.commit([job.write(iter([rows(None)]))])
    assert len(committed(log, dead)) == 1


def test_a_topic_with_further_columns_that_take_nulls_is_accepted(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    """It gets them at its creation or later, in any place. A null may take bytes."""
    name = f"{topic}-dead"
    wide = pa.field("wide", pa.binary(5000))
    inner = pa.struct([pa.field("team", pa.string(), nullable=False)])
    fields = [pa.field("note", pa.string()), *DEAD_LETTERS, pa.field("owner", inner), wide]
    log.create_topic(topic, schema=pa.schema([("v", pa.string())]))
    log.alter_topic(topic, config={"max.record.bytes": 10})
    log.create_topic(name, schema=pa.schema(fields))
    log.alter_topic(name, config={"max.record.bytes": RECORD_BYTES_MIN + 4999})
    texts = to_spark(pa.schema([("v", pa.string())]))
    with pytest.raises(InvalidOption, match="takes records of 13191 bytes") as caught:
        writer(shared, topic, texts, deadLetterTopic=name)
    assert caught.value.hint == "Raise its max.record.bytes to 13192 or more."
    log.alter_topic(name, config={"max.record.bytes": RECORD_BYTES_MIN + 5000})
    job = writer(shared, topic, texts, deadLetterTopic=name)
    log.alter_topic(name, schema=pa.schema([*fields, pa.field("later", pa.int64())]))
    job.commit([job.write(iter([pa.record_batch({"v": ["x" * 9000, "y" * 2000]})]))])
    first, second = committed(log, name)
    assert (first["truncated"], second["truncated"]) == (True, False)
    assert json.loads(second["row"]) == {"v": "y" * 2000}
    for column in ("note", "owner", "wide", "later"):
        assert first[column] is second[column] is None


def test_a_topic_with_a_further_column_that_takes_no_nulls_is_refused(
    shared: BrokerProcess, log: isolog.Log, topic: str
) -> None:
    name = f"{topic}-dead"
    log.create_topic(topic, schema=STRICT)
    schema = pa.schema([*DEAD_LETTERS, pa.field("note", pa.string(), nullable=False)])
    log.create_topic(name, schema=schema)
    with pytest.raises(InvalidOption, match=r"column 'note' \(string\) is missing") as caught:
        writer(shared, topic, deadLetterTopic=name)
    assert "Other columns must take nulls" in caught.value.hint
