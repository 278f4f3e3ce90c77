"""The logins of Kafka clients by SASL, and their connections to the brokers.

The gateway passes a password (PLAIN) or a token (OAUTHBEARER) on to the brokers. A token may be any
one that they accept, such as a JWT. When it expires, the client has to log in again.

A client that has logged in acts as a user of the cluster: the brokers check its permissions, count
its quotas and record it in their audit. Connections of one user share a connection to the brokers.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.log import Log, open_log
from spark_stream.errors import InvalidRequest, IsologError, Unauthenticated
from spark_stream.kafka.producers import Producers
from spark_stream.kafka.refusals import LoginFailed
from spark_stream.loggers import logger_of
from spark_stream.transport.lifetime import new_lock
from spark_stream.wire.access_messages import Authenticate

logger = logger_of(__name__)

_NOBODY: Final = b""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class ClusterUser(Struct, eq=False):
    """A user's connection to the brokers.

    ``ends``: when its token expires, on the monotonic clock, or None without an end. ``clients``:
    the number of connections that share it.
    """

    key: bytes
    log: Log
    producers: Producers
    principal: str = ""
    ends: float | None = None
    clients: int = 0

    @property
    def seconds_left(self) -> float | None:
        """The time until the token expires. None without an end."""
        return None if self.ends is None else max(0.0, self.ends - time.monotonic())

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster."""
        return self.log._connection.cluster_id


class ClusterUsers:
    """The connections to the brokers, one for each user. Thread-safe.

    Args:
        connect: A function that returns a new connection with a user's credential, or with that
            of the gateway (None). It raises the error of a failed login.
        needs_login: Whether clients have to log in.
    """

    def __init__(self, connect: Callable[[Authenticate | None], Log], *, needs_login: bool) -> None:
        self._connect = connect
        self.needs_login = needs_login
        self._lock = new_lock(is_brief=False)
        self._open: dict[bytes, ClusterUser] = {}

    def nobody(self) -> ClusterUser:
        """Return the connection with the gateway's own credential."""
        with self._lock:
            known = self._open.get(_NOBODY)
            if known is None:
                log = self._connect(None)
                known = self._open[_NOBODY] = ClusterUser(_NOBODY, log, Producers(log))
            known.clients += 1
            return known

    def log_in(self, mechanism: str, message: bytes, before: str | None = None) -> ClusterUser:
        """Return the connection of the user in a message of a mechanism of SASL.

        The brokers check the credential each time, because it may have changed.

        Args:
            mechanism: One of ``MECHANISMS``.
            message: The client's message.
            before: The principal of an earlier login of the client. It cannot change.

        Raises:
            LoginFailed: The message is malformed, or the brokers refuse the credential.
        """
        try:
            credential = MECHANISMS[mechanism](message)
            log = self._connect(credential)
        except (Unauthenticated, InvalidRequest) as error:
            raise LoginFailed(f"the cluster refuses this login: {error.message}") from None
        connection = log._connection
        channel = connection.link().connect(connection.timeout_s)
        if before not in (None, channel.principal):
            log.close()
            raise LoginFailed(f"the connection of {before!r} cannot change to another user")
        key = hashlib.sha256(credential.to_bytes()).digest()
        with self._lock:
            known = self._open.get(key)
            if known is None:
                known = self._open[key] = ClusterUser(key, log, Producers(log), channel.principal)
            known.ends = None if credential.token is None else channel.ends
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
) -> Callable[[Authenticate | None], Log]:
    """Return the function that :class:`ClusterUsers` connects with."""

    def connect(credential: Authenticate | None) -> Log:
        chosen = access
        if credential is not None:
            chosen = structs.replace(
                access.without_credential(),
                user=credential.user,
                password=credential.password,
                token=credential.token,
            )
        return open_log(ClusterConnection(bootstrap, path, create=False, access=chosen))

    return connect


def _close(user: ClusterUser) -> None:
    user.producers.close()
    try:
        user.log.close()
    except IsologError as error:
        logger.debug("a connection of the gateway was closed with an error: %s", error)


def _plain(message: bytes) -> Authenticate:
    """Return the credential in a message of PLAIN: an identity, the user, the password.

    Source: RFC 4616.
    """
    try:
        identity, user, password = message.decode().split("\0")
    except ValueError:
        raise LoginFailed("the message of SASL/PLAIN is malformed") from None
    if not user or not password or identity not in ("", user):
        raise LoginFailed("the message of SASL/PLAIN has no user, no password, or another identity")
    return Authenticate.of(user=user, password=password)


def _bearer(message: bytes) -> Authenticate:
    """Return the token in a message of OAUTHBEARER. Its extensions have no effect.

    Source: RFC 7628.
    """
    header, _, rest = message.partition(b"\1")
    if header not in (b"n,,", b"n,a=,"):
        raise LoginFailed("the message of SASL/OAUTHBEARER has another identity than its token's")
    try:
        pairs = dict(each.split("=", 1) for each in rest.decode().split("\1")[:-2])
        scheme, token = pairs["auth"].split()
    except (KeyError, ValueError):
        raise LoginFailed("the message of SASL/OAUTHBEARER is malformed") from None
    if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
        raise LoginFailed("the message of SASL/OAUTHBEARER has no token")
    return Authenticate.of(token=token)


MECHANISMS: Final[Mapping[str, Callable[[bytes], Authenticate]]] = {
    "PLAIN": _plain,
    "OAUTHBEARER": _bearer,
}
"""The mechanisms, and the credential in the message of each.

Brokers store no secrets that SCRAM could use (decision 233).
"""
