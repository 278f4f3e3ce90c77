"""Allowed imports: every import statement follows layers.toml."""

from __future__ import annotations

import ast
import configparser
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_stream"

BESIDE = {"pyspark_isolog", "pytest_isolog"}  # modules that other programs find by name

OURS = {"isolog", "spark_stream", *BESIDE}

_LAYERS = tomllib.loads((ROOT / "tests" / "house" / "layers.toml").read_text())
MAY_IMPORT: dict[str, set[str]] = {part: set(names) for part, names in _LAYERS["parts"].items()}
ROOM_MAY_IMPORT: dict[str, set[str]] = {
    f"{folder}/{room}": set(rooms[:number])
    for folder, rooms in _LAYERS["rooms"].items()
    for number, room in enumerate(rooms)
}
"""Room, or module, of a folder (``client/writing``) → its allowed imports from that folder."""


def modules(part: str) -> list[Path]:
    """The files of a part, or of a room of it."""
    if part in BESIDE:
        return [ROOT / f"{part}.py"]
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


def imports(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name below spark_stream) of each import of the package, at any depth."""
    for line, name in all_imports(path, text):
        root, _, rest = name.partition(".")
        if root == "spark_stream":
            yield line, rest


def all_imports(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield node.lineno, name


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """Return (line, dotted name below spark_stream) of each import of the package in a file."""
    return tuple(imports(path, path.read_text()))


def within(name: str, parts: set[str]) -> bool:
    """Return whether the dotted name is one of these parts, or below one."""
    return any(name == each or name.startswith(each + ".") for each in parts)


def allowed(part: str, name: str) -> bool:
    return within(name, {part, *MAY_IMPORT[part]})


def allowed_in_room(room: str, name: str) -> bool:
    """Return whether a room may import the name. Names of other folders are allowed."""
    folder, _, own = room.partition("/")
    inside, _, rest = name.partition(".")
    return inside != folder or within(rest, {own, *ROOM_MAY_IMPORT[room]})


def strays(part: str, may_import: Callable[[str, str], bool]) -> list[str]:
    assert modules(part)
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name or 'spark_stream itself'}"
        for path in modules(part)
        for line, name in imports_of(path)
        if not may_import(part, name)
    ]


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_part_imports_only_lower_parts(part):
    assert strays(part, allowed) == []


@pytest.mark.parametrize("room", ROOM_MAY_IMPORT)
def test_room_imports_only_lower_rooms(room):
    assert strays(room, allowed_in_room) == []


def test_every_part_and_room_is_in_layers_toml():
    parts = {path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    parts |= {path.stem for path in PACKAGE.glob("*.py")}
    assert set(MAY_IMPORT) == parts | BESIDE
    for folder in _LAYERS["rooms"]:
        inside = {
            f"{folder}/{path.stem}"
            for path in (PACKAGE / folder).iterdir()
            if not path.name.startswith("_")
        }
        assert {room for room in ROOM_MAY_IMPORT if room.startswith(f"{folder}/")} == inside


def test_imports_point_one_way():
    below = {part: {name.partition(".")[0] for name in names} for part, names in MAY_IMPORT.items()}
    TopologicalSorter(below).prepare()  # raises CycleError


def test_check_detects_imports_of_every_form():
    """Examples that the check must detect. A check that detects nothing would pass otherwise."""
    sample = PACKAGE / "consistency" / "sample.py"
    text = (
        "import spark_stream.broker.host\n"
        "from spark_stream import client\n"
        "from spark_stream.storage.log.log import PartitionLog\n"
        "from ..wire import messages\n"
        "def late():\n"
        "    from spark_stream.cluster import stores\n"
    )
    assert list(imports(sample, text)) == [
        (1, "broker.host"),
        (2, "client"),
        (3, "storage.log.log.PartitionLog"),
        (4, "wire.messages"),
        (6, "cluster.stores"),
    ]
    assert not allowed("consistency", "broker.host")
    assert allowed("datasource", "consistency.isolation.Isolation")
    assert not allowed("datasource", "consistency.replication.bounds")
    assert not allowed_in_room("client/reading", "client.writing.core.ProducerCore")
    assert allowed_in_room("client/log", "client.reading.loop.Feed")


@pytest.mark.parametrize("part", ["consistency", "scripts"])
def test_consistency_imports_no_locks_clocks_files_threads_flight_or_randomness(part):
    forbidden = {"time", "datetime", "os", "io", "pathlib", "random", "secrets", "threading"}
    forbidden |= {"asyncio", "socket", "subprocess", "uuid", "pyarrow", "logging", "concurrent"}
    forbidden |= {"queue", "multiprocessing", "sqlite3"}
    for path in modules(part):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] not in forbidden, f"{path.name}:{node.lineno}"


def required(extra: str = "") -> set[str]:
    """The distributions of the base, or of an extra, in setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = setup["options.extras_require"] if extra else setup["options"]
    lines = texts[extra or "install_requires"].splitlines()
    return {re.split(r"[\[<>=]", each)[0] for each in lines if each and not each.startswith("#")}


def test_modules_import_packages_of_the_base_or_of_their_extra():
    """The base installs without PySpark and pandas. An import in a function counts too."""
    installed = packages_distributions()
    files = [ROOT / f"{each}.py" for each in sorted(BESIDE)]
    files += sorted((ROOT / "isolog").rglob("*.py")) + sorted(PACKAGE.rglob("*.py"))
    base, strangers, used = required(), [], set()
    for path in files:
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        extras = {
            extra
            for extra, places in _LAYERS["extras"].items()
            if any(name == place or name.startswith(place + "/") for place in places)
        }
        may_need = base.union(*map(required, extras))
        for line, imported in all_imports(path, path.read_text()):
            root = imported.partition(".")[0]
            if root in OURS | sys.stdlib_module_names:
                continue
            names = {each.lower().replace("_", "-") for each in installed.get(root, [root])}
            used |= names
            if not names & may_need:
                strangers.append(f"{name}:{line} imports {root}")
    assert strangers == []
    assert base - used == set()


def test_base_has_neither_pyspark_nor_pandas():
    assert required() & {"pyspark", "pandas"} == set()
    assert {"pyspark", "pandas"} <= required("spark")
