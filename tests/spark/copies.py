"""The query that many tests run: three micro-batches into a topic, with or without a fault."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality
from pyspark.sql.streaming import DataStreamWriter

import isolog
from tests.spark.conftest import Queries
from tests.spark.faults import FaultySource
from tests.spark.sink_driver import FILES, ROWS_PER_BATCH, micro_batches
from tests.spark.test_stream_source import NUMBERS

ROWS = 3 * ROWS_PER_BATCH


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The input of the queries: three micro-batches."""
    directory = tmp_path_factory.mktemp("source")
    size = ROWS // FILES
    for number in range(FILES):
        rows = pa.array(range(number * size, (number + 1) * size), pa.int64())
        file = directory / f"{number}.parquet"
        pq.write_table(pa.table({"n": rows}), file)
        os.utime(file, (number, number))  # in this order
    return str(directory)


@pytest.fixture
def target(log: isolog.Log, topic: str) -> str:
    """An empty topic for the copy."""
    log.create_topic(topic, partitions=2, schema=NUMBERS)
    return topic


@pytest.fixture(scope="package")
def transactions(shared_path: Path) -> Iterator[isolog.Log]:
    with isolog.connect(path=shared_path) as log:
        yield log


def copying(queries: Queries, source: str, to: str, checkpoint: Path) -> DataStreamWriter:
    """The query of all these tests."""
    return queries.sink(micro_batches(queries.spark, source), checkpoint, topic=to)


def faulty(queries: Queries, source: str, to: str, directory: Path, fault: str) -> DataStreamWriter:
    """The same with a fault. Its marks and its checkpoint are in the directory."""
    queries.spark.dataSource.register(FaultySource)
    writer = copying(queries, source, to, directory / "checkpoint").format("isolog_faulty")
    return writer.option("fault", fault).option("marks", str(directory))


def assert_exactly_once(queries: Queries, topic: str, rows: int = ROWS) -> None:
    shown = queries.read(topic, isolation="read_committed")
    expected = queries.spark.range(rows).toDF("n")
    assert_df_equality(shown, expected, ignore_row_order=True, ignore_nullable=True)


def assert_nothing_open(log: isolog.Log, topic: str) -> None:
    """Assert that no open transaction blocks readers of committed records."""
    for each in log.describe(topic).partitions:
        assert each.last_stable_offset == each.log_end_offset


def kill_session(driver: subprocess.Popen[bytes]) -> None:
    """Kill -9 the driver, its JVM and its Python workers, with those that start in that time."""
    while members := [each for each in psutil.process_iter() if in_session(each, driver.pid)]:
        for process in members:
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
                process.kill()
        driver.wait(20)
        psutil.wait_procs(members, 20)


def in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except ProcessLookupError:
        return False
