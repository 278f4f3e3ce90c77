"""Addresses of brokers: ``host:port`` or ``unix:PATH``."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

UNIX: Final = "unix:"
# An IPv6 address needs brackets: without them its last group would be taken for the port.
_HOST: Final = re.compile(r"\[[^]\s/]+\]|[^][\s/:]+")


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` (IPv6 hosts in brackets). Raise ValueError for other texts."""
    host, colon, port = address.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """Return the address of a host and a port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_port(address: str, port: int) -> str:
    """Return the address as ``host:port``, with this port if it names none."""
    has_port = ":" in address.rpartition("]")[2]
    return address if has_port else f"{address}:{port}"


def is_wildcard(host: str) -> bool:
    """Return whether the host stands for all addresses of a machine, such as ``0.0.0.0``."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        pass
    try:
        return not any(socket.inet_aton(host))  # short forms, such as "0"
    except OSError:
        return False
