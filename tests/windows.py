"""A process without the calls that Windows lacks, to run isolog in it as a client.

Nothing here is Windows: the kernel is that of Linux. Modules and names that typeshed does not
declare for Windows are removed, so that a use of them fails as it would there. Methods of sockets
cannot be removed: start the process with ``ISOLOG_PORTABLE=1``.
"""

from __future__ import annotations

import importlib
import selectors
import socket
import sys
from importlib.abc import MetaPathFinder
from typing import Final

MODULES: Final = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog"}

THIRD_PARTIES: Final = (
    "numpy", "pyarrow", "pyarrow.ipc", "pyarrow.compute", "msgspec.json", "sqlglot", "psutil",
    "rich.console", "rich.progress", "rich.live", "typer", "google_crc32c", "asyncio", "subprocess",
    "tempfile", "ssl", "sqlite3", "pydantic", "pydantic_settings", "ctypes",
)  # fmt: skip
"""Packages that have other modules for Windows, so they are imported before."""


class _Missing(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname in MODULES:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _socketpair(*_: object) -> tuple[socket.socket, socket.socket]:
    """Connect two sockets over TCP, as Python does on Windows."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    return one, two


def become_windows(missing: set[str]) -> None:
    """Hide everything that Windows lacks. ``missing``: dotted names of the standard library."""
    for name in THIRD_PARTIES:
        importlib.import_module(name)
    for name in missing:
        module, _, attribute = name.partition(".")
        if module not in {*MODULES, "posix"}:  # the import system needs posix
            vars(sys.modules.get(module) or importlib.import_module(module)).pop(attribute, None)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Missing())
    socket.socketpair = _socketpair
    selectors.DefaultSelector = selectors.SelectSelector
    sys.platform = "win32"
