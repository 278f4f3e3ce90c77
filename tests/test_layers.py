"""Who may import whom: section 3 of the design, held against every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_stream"

# A part of the house → the parts that it may import. A dotted name is that module alone.
BELOW_THE_BROKER = {"consistency", "wire", "storage", "cluster", "client"}
BELOW_THE_BROKER |= {"environment", "errors", "scripts", "version"}
MAY_IMPORT: dict[str, set[str]] = {
    "environment": set(),
    "errors": set(),
    "version": set(),
    "consistency": set(),
    "wire": {"consistency", "errors"},
    "storage": {"consistency", "errors"},
    "cluster": {"consistency", "environment", "errors"},
    "scripts": {"consistency", "cluster", "environment", "errors"},
    "client": {"wire", "consistency", "errors", "version"},
    "datasource": {"client", "wire", "errors", "version", "consistency.isolation"},
    "broker": BELOW_THE_BROKER,
    "testing": BELOW_THE_BROKER | {"broker"},
}


def modules(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


def imports(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name below spark_stream) of every import of ours, inside functions too."""
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
            root, _, rest = name.partition(".")
            if root == "spark_stream":
                yield node.lineno, rest


def allowed(part: str, name: str) -> bool:
    return any(name == each or name.startswith(each + ".") for each in {part, *MAY_IMPORT[part]})


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_of_the_house_imports_only_what_is_below_it(part):
    strays = [
        f"{path.relative_to(ROOT)}:{line} imports {name or 'spark_stream itself'}"
        for path in modules(part)
        for line, name in imports(path, path.read_text())
        if not allowed(part, name)
    ]
    assert modules(part)
    assert strays == []


def test_the_check_sees_imports_of_every_form():
    """A check that sees nothing would pass as well: here is what it must see."""
    sample = PACKAGE / "consistency" / "sample.py"
    text = (
        "import spark_stream.broker.host\n"
        "from spark_stream import client\n"
        "from spark_stream.storage.log import PartitionLog\n"
        "from ..wire import messages\n"
        "def late():\n"
        "    from spark_stream.cluster import store\n"
    )
    assert list(imports(sample, text)) == [
        (1, "broker.host"),
        (2, "client"),
        (3, "storage.log.PartitionLog"),
        (4, "wire.messages"),
        (6, "cluster.store"),
    ]
    assert not allowed("consistency", "broker.host")
    assert allowed("datasource", "consistency.isolation.Isolation")
    assert not allowed("datasource", "consistency.leader")


def test_the_rules_know_no_clock_no_disk_no_thread_and_no_chance():
    forbidden = {"time", "datetime", "os", "io", "pathlib", "random", "secrets", "threading"}
    forbidden |= {"asyncio", "socket", "subprocess", "uuid", "pyarrow", "logging", "concurrent"}
    for path in modules("consistency"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] not in forbidden, f"{path.name}:{node.lineno}"


def test_scripts_know_no_lock_no_clock_no_thread_and_no_flight():
    forbidden = {"time", "datetime", "os", "io", "pathlib", "random", "secrets", "threading"}
    forbidden |= {"asyncio", "socket", "subprocess", "uuid", "pyarrow", "logging", "concurrent"}
    forbidden |= {"queue", "multiprocessing", "sqlite3"}
    for path in modules("scripts"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] not in forbidden, f"{path.name}:{node.lineno}"
