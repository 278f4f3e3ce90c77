"""The place of a test file: beside the code that it tests, or in a folder of the whole system.

A test of ``spark_stream/client/log.py`` is ``tests/client/test_log.py``, or
``tests/client/test_log_<aspect>.py``. ``WHOLE`` has the folders for tests of the whole system.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

import pytest

from tests.house.test_layers import PACKAGE, ROOT, imports

TESTS: Final = ROOT / "tests"
WHOLE: Final = {
    "chaos": "faults under load",
    "demo": "the demo, the README and the files of a deployment",
    "docs": "pages against the code",
    "histories": "the checker of histories in Go",
    "hosts": "networks and clocks of several hosts",
    "house": "rules for code, words and places",
    "languages": "clients in other languages",
    "simulation": "the simulator, its invariants and planted bugs",
    "spark": "queries in a real Spark",
    "stories": "failure stories",
    "system": "processes together: brokers, stores, clients",
    "upgrade": "two releases together",
}


def modules() -> set[PurePath]:
    """Return the modules of the package, as paths below it without a suffix."""
    return {
        path.relative_to(PACKAGE).with_suffix("")
        for path in PACKAGE.rglob("*.py")
        if not path.stem.startswith("__")
    }


def is_beside(test: PurePath, code: set[PurePath]) -> bool:
    """Return whether the folder of the test file has a module that its name begins with."""
    words = test.stem.removeprefix("test_").split("_")
    names = ("_".join(words[:number]) for number in range(1, len(words) + 1))
    return any(test.parent / name in code for name in names)


def imported(test: PurePath, text: str, code: set[PurePath]) -> Iterator[PurePath]:
    """Yield the module of each name of the package that the text uses, once a use."""
    used = Counter(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    for _, name in imports(TESTS / test, text):
        path = PurePath(*name.split("."))
        for module in (path, path.parent):
            if module in code:
                yield from [module] * used[path.name]


def fault(test: PurePath, text: str, code: set[PurePath]) -> str | None:
    """Return why the place of a test file is wrong, and a better one. None: it is right."""
    if test.parts[0] in WHOLE or is_beside(test, code):
        return None
    found = Counter(imported(test, text, code))
    name = test.stem.removeprefix("test_")
    folders = f"a folder of the whole system (tests/{', tests/'.join(sorted(WHOLE))})"
    if not found:
        return f"tests/{test}: no module has its name; move it to {folders}"
    [(module, _)] = found.most_common(1)
    better = f"tests/{module.parent / f'test_{module.name}.py'}"
    aspect = f"tests/{module.parent / f'test_{module.name}_{name}.py'}"
    return (
        f"tests/{test}: it uses {module}.py most, so move it to {better} or {aspect}, or {folders}"
    )


def test_each_test_file_is_beside_its_code_or_of_the_whole_system():
    code = modules()
    texts = {path.relative_to(TESTS): path.read_text() for path in TESTS.rglob("test_*.py")}
    assert len(texts) > 400
    assert [found for test, text in texts.items() if (found := fault(test, text, code))] == []


def test_each_folder_of_the_code_has_a_folder_of_tests():
    folders = Counter(path.parent for path in modules())
    bare = [
        f"spark_stream/{folder}"
        for folder, files in folders.items()
        if files > 3 and not list((TESTS / folder).glob("test_*.py"))
    ]
    assert bare == []


def test_no_folder_of_the_code_has_more_than_15_modules():
    folders = Counter(path.parent for path in modules())
    assert {str(folder): files for folder, files in folders.items() if files > 15} == {}


@pytest.mark.parametrize("folder", WHOLE)
def test_a_folder_of_the_whole_system_is_no_folder_of_the_code(folder: str):
    assert (TESTS / folder).is_dir()
    assert not (PACKAGE / folder).exists()


def test_stray_file_is_reported_with_its_folder():
    code = {PurePath("client/log")}
    text = "from spark_stream.client.log import Log\nLog()"
    assert fault(PurePath("client/test_log.py"), text, code) is None
    assert fault(PurePath("client/test_log_exit.py"), text, code) is None
    assert fault(PurePath("house/test_places.py"), text, code) is None
    found = fault(PurePath("client/reading/test_groups.py"), text, code)
    assert found is not None
    assert "tests/client/test_log.py or tests/client/test_log_groups.py" in found


def test_no_timeout_of_a_test_exceeds_that_of_a_hang() -> None:
    """The process ends at the latter, without a report of the tests before."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    text = "".join(each.read_text() for each in TESTS.rglob("test_*.py"))
    longest = max(map(int, re.findall(r"mark\.timeout\(([0-9_]+)\)", text)))
    assert settings["timeout"] < longest < settings["faulthandler_timeout"]
