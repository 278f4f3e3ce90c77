"""Calls to one broker, over a connection that the users of an access in this process share.

There is one connection for each address and access. It is closed with the last reference to its
:class:`SharedChannel`. A forked process starts without connections. A :class:`BrokerLink` connects
when needed, and again when the connection is lost.
"""

from __future__ import annotations

import time
import weakref
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from spark_stream.client.connecting.access import OPEN, Access
from spark_stream.client.connecting.threads import call_elsewhere, keep_calling
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidRequest,
    IsologError,
    RequestTimeout,
    SessionOver,
    Unauthenticated,
    WrongCluster,
)
from spark_stream.loggers import logger_of
from spark_stream.transport.client import CLIENT_LIMITS, ClientChannel, client_loop
from spark_stream.transport.lifetime import check_may_wait, in_child, new_lock, present_lifetime
from spark_stream.transport.loop import Timer
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    ConnectionLost,
    Greeting,
    failure_of,
    read_greeting,
)
from spark_stream.wire.access_messages import Authenticate, Authenticated
from spark_stream.wire.messages import ACT, AUTHENTICATE, A, Call

logger = logger_of(__name__)

# A connection is closed if the broker is silent for this time, however long a call may take.
_LIMITS: Final = replace(CLIENT_LIMITS, heartbeat_s=2.0, silence_s=6.0)
_RENEWED_AT: Final = 0.75
"""A session is renewed after this part of its lifetime."""
_RENEW_S: Final = 30.0
_RETRY_S: Final = 5.0


class LogIdentity:
    """The log of a client: the one with this cluster id, or the first one that answers."""

    def __init__(self, cluster_id: str | None) -> None:
        self._lock = new_lock()
        self._cluster_id = cluster_id

    @property
    def cluster_id(self) -> str | None:
        """The id of the log. None before the first answer."""
        return self._cluster_id

    def check(self, where: str, found: str, *, adopt: bool = True) -> None:
        """Raise WrongCluster unless the cluster id ``found`` at ``where`` is that of this log.

        ``adopt``: take the id as the log's if there is none yet.
        """
        with self._lock:
            if self._cluster_id is None and adopt:
                self._cluster_id = found
            expected = self._cluster_id
        if expected not in (None, found):
            raise WrongCluster(
                f"{where} belongs to another log: its cluster id is {found}, not {expected}",
                address=where,
                expected=expected,
                found=found,
            )


