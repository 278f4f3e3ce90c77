"""The console's server: its page, an API of JSON, and the stream of what changes.

:func:`serve` finds out whether the cluster asks who calls, binds the address, and runs the
application.

==========================  =====================================================================
``GET /api/session``        who looks, and what may be done
``POST /api/login``         ``user`` and ``password``, or ``token``
``POST /api/logout``        end the session
``POST /api/active``        somebody is there: the session lasts on
``GET /api/stream``         server-sent events: the ``parts`` of the board, and a ``topic``
``GET /api/records``        a page of records
``POST /api/abort``         abort a transaction, if changes are allowed
==========================  =====================================================================

Every other path that is no file is a view of the page, which looks at the path itself.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import uvicorn
from msgspec import Struct, structs
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from spark_stream.client.connecting.access import Access
from spark_stream.console.guard import Guard, is_address
from spark_stream.console.records import AskedPage, page
from spark_stream.console.sessions import IDLE_S, ConsoleSessions, LogPlace, Visitor
from spark_stream.environment import VERSION
from spark_stream.errors import (
    InternalError,
    InvalidOption,
    InvalidRequest,
    IsologError,
    PermissionDenied,
    PortInUse,
    Unauthenticated,
    UnknownPartition,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.wire.addresses import is_wildcard, joined, split_address

STATIC: Final = Path(__file__).parent / "static"
_STATUS: Final[tuple[tuple[tuple[type[IsologError], ...], int], ...]] = (
    ((Unauthenticated,), 401),
    ((PermissionDenied,), 403),
    ((UnknownTopic, UnknownPartition, UnknownTransaction), 404),
    ((InternalError,), 500),
)
"""Of other errors: 503 if they may pass, else 400."""
_DIGITS_MAX: Final = 19
"""Of the number of a transaction. Python refuses to read more than 4,300."""
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_GRACE_S: Final = 3


class ConsoleSettings(Struct, frozen=True):
    """How a console is run. ``bootstrap``: for snippets.

    ``hosts`` and ``any_address``: as in ``guard``. ``cookie``: its name. ``is_secure``: TLS.
    """

    bootstrap: str
    hosts: Collection[str]
    any_address: bool = False
    allows_changes: bool = False
    cookie: str = "isolog_console"
    is_secure: bool = False


def create_app(sessions: ConsoleSessions, settings: ConsoleSettings) -> Starlette:
    """Return the application. Its lifespan starts and ends the sessions."""
    api = _Api(sessions, settings)
    routes = [
        Route("/api/session", api.session),
        Route("/api/login", api.login, methods=["POST"]),
        Route("/api/logout", api.logout, methods=["POST"]),
        Route("/api/active", api.active, methods=["POST"]),
        Route("/api/stream", api.stream),
        Route("/api/records", api.records),
        Route("/api/abort", api.abort, methods=["POST"]),
        Route("/api/{rest:path}", _nothing_there),
        Mount("/static", StaticFiles(directory=STATIC)),
        Route("/{view:path}", _page),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sessions.start()
        sweeping = asyncio.create_task(sessions.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await sessions.close()

    guard = Middleware(Guard, hosts=settings.hosts, any_address=settings.any_address)
    return Starlette(
        routes=routes,
        middleware=[guard],
        lifespan=lifespan,
        exception_handlers={IsologError: _failed},
    )


async def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _nothing_there(request: Request) -> Response:
    error = {"code": "NOT_FOUND", "message": f"there is no {request.url.path}", "hint": ""}
    return JSONResponse({"error": error}, 404)


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, IsologError)
    otherwise = 503 if error.retriable else 400
    status = next((status for kinds, status in _STATUS if isinstance(error, kinds)), otherwise)
    return JSONResponse({"error": error.to_wire()}, status)


class _Api:
    def __init__(self, sessions: ConsoleSessions, settings: ConsoleSettings) -> None:
        self._sessions = sessions
        self._settings = settings

    def _token(self, request: Request) -> str | None:
        return request.cookies.get(self._settings.cookie)

    def _visitor(self, request: Request) -> Visitor:
        found = self._sessions.find(self._token(request))
        if found is None:
            raise Unauthenticated("you are not logged in", hint="Log in.")
        return found

    async def _ask(self, request: Request, ask: Callable[[Visitor], Any]) -> Any:
        """Ask as the visitor; end the session if the cluster no longer takes its credential."""
        visitor = self._visitor(request)
        self._sessions.note_activity(visitor)
        try:
            return await anyio.to_thread.run_sync(ask, visitor)
        except Unauthenticated:
            await self._sessions.end(self._token(request))
            raise

    # -- who looks --------------------------------------------------------------------------------

    async def session(self, request: Request) -> Response:
        """Tell who looks, and what this console allows."""
        found = self._sessions.find(self._token(request))
        return JSONResponse(
            {
                "needs_login": self._sessions.needs_login,
                "is_open": found is not None,
                "principal": "" if found is None else found.principal,
                "allows_changes": self._settings.allows_changes,
                "release": VERSION,
            }
        )

    async def login(self, request: Request) -> Response:
        """Log a user in."""
        asked = await _body(request, ("user", "password", "token"))
        await self._sessions.end(self._token(request))
        token, visitor = await self._sessions.open(
            asked.get("user"), asked.get("password"), asked.get("token")
        )
        answer = JSONResponse({"principal": visitor.principal})
        answer.set_cookie(
            self._settings.cookie,
            token,
            httponly=True,
            samesite="strict",
            secure=self._settings.is_secure,
        )
        return answer

    async def logout(self, request: Request) -> Response:
        """End the session."""
        await self._sessions.end(self._token(request))
        answer = JSONResponse({})
        answer.delete_cookie(self._settings.cookie)
        return answer

    async def active(self, request: Request) -> Response:
        """Let the session last on."""
        self._sessions.note_activity(self._visitor(request))
        return JSONResponse({})

    # -- what is there ----------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Send what changes, until the page is closed or the session is over."""
        visitor = self._visitor(request)
        parts = request.query_params.get("parts", "").split(",")
        changes = visitor.board.changes(parts, request.query_params.get("topic"))

        async def events() -> AsyncIterator[str]:
            async with aclosing(changes) as found:  # type: ignore[type-var]
                yield "retry: 1000\n\n"
                async for change in found:
                    if self._sessions.needs_login and visitor.board.is_refused:
                        await self._sessions.end(self._token(request))
                    if self._sessions.find(self._token(request)) is not visitor:
                        break
                    if change is None:
                        yield ": nothing new\n\n"
                    else:
                        yield f"event: {change[0]}\ndata: {change[1]}\n\n"
            yield "event: over\ndata: {}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def records(self, request: Request) -> Response:
        """Return a page of records."""
        asked, settings = _asked_page(request.query_params), self._settings

        def ask(visitor: Visitor) -> dict[str, Any]:
            return page(visitor.asking, asked, settings.bootstrap, visitor.connects)

        return JSONResponse(await self._ask(request, ask))

    # -- changes ----------------------------------------------------------------------------------

    async def abort(self, request: Request) -> Response:
        """Abort the open transaction of an id and a number."""
        self._visitor(request)
        if not self._settings.allows_changes:
            raise PermissionDenied(
                "this console only shows, and changes nothing",
                hint="Start it with: isolog console --allow-changes.",
            )
        asked = await _body(request, ("transactional_id", "number"))
        name, number = asked.get("transactional_id"), asked.get("number", "")
        if not name or not number.isdecimal() or len(number) > _DIGITS_MAX:
            raise InvalidOption("give transactional_id and number", hint="Both are needed.")
        ended = await self._ask(request, lambda visitor: visitor.asking.abort(name, int(number)))
        return JSONResponse(ended)


