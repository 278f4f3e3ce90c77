"""The console's server: its page, a JSON API, and the stream of changes.

:func:`serve` determines whether the cluster requires authentication, binds the address, and runs
the application.

==========================  =====================================================================
``GET /api/session``        the principal, and the permitted changes
``POST /api/login``         ``user`` and ``password``, or ``token``
``POST /api/logout``        end the session
``POST /api/active``        extend the session of an active user
``GET /api/stream``         server-sent events: the ``parts`` of the board, and a ``topic``
``GET /api/records``        a page of records
``GET /api/lake``           the tables of a lake, and its last cuts
``POST /api/permissions``   the reasons for which the user may not do actions
``POST /api/plan``          plan an action (``actions``), if changes are allowed
``POST /api/apply``         apply a plan by its ``token``, once
==========================  =====================================================================

Every other path that is not a file is a view of the page, which parses the path.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import uvicorn
from msgspec import Struct, structs
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from spark_stream.client.connecting.access import Access
from spark_stream.console.actions import parse_action
from spark_stream.console.guard import Guard, is_address
from spark_stream.console.history import History
from spark_stream.console.lakes import tables_of
from spark_stream.console.permissions import check, parse_intents, refusals
from spark_stream.console.plans import PlanChanged
from spark_stream.console.records import page, record
from spark_stream.console.search import SearchRequest
from spark_stream.console.sessions import IDLE_S, ConsoleSessions, LogLocation, Visitor
from spark_stream.environment import VERSION
from spark_stream.errors import (
    InternalError,
    InvalidOption,
    InvalidRequest,
    IsologError,
    PermissionDenied,
    PortInUse,
    Unauthenticated,
    UnknownLake,
    UnknownPartition,
    UnknownTopic,
    UnknownTransaction,
)
from spark_stream.wire.addresses import is_wildcard, joined, split_address

STATIC: Final = Path(__file__).parent / "static"
_STATUS: Final[tuple[tuple[tuple[type[IsologError], ...], int], ...]] = (
    ((Unauthenticated,), 401),
    ((PermissionDenied,), 403),
    ((UnknownLake, UnknownTopic, UnknownPartition, UnknownTransaction), 404),
    ((InternalError,), 500),
)
"""The status of errors. Others have 503 if they are retriable, else 400."""
_OFFSET_END: Final = 2**63 - 1
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_GRACE_S: Final = 3


class ConsoleSettings(Struct, frozen=True):
    """The settings of a console. ``bootstrap``: the address in snippets.

    ``hosts`` and ``any_address``: see ``guard``. ``cookie``: its name. ``is_secure``: TLS.
    """

    bootstrap: str
    hosts: Collection[str]
    any_address: bool = False
    allows_changes: bool = True
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
        Route("/api/record", api.record),
        Route("/api/lake", api.lake),
        Route("/api/permissions", api.permissions, methods=["POST"]),
        Route("/api/plan", api.plan, methods=["POST"]),
        Route("/api/apply", api.apply, methods=["POST"]),
        Route("/api/{rest:path}", _not_found),
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


async def _not_found(request: Request) -> Response:
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

    async def _call(
        self, request: Request, call: Callable[[Visitor], Any], *, is_activity: bool = True
    ) -> Any:
        """Run a call of the visitor. End its session if the cluster rejects its credential.

        ``is_activity``: it extends the session.
        """
        visitor = self._visitor(request)
        if is_activity:
            self._sessions.note_activity(visitor)
        try:
            return await anyio.to_thread.run_sync(call, visitor)
        except Unauthenticated:
            await self._sessions.end(self._token(request))
            raise

    # -- sessions --------------------------------------------------------------------------------

    async def session(self, request: Request) -> Response:
        """Return the principal, and the changes that this console allows."""
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
        body = await _body(request, ("user", "password", "token"))
        await self._sessions.end(self._token(request))
        token, visitor = await self._sessions.open(
            body.get("user"), body.get("password"), body.get("token")
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
        """Extend the session."""
        self._sessions.note_activity(self._visitor(request))
        return JSONResponse({})

    # -- data ------------------------------------------------------------------------------------

    async def stream(self, request: Request) -> Response:
        """Send changed parts until the page is closed or the session ends."""
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
        """Return a page of records, or the part of it that a short search finds."""
        wanted, settings = _search_request(request.query_params), self._settings

        def read(visitor: Visitor) -> dict[str, Any]:
            return page(visitor.client, wanted, settings.bootstrap, visitor.connects)

        return JSONResponse(await self._call(request, read))

    async def record(self, request: Request) -> Response:
        """Return one record with all columns and whole values."""
        topic, partition, offset = _place(request.query_params)

        def read(visitor: Visitor) -> dict[str, Any]:
            return record(visitor.client, topic, partition, offset)

        return JSONResponse(await self._call(request, read))

    async def lake(self, request: Request) -> Response:
        """Return the tables of a lake, and its last cuts."""
        name = request.query_params.get("lake", "")

        def read(visitor: Visitor) -> dict[str, Any]:
            return tables_of(visitor.client.log, name)

        return JSONResponse(await self._call(request, read))

    # -- changes ----------------------------------------------------------------------------------

    async def permissions(self, request: Request) -> Response:
        """Return for each action the reason for which the user may not do it, or ""."""
        needs = [each.needs for each in parse_intents(await request.body())]

        def found(visitor: Visitor) -> list[str]:
            return refusals(visitor.client.connection, needs)

        return JSONResponse({"refusals": await self._call(request, found, is_activity=False)})

    async def plan(self, request: Request) -> Response:
        """Plan an action. Return its effect, and the token of the plan."""
        self._check_changes(request)
        action = parse_action(await request.body())

        def planned(visitor: Visitor) -> dict[str, Any]:
            check(visitor.client.connection, action)
            return visitor.plans.make(visitor.client, action)

        return JSONResponse(await self._call(request, planned))

    async def apply(self, request: Request) -> Response:
        """Apply a plan of this visitor. If the state has changed, return a new plan."""
        self._check_changes(request)
        token = (await _body(request, ("token",))).get("token", "")

        def applied(visitor: Visitor) -> str:
            return visitor.plans.apply(visitor.client, token)

        try:
            return JSONResponse({"outcome": await self._call(request, applied)})
        except PlanChanged as changed:
            error = {
                "code": "PLAN_CHANGED",
                "message": str(changed),
                "hint": "Nothing was done. Check the new plan, and apply it.",
            }
            return JSONResponse({"error": error, "plan": changed.plan}, 409)

    def _check_changes(self, request: Request) -> None:
        self._visitor(request)
        if not self._settings.allows_changes:
            raise PermissionDenied(
                "this console is read-only", hint="Start it without --read-only."
            )


async def _body(request: Request, names: Collection[str]) -> dict[str, str]:
    """Parse a body that is an object of strings with these names.

    Raises:
        InvalidRequest: the body has another form.
    """
    try:
        found = json.loads(await request.body())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not set(found) <= set(names):
        raise InvalidRequest(f"the body must be a JSON object with {', '.join(names)}")
    if not all(isinstance(each, str) and _is_text(each) for each in found.values()):
        raise InvalidRequest("all values of the body must be strings of Unicode characters")
    return found


def _is_text(value: str) -> bool:
    """Return whether a string is without lone surrogates, which JSON can have."""
    return not any("\ud800" <= each <= "\udfff" for each in value)


def _search_request(query: QueryParams) -> SearchRequest:
    try:
        partition = query.get("partition") or None
        return SearchRequest(
            topic=query.get("topic", ""),
            partition=None if partition is None else int(partition),
            isolation=query.get("isolation", "read_uncommitted"),
            filter=query.get("filter") or None,
            since=_moment(query.get("since")),
            until=_moment(query.get("until")),
            offset=int(query.get("offset") or "0"),
            before=_offsets(query.get("before")),
            after=_offsets(query.get("after")),
            reached=_offsets(query.get("reached")),
            oldest_first=query.get("order") == "oldest",
            limit=int(query.get("limit", "50")),
            columns=tuple(query.getlist("column")),
        )
    except ValueError as error:
        raise InvalidOption(f"invalid parameters of the page: {error}") from None


def _place(query: QueryParams) -> tuple[str, int, int]:
    try:
        partition, offset = int(query.get("partition", "")), int(query.get("offset", ""))
    except ValueError as error:
        raise InvalidOption(f"invalid place of a record: {error}") from None
    if not 0 <= offset < _OFFSET_END:
        raise InvalidOption(f"invalid offset of a record: {offset}")
    return query.get("topic", ""), partition, offset


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _offsets(text: str | None) -> dict[int, int] | None:
    """Parse offsets such as ``0:17,1:20``."""
    if not text:
        return None
    pairs = (each.partition(":") for each in text.split(","))
    return {int(number): int(offset) for number, _, offset in pairs}


class ServerOptions(Struct, frozen=True):
    """The options of the server. ``listen`` is HOST:PORT, where port 0 means a free port."""

    listen: str
    allowed_hosts: Sequence[str] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    allows_changes: bool = True
    idle_s: float = IDLE_S
    history: Path | None = None
    history_token: Path | None = None


def serve(
    place: LogLocation,
    options: ServerOptions,
    note: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Serve until a signal ends the process.

    ``note`` is called with warnings, and ``ready`` with the address of the page when it is served.

    Raises:
        InvalidOption: the address or a file is unusable.
        PortInUse: another process listens there.
        BrokerUnavailable, …: no broker answers.
    """
    host, port = _listen_address(options.listen)
    needs_login, bootstrap = probe(place)
    is_secure, is_local, is_all = options.tls_cert is not None, host in _LOCAL, is_wildcard(host)
    sampler = _sampler(place, options, needs_login)
    listener = _bound(host, port)
    port = listener.getsockname()[1]
    if not is_local and not is_secure:
        note(
            f"warning: the connections to {options.listen} are not encrypted: give --tls-cert and"
            " --tls-key, or listen on 127.0.0.1"
        )
    if not is_local and not needs_login:
        note(
            "warning: the cluster has no authentication, so everybody who reaches the console can"
            " read all records" + (" and change the cluster" if options.allows_changes else "")
        )
    settings = ConsoleSettings(
        bootstrap=bootstrap,
        hosts=[*(_LOCAL if is_local or is_all else [host]), *options.allowed_hosts],
        any_address=is_all,
        allows_changes=options.allows_changes,
        cookie=f"isolog_console_{port}",  # browsers share cookies between ports
        is_secure=is_secure,
    )
    sessions = ConsoleSessions(
        place,
        needs_login=needs_login,
        idle_s=options.idle_s,
        history=History(options.history),
        sampler=sampler,
    )
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
        raise InvalidOption(f"--tls-cert or --tls-key is unusable: {error}") from None
    name = "127.0.0.1" if is_all else host
    address = f"http{'s' if is_secure else ''}://{joined(name, port)}"
    with closing(listener):
        _PageServer(config, sessions, ready, address).run(sockets=[listener])


