"""The visitors of the console: one without authentication, else one per login.

Every visitor has a separate connection to the brokers, so the brokers check its permissions. A
credential is stored only in the memory of this process, inside the connection. The browser has a
random token in a cookie that scripts cannot read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct, field, structs

from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.console.board import LiveBoard
from spark_stream.console.client import ConsoleClient
from spark_stream.console.history import History
from spark_stream.console.plans import PendingPlans
from spark_stream.errors import InvalidOption, IsologError, Unauthenticated

IDLE_S: Final = 3600.0
_TIMEOUT_S: Final = 5.0
_SESSIONS_MAX: Final = 200
_SWEEP_S: Final = 15.0
_PAUSE_AFTER_FAILURE_S: Final = 1.0
_LOGINS_AT_ONCE: Final = 4


class LogLocation(Struct, frozen=True):
    """The location of the log, and the TLS settings of connections.

    ``access`` has no credential, because the console uses only those of its visitors.
    """

    bootstrap: str | None
    path: Path | None
    access: Access

    def connect(self, access: Access) -> ConsoleClient:
        """Return a client on a new connection, which is not open yet. It creates no log."""
        return ConsoleClient(
            ClusterConnection(self.bootstrap, self.path, _TIMEOUT_S, create=False, access=access)
        )


class Visitor(Struct, eq=False):
    """A visitor of the console. ``last_active``: on the monotonic clock."""

    principal: str
    client: ConsoleClient
    board: LiveBoard
    last_active: float
    connects: tuple[tuple[str, str], ...] = ()
    """The credential and TLS options of such a user for Spark's source, for snippets."""
    plans: PendingPlans = field(default_factory=PendingPlans)


class ConsoleSessions:
    """The visitors of a console. Without ``needs_login`` there is exactly one.

    ``sampler``: the access of the board that takes the samples of ``history`` if users log in.
    Without it each visitor has a history of its session, in memory.
    """

    def __init__(
        self,
        place: LogLocation,
        *,
        needs_login: bool,
        idle_s: float = IDLE_S,
        history: History | None = None,
        sampler: Access | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.needs_login = needs_login
        self._place = place
        self._idle_s = idle_s
        self._history = history or History()
        self._sampling = sampler
        self._sampler: LiveBoard | None = None
        self._now = now
        self._visitors: dict[str, Visitor] = {}
        self._everybody: Visitor | None = None
        self._logins = anyio.CapacityLimiter(_LOGINS_AT_ONCE)

    def start(self) -> None:
        """Start to poll if no login is needed, or if there is a sampler."""
        if self.needs_login and self._sampling is not None:
            self._sampler = LiveBoard(self._place.connect(self._sampling), self._history)
            self._sampler.start()
        if not self.needs_login:
            self._everybody = self._visitor(self._place.connect(self._place.access), "", ())

    def _visitor(
        self, client: ConsoleClient, principal: str, connects: tuple[tuple[str, str], ...]
    ) -> Visitor:
        tls = self._place.access.tls
        if tls is not None:
            connects = (("tls.ca", tls.ca) if tls.ca else ("tls", "true"), *connects)
        is_sampler = self._sampler is None
        history = History() if self.needs_login and is_sampler else self._history
        board = LiveBoard(client, history, is_sampler=is_sampler)
        board.start()
        return Visitor(principal, client, board, self._now(), connects)

    def find(self, token: str | None) -> Visitor | None:
        """Return the visitor with this token, unless its session has expired."""
        if not self.needs_login:
            return self._everybody
        found = self._visitors.get(token or "")
        return None if found is None or self._is_idle(found) else found

    def _is_idle(self, visitor: Visitor) -> bool:
        return self._now() - visitor.last_active > self._idle_s

    def note_activity(self, visitor: Visitor) -> None:
        """Extend the session of an active visitor."""
        visitor.last_active = self._now()

    async def open(
        self, user: str | None, password: str | None, token: str | None
    ) -> tuple[str, Visitor]:
        """Log a user in by password or token. Return the token of the session and the visitor.

        Raises:
            InvalidOption: neither is given, or there are too many sessions.
            Unauthenticated: the cluster rejects the credential.
            BrokerUnavailable, …: no broker answers.
        """
        if not (user and password) and not token:
            raise InvalidOption(
                "a login needs a user and a password, or a token", hint="Fill in the form."
            )
        if len(self._visitors) >= _SESSIONS_MAX:
            raise InvalidOption(
                f"the console has reached its limit of {_SESSIONS_MAX} sessions",
                hint="Try again later, when idle sessions have expired.",
            )
        access = (
            structs.replace(self._place.access, token=token)
            if token
            else structs.replace(self._place.access, user=user, password=password)
        )
        client = self._place.connect(access)
        try:
            status = await anyio.to_thread.run_sync(client.status, limiter=self._logins)
        except BaseException as error:  # including the cancellation of the request
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(client.close)
            if not isinstance(error, IsologError):
                raise
            await anyio.sleep(_PAUSE_AFTER_FAILURE_S)  # slows down guessing
            if isinstance(error, Unauthenticated):
                raise Unauthenticated(
                    "the cluster rejects this login", hint="Check it, and try again."
                ) from None
            raise
        name = (("token", "TOKEN"),) if token else (("user", "NAME"), ("password", "PASSWORD"))
        visitor = self._visitor(client, status.principal, name)
        own = secrets.token_urlsafe(32)
        self._visitors[own] = visitor
        return own, visitor

    async def end(self, token: str | None) -> None:
        """End a session with its streams, and close its connection."""
        found = self._visitors.pop(token or "", None)
        if found is not None:
            await found.board.close()

    async def sweep(self) -> None:
        """End idle sessions, until cancelled."""
        while True:
            await anyio.sleep(min(_SWEEP_S, self._idle_s / 2))
            for token in [each for each, found in self._visitors.items() if self._is_idle(found)]:
                await self.end(token)

    async def close(self) -> None:
        """End all sessions."""
        for token in list(self._visitors):
            await self.end(token)
        if self._everybody is not None:
            await self._everybody.board.close()
            self._everybody = None
        if self._sampler is not None:
            await self._sampler.close()
            self._sampler = None
