"""``local.retention.*``: the log loses only records that every table of the topic has."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

import isolog
from tests.support import BrokerProcess, eventually

pytestmark = pytest.mark.slow
NUMBERS = pa.schema([("n", pa.int64())])
CONFIG = {"segment.bytes": "65536", "local.retention.bytes": "1"}
PAUSE_S = 0.05


@pytest.fixture
def own(tmp_path):
    conf = f"housekeeping_seconds = {PAUSE_S}"
    with BrokerProcess(tmp_path / "data", conf=conf) as broker, broker.connect() as log:
        yield broker, log


def append(log: isolog.Log, first: int, count: int = 40_000) -> None:
    with log.producer() as producer:
        for start in range(first, first + count, 10_000):
            rows = pa.table({"n": range(start, start + 10_000)}, schema=NUMBERS)
            producer.append("t", rows, partition=0).result(60)


def log_start(log: isolog.Log) -> int:
    return int(log.describe("t").partitions[0].log_start_offset or 0)


def numbers(log: isolog.Log) -> list[int]:
    found = log.read("t", isolation="read_committed", metadata=True)
    assert found["_offset"].to_pylist() == found["n"].to_pylist()
    return list(found["n"].to_pylist())


def test_segments_go_only_when_all_tables_have_them(own, tmp_path):
    broker, log = own
    held = log.create_topic("t", schema=NUMBERS, config=CONFIG).warning
    assert "no lake has the topic: its log keeps all records" in held
    append(log, 0)
    time.sleep(20 * PAUSE_S)
    assert log_start(log) == 0  # no lake: everything is held
    assert log.describe("t").warning == held
    for name in ("one", "two"):
        log.create_lake(name, "t", tmp_path / name)
    assert log.describe("t").warning is None
    isolog.LakeWorker(log, "one").run_once()
    time.sleep(20 * PAUSE_S)
    assert log_start(log) == 0  # the second table has nothing yet
    isolog.LakeWorker(log, "two").run_once()
    files = (broker.directory / "topics").glob
    eventually(lambda: len(list(files("t/*/0/*.arrow"))) == 1)  # the active segment
    start = log_start(log)
    assert start > 0
    assert numbers(log) == list(range(40_000))
    log.drop_lake("one")
    log.drop_lake("two")
    assert log.describe("t").warning == held
    append(log, 40_000)
    time.sleep(20 * PAUSE_S)
    assert log_start(log) == start  # without a lake, no further segment goes
    broker.restart()
    assert log_start(log) == start
    assert log.read("t", lake="never")["n"].to_pylist() == list(range(start, 80_000))


def test_the_setting_is_released_by_a_command(own, tmp_path):
    """A lake that is dropped holds the segments until the topic is altered."""
    _, log = own
    log.create_topic("t", schema=NUMBERS, config=CONFIG)
    append(log, 0)
    released = {"local.retention.bytes": "-1", "retention.bytes": "1"}
    assert log.alter_topic("t", config=released).warning is None
    assert eventually(lambda: log_start(log)) > 0
