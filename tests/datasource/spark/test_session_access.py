"""The credential of a query's tasks: a token for the query's actions, not the driver's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import isolog
from isolog.errors import IsologError, RequestTimeout
from spark_stream.datasource import IsologDataSource
from spark_stream.datasource.spark import session
from spark_stream.datasource.spark.types import to_spark
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import NUMBERS, BrokerProcess, numbers

__all__ = ["admin", "asking"]


@pytest.fixture
def topic(asking: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"of-{abs(hash(request.node.name))}"
    with as_(asking, "root") as log:
        log.create_topic(name, schema=NUMBERS)
        with log.producer() as producer:
            producer.append(name, numbers(0, 5))
        yield name
        log.delete_topic(name)


def source(asking: BrokerProcess, **options: str) -> IsologDataSource:
    given = {"bootstrap": asking.address, "user": "alice", "password": PASSWORD}
    return IsologDataSource(given | options)


def sent(thing: Any) -> Any:
    """The bytes that a worker gets, without a secret of the driver."""
    data = cloudpickle.dumps(thing)
    assert PASSWORD.encode() not in data
    assert b"alice" not in data
    return pickle.loads(data)


def rows(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch["n"].to_pylist()]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_task_reads_with_a_token_of_the_query(asking, admin, topic: str, streaming: bool):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "all", "topic:*")
    asked = source(asking, subscribe=topic)
    reader = asked.streamReader(asked.schema()) if streaming else asked.reader(asked.schema())
    if streaming:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = reader.partitions(start, end)
    else:
        parts = reader.partitions()
    arrived = sent(reader)
    assert sorted(n for part in parts for n in rows(arrived.read(sent(part)))) == [0, 1, 2, 3, 4]
    token = _token_of(reader)
    assert token.startswith("isolog_" if streaming else "isologs_")
    with pytest.raises(IsologError, match=r"may not|no topic"):
        _write_with(asking, token, topic)


def _token_of(reader: Any) -> str:
    for value in vars(reader).values():
        options = getattr(value, "options", value)
        place = getattr(options, "place", None)
        if place is not None:
            return str(place.access.token)
    raise AssertionError(f"no place in {vars(reader)}")


def _write_with(asking: BrokerProcess, token: str, topic: str) -> None:
    with (
        isolog.connect(asking.address, token=token, timeout=10) as log,
        log.producer() as producer,
    ):
        producer.append(topic, numbers(9, 1)).result(20)


def test_a_task_writes_with_a_token_of_the_query(asking, admin, topic: str):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "write", f"topic:{topic}")
    admin.add_rule("allow", "alice", "write", "transaction:sink/job*")
    asked = source(asking, topic=topic, sinkId="job", batchId="0")
    writer = asked.writer(IsologDataSource.schema(source(asking, subscribe=topic)), False)
    task = sent(writer)
    message = task.write(iter([numbers(5, 3)]))
    sent(writer).commit([message])
    with as_(asking, "root") as log:
        assert len(log.read(topic, isolation="read_committed")) == 8


@pytest.mark.full  # the test above has a log
def test_tasks_get_the_token_of_an_earlier_plan_if_the_log_does_not_answer(
    asking, admin, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "write", f"topic:{topic}")
    admin.add_rule("allow", "alice", "write", "transaction:*")
    checkpoint = {"checkpointLocation": str(tmp_path), "brokerTimeout": "20s"}
    asked = source(asking, topic=topic, **checkpoint)
    before = asked.streamWriter(to_spark(NUMBERS), False)
    monkeypatch.setattr(session, "_BRIEF_S", 0.2)
    asking.pause()
    try:
        after = asked.streamWriter(to_spark(NUMBERS), False)
        assert after._task.seen is None
        assert _token_of(sent(after)) == _token_of(before)
        monkeypatch.setattr(session, "_tokens", {})
        asked = source(asking, topic=topic, **checkpoint | {"brokerTimeout": "1s"})
        with pytest.raises(RequestTimeout):
            asked.streamWriter(to_spark(NUMBERS), False)
    finally:
        asking.resume()


def test_without_the_permission_a_query_fails_when_it_is_planned(asking, admin, topic: str):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "describe", f"topic:{topic}")
    asked = source(asking, subscribe=topic)
    schema = asked.schema()
    reader = asked.reader(schema)
    with pytest.raises(IsologError, match="may not read"):
        [*reader.read(reader.partitions()[0])]


def test_a_password_is_in_no_error(asking, admin):
    with pytest.raises(IsologError) as caught:
        IsologDataSource(
            {"bootstrap": asking.address, "user": "alice", "password": PASSWORD, "subscribe": "t"}
        ).schema()
    assert PASSWORD not in str(caught.value)
