"""Calls to one broker: a Flight client that is made when it is needed, and again when it broke.

A Flight client is never closed, only dropped: other threads may be using it, and each call keeps it
alive. It ends, and its connection with it, when the last of these calls has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.client.connecting.embedded import answers
from spark_stream.client.connecting.under_way import UNDER_WAY
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidRequest,
    IsologError,
    RequestTimeout,
    WrongCluster,
)
from spark_stream.wire.addresses import location
from spark_stream.wire.flight import from_flight
from spark_stream.wire.messages import BrokerStatus, Empty, Message
from spark_stream.wire.sockets import end_connections

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)


class LogIdentity:
    """Which log a client means: the one of this cluster id, or else the first that it meets."""

    def __init__(self, cluster_id: str | None) -> None:
        self._lock = threading.Lock()
        self._cluster_id = cluster_id

    @property
    def cluster_id(self) -> str | None:
        """The id of the log; None before any is known."""
        return self._cluster_id

    def check(self, where: str, found: str) -> None:
        """WrongCluster unless what is found there belongs to this log."""
        with self._lock:
            if self._cluster_id is None:
                self._cluster_id = found
            expected = self._cluster_id
        if found != expected:
            raise WrongCluster(
                f"{where} belongs to another log: its cluster id is {found}, not {expected}",
                address=where,
                expected=expected,
                found=found,
            )


class BrokerLink:
    """To the broker at ``address``, which is asked for its cluster's id before anything else.

    ``timeout_s``: how long calls of its client may take; an attempt to connect takes less.
    """

    def __init__(self, address: str, identity: LogIdentity, timeout_s: float) -> None:
        self.address = address
        self.broker_id = ""
        """The id of the broker that was met there last; empty before."""
        self._identity = identity
        self._timeout_s = timeout_s
        self._connecting = threading.Lock()  # one thread at a time connects
        self._lock = threading.Lock()  # the innermost: guards the fields below
        self._client: fl.FlightClient | None = None
        self._closed = False

    def once(
        self, call: Callable[[fl.FlightClient, fl.FlightCallOptions], T], timeout_s: float
    ) -> T:
        """One try; Flight's errors become ours, and a broken connection is dropped."""
        deadline = time.monotonic() + timeout_s
        client = self.client(timeout_s)
        try:
            return call(client, fl.FlightCallOptions(timeout=left(deadline)))
        except _FLIGHT_ERRORS as error:
            raise self.translated(error, client) from error

    def act(self, name: str, body: Message, result: type[R], timeout_s: float) -> R:
        """Runs an action of this broker, in one try."""
        return self.once(
            lambda client, options: acted(client, options, name, body, result), timeout_s
        )

    def translated(self, error: Exception, client: fl.FlightClient) -> IsologError:
        """Flight's error as one of ours; if the broker is gone, the next call connects anew."""
        mine = from_flight(error, self.address)
        if isinstance(mine, BrokerUnavailable):
            self._drop(client)
        return mine

    def client(self, timeout_s: float) -> fl.FlightClient:
        """A Flight client of the broker, which was there a moment ago.

        Raises:
            BrokerUnavailable, RequestTimeout: it does not answer, or not in ``timeout_s``.
            WrongCluster: it is of another log.
        """
        deadline = time.monotonic() + timeout_s
        found = self._present()
        if found is not None:
            return found
        if not self._connecting.acquire(timeout=left(deadline)):
            raise RequestTimeout(
                f"another thread connects to {self.address}, and has not done so in time",
                address=self.address,
            )
        try:
            return self._present() or self._connect(deadline)
        finally:
            self._connecting.release()

    def _present(self) -> fl.FlightClient | None:
        with self._lock:
            self._check_open()
            return self._client

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the connection is closed", hint="Connect again.")

    def _connect(self, deadline: float) -> fl.FlightClient:
        # A call would do as well, but a stopped broker does not answer it: calls have deadlines.
        if not answers(self.address):
            raise BrokerUnavailable(f"no broker answers at {self.address}", address=self.address)
        client = self._flight_client()
        options = fl.FlightCallOptions(timeout=left(deadline))
        try:
            found = acted(client, options, "status", Empty(), BrokerStatus)
        except _FLIGHT_ERRORS as error:
            raise from_flight(error, self.address) from error
        self._identity.check(self.address, found.cluster_id)
        with self._lock:
            self._check_open()
            self.broker_id = found.broker_id
            self._client = client
        return client

    def break_off(self, client: fl.FlightClient) -> None:
        """Ends all calls of this process to a broker that does not answer."""
        self._drop(client)
        end_connections(self.address)

    def _flight_client(self) -> fl.FlightClient:
        options = [
            # A pool of its own: a new client then really connects anew, without an old one's
            # back-off.
            ("grpc.use_local_subchannel_pool", 1),
            # How long an attempt to connect may take. gRPC's default of 20 s may be longer than our
            # own timeout.
            ("grpc.min_reconnect_backoff_ms", max(100, min(20_000, int(self._timeout_s * 500)))),
        ]
        UNDER_WAY.note(self.address)
        return fl.FlightClient(location(self.address), generic_options=options)

    def _drop(self, client: fl.FlightClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """No new calls; those under way end by themselves."""
        with self._lock:
            self._closed = True
            self._client = None


def acted(
    client: fl.FlightClient,
    options: fl.FlightCallOptions,
    name: str,
    body: Message,
    result: type[R],
) -> R:
    """The result of an action; Flight's errors as they come."""
    with UNDER_WAY:
        answers = list(client.do_action(fl.Action(name, body.to_bytes()), options))
    return result.from_bytes(answers[0].body.to_pybytes())


def left(deadline: float) -> float:
    """The seconds that are left until then, and always more than 0, as a call needs it."""
    return max(0.001, deadline - time.monotonic())
