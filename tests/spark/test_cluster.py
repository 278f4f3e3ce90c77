"""A Spark standalone cluster of two workers: the Python of each process, and the ways of isolog."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import isolog
from tests.conftest import ROOT
from tests.spark.standalone import Standalone, install, named, python_without, submit
from tests.support import numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.full]

JOB = Path(__file__).with_name("cluster_job.py")
FAILURES = Path(__file__).with_name("cluster_failures.py")
PAGE = (ROOT / "docs/spark/cluster.md").read_text()


@dataclass(frozen=True)
class Pythons:
    """Three Pythons: one with all modules, and two that lack some."""

    whole: Path
    no_isolog: Path
    no_pyarrow: Path


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> Pythons:
    folder = tmp_path_factory.mktemp("pythons")
    return Pythons(
        whole=install(python_without(folder / "whole")),
        no_isolog=python_without(folder / "no-isolog"),
        no_pyarrow=install(python_without(folder / "no-pyarrow", "pyarrow")),
    )


@pytest.fixture(scope="module")
def driver_path(pythons: Pythons, tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH of a driver's host, where every name means a Python with all modules."""
    names = dict.fromkeys(("lacks_isolog", "lacks_pyarrow"), pythons.whole)
    commands = named(tmp_path_factory.mktemp("driver") / "bin", **names)
    return f"{commands}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def cluster(pythons: Pythons, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Two workers. On the second, some names mean a Python that lacks modules."""
    folder = tmp_path_factory.mktemp("cluster")
    first = {"lacks_isolog": pythons.whole, "lacks_pyarrow": pythons.whole}
    second = {"lacks_isolog": pythons.no_isolog, "lacks_pyarrow": pythons.no_pyarrow}
    started = Standalone(folder, [named(folder / "a", **first), named(folder / "b", **second)])
    yield started
    started.stop()


def told(folder: Path) -> Any:
    """Return the result that the job left."""
    return json.loads((folder / "told.json").read_text())


def check(folder: Path) -> None:
    """Check that every record was written once, and that both executors wrote some."""
    found = told(folder)
    assert found["n"] == list(range(1000))
    assert len(found["by"]) == 2
    assert all(f"work-{number}" in each for number, each in enumerate(found["by"]))


def test_a_job_runs_with_isolog_installed_on_every_host(
    cluster: Standalone, pythons: Pythons, log_dir: Path, tmp_path: Path
) -> None:
    cluster.submit(tmp_path, JOB, log_dir, tmp_path, PYSPARK_PYTHON=str(pythons.whole))
    check(tmp_path)


def test_a_job_runs_with_isolog_sent_by_py_files(
    cluster: Standalone, pythons: Pythons, isolog_zip: Path, log_dir: Path, tmp_path: Path
) -> None:
    """One PYTHONPATH is for planners, the other for tasks, in the executor's folder."""
    sent = ("--py-files", isolog_zip, "--conf", "spark.executorEnv.PYTHONPATH=isolog.zip")
    python = {"PYTHONPATH": str(isolog_zip), "PYSPARK_PYTHON": str(pythons.no_isolog)}
    cluster.submit(tmp_path, *sent, JOB, log_dir, tmp_path, **python)
    check(tmp_path)


def test_a_job_runs_with_an_environment_sent_by_archives(
    cluster: Standalone, pythons: Pythons, log_dir: Path, tmp_path: Path
) -> None:
    """./environment is unpacked here for the driver, and by Spark for each executor."""
    shutil.copytree(pythons.whole.parents[1], tmp_path / "environment", symlinks=True)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "environment", arcname=".")
    sent = ("--archives", "environment.tar.gz#environment")
    python = "./environment/bin/python"
    cluster.submit(tmp_path, *sent, JOB, log_dir, tmp_path, PYSPARK_PYTHON=python)
    check(tmp_path)


