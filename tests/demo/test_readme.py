"""The README's examples run as they stand there, and what it names is there.

A fence with ``<!-- test: KIND -->`` above it is run; those of one kind in one folder.
"""

from __future__ import annotations

import configparser
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import isolog
from spark_stream.datasource.options.table import Use, options_for
from tests.conftest import ROOT, stop_broker
from tests.demo.clusters import three_brokers
from tests.demo.conftest import Shell
from tests.support import free_port

README = (ROOT / "README.md").read_text()


def example(kind: str) -> str:
    found = re.search(rf"<!-- test: {kind} -->\n```\w+\n(.*?)```", README, flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_every_marked_example_is_run_here() -> None:
    kinds = ["spark", "transactions", "python", "sh", "cluster", "flight"]
    assert re.findall(r"<!-- test: (\w+) -->", README) == kinds


@pytest.mark.spark
@pytest.mark.full  # in the session of the tests of Spark: tests/spark/test_readme_example.py
@pytest.mark.timeout(600)
def test_spark(tmp_path: Path, shell: Shell) -> None:
    try:
        said = shell.run([sys.executable, "-c", example("spark")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert re.search(r"\|\s*1000\|\s*998001\|", said), said
    assert "only showing top 5 rows" in said


def test_transactions(tmp_path: Path, shell: Shell) -> None:
    folder = tmp_path / "my-log"
    try:
        for times in (1, 2):  # the second run finds the topics made, and the named consumer's place
            code = example("transactions")
            if times == 2:
                code = re.sub(r"    log.create_topic.*\n", "", code)
            shell.run([sys.executable, "-c", code], tmp_path)
            with isolog.connect(path=folder) as log:
                audit = log.read("audit", isolation="read_committed")["value"].to_pylist()
            assert audit == times * [b"one was ordered", b"one"]
    finally:
        stop_broker(folder)


@pytest.mark.spark
@pytest.mark.full
def test_what_spark_says_when_its_workers_python_lacks_isolog(tmp_path: Path, shell: Shell) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no site-packages
    bare.chmod(0o755)
    job = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
spark.read.format("isolog").option("path", "data/").option("subscribe", "a").load()
"""
    python = {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(bare), "PYTHONPATH": ""}
    said = shell.run([sys.executable, "-c", job], tmp_path, code=1, **python)
    symptom = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: isolog"
    assert symptom in said
    assert f"`{symptom}`" in README


def test_python_and_a_flight_client(tmp_path: Path, shell: Shell) -> None:
    address = f"127.0.0.1:{free_port()}"
    start = ["isolog", "broker", "start", "--dir", "data/", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*start, "--flight-listen", address],
        cwd=tmp_path,
        env=shell.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as broker:
        try:
            assert broker.stdout is not None
            broker.stdout.readline()
            said = shell.run([sys.executable, "-c", example("python")], tmp_path)
            assert "0 b'en' b'hello'" in said
            assert "carrier" in said
            code = example("flight").replace("127.0.0.1:9193", address)
            code = code.replace('"orders"', '"flights"').replace('"value"', '"carrier"')
            assert "spark_stream" not in code
            said = shell.run([sys.executable, "-I", "-c", code], tmp_path)
            assert "[b'flights'] 2" in said
            assert "UA" in said
        finally:
            broker.send_signal(signal.SIGTERM)


def test_command_line(tmp_path: Path, shell: Shell) -> None:
    try:
        said = shell.run(["bash", "-eu", "-o", "pipefail", "-c", example("sh")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert "\nhello\n" in said
    assert "isolog broker stopped" in said


def test_what_is_required_is_said_where_it_is_installed() -> None:
    install = README.partition("## Install")[2].partition("\n## ")[0]
    needs = configparser.ConfigParser()
    needs.read(ROOT / "setup.cfg")
    python = needs["options"]["python_requires"].removeprefix(">=")
    extras = needs["options.extras_require"]
    spark = re.search(r"pyspark>=([\d.]+)", extras["spark"])
    assert spark is not None
    assert f"Python {python} or newer" in install
    assert f"PySpark (and Spark) {spark[1]} or newer" in install
    assert "Java 17 or newer" in install
    assert install.index(".venv/bin/activate") < install.index("pip install")
    inner = {"bench", "bench-kafka", "docs", "test"}  # for targets of make
    assert {*re.findall(r"^\| `([\w-]+)` \|", install, re.MULTILINE)} == {*extras} - inner


@pytest.mark.full  # tests/system/replication has clusters of three
def test_three_brokers(tmp_path: Path, shell: Shell) -> None:
    """From a plain installation: the folder has no file of the checkout."""
    with three_brokers(tmp_path, shell, configured=False) as run:
        said = run(example("cluster"))
    assert "\n2000\n" in said
    assert "brokers 2 of 3 alive" in said
    assert "1 not in sync" in said or "1 not connected" in said


def test_the_table_of_options_is_complete() -> None:
    spark = README.partition("## Spark")[2].partition("### Isolation levels")[0]
    shown = set(re.findall(r"`([\w.]+)`", spark))
    of_spark = {"checkpointLocation", "queryName"}
    known = {name for name in options_for(Use.ALL) if "<" not in name}
    assert known - shown == of_spark
