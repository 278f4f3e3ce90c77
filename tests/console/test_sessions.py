"""The sessions of a console, with fake connections."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from isolog.errors import BrokerUnavailable, InvalidOption, Unauthenticated
from spark_stream.client.connecting.access import OPEN
from spark_stream.console import sessions as sessions_module
from spark_stream.console.sessions import ConsoleSessions, LogLocation


class RefusedConnection:
    """A connection whose first request fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.closed = 0

    def status(self) -> Any:
        raise self._error

    def close(self) -> None:
        self.closed += 1


class RejectingLocation(LogLocation, frozen=True):
    """A log that rejects logins."""

    connection: Any = None

    def connect(self, access: Any) -> Any:
        return self.connection


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Unauthenticated("no"), Unauthenticated),
        (BrokerUnavailable("no"), BrokerUnavailable),
        (ValueError("a defect"), ValueError),
    ],
)
def test_a_failed_login_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    monkeypatch.setattr(sessions_module, "_PAUSE_AFTER_FAILURE_S", 0.0)
    connection = RefusedConnection(error)
    sessions = ConsoleSessions(
        RejectingLocation(None, None, OPEN, connection=connection), needs_login=True
    )
    with pytest.raises(raised):
        anyio.run(sessions.open, "user", "password", None)
    assert connection.closed == 1


def test_a_login_without_a_credential_opens_no_connection() -> None:
    sessions = ConsoleSessions(RejectingLocation(None, None, OPEN), needs_login=True)
    with pytest.raises(InvalidOption):
        anyio.run(sessions.open, "user", None, None)