def failures(
    cluster: Standalone, log_dir: Path, folder: Path, driver_path: str, python: str, *attempts: str
) -> Any:
    """Return the errors of the attempts if a worker's Python lacks modules. They write no rows."""
    with isolog.connect(path=log_dir) as log:
        for topic in ("numbers", "target"):
            log.create_topic(topic, schema=pa.schema([("n", pa.int64())]), partitions=4)
        with log.producer() as producer:
            producer.append("numbers", numbers(0, 1000))
        job = ("--conf", "spark.task.maxFailures=1", FAILURES, log_dir, folder, *attempts)
        cluster.submit(folder, *job, PATH=driver_path, PYSPARK_PYTHON=python)
        assert log.read("target", isolation="read_committed").num_rows == 0
    return told(folder)


def test_worker_without_isolog_reports_the_remedy_and_writes_no_row(
    cluster: Standalone, log_dir: Path, tmp_path: Path, driver_path: str
) -> None:
    said = failures(cluster, log_dir, tmp_path, driver_path, "lacks-isolog")
    assert list(said) == ["write", "read", "write_stream", "read_stream"]
    for attempt, error in said.items():
        assert re.search(r"runs \S+ \(Python [\d.]+\), which lacks isolog\. Set", error), attempt


def test_spark_reports_a_worker_without_pyarrow(
    cluster: Standalone, log_dir: Path, tmp_path: Path, driver_path: str
) -> None:
    """Spark itself looks for it there, before anything of ours."""
    said = failures(cluster, log_dir, tmp_path, driver_path, "lacks-pyarrow", "write")
    assert "ModuleNotFoundError: No module named 'pyarrow'" in said["write"]
    assert "ModuleNotFoundError: No module named 'pyarrow'" in PAGE


def test_cluster_mode_is_not_for_python_on_standalone(
    cluster: Standalone, pythons: Pythons, tmp_path: Path
) -> None:
    job = ("--deploy-mode", "cluster", JOB, tmp_path / "log", tmp_path)
    said = cluster.submit(tmp_path, *job, code=1, PYSPARK_PYTHON=str(pythons.whole))
    assert "not supported for python applications on standalone clusters" in said
    assert "not supported for python applications on standalone clusters" in PAGE


def test_planners_use_the_python_of_the_environment_alone(
    pythons: Pythons, log_dir: Path, tmp_path: Path
) -> None:
    """If it lacks isolog, no code of isolog runs. The docs have Spark's message."""
    job = ("--conf", f"spark.pyspark.python={pythons.whole}", JOB, log_dir, tmp_path)
    path = named(tmp_path / "bin", python3=pythons.no_isolog)
    path_of_driver = f"{path}{os.pathsep}{os.environ['PATH']}"
    said = submit("local[1]", tmp_path, *job, code=1, PATH=path_of_driver)
    symptom = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: isolog"
    assert symptom in said
    assert symptom in PAGE


def test_planner_without_pyarrow_reports_the_remedy(
    pythons: Pythons, log_dir: Path, tmp_path: Path
) -> None:
    job = (JOB, log_dir, tmp_path)
    said = submit("local[1]", tmp_path, *job, code=1, PYSPARK_PYTHON=str(pythons.no_pyarrow))
    assert re.search(r"Spark plans its queries on \S+ in \S+ \(Python [\d.]+\), which lacks", said)


def test_a_module_that_raises_hides_every_source(
    pythons: Pythons, log_dir: Path, tmp_path: Path
) -> None:
    """So our module never raises: it registers a source that reports the missing modules."""
    (tmp_path / "pyspark_broken.py").write_text("raise ModuleNotFoundError('of another package')")
    python = {"PYSPARK_PYTHON": str(pythons.whole), "PYTHONPATH": str(tmp_path)}
    said = submit("local[1]", tmp_path, JOB, log_dir, tmp_path, code=1, **python)
    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: isolog" in said
    assert "of another package" in said
