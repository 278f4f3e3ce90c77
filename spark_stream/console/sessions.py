"""Who looks at the console: one visitor, or one for each user who has logged in.

Every visitor has a connection of its own to the brokers, so the brokers decide what it may see and
do. A credential is kept in the memory of this process only, inside the connection. The browser has
a random token in a cookie that scripts cannot read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.console.asking import Asking
from spark_stream.console.board import LiveBoard
from spark_stream.errors import InvalidOption, IsologError, Unauthenticated

IDLE_S: Final = 3600.0
_TIMEOUT_S: Final = 5.0
_SESSIONS_MAX: Final = 200
_SWEEP_S: Final = 15.0
_PAUSE_AFTER_FAILURE_S: Final = 1.0
_LOGINS_AT_ONCE: Final = 4


class LogPlace(Struct, frozen=True):
    """Where the log is, as ``connect`` takes it, and how connections are protected.

    ``access`` has no credential: the console acts as its visitors only.
    """

    bootstrap: str | None
    path: Path | None
    access: Access

    def ask(self, access: Access) -> Asking:
        """Return a new connection; nothing is sent yet."""
        return Asking(ClusterConnection(self.bootstrap, self.path, _TIMEOUT_S, access=access))


class Visitor(Struct, eq=False):
    """One who looks at the console. ``last_active``: on the monotonic clock."""

    principal: str
    asking: Asking
    board: LiveBoard
    last_active: float
    connects: tuple[tuple[str, str], ...] = ()
    """How such a user connects, as options of Spark's source, for snippets."""


class ConsoleSessions:
    """The visitors of a console. Without ``needs_login`` there is one, who is always there."""

    def __init__(
        self,
        place: LogPlace,
        *,
        needs_login: bool,
        idle_s: float = IDLE_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.needs_login = needs_login
        self._place = place
        self._idle_s = idle_s
        self._now = now
        self._visitors: dict[str, Visitor] = {}
        self._everybody: Visitor | None = None
        self._logins = anyio.CapacityLimiter(_LOGINS_AT_ONCE)

    def start(self) -> None:
        """Begin: without logins, everything is asked for from now on."""
        if not self.needs_login:
            self._everybody = self._visitor(self._place.ask(self._place.access), "", ())

    def _visitor(
        self, asking: Asking, principal: str, connects: tuple[tuple[str, str], ...]
    ) -> Visitor:
        tls = self._place.access.tls
        if tls is not None:
            connects = (("tls.ca", tls.ca) if tls.ca else ("tls", "true"), *connects)
        board = LiveBoard(asking)
        board.start()
        return Visitor(principal, asking, board, self._now(), connects)

    def find(self, token: str | None) -> Visitor | None:
        """Return the visitor with this token, if its session is not over."""
        if not self.needs_login:
            return self._everybody
        found = self._visitors.get(token or "")
        return None if found is None or self._is_idle(found) else found

    def _is_idle(self, visitor: Visitor) -> bool:
        return self._now() - visitor.last_active > self._idle_s

    def note_activity(self, visitor: Visitor) -> None:
        """Note that somebody is there: the session lasts on."""
        visitor.last_active = self._now()

    async def open(
        self, user: str | None, password: str | None, token: str | None
    ) -> tuple[str, Visitor]:
        """Log a user in, by password or by token; return the session's own token.

        Raises:
            InvalidOption: there is neither, or there are too many sessions.
            Unauthenticated: the cluster does not take it.
            BrokerUnavailable, …: no broker answers.
        """
        if not (user and password) and not token:
            raise InvalidOption("give a user and a password, or a token", hint="Fill in the form.")
        if len(self._visitors) >= _SESSIONS_MAX:
            raise InvalidOption(
                f"{_SESSIONS_MAX} users have logged in already",
                hint="Try again later: sessions that nobody uses end by themselves.",
            )
        access = (
            structs.replace(self._place.access, token=token)
            if token
            else structs.replace(self._place.access, user=user, password=password)
        )
        asking = self._place.ask(access)
        try:
            status = await anyio.to_thread.run_sync(asking.status, limiter=self._logins)
        except BaseException as error:  # also the end of the request
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(asking.close)
            if not isinstance(error, IsologError):
                raise
            await anyio.sleep(_PAUSE_AFTER_FAILURE_S)  # guessing gets slower
            if isinstance(error, Unauthenticated):
                raise Unauthenticated(
                    "the cluster does not take this login", hint="Check it, and try again."
                ) from None
            raise
        name = (("token", "TOKEN"),) if token else (("user", "NAME"), ("password", "PASSWORD"))
        visitor = self._visitor(asking, status.principal, name)
        own = secrets.token_urlsafe(32)
        self._visitors[own] = visitor
        return own, visitor

    async def end(self, token: str | None) -> None:
        """End a session: its streams end, and its connection is closed."""
        found = self._visitors.pop(token or "", None)
        if found is not None:
            await found.board.close()

    async def sweep(self) -> None:
        """End sessions that nobody has used for too long, until cancelled."""
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