class BrokerLink:
    """A link to the broker at ``address``. The id of its cluster is checked at each connect.

    ``is_received``: the address comes from a broker, not from the user. If a broker of another log
    answers there, the broker of this log counts as lost.
    """

    def __init__(
        self,
        address: str,
        identity: LogIdentity,
        access: Access = OPEN,
        *,
        is_received: bool = False,
    ) -> None:
        self.address = address
        self._access = access
        self._is_received = is_received
        self.broker_id = ""
        """The id of the broker that last answered at the address. Empty before the first answer."""
        self._identity = identity
        self._connecting = new_lock(is_brief=False)  # one thread at a time connects
        self._lifetime = present_lifetime()
        self._shared: SharedChannel | None = None
        self._closed = False

    def call(self, call: Call[A], timeout_s: float) -> A:
        """Call this broker, in one try.

        Raises:
            BrokerUnavailable, RequestTimeout: No answer arrived. The broker may have run the call.
            WrongCluster: The broker at an address of the user belongs to another log.
            Unauthenticated: The broker refuses the credential.
        """
        deadline = time.monotonic() + timeout_s
        with suppress(SessionOver):
            return self._call(call, deadline)
        return self._call(call, deadline)

    def _call(self, call: Call[A], deadline: float) -> A:
        shared, sent = self.connect(seconds_left(deadline)), call.to_bytes()
        try:
            name = call.wire_name.encode()
            answer = shared.channel.call(ACT, name, sent, seconds_left(deadline))
        except TRANSPORT_ERRORS as error:
            raise shared.failure_of(error) from None
        return call.answer_from(bytes(answer.body))

    def connect(self, timeout_s: float) -> SharedChannel:
        """Return a usable connection to the broker. Connect if there is none.

        Raises:
            BrokerUnavailable, RequestTimeout: The broker does not answer in ``timeout_s``.
            WrongCluster: The broker at an address of the user belongs to another log.
            Unauthenticated: The broker refuses the credential.
        """
        deadline = time.monotonic() + timeout_s
        found = self.present()
        if found is not None:
            return found
        check_may_wait()
        if not self._connecting.acquire(timeout=seconds_left(deadline)):
            raise RequestTimeout(
                f"another thread is connecting to {self.address} and has not succeeded in time",
                address=self.address,
            )
        try:
            found = self.present() or shared_channel(
                self.address, self._access, seconds_left(deadline), self._identity
            )
            self._identity.check(self.address, found.greeting.cluster_id)
            self.broker_id = found.greeting.broker_id
            self._shared = found
            self._check_open()  # it may have been closed during the connect
            return found
        except WrongCluster as error:
            if not self._is_received:
                raise
            raise BrokerUnavailable(error.message, address=self.address) from None
        finally:
            self._connecting.release()

    def present(self) -> SharedChannel | None:
        """Return the present connection if it is usable, else None.

        Raises:
            InvalidRequest: The client's connection is closed.
            ForkedClient: The client belongs to the parent of this process.
        """
        self._check_open()
        found = self._shared
        return found if found is not None and found.is_usable else None

    def _check_open(self) -> None:
        self._lifetime.check()
        if self._closed:
            self._shared = None
            raise InvalidRequest("the connection is closed", hint="Connect again.")

    def close(self) -> None:
        """Refuse new calls. Calls under way finish."""
        self._closed = True
        self._shared = None


def seconds_left(deadline: float) -> float:
    """Return the seconds until the deadline. Always above 0, as a call requires."""
    return max(0.001, deadline - time.monotonic())


class SharedChannel:
    """A connection to one broker, shared by all clients of this process with the same access."""

    def __init__(self, channel: ClientChannel, greeting: Greeting, access: Access) -> None:
        self.channel = channel
        self.greeting = greeting
        self.principal = ""
        """The principal of the last authentication."""
        self.ends: float | None = None
        """The end of the last authentication, on the monotonic clock. None without an end."""
        self._access = access
        self._is_refused = False
        self._renewals: list[Timer] = []  # the next one, if there is one
        weakref.finalize(self, _close, channel, self._renewals).atexit = False

    @property
    def is_usable(self) -> bool:
        """Whether new streams may be opened."""
        return not self._is_refused and self.channel.is_usable

    def failure_of(self, error: Exception) -> IsologError:
        """Convert an error of a stream of this connection to the error for the caller.

        If the broker no longer accepts the credential, this connection is not handed out again. The
        error is then SessionOver, unless there is no credential for a new connection.
        """
        failure = failure_of(error, self.channel.address)
        if not (isinstance(failure, Unauthenticated) and self._access.has_credential):
            return failure
        self._is_refused = True
        return SessionOver(f"{self.channel.address}: {failure.message}")

    def authenticate(self, timeout_s: float) -> None:
        """Authenticate to the broker, and again before that expires.

        A session that another connection got for the password is used while it is valid, because
        checking a password is expensive for a broker.

        Raises:
            Unauthenticated: The broker refuses the credential.
            RequestTimeout, BrokerUnavailable: The broker does not answer.
        """
        credential = self._access.credential()
        key = self.greeting.cluster_id, self._access, credential
        session, ends = _sessions.get(key, (None, 0.0))
        if session is not None and time.monotonic() < ends:
            try:
                self._authenticate(Authenticate(token=session), timeout_s)
                return
            except Unauthenticated:  # the session was revoked: use the password
                _sessions.pop(key, None)
        if credential is not None:
            answer = self._authenticate(credential, timeout_s)
            if answer.session is not None and answer.left_ms is not None:
                ends = time.monotonic() + answer.left_ms / 1000 * _RENEWED_AT
                _sessions[key] = answer.session, ends

    def _authenticate(self, credential: Authenticate, timeout_s: float) -> Authenticated:
        try:
            data = credential.to_bytes()
            received = self.channel.call(AUTHENTICATE, b"", data, timeout_s)
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, self.channel.address) from None
        answer = Authenticated.from_bytes(bytes(received.body))
        self.principal, self.ends = answer.principal, None
        if answer.left_ms is not None:
            self.ends = time.monotonic() + answer.left_ms / 1000
            self.renew_after(max(1.0, answer.left_ms / 1000 * _RENEWED_AT))
        return answer

    def renew_after(self, pause_s: float) -> None:
        """Authenticate again after a pause, unless the connection was closed."""
        _cancel(self._renewals)
        # By a weak reference, so that the timer does not keep the connection alive.
        again = partial(call_elsewhere, self.channel.address, _renew, weakref.ref(self))
        self._renewals.append(client_loop().call_later(pause_s, again))


