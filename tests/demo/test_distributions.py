"""The installed package works without the checkout: the README's examples run.

The wheel is built from the sdist. It is installed into an environment with its requirements and no
other package, so broker, client and command line run without PySpark and pandas.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import isolog
from tests.conftest import ROOT, stop_broker
from tests.demo.conftest import Shell
from tests.demo.test_readme import example

pytestmark = pytest.mark.full

_MADE_HERE = ("venv", "cache", "git", "pytest_cache", "mypy_cache", "ruff_cache", "hypothesis")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that is built from it, without a network."""
    source = tmp_path_factory.mktemp("source") / "isolog"
    ignored = shutil.ignore_patterns(*(f".{each}" for each in _MADE_HERE), "build", "*.egg-info")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    target = source.parent / "dist"
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source])
    return target


def run(command: Sequence[str | Path]) -> None:
    """Run a command without PYTHONPATH: pip would find the checkout, and install nothing."""
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given)
    assert done.returncode == 0, done.stdout + done.stderr


def link_requirements(packages: Path, extra: str) -> None:
    """Link isolog's requirements from the environment of the tests into this folder."""
    (ours,) = Distribution.discover(name="isolog", path=[str(packages)])
    pending, done = [Requirement(f"isolog[{extra}]" if extra else "isolog")], set()
    while pending:
        wanted = pending.pop()
        if str(wanted) in done:
            continue
        done.add(str(wanted))
        found = ours if wanted.name == "isolog" else distribution(wanted.name)
        for required in map(Requirement, found.requires or ()):
            extras = ("", *wanted.extras)
            if not required.marker or any(required.marker.evaluate({"extra": x}) for x in extras):
                pending.append(required)
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(str(found.locate_file(name)))


@pytest.fixture(scope="module", params=["", "spark"], ids=["base", "spark"])
def extra(request: pytest.FixtureRequest) -> str:
    """The extra with which the wheel is installed."""
    return str(request.param)


@pytest.fixture(scope="module")
def installed(extra: str, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel."""
    (wheel,) = built.glob("*.whl")
    place = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python"]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel])
    paths = {"base": str(place), "platbase": str(place)}
    link_requirements(Path(sysconfig.get_path("purelib", "venv", paths)), extra)
    run([*pip, "check"])
    return place


@pytest.fixture
def python(installed: Path) -> Path:
    return installed / "bin" / "python"


@pytest.fixture
def user(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A user who runs commands with the installed package, never with the checkout."""
    shell = Shell(tmp_path_factory.mktemp("tools"), python)
    shell.environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
    shell.environment.pop("PYTHONPATH", None)
    return shell


def test_distributions_pass_the_checks_of_a_release(built: Path):
    """No test file is in the sdist, and the text for the index has no relative link."""
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    run([sys.executable, "-m", "twine", "check", "--strict", sdist, wheel])
    checks = runpy.run_path(str(ROOT / "scripts" / "release_check.py"))
    assert checks["problems_of_sdist"](sdist) == []
    assert checks["problems_of_wheel"](wheel, isolog.__version__) == []


def test_package_has_its_data_files(user: Shell, python: Path, tmp_path: Path):
    where = user.run([python, "-c", "import spark_stream as s; print(s.__file__)"], tmp_path)
    assert where.startswith(str(python.parents[1]))
    command = [python.with_name("isolog"), "config", "example", "broker.toml"]
    assert "metrics_listen" in user.run(command, tmp_path)
    files = [
        path.relative_to(ROOT / "spark_stream")
        for folder in ("console/static", "conf")
        for path in (ROOT / "spark_stream" / folder).rglob("*")
        if path.is_file()
    ]
    package = Path(where.strip()).parent
    assert [each for each in (*files, Path("py.typed")) if not (package / each).is_file()] == []


def test_environment_has_spark_only_with_its_extra(
    user: Shell, python: Path, extra: str, tmp_path: Path
):
    find = "from importlib.util import find_spec as f; print(bool(f('pyspark') or f('pandas')))"
    assert user.run([python, "-c", find], tmp_path) == f"{bool(extra)}\n"


def test_command_line_works(user: Shell, tmp_path: Path):
    try:
        said = user.run(["bash", "-eu", "-o", "pipefail", "-c", example("sh")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert "\nhello\n" in said


def test_client_works(user: Shell, python: Path, tmp_path: Path):
    try:
        user.run([python, "-c", example("transactions")], tmp_path)
        command = ["isolog", "consume", "audit", "--path", "my-log", "--output", "raw"]
        assert "one was ordered" in user.run(command, tmp_path)
    finally:
        stop_broker(tmp_path / "my-log")


@pytest.mark.parametrize("extra", [""], ids=["base"], indirect=True)
def test_commands_for_spark_name_the_wheel_with_the_extra(user: Shell, built: Path, tmp_path: Path):
    (wheel,) = built.glob("*.whl")
    said = user.run(["isolog", "prepare-spark"], tmp_path, code=2)
    assert f"{wheel}[spark]" in said.replace("\n", "")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_the_installed_package(user: Shell, python: Path, extra: str, tmp_path: Path):
    """Without the extra PySpark is that of a cluster, which has no pandas either."""
    home = Path(str(distribution("pyspark").locate_file("pyspark")))
    job = tmp_path / "job.py"
    job.write_text(example("spark"))
    command = [python, job] if extra else [home / "bin" / "spark-submit", job]
    place = {} if extra else {"SPARK_HOME": str(home)}
    try:
        said = user.run(command, tmp_path, **place)
    finally:
        stop_broker(tmp_path / "data")
    assert re.search(r"\|\s*1000\|\s*998001\|", said), said
