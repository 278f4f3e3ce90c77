"""What pip installs, a wheel or an sdist, works without the checkout: the README's examples run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import ROOT, stop_broker
from tests.demo.conftest import Shell
from tests.demo.test_readme import example

pytestmark = pytest.mark.full

_MADE_HERE = ("venv", "cache", "git", "pytest_cache", "mypy_cache", "ruff_cache", "hypothesis")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both, built from a copy of the checkout, without a network."""
    source = tmp_path_factory.mktemp("source") / "isolog"
    ignored = shutil.ignore_patterns(*(f".{each}" for each in _MADE_HERE), "build", "*.egg-info")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    target = source.parent / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", target, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"])
def installed(
    request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A fresh environment with one of them, and with what it needs from that of the tests."""
    (distribution,) = built.glob(request.param)
    place = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    paths = {"base": str(place), "platbase": str(place)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install"]
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    done = subprocess.run(
        [*pip, *offline, distribution], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.fixture
def python(installed: Path) -> Path:
    return installed / "bin" / "python"


@pytest.fixture
def user(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One who runs commands with what is installed, and never with the checkout."""
    shell = Shell(tmp_path_factory.mktemp("tools"), python)
    shell.environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(python))
    shell.environment.pop("PYTHONPATH", None)
    return shell


def test_the_package_brings_its_data(user: Shell, python: Path, tmp_path: Path):
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


def test_the_command_line_works(user: Shell, tmp_path: Path):
    try:
        said = user.run(["bash", "-eu", "-o", "pipefail", "-c", example("sh")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert "\nhello\n" in said


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_finds_it(user: Shell, python: Path, tmp_path: Path):
    try:
        said = user.run([python, "-c", example("spark")], tmp_path)
    finally:
        stop_broker(tmp_path / "data")
    assert re.search(r"\|\s*1000\|\s*998001\|", said), said