def _close(channel: ClientChannel, renewals: list[Timer]) -> None:
    _cancel(renewals)
    channel.close()


def _cancel(timers: list[Timer]) -> None:
    while timers:
        timers.pop().cancel()


def _renew(known: weakref.ref[SharedChannel]) -> None:
    """Authenticate a connection again before its credential expires."""
    shared = known()
    if shared is None or not shared.is_usable:
        return
    try:
        shared.authenticate(_RENEW_S)
    except IsologError as error:
        logger.warning("cannot renew the session at broker %s: %s", shared.channel.address, error)
        if error.retriable:
            shared.renew_after(_RETRY_S)


_sessions: dict[tuple[str, Access, Authenticate | None], tuple[str, float]] = {}
"""Sessions by cluster, access and credential, each with its end on the monotonic clock."""
_lock = new_lock()
_channels: weakref.WeakValueDictionary[tuple[str, Access], SharedChannel] = (
    weakref.WeakValueDictionary()
)


@in_child
def _drop_parents_channels() -> None:
    """Drop the parent's connections in a forked child."""
    global _channels
    _channels = weakref.WeakValueDictionary()


def shared_channel(
    address: str, access: Access, timeout_s: float, identity: LogIdentity
) -> SharedChannel:
    """Return this process's connection to the broker at an address. Connect if there is none.

    The id of the broker's cluster is checked before a credential is sent.

    Raises:
        WrongCluster: The broker belongs to another log.
        BrokerUnavailable: The address does not answer, or not as an isolog broker.
        RequestTimeout: The broker accepts the connection but does not answer in ``timeout_s``.
        UnsupportedVersion: The broker speaks other versions of the protocol.
        TlsFailed: The TLS handshake failed.
        Unauthenticated: The broker refuses the credential.
        InvalidOption: A file of the access cannot be read or used.
    """
    found = _usable(address, access)
    if found is not None:
        return found
    try:
        channel = ClientChannel(address, timeout_s=timeout_s, limits=_LIMITS, tls=access.context())
    except ConnectionLost as error:
        if error.code == "TIMEOUT":
            raise failure_of(TimeoutError(), address) from None
        if error.code == "VERSION":
            raise failure_of(error, address) from None
        raise BrokerUnavailable(f"no broker answers at {error.message}", address=address) from None
    try:
        made = SharedChannel(channel, read_greeting(channel.greeting, address), access)
        identity.check(address, made.greeting.cluster_id, adopt=False)
        made.authenticate(timeout_s)
    except IsologError:
        channel.close()
        raise
    with _lock:
        found = _usable(address, access)  # another thread may have connected first
        if found is not None:
            return found
        _channels[address, access] = made
    keep_calling()
    return made


def _usable(address: str, access: Access) -> SharedChannel | None:
    found = _channels.get((address, access))
    return found if found is not None and found.is_usable else None
