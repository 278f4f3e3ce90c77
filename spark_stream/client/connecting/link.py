"""Calls to one broker: the link connects when needed, and again when the connection is lost."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from spark_stream.client.connecting.access import OPEN, Access
from spark_stream.client.connecting.shared import SharedChannel, shared_channel
from spark_stream.errors import InvalidRequest, RequestTimeout, SessionOver, WrongCluster
from spark_stream.transport.lifetime import check_may_wait, new_lock, present_lifetime
from spark_stream.transport.streams import TRANSPORT_ERRORS
from spark_stream.wire.messages import ACT, A, Call


class LogIdentity:
    """The log of a client: the one of this cluster id, or else the first that answers."""

    def __init__(self, cluster_id: str | None) -> None:
        self._lock = new_lock()
        self._cluster_id = cluster_id

    @property
    def cluster_id(self) -> str | None:
        """The id of the log; None before any is known."""
        return self._cluster_id

    def check(self, where: str, found: str, *, adopt: bool = True) -> None:
        """Raise WrongCluster unless ``found``, the cluster id there, is that of this log.

        ``adopt``: if no log is known yet, it is this one.
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
    """A link to the broker at ``address``; its cluster's id is checked before any call."""

    def __init__(self, address: str, identity: LogIdentity, access: Access = OPEN) -> None:
        self.address = address
        self._access = access
        self.broker_id = ""
        """The id of the broker that last answered there; empty before."""
        self._identity = identity
        self._connecting = new_lock(is_brief=False)  # one thread at a time connects
        self._lifetime = present_lifetime()
        self._shared: SharedChannel | None = None
        self._closed = False

    def call(self, call: Call[A], timeout_s: float) -> A:
        """Call this broker, in one try.

        Raises:
            BrokerUnavailable, RequestTimeout: No answer arrived. The broker may have run the call.
            WrongCluster: the broker is of another log.
            Unauthenticated: the broker does not take the credential.
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
        """Return a connection to the broker that is not known to be lost.

        Raises:
            BrokerUnavailable, RequestTimeout: the broker does not answer, or not in ``timeout_s``.
            WrongCluster: the broker is of another log.
            Unauthenticated: the broker does not take the credential.
        """
        deadline = time.monotonic() + timeout_s
        found = self.present()
        if found is not None:
            return found
        check_may_wait()
        if not self._connecting.acquire(timeout=seconds_left(deadline)):
            raise RequestTimeout(
                f"another thread connects to {self.address}, and did not succeed in time",
                address=self.address,
            )
        try:
            check = partial(self._identity.check, self.address, adopt=False)
            found = self.present() or shared_channel(
                self.address, self._access, seconds_left(deadline), check
            )
            self._identity.check(self.address, found.greeting.cluster_id)
            self.broker_id = found.greeting.broker_id
            self._shared = found
            self._check_open()  # it may have been closed meanwhile
            return found
        finally:
            self._connecting.release()

    def present(self) -> SharedChannel | None:
        """Return the present connection, if it is not known to be lost.

        Raises:
            InvalidRequest: the client's connection is closed.
            ForkedClient: it belongs to the parent of this process.
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
        """Take no new calls; those under way end by themselves."""
        self._closed = True
        self._shared = None


def seconds_left(deadline: float) -> float:
    """Return the seconds left until the deadline, always more than 0, as a call needs."""
    return max(0.001, deadline - time.monotonic())
