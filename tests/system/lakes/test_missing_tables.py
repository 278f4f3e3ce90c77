"""Readers of a topic whose table is missing, or is an older copy that ends before the log start."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import LakeIncomplete
from spark_stream.cli.app import execute
from tests.datasource.sources import Query, batch_read
from tests.lake.local_lake import LocalLake
from tests.support import NUMBERS, BrokerProcess, numbers

STATES = ["current", "missing", "empty", "older"]
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Removed:
    """A topic of two partitions. The log has the records 30 to 39 of partition 0.

    The worker copied the records 0 to 39. Partition 1 never had a record.
    """

    def __init__(self, broker: BrokerProcess, log: isolog.Log, state: str, root: Path) -> None:
        self.address, self.log, self.name, self.state = broker.address, log, f"is-{state}", state
        self.location = root / state
        log.create_topic(self.name, partitions=2, schema=NUMBERS)
        lake = LocalLake(log, [self.name], self.location)
        table, older = self.location / self.name, root / f"older-{state}"
        for first in (0, 20):
            with log.producer() as producer:
                producer.append(self.name, numbers(first, 20), partition=0)
            lake.run()
            if first == 0:
                shutil.copytree(table, older)
        log.trim(self.name, {0: 30})
        if state == "missing":
            self.location.rename(root / "unmounted")
        elif state != "current":
            shutil.rmtree(table)
            table.mkdir()
            if state == "older":
                shutil.copytree(older, table, dirs_exist_ok=True)


def numbers_of(consumer: isolog.Consumer) -> list[int]:
    return [n for batch in consumer.batches(until="latest") for n in batch.column("n").to_pylist()]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Removed]]:
    root = tmp_path_factory.mktemp("lakes")
    with BrokerProcess(tmp_path_factory.mktemp("log")) as broker, broker.connect() as log:
        yield {state: Removed(broker, log, state, root) for state in STATES}


@pytest.fixture(params=STATES)
def topic(topics: dict[str, Removed], request: pytest.FixtureRequest) -> Iterator[Removed]:
    """A topic in each state, and a connection that has opened no table."""
    found = copy(topics[request.param])
    with isolog.connect(found.address) as found.log:
        yield found


def read(**options: Any) -> Callable[[Removed], list[int]]:
    return lambda of: of.log.read(of.name, **options).column("n").to_pylist()


def consume(**options: Any) -> Callable[[Removed], list[int]]:
    def consumed(of: Removed) -> list[int]:
        with of.log.consumer(of.name, **options) as consumer:
            return numbers_of(consumer)

    return consumed


def sought(place: Any) -> Callable[[Removed], list[int]]:
    def consumed(of: Removed) -> list[int]:
        with of.log.consumer(of.name, start="latest") as consumer:
            consumer.seek(place)
            return numbers_of(consumer)

    return consumed


def reset(to: Any) -> Callable[[Removed], list[int]]:
    def consumed(of: Removed) -> list[int]:
        name = f"reset-{of.name}"
        with of.log.consumer(of.name, name=name, start="latest") as consumer:
            consumer.commit()
        of.log.reset_consumer(name, to)
        with of.log.consumer(of.name, name=name) as consumer:
            return numbers_of(consumer)

    return consumed


def batch(**options: Any) -> Callable[[Removed], list[int]]:
    return lambda of: batch_read(of.address, of.name, **_json(of, options))


def stream(**options: Any) -> Callable[[Removed], list[int]]:
    def batches(of: Removed) -> list[int]:
        return Query(of.address, of.name, **_json(of, options)).batch()

    return batches


def _json(of: Removed, options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: f'{{"{of.name}":{{"0":{value},"1":0}}}}' if isinstance(value, int) else value
        for name, value in options.items()
    }


FROM_TABLE = {
    "read": (read(), 0),
    "read of a time": (read(start=LONG_AGO), 0),
    "read of an offset": (read(start={0: 3}), 3),
    "read at a cut": (read(isolation="read_atomic"), 0),
    "read of the table": (read(lake="only"), 0),
    "consumer": (consume(), 0),
    "consumer after loss": (consume(start={0: 3}, on_loss="continue"), 3),
    "consumer of a time": (consume(start=LONG_AGO), 0),
    "named": (consume(name="of-a-table"), 0),
    "group": (consume(group="of-a-table"), 0),
    "seek": (sought("earliest"), 0),
    "reset": (reset("earliest"), 0),
    "reset to an offset": (reset(3), 3),
    "batch": (batch(), 0),
    "batch after loss": (batch(startingOffsets=3, failOnDataLoss="false"), 3),
    "batch of a time": (batch(startingTimestamp="946684800000"), 0),
    "batch of the table": (batch(lake="only"), 0),
    "stream": (stream(startingOffsets="earliest"), 0),
    "stream of an offset": (stream(startingOffsets=3), 3),
    "stream after loss": (stream(startingOffsets=3, failOnDataLoss="false"), 3),
    "stream of the table": (stream(startingOffsets="earliest", lake="only"), 0),
}


@pytest.mark.rule(
    "a missing table, or an older copy, is an error of readers that need its records",
    "client/lake_tables.py",
)
@pytest.mark.quick("missing", "older")
@pytest.mark.parametrize("reader", FROM_TABLE)
def test_a_reader_needs_the_table(topic: Removed, reader: str) -> None:
    called, first = FROM_TABLE[reader]
    if topic.state == "current":
        assert called(topic) == list(range(first, 40))
        return
    with pytest.raises(LakeIncomplete) as raised:
        called(topic)
    error = raised.value
    missing = "20" if topic.state == "older" else None
    assert repr(topic.name) in error.message
    assert str(topic.location) in error.message
    assert missing is None or f"offset {missing}" in error.message
    assert "mount or restore" in (error.hint or "").lower()
    assert "lake=never" in (error.hint or "")


WITHOUT_TABLE = {
    "read": (read(start={0: 30}), 30),
    "read of the log": (read(lake="never"), 30),
    "read of the log at a time": (read(lake="never", start=LONG_AGO), 30),
    "consumer": (consume(start={0: 35}), 35),
    "consumer of the log": (consume(lake="never"), 30),
    "latest": (consume(start="latest"), 40),
    "seek": (sought("latest"), 40),
    "reset": (reset("latest"), 40),
    "reset to an offset": (reset({0: 35}), 35),
    "batch": (batch(startingOffsets=32), 32),
    "batch of the log": (batch(lake="never"), 30),
    "stream": (stream(startingOffsets=32), 32),
    "latest stream": (stream(startingOffsets="latest"), 40),
    "stream of the log": (stream(startingOffsets="earliest", lake="never"), 30),
}


@pytest.mark.quick("missing")
@pytest.mark.parametrize("reader", WITHOUT_TABLE)
def test_a_reader_of_the_log_needs_no_table(topic: Removed, reader: str) -> None:
    called, first = WITHOUT_TABLE[reader]
    assert called(topic) == list(range(first, 40))


@pytest.mark.quick("missing")
@pytest.mark.parametrize("options", [{"group": "g-{}"}, {"name": "n-{}"}])
def test_stored_positions_in_the_log_need_no_table(topic: Removed, options: dict[str, str]) -> None:
    options = {key: value.format(topic.state) for key, value in options.items()}
    with topic.log.consumer(topic.name, start="latest", **options) as consumer:
        assert numbers_of(consumer) == []
        consumer.commit()
    with topic.log.consumer(topic.name, **options) as consumer:
        assert numbers_of(consumer) == []
        assert consumer.position()[topic.name, 0] == 40


COMMANDS = {
    "consume": (["consume", "{}"], True),
    "consume of a time": (["consume", "{}", "--from", "2000-01-01"], True),
    "consume of an offset": (["consume", "{}", "--from", "3", "--partition", "0"], True),
    "consume of the log": (["consume", "{}", "--lake", "never"], False),
    "last records": (["consume", "{}", "--from", "-5"], False),
    "recent records": (["consume", "{}", "--from", "30", "--partition", "0"], False),
    "sql": (["sql", 'SELECT n FROM "{}"'], True),
    "sql of the log": (["sql", 'SELECT n FROM "{}"', "--lake", "never"], False),
}


@pytest.mark.quick("missing", "older")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_the_table_for_removed_records(
    topic: Removed, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, needs_table = COMMANDS[command]
    given = [each.format(topic.name) for each in [*arguments, "-o", "csv"]]
    code = execute([*given, "--bootstrap", topic.address])
    out, err = capfd.readouterr()
    if needs_table and topic.state != "current":
        assert code == 1
        assert str(topic.location) in err
        assert "--lake never" in err
    else:
        assert (code, err) == (0, "")
        assert out.split()[-1] == "39"


@pytest.mark.parametrize("trimmed", [0, 10])
def test_a_table_without_a_commit_is_not_missing(
    topics: dict[str, Removed], tmp_path: Path, trimmed: int
) -> None:
    """The lake is new, and its worker has copied nothing."""
    log, name = topics["current"].log, f"not-begun-{trimmed}"
    log.create_topic(name, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(name, numbers(0, 20))
    log.trim(name, trimmed)
    lake = LocalLake(log, [name], tmp_path / name)
    expected = list(range(trimmed, 20))
    for copies in range(2):
        assert log.read(name).column("n").to_pylist() == expected
        assert batch_read(topics["current"].address, name) == expected
        with log.consumer(name) as consumer:
            assert numbers_of(consumer) == expected
        found = log.read(name, lake="only").column("n").to_pylist()
        assert found == ([] if copies == 0 else expected)
        lake.run()
    assert log.read(name, lake="only").column("n").to_pylist() == expected


def test_a_table_that_vanishes_is_an_error_of_open_readers(
    topics: dict[str, Removed], tmp_path: Path
) -> None:
    log, name = topics["current"].log, "vanishing"
    log.create_topic(name, schema=NUMBERS)
    lake = LocalLake(log, [name], tmp_path / "here")
    with log.producer() as producer:
        producer.append(name, numbers(0, 20))
    lake.run()
    log.trim(name, 15)
    assert log.read(name).num_rows == 20
    (tmp_path / "here").rename(tmp_path / "away")
    for start in ("earliest", LONG_AGO):
        with pytest.raises(LakeIncomplete, match="are missing at offset 0"):
            log.read(name, start=start)
    (tmp_path / "away").rename(tmp_path / "here")
    assert log.read(name).num_rows == 20


def test_the_table_of_another_lake_replaces_a_missing_one(
    topics: dict[str, Removed], tmp_path: Path
) -> None:
    log, name = topics["current"].log, "twice"
    log.create_topic(name, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(name, pa.table({"n": list(range(20))}))
    LocalLake(log, [name], tmp_path / "first").run()
    log.create_lake("second-of-twice", name, tmp_path / "second")
    isolog.LakeWorker(log, "second-of-twice").run_once()
    log.trim(name, 15)
    shutil.rmtree(tmp_path / "first")
    with isolog.connect(topics["current"].address) as fresh:
        assert fresh.read(name).num_rows == 20
        shutil.rmtree(tmp_path / "second")
    with (
        isolog.connect(topics["current"].address) as fresh,
        pytest.raises(LakeIncomplete, match="is missing"),
    ):
        fresh.read(name)
