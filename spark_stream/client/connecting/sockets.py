"""Ends this process's own connections to an address.

gRPC knows no way to give up a write that the other side does not read: neither a deadline nor a
cancellation ends it once its bytes wait for the socket, and on a Unix socket no keep-alive does.
What ends it is the end of the socket. gRPC keeps that to itself, but the process can see its own
sockets and ask each for its peer.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat

Peer = str | tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def end_connections(address: str) -> int:
    """Shuts down every connection of this process to ``host:port`` or ``unix:PATH``; how many."""
    wanted = _peers_of(address)
    ended = 0
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or no connected socket
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as found:
                if _peer(found.getpeername()) in wanted:
                    found.shutdown(socket.SHUT_RDWR)
                    ended += 1
    return ended


def _peers_of(address: str) -> set[Peer]:
    if address.startswith("unix:"):
        return {address.removeprefix("unix:")}
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    return {peer for *_, place in found if (peer := _peer(place)) is not None}


def _peer(name: object) -> Peer | None:
    """A peer as it can be compared: an IPv4 address is the same within an IPv6 socket."""
    if isinstance(name, bytes):
        return os.fsdecode(name)
    if isinstance(name, str):
        return name
    if not isinstance(name, tuple):
        return None
    host = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return (mapped or host, int(name[1]))
