"""The logins of Kafka clients (SASL/PLAIN), and their connections to the brokers.

A client that has logged in acts as a user of the cluster: the brokers check its permissions, count
its quotas and record it in their audit. Connections of one user share a connection to the brokers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.log import Log, open_log
from spark_stream.errors import IsologError, Unauthenticated
from spark_stream.kafka.producers import Producers
from spark_stream.kafka.refusals import LoginFailed
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import new_lock

logger = logger_of(__name__)

PLAIN: Final = "PLAIN"
"""The mechanism of logins. Brokers store no secrets that SCRAM could use (decision 233)."""

_NOBODY: Final = ("", b"")


class ClusterUser(Struct, eq=False):
    """A user's connection to the brokers. ``clients``: the number of connections that share it."""

    key: tuple[str, bytes]
    log: Log
    producers: Producers
    clients: int = 0

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster."""
        return self.log._connection.cluster_id


class ClusterUsers:
    """The connections to the brokers, one for each user. Thread-safe.

    Args:
        connect: A function that returns a new connection with a user's name and password, or with
            the gateway's own credential (None). It raises the error of a failed login.
        needs_login: Whether clients have to log in.
    """

    def __init__(
        self, connect: Callable[[tuple[str, str] | None], Log], *, needs_login: bool
    ) -> None:
        self._connect = connect
        self.needs_login = needs_login
        self._lock = new_lock(is_brief=False)
        self._open: dict[tuple[str, bytes], ClusterUser] = {}

    def nobody(self) -> ClusterUser:
        """Return the connection with the gateway's own credential."""
        with self._lock:
            known = self._open.get(_NOBODY)
            if known is None:
                log = self._connect(None)
                known = self._open[_NOBODY] = ClusterUser(_NOBODY, log, Producers(log))
            known.clients += 1
            return known

    def log_in(self, token: bytes) -> ClusterUser:
        """Return the connection of the user in a token of SASL/PLAIN.

        The brokers check the password each time, because it may have changed.

        Raises:
            LoginFailed: The token is malformed, or the brokers refuse the password.
        """
        user, password = _credential(token)
        try:
            log = self._connect((user, password))
        except Unauthenticated:
            raise LoginFailed("the cluster refuses this user or this password") from None
        key = user, hashlib.sha256(password.encode()).digest()
        with self._lock:
            known = self._open.get(key)
            if known is None:
                known = self._open[key] = ClusterUser(key, log, Producers(log))
            known.clients += 1
        if known.log is not log:
            log.close()
        return known

    def release(self, user: ClusterUser) -> None:
        """End a use of a connection. The last one closes it."""
        with self._lock:
            user.clients -= 1
            if user.clients or user.key == _NOBODY:
                return
            self._open.pop(user.key, None)
        _close(user)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            users = list(self._open.values())
            self._open.clear()
        for each in users:
            _close(each)


def connector(
    bootstrap: str | None, path: Path | None, access: Access
) -> Callable[[tuple[str, str] | None], Log]:
    """Return the function that :class:`ClusterUsers` connects with."""

    def connect(credential: tuple[str, str] | None) -> Log:
        chosen = access
        if credential is not None:
            user, password = credential
            chosen = structs.replace(access.without_credential(), user=user, password=password)
        return open_log(ClusterConnection(bootstrap, path, create=False, access=chosen))

    return connect


def _close(user: ClusterUser) -> None:
    user.producers.close()
    try:
        user.log.close()
    except IsologError as error:
        logger.debug("a connection of the gateway was closed with an error: %s", error)


def _credential(token: bytes) -> tuple[str, str]:
    """Return the user and the password of a token: an identity, the user, the password.

    Source: RFC 4616.
    """
    try:
        identity, user, password = token.decode().split("\0")
    except ValueError:
        raise LoginFailed("the token of SASL/PLAIN is malformed") from None
    if not user or not password or identity not in ("", user):
        raise LoginFailed("the token of SASL/PLAIN has no user, no password, or another identity")
    return user, password