async def _body(request: Request, names: Collection[str]) -> dict[str, str]:
    """Return a body that is an object of texts with these names.

    Raises:
        InvalidRequest: it is not.
    """
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not set(found) <= set(names):
        raise InvalidRequest(f"the body is an object of JSON with {', '.join(names)}")
    if not all(isinstance(each, str) for each in found.values()):
        raise InvalidRequest("all values of the body are texts")
    return found


def _asked_page(query: Mapping[str, str]) -> AskedPage:
    try:
        partition = query.get("partition") or None
        return AskedPage(
            topic=query.get("topic", ""),
            partition=None if partition is None else int(partition),
            isolation=query.get("isolation", "read_uncommitted"),
            filter=query.get("filter") or None,
            since=_moment(query.get("since")),
            until=_moment(query.get("until")),
            before=_offsets(query.get("before")),
            after=_offsets(query.get("after")),
            limit=int(query.get("limit", "50")),
        )
    except ValueError as error:
        raise InvalidOption(f"the address of the page is wrong: {error}") from None


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _offsets(text: str | None) -> dict[int, int] | None:
    """Return the offsets of ``0:17,1:20``."""
    if not text:
        return None
    pairs = (each.partition(":") for each in text.split(","))
    return {int(number): int(offset) for number, _, offset in pairs}


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
        _PageServer(config, sessions, ready, address).run(sockets=[listener])


class _PageServer(uvicorn.Server):
    """Ends the streams of events first: uvicorn would wait for them, and then cancel them.

    ``ready`` is called with the address when a signal would end it in order: not before.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        sessions: ConsoleSessions,
        ready: Callable[[str], None],
        address: str,
    ) -> None:
        super().__init__(config)
        self._sessions = sessions
        self._ready = ready
        self._address = address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve."""
        await super().startup(sockets)
        if self.started:
            self._ready(self._address)

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
