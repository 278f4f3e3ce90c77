"""This process's own connections, which gRPC keeps to itself: found, and ended.

gRPC knows no way to give up a write that the other side does not read: neither a deadline nor a
cancellation ends it once its bytes wait for the socket, and on a Unix socket no keep-alive does.
What ends it is the end of the socket. The process can see its own sockets and ask each for its
peer. Client and broker both need this: either side may have stopped.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

Peer = str | tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]
"""The path of a Unix socket, or address and port."""

_CREDENTIALS: Final = struct.Struct("iII")  # pid, user, group of who made the other end

# Linux' struct tcp_info: eight bytes, nine counters, then the milliseconds since data was last
# sent, an acknowledgement sent, data received.
_TCP_INFO: Final = struct.Struct("8x 9I I I I")


def end_connections(address: str) -> int:
    """Shuts down every connection of this process to ``host:port`` or ``unix:PATH``; how many."""
    ended = 0
    for found in connections_to(address):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.shutdown(socket.SHUT_RDWR)
            ended += 1
    return ended


def connections() -> Iterator[socket.socket]:
    """The connected sockets of this process, each open for as long as the caller looks at it."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, or no connected socket
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as found:
                found.getpeername()
                yield found


def peers_of(address: str) -> set[Peer]:
    """What ``host:port`` or ``unix:PATH`` may be called by a socket."""
    if address.startswith("unix:"):
        return {address.removeprefix("unix:")}
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return set()
    return {peer for *_, place in found if (peer := peer_of(place)) is not None}


def peer_of(name: object) -> Peer | None:
    """A socket's name as it can be compared: an IPv4 address is the same in an IPv6 socket."""
    if isinstance(name, bytes):
        return os.fsdecode(name)
    if isinstance(name, str):
        return name
    if not isinstance(name, tuple):
        return None
    host = ipaddress.ip_address(str(name[0]).partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return (mapped or host, int(name[1]))


def place_of(peer: str) -> Peer | None:
    """Flight's name of a peer (``ipv4:127.0.0.1:80``, ``ipv6:%5B::1%5D:80``) as an address.

    None: it has none, for it came through a Unix socket.
    """
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return peer_of((str(ipaddress.ip_address(host.strip("[]").partition("%")[0])), int(port)))


def connections_of(peer: str, pid: int) -> Iterator[socket.socket]:
    """The accepted connections of one client: Flight's name of it, and the id of its process.

    The process counts where the client came through a Unix socket, whose clients have one name.
    """
    place = place_of(peer)
    for found in connections():
        with contextlib.suppress(OSError):  # closed meanwhile
            if place is not None:
                if peer_of(found.getpeername()) == place:
                    yield found
            elif _is_accepted(found) and process_behind(found) == pid:
                yield found


def _is_accepted(connection: socket.socket) -> bool:
    """Whether it came through a Unix socket of this process."""
    return connection.family == socket.AF_UNIX and bool(connection.getsockname())


def connections_to(address: str) -> Iterator[socket.socket]:
    """The connections of this process to ``host:port`` or ``unix:PATH``."""
    wanted = peers_of(address)
    for found in connections():
        with contextlib.suppress(OSError):
            if peer_of(found.getpeername()) in wanted:
                yield found


def process_behind(connection: socket.socket) -> int:
    """The pid of the process at the other end of a Unix socket."""
    size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def quiet_for(connection: socket.socket) -> float:
    """For how many seconds no byte has moved on a TCP connection, in either direction."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    *_, sent_ms, _, received_ms = _TCP_INFO.unpack(info)
    return float(min(sent_ms, received_ms)) / 1000


def heard_ago(connection: socket.socket) -> float:
    """How many seconds ago the last byte came from the other end of a TCP connection."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    *_, received_ms = _TCP_INFO.unpack(info)
    return float(received_ms) / 1000
