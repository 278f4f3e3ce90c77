"""Where a broker listens: the address as operators write it, and whether it can be had."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_stream.broker.service import location_of
from spark_stream.errors import InvalidConfig, PortInUse
from spark_stream.wire.addresses import UNIX, location, split_address
from spark_stream.wire.limits import SOCKET_PATH_MAX

logger = logging.getLogger(__name__)

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def bind_place(listen: str) -> tuple[str, Path | None]:
    """Where Flight is to bind; for a Unix socket its path too, cleared of a dead broker's."""
    if listen.startswith(UNIX):
        path = Path(listen.removeprefix(UNIX))
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise InvalidConfig(
                f"{path}: the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes",
                setting="listen",
            )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the directory's lock is ours: nobody serves this socket
        return location(listen), path
    host, port = split_address(listen)
    if host not in _LOOPBACK:
        logger.warning("listening on %s: everybody who reaches it can read and write the log", host)
    if port:
        _check_free(host, port)
    return location_of("grpc", host, port), None


def _check_free(host: str, port: int) -> None:
    """PortInUse if the port is taken: gRPC's own error would not say so."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfig(f"listen: {host!r}: {error.strerror}", setting="listen") from None
    family, kind, protocol, _, place = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
        except OSError as error:
            raise PortInUse(
                f"cannot listen on {host}:{port}: {error.strerror}", address=f"{host}:{port}"
            ) from None


@contextlib.contextmanager
def bind_errors(listen: str) -> Iterator[None]:
    """gRPC says only that the server did not start, which means that it could not listen."""
    try:
        yield
    except pa.ArrowException as error:
        raise PortInUse(f"cannot listen on {listen}: {error}", address=listen) from error
