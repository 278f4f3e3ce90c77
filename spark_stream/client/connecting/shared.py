"""The connections of this process to brokers: one for each address and access.

All users of an access share its connections; those of another access have their own.

A connection is closed once nothing refers to its :class:`SharedChannel` any more. A forked process
starts without any.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from spark_stream.client.connecting.access import Access
from spark_stream.client.connecting.calls import call_elsewhere, keep_calling
from spark_stream.errors import BrokerUnavailable, IsologError, SessionOver, Unauthenticated
from spark_stream.loggers import logger_of
from spark_stream.transport.client import CLIENT_LIMITS, ClientChannel, client_loop
from spark_stream.transport.lifetime import in_child, new_lock
from spark_stream.transport.loop import Timer
from spark_stream.transport.streams import (
    TRANSPORT_ERRORS,
    ConnectionLost,
    Greeting,
    failure_of,
    read_greeting,
)
from spark_stream.wire.access_messages import Authenticate, Authenticated
from spark_stream.wire.messages import AUTHENTICATE

logger = logger_of(__name__)

# A broker that stops answering is given up after this time, however long its calls may take.
_LIMITS: Final = replace(CLIENT_LIMITS, heartbeat_s=2.0, silence_s=6.0)


class SharedChannel:
    """A connection to one broker, which others in this process may use as well."""

    def __init__(self, channel: ClientChannel, greeting: Greeting, access: Access) -> None:
        self.channel = channel
        self.greeting = greeting
        self._access = access
        self._is_refused = False
        self._renewals: list[Timer] = []  # the next one, if there is one
        weakref.finalize(self, _close, channel, self._renewals).atexit = False

    @property
    def is_usable(self) -> bool:
        """Whether it takes new streams, as far as is known."""
        return not self._is_refused and self.channel.is_usable

    def failure_of(self, error: Exception) -> IsologError:
        """Return the error that a caller gets for what a stream of this connection raised.

        If the broker no longer takes what it was told, nobody gets this connection any more: it is
        a SessionOver, unless there is no credential to authenticate again with.
        """
        failure = failure_of(error, self.channel.address)
        if not (isinstance(failure, Unauthenticated) and self._access.has_credential):
            return failure
        self._is_refused = True
        return SessionOver(f"{self.channel.address}: {failure.message}")

    def authenticate(self, timeout_s: float) -> None:
        """Tell the broker who calls, and again before that expires.

        While a session that another connection got for the password lasts, it is used: checking a
        password costs a broker much.

        Raises:
            Unauthenticated: the broker does not take the credential.
            RequestTimeout, BrokerUnavailable: no answer.
        """
        credential = self._access.credential()
        key = self.greeting.cluster_id, self._access, credential
        session, ends = _sessions.get(key, (None, 0.0))
        if session is not None and time.monotonic() < ends:
            try:
                self._tell(Authenticate(token=session), timeout_s)
                return
            except Unauthenticated:  # the cluster may have forgotten it: the password will do
                _sessions.pop(key, None)
        if credential is not None:
            answer = self._tell(credential, timeout_s)
            if answer.session is not None and answer.left_ms is not None:
                ends = time.monotonic() + answer.left_ms / 1000 * _RENEWED_AT
                _sessions[key] = answer.session, ends

    def _tell(self, credential: Authenticate, timeout_s: float) -> Authenticated:
        try:
            data = credential.to_bytes()
            received = self.channel.call(AUTHENTICATE, b"", data, timeout_s)
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, self.channel.address) from None
        answer = Authenticated.from_bytes(bytes(received.body))
        if answer.left_ms is not None:
            self.renew_after(max(1.0, answer.left_ms / 1000 * _RENEWED_AT))
        return answer

    def renew_after(self, pause_s: float) -> None:
        """Authenticate again after a pause, unless the connection is over by then."""
        _cancel(self._renewals)
        renew = partial(_renew, weakref.ref(self))
        # By the address, so that the timer does not keep the connection alive.
        again = partial(call_elsewhere, self.channel.address, renew)
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
        logger.warning("%s: it does not know us any longer: %s", shared.channel.address, error)
        if error.retriable:
            shared.renew_after(_TRIED_AGAIN_S)


_RENEWED_AT: Final = 0.75
"""After which part of its life a session is renewed."""
_RENEW_S: Final = 30.0
_TRIED_AGAIN_S: Final = 5.0

_sessions: dict[tuple[str, Access, Authenticate | None], tuple[str, float]] = {}
"""By cluster, access and credential: a session, and until when to use it (monotonic clock)."""
_lock = new_lock()
_channels: weakref.WeakValueDictionary[tuple[str, Access], SharedChannel] = (
    weakref.WeakValueDictionary()
)


@in_child
def _begin_anew() -> None:
    """Forget the parent's connections, in a child that was just forked."""
    global _channels
    _channels = weakref.WeakValueDictionary()


def shared_channel(
    address: str, access: Access, timeout_s: float, check: Callable[[str], None]
) -> SharedChannel:
    """Return this process's connection to the broker at an address; connect if there is none.

    ``check`` gets the id of the broker's cluster, and may raise, before a credential is sent.

    Raises:
        BrokerUnavailable: nothing answers there, or it is not an isolog broker.
        RequestTimeout: something is there but does not answer in ``timeout_s``.
        UnsupportedVersion: it speaks other versions of the protocol.
        TlsFailed: the two sides do not agree on TLS.
        Unauthenticated: the broker does not take the access's credential.
        InvalidOption: a file of the access cannot be used.
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
        check(made.greeting.cluster_id)
        made.authenticate(timeout_s)
    except IsologError:
        channel.close()
        raise
    with _lock:
        found = _usable(address, access)  # another thread may have connected meanwhile
        if found is not None:
            return found
        _channels[address, access] = made
    keep_calling()
    return made


def _usable(address: str, access: Access) -> SharedChannel | None:
    found = _channels.get((address, access))
    return found if found is not None and found.is_usable else None
