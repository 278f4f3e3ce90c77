"""Unpickling in a worker reports the modules that the worker's Python lacks."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import py4j
import pyspark
import pytest
from pyspark import cloudpickle

import spark_stream
from spark_stream.datasource import IsologDataSource
from spark_stream.datasource.spark.pickling import NEEDED

LOAD = """
import importlib, pickle, sys
sys.path.append(sys.argv[1])
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass
pickle.load(sys.stdin.buffer)
"""


@pytest.fixture(scope="module")
def pickled() -> bytes:
    return bytes(cloudpickle.dumps(IsologDataSource({"path": "/a", "subscribe": "b"})))


def test_unpickled_object_equals_the_original(pickled: bytes) -> None:
    arrived = pickle.loads(pickled)
    assert type(arrived) is IsologDataSource
    assert dict(arrived.options) == {"path": "/a", "subscribe": "b"}


@pytest.mark.parametrize(
    ("packages", "imported_before"),
    [
        pytest.param([pyspark, py4j], [], id="without isolog"),
        pytest.param(
            [pyspark, py4j, spark_stream],
            ["spark_stream", "spark_stream.client.log"],
            id="with isolog alone, which a function of the user has imported",
        ),
    ],
)
def test_python_reports_all_missing_modules(
    packages: list[ModuleType], imported_before: list[str], pickled: bytes, tmp_path: Path
) -> None:
    for package in packages:
        [place] = package.__path__
        (tmp_path / package.__name__).symlink_to(place)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOAD, tmp_path, *imported_before],
        input=pickled,
        capture_output=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: isolog: a Python worker of Spark on ")
    assert f" runs {sys.executable} (Python " in last
    assert "which lacks pyarrow, numpy, " in last
    lacks_isolog = spark_stream not in packages
    assert (", isolog. Set PYSPARK_PYTHON" in last) == lacks_isolog
    assert ". Set PYSPARK_PYTHON, where the job is submitted" in last


PLANNER = """
import sys
import pyspark.sql
version, lacked = sys.argv[1:]
pyspark.__version__ = version
sys.modules[lacked] = None
import pyspark_isolog
pyspark_isolog.DefaultSource({})
"""


def test_the_error_for_an_older_pyspark_names_the_needed_release() -> None:
    """Spark 4.0 added Python data sources."""
    done = subprocess.run(
        [sys.executable, "-c", PLANNER, "3.5.6", "pyspark.sql.datasource"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last == (
        "ImportError: isolog needs PySpark 4.0 or newer; this is 3.5.6. Install it"
        " (pip install 'pyspark>=4.0,<5'), and run the job with Spark 4.0 or newer."
    )


def test_a_missing_module_is_named_with_the_python_that_lacks_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANNER, "4.2.0", "msgspec"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert "which lacks msgspec. Set PYSPARK_PYTHON" in last


IN_TASKS = ("batches.py", "client", "consistency", "datasource", "sql", "storage", "wire")
"""The modules of this package that a task imports."""
ON_THE_DRIVER = {"prometheus_client", "rich"}


def imported(file: Path) -> set[str]:
    """Return the top-level packages of other projects that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    tops = {name.partition(".")[0] for name in names}
    return tops - set(sys.stdlib_module_names) - {"spark_stream", "pyspark"}


def test_needed_modules_are_all_that_a_task_imports() -> None:
    root = Path(spark_stream.__file__).parent
    files = [file for part in IN_TASKS for file in [root / part, *(root / part).rglob("*.py")]]
    needed = set().union(*(imported(file) for file in files if file.is_file())) - ON_THE_DRIVER
    assert needed
    assert needed <= set(NEEDED)
