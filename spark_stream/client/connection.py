"""Calls to a broker, with retries and a deadline: a lost broker is an error in time, never a hang.

A connection belongs to the process that made it. (A process that has used gRPC and then forks
hangs, so whoever forks makes a new one.)
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

from spark_stream.client.embedded import answers, ensure_broker, live_address
from spark_stream.client.sockets import end_connections
from spark_stream.errors import BrokerUnavailable, InvalidOption, InvalidRequest, IsologError
from spark_stream.wire.flight import from_flight
from spark_stream.wire.limits import REQUEST_TIMEOUT_S
from spark_stream.wire.messages import Message

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_FLIGHT_ERRORS: Final = (fl.FlightError, pa.ArrowException, OSError)
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0


class Connection:
    """To the brokers of ``bootstrap``, or to the broker of the directory ``path``.

    ``timeout_s`` bounds a call and its retries together. With ``create=False`` nothing is made at
    ``path``: where there is no log, the first call raises UnknownLog.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        path: Path | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        idle_seconds: float | None = None,
        *,
        create: bool = True,
    ) -> None:
        if (bootstrap is None) == (path is None):
            raise InvalidOption("give either bootstrap (host:port) or path (a directory)")
        if not 0 < timeout_s < math.inf:
            raise InvalidOption(f"timeout takes a number of seconds above 0, not {timeout_s!r}")
        self._addresses = _addresses(bootstrap) if bootstrap is not None else []
        self._path = path
        self._idle_seconds = idle_seconds
        self._create = create
        self._lock = threading.Lock()
        self._client: fl.FlightClient | None = None
        self._address = ""
        self._closed = False
        self.timeout_s = timeout_s

    @property
    def address(self) -> str:
        """The broker in use; empty before the first call."""
        return self._address

    def act(self, name: str, body: Message, result: type[R]) -> R:
        """Runs an action and returns its result; retries what can be retried."""

        def once(client: fl.FlightClient, options: fl.FlightCallOptions) -> R:
            answers = list(client.do_action(fl.Action(name, body.to_bytes()), options))
            return result.from_bytes(answers[0].body.to_pybytes())

        return self.retried(once)

    def retried(self, call: Callable[[fl.FlightClient, fl.FlightCallOptions], T]) -> T:
        """Calls until it succeeds, the error is final, or the time is over."""
        deadline = time.monotonic() + self.timeout_s
        for pause in _pauses():
            left = max(0.001, deadline - time.monotonic())
            try:
                return self.once(call, left)
            except IsologError as error:
                if not error.retriable or time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable: the pauses do not end")

    def once(
        self, call: Callable[[fl.FlightClient, fl.FlightCallOptions], T], timeout_s: float
    ) -> T:
        """One try; Flight's errors become ours, and a broken connection is dropped."""
        client = self.client()
        try:
            return call(client, fl.FlightCallOptions(timeout=timeout_s))
        except _FLIGHT_ERRORS as error:
            raise self.translated(error, client) from error

    def translated(self, error: Exception, client: fl.FlightClient) -> IsologError:
        """Our error for Flight's; if the broker is gone, the next call looks for it anew."""
        mine = from_flight(error, self._address)
        if isinstance(mine, BrokerUnavailable):
            self._drop(client)
        return mine

    def client(self) -> fl.FlightClient:
        """A Flight client of a broker that was there a moment ago."""
        with self._lock:
            if self._closed:
                raise InvalidRequest("the connection is closed", hint="Connect again.")
            if self._client is None:
                self._address, self._client = self._found()
            return self._client

    def _found(self) -> tuple[str, fl.FlightClient]:
        if self._path is not None:
            address = live_address(self._path)
            if address is None:
                address = ensure_broker(self._path, self._idle_seconds, create=self._create)
            return address, self._connected(address)
        for address in self._addresses:
            # A call would do as well, but a stopped broker does not answer it: calls have
            # deadlines.
            if answers(address):
                return address, self._connected(address)
        names = ", ".join(self._addresses)
        raise BrokerUnavailable(f"no broker answers at {names}", address=names)

    def break_off(self, client: fl.FlightClient, address: str) -> None:
        """Ends what this process has under way with a broker that does not answer."""
        self._drop(client)
        end_connections(address)

    def _connected(self, address: str) -> fl.FlightClient:
        location = f"grpc://{address}"
        if address.startswith("unix:"):
            location = f"grpc+unix://{address.removeprefix('unix:')}"
        options = [
            # A pool of its own: a new client then really connects anew, without an old one's
            # back-off.
            ("grpc.use_local_subchannel_pool", 1),
            # How long a connection may take to come about; gRPC's own 20 s are no matter of ours.
            ("grpc.min_reconnect_backoff_ms", max(100, int(self.timeout_s * 500))),
        ]
        return fl.FlightClient(location, generic_options=options)

    def _drop(self, client: fl.FlightClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """Closes the connection; what still uses it fails."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()


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
