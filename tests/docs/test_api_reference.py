"""The pages in docs/api: each public object has one, and the examples of its docstring run.

The examples need a broker, because they show the answers of one.
"""

from __future__ import annotations

import asyncio
import doctest
import inspect
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

import isolog
import isolog.aio
import isolog.testing
from tests.conftest import ROOT, stop_broker

PAGES = {path: path.read_text() for path in sorted((ROOT / "docs" / "api").rglob("*.md"))}
MODULES = ("isolog", "isolog.aio", "isolog.errors", "isolog.spark", "isolog.testing")
EXAMPLES = ("isolog", "isolog.aio", "isolog.testing")


def public_names() -> list[str]:
    return [
        f"{name}.{each}"
        for name in MODULES
        for each in import_module(name).__all__
        if not isinstance(getattr(import_module(name), each), (ModuleType, str))
    ]


def examples() -> list[doctest.DocTest]:
    """Return the examples of each public object and of its methods."""
    finder = doctest.DocTestFinder(recurse=False)
    found = []
    for name in public_names():
        if name.rpartition(".")[0] not in EXAMPLES:
            continue
        each = getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        found += finder.find(each, name, globs={})
        for method, value in vars(each).items() if inspect.isclass(each) else ():
            if not (method.startswith("_") or hasattr(value, "__wrapped__")):
                found += finder.find(value, f"{name}.{method}", globs={})
    return [test for test in found if test.examples]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[isolog.Log]:
    folder = tmp_path_factory.mktemp("api")
    before = Path.cwd()
    os.chdir(folder)
    try:
        with isolog.connect(path=folder / "data") as log:
            yield log
    finally:
        os.chdir(before)
        for directory in folder.iterdir():
            stop_broker(directory)


@pytest.mark.parametrize("example", examples(), ids=lambda each: each.name)
def test_example_of_a_docstring_runs(log: isolog.Log, example: doctest.DocTest) -> None:
    example.globs = {"asyncio": asyncio, "isolog": isolog, "log": log, "pa": pa}
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert report == []


def test_each_public_object_is_on_one_page() -> None:
    shown = re.findall(r"^::: (\S+)$", "\n".join(PAGES.values()), re.MULTILINE)
    assert sorted(shown) == sorted(public_names())


def test_overview_links_each_page() -> None:
    overview = (ROOT / "docs" / "api.md").read_text()
    for path in PAGES:
        assert f"({path.relative_to(ROOT / 'docs').as_posix()})" in overview
