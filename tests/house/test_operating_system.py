"""Calls that some operating systems lack are in one module, and the docs list each of them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import mypy
import pytest

from tests.house.test_layers import BESIDE, PACKAGE, ROOT

STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
HOME = "spark_stream/operating_system.py"

MODULES = (
    "errno", "fcntl", "grp", "mmap", "os", "posix", "pwd", "resource", "select", "selectors",
    "signal", "socket", "termios", "time", "tty",
)  # fmt: skip

MISSING_ON_MACOS = {
    "os.preadv": "macOS 11 is the first with it",
    "os.pwritev": "macOS 11 is the first with it",
}
"""Names that typeshed gives to every POSIX system."""

PATHS_OF_LINUX = ("/proc/", "/sys/", "/dev/shm")

LINUX_ELSEWHERE = {
    "spark_stream/testing/guard.py": {"/proc/"},  # it runs without the package
    "spark_stream/operating_system.py": {"/proc/"},
}
"""Modules with another fallback → their calls of Linux."""

POSIX_ELSEWHERE = {
    # Only brokers call these, and a broker needs file locks first.
    "spark_stream/storage/disk/disk.py": {"os.pread", "os.pwrite"},
    "spark_stream/cluster/stores/lease_files.py": {"os.pread", "os.pwrite"},
    "spark_stream/cluster/stores/store_files.py": {"os.pread", "os.pwrite"},
    "spark_stream/console/history.py": {"os.pread", "os.pwrite"},
    "spark_stream/client/connecting/embedded.py": {"os.getuid"},
    "spark_stream/testing/guard.py": {"signal.SIGKILL"},
    "spark_stream/testing/local_cluster.py": {
        "signal.SIGCONT", "signal.SIGKILL", "signal.SIGSTOP",
    },
    "spark_stream/testing/local_etcd.py": {"signal.SIGCONT"},
    # Called only after `termios` was found.
    "spark_stream/cli/operating/top.py": {"signal.pthread_kill"},
}  # fmt: skip
"""Modules → their calls that Windows lacks."""


@cache
def names_of(module: str, platform: str) -> frozenset[str]:
    """Return the names that typeshed declares for a module on a platform of ``sys``."""
    path = STUBS / f"{module}.pyi"
    if not path.exists():
        path = STUBS / module / "__init__.pyi"
    system = SimpleNamespace(platform=platform, version_info=sys.version_info)
    return frozenset(declared(ast.parse(path.read_text()).body, system))


def declared(body: list[ast.stmt], system: SimpleNamespace) -> Iterator[str]:
    for node in body:
        match node:
            case ast.If():
                test = ast.Expression(node.test)
                holds = eval(compile(test, "typeshed", "eval"), {"sys": system})
                yield from declared(node.body if holds else node.orelse, system)
            case ast.ImportFrom() | ast.Import():
                yield from (alias.asname or alias.name for alias in node.names)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name


def missing_on(platform: str) -> set[str]:
    """Return the dotted names that Linux has, and the platform lacks."""
    found = set()
    for module in MODULES:
        lacking = names_of(module, "linux") - names_of(module, platform)
        found |= {f"{module}.{name}" for name in lacking}
    return found


LINUX_ONLY = missing_on("darwin") | set(MISSING_ON_MACOS)
POSIX_ONLY = missing_on("win32") - LINUX_ONLY


@cache
def uses(path: Path) -> list[tuple[int, str]]:
    """Return line and dotted name of each use of the system's modules, and each path of Linux."""
    return list(uses_in(path.read_text()))


def uses_in(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                yield node.lineno, f"{module}.{name}"
            case ast.ImportFrom(module=module):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"),
                args=[ast.Name(id=module), ast.Constant(value=str() as name), *_],
            ):
                yield node.lineno, f"{module}.{name}"
            case ast.Constant(value=str() as path):
                yield from ((node.lineno, each) for each in PATHS_OF_LINUX if path.startswith(each))


def sources() -> list[Path]:
    beside = [ROOT / f"{name}.py" for name in BESIDE]
    return [*PACKAGE.rglob("*.py"), *(ROOT / "isolog").rglob("*.py"), *beside]


