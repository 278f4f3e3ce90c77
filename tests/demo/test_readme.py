"""The examples of the README and of the pages for a first session run unchanged.

A fence with ``<!-- test: KIND -->`` above it is run here.
"""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import pytest

import isolog
from tests.conftest import ROOT, stop_broker
from tests.demo.clusters import three_brokers
from tests.demo.conftest import Shell

README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "docs/how-to/use-python.md", "docs/cli.md", "docs/how-to/three-brokers.md")
EXAMPLES = [
    found
    for page in PAGES
    for found in re.findall(
        r"<!-- test: (\w+) -->\n```\w+\n(.*?)```", (ROOT / page).read_text(), re.DOTALL
    )
]


def example(kind: str) -> str:
    return dict(EXAMPLES)[kind]


def test_every_marked_example_is_run_here() -> None:
    assert [kind for kind, _ in EXAMPLES] == ["spark", "python", "transactions", "sh", "cluster"]


def test_readme_is_short() -> None:
    assert len(README.split()) <= 1_300
    assert [line for line in README.splitlines() if len(line) > 100] == []


@pytest.mark.spark
@pytest.mark.full  # in the session of the tests of Spark: tests/spark/test_readme_example.py
@pytest.mark.timeout(600)
def test_the_spark_example_writes_and_reads_a_topic(tmp_path: Path, shell: Shell) -> None:
    try:
        said = shell.run([sys.executable, "-c", example("spark")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert re.search(r"\|\s*1000\|\s*998001\|", said), said


def test_the_transactions_example_copies_each_record_once(tmp_path: Path, shell: Shell) -> None:
    folder = tmp_path / "my-log"
    try:
        for times in (
            1,
            2,
        ):  # topics and positions exist in the second run
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
def test_readme_has_the_error_of_spark_without_isolog(tmp_path: Path, shell: Shell) -> None:
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


def test_the_python_example_writes_and_reads_topics(tmp_path: Path, shell: Shell) -> None:
    try:
        said = shell.run([sys.executable, "-c", example("python")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert "0 b'en' b'hello'" in said
    assert "carrier" in said


@pytest.mark.full  # the same commands: tests/cli/commands
def test_the_commands_produce_and_consume(tmp_path: Path, shell: Shell) -> None:
    try:
        said = shell.run(["bash", "-eu", "-o", "pipefail", "-c", example("sh")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert "\nhello\n" in said
    assert "isolog broker stopped" in said


def test_requirements_are_stated_at_the_install_command() -> None:
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
    inner = {"bench", "bench-kafka", "docs", "release", "test"}  # for targets of make
    assert {*re.findall(r"^\| `([\w-]+)` \|", install, re.MULTILINE)} == {*extras} - inner


@pytest.mark.full  # tests/system/replication has clusters of three
def test_the_commands_for_three_brokers_survive_a_kill(tmp_path: Path, shell: Shell) -> None:
    """From a plain installation: the folder has no file of the checkout."""
    with three_brokers(tmp_path, shell, configured=False) as run:
        said = run(example("cluster"))
    assert "\n2000\n" in said
    assert "brokers 2 of 3 alive" in said
    assert "1 not in sync" in said or "1 not connected" in said
