"""Sockets to listen on, by the addresses of configurations and commands."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from spark_stream.errors import InvalidConfig, PortInUse
from spark_stream.operating_system import UNIX_SOCKETS
from spark_stream.wire.addresses import UNIX, split_address
from spark_stream.wire.limits import SOCKET_PATH_MAX

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def listening_socket(listen: str, setting: str = "listen") -> socket.socket:
    """Return a socket that is bound to ``host:port`` or ``unix:PATH``.

    Raises:
        InvalidConfig: There is no such host, or the path is too long.
        PortInUse: The address cannot be bound, usually because another process has it.
    """
    if listen.startswith(UNIX):
        return _unix_socket(Path(listen.removeprefix(UNIX)), setting)
    host, port = split_address(listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfig(f"{setting}: {host!r}: {error.strerror}", setting=setting) from None
    family, kind, protocol, _, place = found[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
    except OSError as error:
        bound.close()
        raise PortInUse(
            f"cannot listen on {host}:{port}: {error.strerror}", address=f"{host}:{port}"
        ) from None
    return bound


def _unix_socket(path: Path, setting: str) -> socket.socket:
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise InvalidConfig(
            f"{path}: the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes",
            setting=setting,
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # the caller has the lock of the directory, so no other broker serves it
    path.unlink(missing_ok=True)
    bound = socket.socket(UNIX_SOCKETS, socket.SOCK_STREAM)
    bound.bind(os.fspath(path))
    return bound


def is_local(listen: str) -> bool:
    """Return whether only this machine can connect to an address."""
    return listen.startswith(UNIX) or split_address(listen)[0] in _LOOPBACK


def port_of(bound: socket.socket) -> int:
    """Return the port of a bound socket, or 0 for a Unix socket."""
    return 0 if bound.family == UNIX_SOCKETS else int(bound.getsockname()[1])