def strays(names: set[str], elsewhere: dict[str, set[str]]) -> list[str]:
    return [
        f"{place}:{line} {name}"
        for path in sorted(sources())
        for line, name in uses(path)
        if name in names
        and (place := str(path.relative_to(ROOT))) != HOME
        and name not in elsewhere.get(place, set())
    ]


def test_typeshed_lists_the_calls_of_each_system() -> None:
    assert {"os.fdatasync", "os.pidfd_open", "os.posix_fadvise"} <= LINUX_ONLY
    assert {"socket.TCP_KEEPIDLE", "signal.pidfd_send_signal"} <= LINUX_ONLY
    assert {"fcntl.flock", "os.pwrite", "resource.getrlimit"} <= POSIX_ONLY
    assert not {"os.open", "os.fsync", "socket.socket"} & (LINUX_ONLY | POSIX_ONLY)


@pytest.mark.rule("calls that macOS lacks have a fallback, in one module", "operating_system.py")
def test_calls_of_linux_are_in_one_module() -> None:
    assert strays(LINUX_ONLY | set(PATHS_OF_LINUX), LINUX_ELSEWHERE) == []


def test_calls_that_windows_lacks_are_not_in_modules_of_clients() -> None:
    assert strays(POSIX_ONLY, POSIX_ELSEWHERE) == []


def test_fsyncs_are_those_of_the_module() -> None:
    """A plain ``os.fsync`` does not reach the disk on macOS."""
    assert strays({"os.fsync"}, {}) == []


def test_a_call_is_found_in_each_form() -> None:
    program = """
from os import fdatasync
getattr(os, "posix_fadvise")
hasattr(socket, "TCP_KEEPIDLE")
os.pidfd_open(1)
open(f"/proc/{pid}/stat")
"""
    found = {name for _, name in uses_in(program)}
    assert found >= {
        "os.fdatasync", "os.posix_fadvise", "socket.TCP_KEEPIDLE", "os.pidfd_open", "/proc/",
    }  # fmt: skip


@pytest.mark.parametrize("elsewhere", [LINUX_ELSEWHERE, POSIX_ELSEWHERE], ids=["linux", "posix"])
def test_each_exception_is_needed(elsewhere: dict[str, set[str]]) -> None:
    for place, names in elsewhere.items():
        assert names <= {name for _, name in uses(ROOT / place)}, place


TABLE = (ROOT / "docs" / "reference" / "portability.md").read_text()


SIGN_OF_LINUX = "F_NOTIFY"
"""It is not called: it shows that numbers of ``ioctl`` are those of Linux."""


ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| `")]


def names_given_to(*functions: str) -> list[str]:
    """Return the constant names that the module passes to these functions."""
    return [
        each.value
        for node in ast.walk(ast.parse((ROOT / HOME).read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in functions
        for each in node.args[:2]
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]


def test_each_hidden_call_has_a_row_in_the_docs() -> None:
    hidden = names_given_to("_native", "_of_libc")
    assert len(hidden) > 8
    calls = "\n".join(row[0] for row in ROWS)
    assert [name for name in hidden if name not in calls and name != SIGN_OF_LINUX] == []


def test_each_optional_call_is_in_the_docs() -> None:
    """A call that a system may lack is looked up by its name."""
    optional = names_given_to("getattr", "hasattr", "optional")
    assert len(optional) > 12
    assert [name for name in optional if name not in TABLE] == []


def test_each_row_has_a_fallback_an_effect_and_a_test() -> None:
    assert [row for row in ROWS if len(row) != 4 or not all(row) or "test_" not in row[3]] == []


def test_tests_in_the_table_exist() -> None:
    named = re.findall(r"`(?:(tests/[\w/]+\.py)|(test_\w+))`", TABLE)
    texts = (ROOT / "tests" / "test_operating_system.py").read_text()
    assert len(named) > 12
    for path, name in named:
        assert (ROOT / path).is_file() if path else f"def {name}(" in texts, path or name


def test_all_tests_include_the_portable_path() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-all:")[2].partition("\n\n")[0]
    assert "test-portable" in recipe
