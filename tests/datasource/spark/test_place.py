"""The meaning of a ``path``, and the refusal of temporary ones."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from isolog.errors import InvalidOption
from spark_stream.datasource.options import sink_options, source_options
from spark_stream.datasource.spark import place
from spark_stream.datasource.spark.place import Place, directory, driver_directory
from spark_stream.datasource.spark.workers import in_a_worker
from spark_stream.operating_system import boot_id

UUID = str(uuid.UUID(int=7))


class Process:
    """A process among the parents of this one."""

    def __init__(self, name: str, cwd: Path | Exception) -> None:
        self._name, self._cwd = name, cwd

    def name(self) -> str:
        return self._name

    def cwd(self) -> str:
        if isinstance(self._cwd, Exception):
            raise self._cwd
        return str(self._cwd)


def planned_by(monkeypatch: pytest.MonkeyPatch, *parents: Process) -> None:
    """Make this process a child of these, from the nearest on."""

    class Here:
        def parents(self) -> list[Any]:
            return list(parents)

    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setattr(place.psutil, "Process", Here)


@pytest.mark.parametrize(
    "variable",
    [
        "SPARK_PYTHON_RUNTIME",
        "PYTHON_WORKER_FACTORY_SECRET",
        "PYTHON_WORKER_FACTORY_SOCK_DIR",
        "PYTHON_WORKER_FACTORY_SOCK_PATH",
    ],
)
def test_workers_of_each_release_are_detected(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    assert not in_a_worker()
    monkeypatch.setenv(variable, "1")
    assert in_a_worker()


def test_an_empty_path_is_not_the_working_directory() -> None:
    with pytest.raises(InvalidOption, match="path is empty"):
        directory("")


@pytest.mark.rule("the base of a relative `path`", "datasource/spark/place.py")
def test_relative_path_is_resolved_in_the_directory_of_the_drivers_jvm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    files = tmp_path / f"userFiles-{UUID}"
    planned_by(
        monkeypatch,
        Process("python", files),
        Process("java", tmp_path / "jvm"),
        Process("python", tmp_path / "shell"),
        Process("java", tmp_path / "scheduler"),
    )
    assert directory("data").path == str(tmp_path / "jvm" / "data")
    assert directory("../data").path == str(tmp_path / "data")
    given = {"path": "data", "subscribe": "t"}
    assert source_options(given).place.path == str(tmp_path / "jvm" / "data")
    assert sink_options({"path": "data", "topic": "t"}).place.path == str(tmp_path / "jvm" / "data")


def test_the_environments_path_is_resolved_by_the_same_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned_by(monkeypatch, Process("java", tmp_path))
    monkeypatch.setenv("ISOLOG_PATH", "data")
    assert source_options({"subscribe": "t"}).place.path == str(tmp_path / "data")


def test_outside_of_spark_a_relative_path_is_resolved_in_the_process_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert driver_directory() == tmp_path


@pytest.mark.parametrize(
    ("parents", "why"),
    [
        ([Process("python", Path("/"))], "no JVM is among the parents"),
        ([Process("java", psutil.AccessDenied(1))], "the system does not report"),
    ],
)
def test_a_relative_path_that_cannot_be_resolved_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, parents: list[Process], why: str
) -> None:
    planned_by(monkeypatch, *parents)
    with pytest.raises(InvalidOption, match=why) as caught:
        directory("data")
    assert "absolute path" in caught.value.hint
    assert directory("/data").path == "/data"


@pytest.mark.parametrize(
    "folder",
    [
        f"spark-{UUID}/userFiles-{UUID}",
        f"spark-{UUID}/userFiles-{UUID}/{UUID}",
        f"blockmgr-{UUID}",
        "nm/usercache/me/appcache/application_17_0001/container_17_0001_01_000001",
        "nm/usercache/me/appcache/application_17_0001/container_e17_17_0001_01_000001",
        "worker/driver-20260101123456-0001",
    ],
)
def test_a_path_in_a_folder_that_spark_deletes_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    with pytest.raises(InvalidOption, match="deleted with Spark"):
        directory(str(tmp_path / folder / "data"))
    planned_by(monkeypatch, Process("java", tmp_path / folder))
    with pytest.raises(InvalidOption, match="deleted with Spark") as caught:
        directory("data")
    assert "absolute path" in caught.value.hint


def test_a_link_into_a_folder_that_spark_deletes_is_refused(tmp_path: Path) -> None:
    files = tmp_path / f"userFiles-{UUID}"
    files.mkdir()
    (tmp_path / "link").symlink_to(files)
    with pytest.raises(InvalidOption, match="deleted"):
        directory(str(tmp_path / "link" / "data"))


def test_working_directory_of_a_pod_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned_by(monkeypatch, Process("java", Path("/opt/spark/work-dir")))
    assert directory("data").path == "/opt/spark/work-dir/data"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(InvalidOption, match="/opt/spark/work-dir"):
        directory("data")


def test_folders_with_similar_names_are_accepted(tmp_path: Path) -> None:
    for name in ("spark-data", "userFiles", "driver-1", "container_7", UUID):
        assert directory(str(tmp_path / name / "data")).path == str(tmp_path / name / "data")


def test_place_of_a_directory_has_its_host() -> None:
    assert directory("/data").host == boot_id()
    assert source_options({"bootstrap": "h:1", "subscribe": "t"}).place == Place(bootstrap="h:1")
