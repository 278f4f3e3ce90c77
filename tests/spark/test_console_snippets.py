"""The console's code for Spark reads exactly the records of its page."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import isolog
from spark_stream.consistency.isolation import Isolation
from spark_stream.console.records import ShownRange, spark_snippet
from tests.support import NUMBERS, BrokerProcess, numbers

pytestmark = pytest.mark.full  # tests/console/test_app_api.py runs the code for Python


def test_the_snippet_reads_the_offsets_that_are_shown(spark: SparkSession, tmp_path) -> None:
    with BrokerProcess(tmp_path / "log").start() as broker, broker.connect() as log:
        _write(log)
        shown = ShownRange(
            broker.address,
            "t",
            {0: (2, 8), 2: (0, 3)},
            Isolation.READ_COMMITTED,
            filter="n <> 5 and n < 1000",
        )
        names: dict[str, object] = {"spark": spark}
        exec(spark_snippet(shown), names)
        rows = names["rows"].collect()  # type: ignore[attr-defined]
        found = sorted((row._partition, row._offset, row.n) for row in rows)
        assert found == [(0, n, n) for n in (2, 3, 4, 6, 7)] + [(2, n, 200 + n) for n in range(3)]


def _write(log: isolog.Log) -> None:
    log.create_topic("t", partitions=3, schema=NUMBERS)
    with log.producer() as producer:
        for number in range(3):
            producer.append("t", numbers(100 * number, 10), partition=number)
