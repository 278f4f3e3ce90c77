"""Run a console: find out whether the cluster asks who calls, bind the address, and serve."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import uvicorn
from msgspec import Struct, structs

from spark_stream.client.connecting.access import Access
from spark_stream.console.app import ConsoleSettings, create_app
from spark_stream.console.guard import is_address
from spark_stream.console.sessions import IDLE_S, ConsoleSessions, LogPlace
from spark_stream.errors import InvalidOption, PortInUse, Unauthenticated
from spark_stream.wire.addresses import is_wildcard, joined, split_address

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_GRACE_S: Final = 3


class ServerOptions(Struct, frozen=True):
    """Where and how to serve: ``listen`` is HOST:PORT; port 0 takes a free one."""

    listen: str
    allowed_hosts: Sequence[str] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allows_changes: bool = False
    idle_s: float = IDLE_S


def serve(
    place: LogPlace,
    options: ServerOptions,
    note: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Serve until the process is told to end.

    ``note`` is given warnings, and ``ready`` the address of the page once it is served.

    Raises:
        InvalidOption: the address or a file cannot be used.
        PortInUse: another process listens there.
        BrokerUnavailable, …: no broker answers.
    """
    host, port = _listen_address(options.listen)
    needs_login, bootstrap = probe(place)
    is_secure, is_local, is_all = options.tls_cert is not None, host in _LOCAL, is_wildcard(host)
    listener = _bound(host, port)
    port = listener.getsockname()[1]
    if not is_local and not is_secure:
        note(
            f"warning: everybody who reaches {options.listen} can read what passes: give"
            " --tls-cert and --tls-key, or listen on 127.0.0.1"
        )
    if not is_local and not needs_login:
        note(
            "warning: the cluster does not ask who calls, so everybody who reaches the console can"
            " read all records" + (" and abort transactions" if options.allows_changes else "")
        )
    settings = ConsoleSettings(
        bootstrap=bootstrap,
        hosts=[*(_LOCAL if is_local or is_all else [host]), *options.allowed_hosts],
        any_address=is_all,
        allows_changes=options.allows_changes,
        cookie=f"isolog_console_{port}",  # cookies do not tell ports apart
        is_secure=is_secure,
    )
    sessions = ConsoleSessions(place, needs_login=needs_login, idle_s=options.idle_s)
    config = uvicorn.Config(
        create_app(sessions, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )
    try:
        config.load()
    except OSError as error:
        listener.close()
        raise InvalidOption(f"--tls-cert or --tls-key cannot be used: {error}") from None
    name = "127.0.0.1" if is_all else host
    address = f"http{'s' if is_secure else ''}://{joined(name, port)}"
    with closing(listener):
        _PageServer(config, sessions, lambda: ready(address)).run(sockets=[listener])


class _PageServer(uvicorn.Server):
    """Ends the streams of events first: uvicorn would wait for them, and then cancel them.

    ``ready`` is called when a signal would end it in order: not before.
    """

    def __init__(
        self, config: uvicorn.Config, sessions: ConsoleSessions, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._sessions = sessions
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all sessions, and then the server."""
        await self._sessions.close()
        await super().shutdown(sockets)


def probe(place: LogPlace) -> tuple[bool, str]:
    """Return whether users have to log in, and the address of the cluster for snippets.

    They have to if the cluster asks who calls. If the certificate of this process says who calls,
    they have to as well: it is not theirs.
    """
    asking = place.ask(place.access)
    with closing(asking):
        try:
            asking.connection.connect()
            asking.status()
            asks = bool(place.access.tls and place.access.tls.cert)
        except Unauthenticated:
            asks = True
        return asks, place.bootstrap or asking.connection.address


def without_credential(access: Access) -> Access:
    """Return how to connect, without saying who calls."""
    return structs.replace(
        access, user=None, password=None, token=None, token_file=None, profile=None
    )


def _listen_address(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError:
        raise InvalidOption(
            f"--listen takes HOST:PORT, not {text!r}", option="--listen", hint="127.0.0.1:8080"
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if is_address(host) and ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        kind = PortInUse if error.errno == errno.EADDRINUSE else InvalidOption
        raise kind(f"cannot listen on {joined(host, port)}: {error.strerror}") from None
    return listener
