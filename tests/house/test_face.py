"""The package ``isolog`` is the public face, and no page names the package behind it."""

from __future__ import annotations

import ast
import logging
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyspark
import pytest

import spark_stream
from spark_stream.errors import IsologError
from spark_stream.extras import install_hint

ROOT = Path(__file__).resolve().parents[2]
FACE = {
    "isolog": "spark_stream",
    "isolog.aio": "spark_stream.aio",
    "isolog.errors": "spark_stream.errors",
    "isolog.testing": "spark_stream.testing",
    "isolog.testing.store_tests": "spark_stream.testing.store_tests",
}
"""Each module of the face, and the module that has the same names."""

ALLOWED = {
    "README.md": "`spark_stream/`",  # the sentence that gives the reason
    "docs/spark/cluster.md": "python -m zipfile",  # files of a checkout
    "docs/rules.md": "`spark_stream/`",  # for developers
}
"""The only lines of pages that name the package behind the face."""


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "SECURITY.md"]
    for folder in ("docs", "examples", "notebooks"):
        files = (ROOT / folder).rglob("*")
        found += [each for each in files if each.suffix in {".md", ".py", ".ipynb"}]
    return [each for each in found if "decisions" not in each.parts]


def naming(page: Path) -> list[str]:
    allowed = ALLOWED.get(str(page.relative_to(ROOT)))
    lines = [each for each in page.read_text().splitlines() if "spark_stream" in each]
    return [each for each in lines if allowed is None or allowed not in each]


def test_pages_name_only_the_public_package() -> None:
    assert {str(page): found for page in pages() if (found := naming(page))} == {}


def test_error_texts_name_only_the_public_package() -> None:
    wrong = []
    for path in (ROOT / "spark_stream").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            texts = [
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            wrong += [(path, each) for each in texts if "spark_stream" in each and " " in each]
    assert wrong == []


@pytest.mark.parametrize("name", FACE)
def test_face_has_the_objects_of_the_package_behind_it(name: str) -> None:
    face, behind = import_module(name), import_module(FACE[name])
    assert face.__doc__
    for each in face.__all__:
        if not isinstance(getattr(face, each), ModuleType):
            assert getattr(face, each) is getattr(behind, each), each


def test_face_has_every_public_name() -> None:
    import isolog

    assert set(isolog.__all__) == set(spark_stream.__all__)
    subclasses = {
        name
        for name, each in vars(spark_stream.errors).items()
        if isinstance(each, type) and issubclass(each, IsologError)
    }
    assert set(isolog.errors.__all__) == subclasses
    for name in ("aio", "testing"):
        behind = import_module(f"spark_stream.{name}")
        assert set(getattr(isolog, name).__all__) == set(behind.__all__)


def test_late_names_are_the_imports_of_type_checkers() -> None:
    """A type checker sees imports, and a program the table. Both have the same names."""
    tree = ast.parse((ROOT / "spark_stream" / "__init__.py").read_text())
    seen = {
        alias.name: node.module
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "spark_stream"
        for alias in node.names
    }
    assert seen == {name: f"spark_stream.{at}" for name, at in spark_stream._PLACES.items()}
    assert set(seen) | {"__version__", "errors"} == set(spark_stream.__all__)


def test_late_names_are_listed_starred_and_pickled() -> None:
    import isolog

    assert set(dir(isolog)) == {*isolog.__all__, "aio", "spark", "testing"}
    starred: dict[str, object] = {}
    exec("from isolog import *", starred)
    assert set(isolog.__all__) <= set(starred)
    for name in ("Log", "Record", "connect"):
        assert pickle.loads(pickle.dumps(getattr(isolog, name))) is getattr(isolog, name)
    with pytest.raises(AttributeError, match="module 'isolog' has no attribute 'logs'"):
        _ = isolog.logs


def test_public_objects_have_docstrings() -> None:
    for name in (*FACE, "isolog.spark"):
        module = import_module(name)
        assert [each for each in module.__all__ if not getattr(module, each).__doc__] in (
            [],
            ["__version__"],
        )


def test_import_of_the_face_imports_neither_spark_nor_test_tools() -> None:
    program = (
        "import sys, isolog; print(*[each for each in ('pyspark', 'pandas', 'pytest', 'isolog.aio',"
        " 'isolog.testing') if each in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.split() == []


@pytest.mark.parametrize(
    ("lacked", "this"),
    [
        ("pyspark", "this Python has none"),
        ("pyspark.sql.datasource", f"this is {pyspark.__version__}"),  # PySpark 3.5 lacks it
    ],
)
def test_spark_module_without_a_new_pyspark_names_the_command(lacked: str, this: str) -> None:
    program = f"import sys; sys.modules['{lacked}'] = None; import isolog.spark"
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert said.splitlines()[-1] == (
        f"ImportError: isolog needs PySpark 4.0 or newer; {this}. {install_hint('spark')}"
    )


def test_command_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "isolog", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "broker" in said.stdout


def test_loggers_have_the_public_name() -> None:
    for path in (ROOT / "spark_stream").rglob("*.py"):
        if path.name != "loggers.py":
            assert "logging.getLogger(__name__)" not in path.read_text(), path
    from spark_stream.client import log

    assert log.__name__ == "spark_stream.client.log"
    from spark_stream.loggers import logger_of

    assert logger_of(log.__name__) is logging.getLogger("isolog.client.log")
