"""The jobs of docs/kafka.md run unchanged, except for the address and the checkpoints."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from tests.conftest import ROOT

JOBS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kafka.md").read_text(), re.DOTALL)
START = datetime(2026, 3, 1, tzinfo=UTC)
TYPED = pa.schema(
    [("airport", pa.string()), ("delay", pa.int32()), ("moment", pa.timestamp("us", "UTC"))]
)


@pytest.fixture
def log(shared_path: Path):
    with isolog.connect(path=shared_path) as found:
        found.create_topic("flights", if_not_exists=True)
        found.create_topic("flights_typed", schema=TYPED, if_not_exists=True)
        yield found


def run(job: str, spark, shared_path: Path, tmp_path: Path) -> None:
    """Run a job over the present records."""
    text = job.replace('"bootstrap", "localhost:9092"', f'"path", {str(shared_path)!r}')
    text = text.replace('"checkpoints/', f'"{tmp_path}/')
    names = {"spark": spark}
    exec(compile(text, "docs/kafka.md", "exec"), names)
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def test_three_jobs_differ_only_in_their_format_and_options() -> None:
    before, after, typed = JOBS
    assert before.count('format("kafka")') == 2
    assert "kafka" not in after
    assert "kafka" not in typed
    middle = after[after.index("counts = (") : after.index(".writeStream")]
    assert middle in before
    assert "json" not in typed


@pytest.mark.full
def test_the_job_after_the_move_counts_each_window_once(spark, log, shared_path, tmp_path):
    with log.producer() as producer:
        for minute in range(30):
            value = json.dumps({"airport": "JFK", "delay": minute})
            moment = START + timedelta(minutes=minute)
            producer.send("flights", value, timestamp=moment).result()
    run(JOBS[1], spark, shared_path, tmp_path)
    counts = log.read("counts", isolation="read_committed")
    found = [json.loads(value) for value in counts["value"].to_pylist()]
    assert set(counts["key"].to_pylist()) == {b"JFK"}
    windows = [each["window"]["start"] for each in found]
    assert len(windows) == len(set(windows)) == 3  # of those that the watermark has passed
    assert {each["flights"] for each in found} == {5}


@pytest.mark.full
def test_the_job_with_columns_counts_each_window_once(spark, log, shared_path, tmp_path):
    moments = [START + timedelta(minutes=minute) for minute in range(30)]
    rows = {"airport": ["EWR"] * 30, "delay": list(range(30)), "moment": moments}
    with log.producer() as producer:
        producer.append("flights_typed", pa.RecordBatch.from_pydict(rows, schema=TYPED)).result()
    run(JOBS[2], spark, shared_path, tmp_path)
    counts = log.read("counts_typed", isolation="read_committed")
    assert counts.column_names == ["window", "airport", "flights", "delay"]
    assert counts["flights"].to_pylist() == [5, 5, 5]
    assert sorted(counts["delay"].to_pylist()) == [2.0, 7.0, 12.0]