class _PageServer(uvicorn.Server):
    """A server that ends its event streams first. Uvicorn would wait for them and cancel them.

    ``ready`` is called with the address when signals are handled.
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
        """End all sessions, then the server."""
        await self._sessions.close()
        await super().shutdown(sockets)


def probe(place: LogLocation) -> tuple[bool, str]:
    """Return whether users need to log in, and the address of the cluster for snippets.

    A login is needed if the cluster requires authentication. If the client certificate of this
    process authenticates it, a login is needed too, because users must not act as this process.
    """
    client = place.connect(place.access)
    with closing(client):
        try:
            client.connection.connect()
            client.status()
            needs_login = bool(place.access.tls and place.access.tls.cert)
        except Unauthenticated:
            needs_login = True
        return needs_login, place.bootstrap or client.connection.address


def _sampler(place: LogLocation, options: ServerOptions, needs_login: bool) -> Access | None:
    """Return the access of the board that takes the samples of the history, after a check."""
    if not needs_login:
        return None
    if options.history_token is None:
        if options.history is None:
            return None
        raise InvalidOption(
            "--history needs a token, because the cluster has authentication",
            hint="Give --history-token-file, with a token of a user who may describe the cluster.",
            option="--history",
        )
    access = structs.replace(place.access, token_file=str(options.history_token))
    with closing(place.connect(access)) as client:
        client.cluster()
    return access


def _listen_address(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError:
        raise InvalidOption(
            f"--listen takes HOST:PORT, not {text!r}",
            option="--listen",
            hint="Example: 127.0.0.1:8080.",
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
