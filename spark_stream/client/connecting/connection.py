"""Calls to a broker, with retries and a deadline: a lost broker is an error in time, never a hang.

A connection speaks to one log. Each broker that it meets is asked for the id of its cluster before
anything else; one of another cluster is refused.

A connection belongs to the process that made it. (A process that has used gRPC and then forks
hangs, so whoever forks makes a new one.)

A Flight client is never closed, only dropped: other threads may be using it, and each call keeps it
alive. It ends, and its connection with it, when the last of these calls has ended.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.client.connecting.embedded import (
    answers,
    ensure_broker,
    live_address,
    recorded_cluster_id,
)
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidOption,
    InvalidRequest,
    IsologError,
    RequestTimeout,
    WrongCluster,
)
from spark_stream.wire.addresses import location
from spark_stream.wire.flight import from_flight
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.messages import Empty, Message, Status
from spark_stream.wire.sockets import end_connections

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0


class Connection:
    """To the brokers of ``bootstrap``, or to the broker of the directory ``path``.

    ``timeout_s`` bounds a call and its retries together. With ``create=False`` nothing is made at
    ``path``: where there is no log, the first call raises UnknownLog. ``cluster_id``: the log that
    is meant; without it, the log that the connection met first.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        path: Path | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        idle_seconds: float | None = None,
        *,
        create: bool = True,
        cluster_id: str | None = None,
    ) -> None:
        if (bootstrap is None) == (path is None):
            raise InvalidOption("give either bootstrap (host:port) or path (a directory)")
        if not 0 < timeout_s < math.inf:
            raise InvalidOption(f"timeout takes a number of seconds above 0, not {timeout_s!r}")
        self._addresses = _addresses(bootstrap) if bootstrap is not None else []
        self._path = path
        self._idle_seconds = idle_seconds
        self._create = create
        self._cluster_id = cluster_id
        self._connecting = threading.Lock()  # one thread at a time looks for a broker
        self._lock = threading.Lock()  # the innermost: guards the fields below
        self._client: fl.FlightClient | None = None
        self._address = ""
        self._closed = False
        self.timeout_s = timeout_s

    @property
    def address(self) -> str:
        """The broker in use; empty before the first call."""
        return self._address

    @property
    def cluster_id(self) -> str | None:
        """The id of the log that is meant, or was met first; None before either is known."""
        return self._cluster_id

    def act(self, name: str, body: Message, result: type[R]) -> R:
        """Runs an action and returns its result; retries what can be retried."""

        return self.retried(lambda client, options: _acted(client, options, name, body, result))

    def retried(self, call: Callable[[fl.FlightClient, fl.FlightCallOptions], T]) -> T:
        """Calls until it succeeds, the error is final, or the time is over."""
        deadline = time.monotonic() + self.timeout_s
        for pause in _pauses():
            try:
                return self.once(call, _left(deadline))
            except IsologError as error:
                if not error.retriable or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable: the pauses do not end")

    def once(
        self, call: Callable[[fl.FlightClient, fl.FlightCallOptions], T], timeout_s: float
    ) -> T:
        """One try; Flight's errors become ours, and a broken connection is dropped."""
        deadline = time.monotonic() + timeout_s
        client = self.client(timeout_s)
        try:
            return call(client, fl.FlightCallOptions(timeout=_left(deadline)))
        except _FLIGHT_ERRORS as error:
            raise self.translated(error, client) from error

    def translated(self, error: Exception, client: fl.FlightClient) -> IsologError:
        """Flight's error as one of ours; if the broker is gone, the next call looks for one."""
        mine = from_flight(error, self._address)
        if isinstance(mine, BrokerUnavailable):
            self._drop(client)
        return mine

    def client(self, timeout_s: float | None = None) -> fl.FlightClient:
        """A Flight client of a broker of this log that was there a moment ago.

        Raises:
            BrokerUnavailable, RequestTimeout: none answers, or not in ``timeout_s``.
            WrongCluster, UnknownLog: who answers is of another log; there is no log.
        """
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        found = self._present()
        if found is not None:
            return found
        if not self._connecting.acquire(timeout=_left(deadline)):
            raise RequestTimeout("another thread looks for a broker and has found none in time")
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
        address, client, cluster_id = self._found(deadline)
        with self._lock:
            self._check_open()
            self._cluster_id = cluster_id
            self._address, self._client = address, client
        return client

    def _found(self, deadline: float) -> tuple[str, fl.FlightClient, str]:
        if self._path is not None:
            address = live_address(self._path) or self._started(self._path)
            return address, *self._met(address, deadline)
        names = ", ".join(self._addresses)
        failure = BrokerUnavailable(f"no broker answers at {names}", address=names)
        for address in self._addresses:
            # A call would do as well, but a stopped broker does not answer it: calls have
            # deadlines.
            if answers(address):
                try:
                    return address, *self._met(address, deadline)
                except BrokerUnavailable as error:
                    failure = error
        raise failure

    def _started(self, directory: Path) -> str:
        """The address of the directory's broker; none is started for another log's directory."""
        expected = self._cluster_id
        recorded = recorded_cluster_id(directory)
        if expected is not None and recorded is not None:
            _check_cluster(str(directory), expected, recorded)
        # A log that was met once and is gone now is an error, and no reason to make another.
        create = self._create and expected is None
        return ensure_broker(directory, self._idle_seconds, create=create)

    def _met(self, address: str, deadline: float) -> tuple[fl.FlightClient, str]:
        """A client of the broker there, and the id of its cluster, which is the right one."""
        client = self._flight_client(address)
        options = fl.FlightCallOptions(timeout=_left(deadline))
        try:
            found = _acted(client, options, "status", Empty(), Status).cluster_id
        except _FLIGHT_ERRORS as error:
            raise from_flight(error, address) from error
        if self._cluster_id is not None:
            _check_cluster(address, self._cluster_id, found)
        return client, found

    def break_off(self, client: fl.FlightClient, address: str) -> None:
        """Ends all calls of this process to a broker that does not answer."""
        self._drop(client)
        end_connections(address)

    def _flight_client(self, address: str) -> fl.FlightClient:
        options = [
            # A pool of its own: a new client then really connects anew, without an old one's
            # back-off.
            ("grpc.use_local_subchannel_pool", 1),
            # How long an attempt to connect may take. gRPC's default is 20 s: longer than our
            # own timeout may be.
            ("grpc.min_reconnect_backoff_ms", max(100, int(self.timeout_s * 500))),
        ]
        return fl.FlightClient(location(address), generic_options=options)

    def _drop(self, client: fl.FlightClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """Closes the connection: no new calls; those under way end by themselves."""
        with self._lock:
            self._closed = True
            self._client = None


def _acted(
    client: fl.FlightClient,
    options: fl.FlightCallOptions,
    name: str,
    body: Message,
    result: type[R],
) -> R:
    answers = list(client.do_action(fl.Action(name, body.to_bytes()), options))
    return result.from_bytes(answers[0].body.to_pybytes())


def _check_cluster(where: str, expected: str, found: str) -> None:
    if found != expected:
        raise WrongCluster(
            f"{where} belongs to another log: its cluster id is {found}, not {expected}",
            address=where,
            expected=expected,
            found=found,
        )


def _left(deadline: float) -> float:
    """The seconds that are left until then, and always more than 0, as a call needs it."""
    return max(0.001, deadline - time.monotonic())


def _pauses() -> Iterator[float]:
    pause = _BACKOFF_FIRST_S
    while True:
        yield pause
        pause = min(_BACKOFF_MAX_S, 2 * pause)


def _addresses(bootstrap: str) -> list[str]:
    addresses = [part.strip() for part in bootstrap.split(",") if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if address.startswith("unix:") and port:
            continue
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidOption(
                f"bootstrap: {address!r} is not host:port", option="bootstrap", value=address
            )
    if not addresses:
        raise InvalidOption("bootstrap is empty; give host:port[,host:port…]", option="bootstrap")
    return addresses
