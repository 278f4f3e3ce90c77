"""Declarative pipelines: ``examples/pipeline`` runs repeatedly, and writes each row once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

import isolog
from tests.conftest import ROOT, stop_broker
from tests.spark.copies import kill_session
from tests.spark.releases import has_pipelines

pytestmark = [pytest.mark.full, pytest.mark.timeout(1600), has_pipelines]

pytest.importorskip("grpc", reason="spark-pipelines needs pyspark[connect]")

FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
CATALOG = ("--conf", "spark.sql.catalogImplementation=hive")
ANOTHER_SINK = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("copies", "isolog", {"topic": "copies", "createTopic": "true"})


@dp.append_flow(target="copies")
def copy():
    return SparkSession.active().readStream.format("isolog").option("subscribe", "flights").load()
"""


class Pipeline:
    """The example in a separate folder, with a second sink, which has no ``sinkId``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "examples" / "pipeline", folder)
        spec = folder / "spark-pipeline.yml"
        text = spec.read_text()
        assert f"spark-pipelines run {' '.join(CATALOG)}" in text
        assert "file:///tmp/isolog-pipeline" in text
        spec.write_text(text.replace("file:///tmp/isolog-pipeline", f"{folder.as_uri()}/storage"))
        (folder / "transformations" / "copies.py").write_text(ANOTHER_SINK)

    def run(self, *words: str) -> None:
        """Run ``spark-pipelines``."""
        code, said = self._run(*words)
        assert code == 0, said[-5000:]

    def fails(self, *words: str) -> str:
        """Run ``spark-pipelines``, which fails. Return its output."""
        code, said = self._run(*words)
        assert code == 1, said[-5000:]
        return said

    def _run(self, *words: str) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
        environment |= {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "ISOLOG_PATH": str(self.folder / "log"),
            "SPARK_TESTING": "1",  # the port of its Connect server is the system's
        }
        written = self.folder / "run.log"
        with written.open("w") as out:
            started = subprocess.Popen(
                [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", *words, *CATALOG],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            return started.wait(300), written.read_text()
        finally:
            kill_session(started)

    def table(self) -> list[str]:
        """The carriers in the pipeline's table."""
        return sorted(
            pq.read_table(self.folder / "spark-warehouse" / "flights")["carrier"].to_pylist()
        )


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    yield Pipeline(tmp_path / "pipeline")
    stop_broker(tmp_path / "pipeline" / "log")


def add(log: isolog.Log, *flights: tuple[str, int]) -> None:
    carriers, delays = zip(*flights, strict=True)
    batch = pa.record_batch([pa.array(carriers), pa.array(delays, pa.int32())], schema=FLIGHTS)
    with log.producer() as producer:
        producer.append("flights", batch)


def carriers(log: isolog.Log, topic: str) -> list[str]:
    return sorted(log.read(topic, isolation="read_committed")["carrier"].to_pylist())


EVERYTHING = ["AA", "BB", "CC", "DD"]


def test_each_run_writes_new_rows_once(pipeline: Pipeline) -> None:
    with isolog.connect(path=pipeline.folder / "log") as log:
        log.create_topic("flights", schema=FLIGHTS)
        add(log, ("AA", 99), ("BB", 5))
        pipeline.run("dry-run")
        assert log.topics() == ["flights"]
        pipeline.run("run")
        assert (pipeline.table(), carriers(log, "late_flights")) == (["AA", "BB"], ["AA"])
        add(log, ("CC", 16), ("DD", 0))
        pipeline.run("run")
        assert (pipeline.table(), carriers(log, "late_flights")) == (EVERYTHING, ["AA", "CC"])
        assert carriers(log, "copies") == EVERYTHING


def test_full_refresh_writes_no_row_again_to_a_sink_with_an_id(pipeline: Pipeline) -> None:
    with isolog.connect(path=pipeline.folder / "log") as log:
        log.create_topic("flights", schema=FLIGHTS)
        add(log, ("AA", 99), ("BB", 5), ("CC", 16), ("DD", 0))
        pipeline.run("run")
        pipeline.run("run", "--full-refresh", "flights")  # the table alone
        assert (pipeline.table(), carriers(log, "late_flights")) == (EVERYTHING, ["AA", "CC"])
        assert carriers(log, "copies") == EVERYTHING

        # All of it: the sink with a sinkId refuses another query, the other sink cannot.
        failed = pipeline.fails("run", "--full-refresh-all")
        assert "[SINK_IN_USE] the sink 'sink/pipeline late_flights'" in failed
        assert carriers(log, "late_flights") == ["AA", "CC"]

        # To continue as before: remove the new checkpoint.
        shutil.rmtree(pipeline.folder / "storage" / "_checkpoints" / "late_flights" / "late" / "1")
        pipeline.run("run")
        assert carriers(log, "late_flights") == ["AA", "CC"]
        assert carriers(log, "copies") == sorted(2 * EVERYTHING)

        # To write all rows again on purpose: delete the sink.
        log.delete_sink("sink/pipeline late_flights")
        pipeline.run("run", "--full-refresh-all")
        assert carriers(log, "late_flights") == ["AA", "AA", "CC", "CC"]
        assert carriers(log, "copies") == sorted(3 * EVERYTHING)
