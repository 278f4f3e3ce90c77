"""Ends the connections of clients that have stopped, so that no call holds a thread for ever.

gRPC's own keep-alive cannot be set on a Flight server in Python, and TCP's does not see a stopped
process: its kernel goes on answering. So the broker watches its calls itself. A call is *silent*
when the client owes it the next move (a batch, the reading of an answer) for longer than the limit.
What the broker owes, such as an acknowledgement, never makes a call silent.

A TCP connection whose calls are all silent, and on which no byte has moved for that long, is ended
(a large batch on a slow line is not silence). Unix sockets cannot be told apart by call, but
they tell the process behind them: those of a stopped process are ended while any call on a Unix
socket is silent. A client that is ended without need connects anew, and sends again what has no
answer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil
import pyarrow as pa
import pyarrow.flight as fl

from spark_stream.broker.memory import memory_error
from spark_stream.environment import Clock
from spark_stream.wire.sockets import (
    Peer,
    connections,
    peer_of,
    place_of,
    process_behind,
    quiet_for,
)

logger = logging.getLogger(__name__)

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


class Call:
    """One call under way: who has to make the next move, and since when."""

    def __init__(self, peer: str, clock: Clock) -> None:
        self.peer = peer
        self._reading = _Reading(clock)
        self._writing = _Writing(clock, self._reading)
        self._clock = clock

    def silent_for(self) -> float:
        """For how many seconds the client has owed the next move; 0 if the broker owes it."""
        since = self._writing.since
        if since is None and self._reading.count == self._writing.count:
            since = self._reading.since
        return 0.0 if since is None else self._clock.monotonic() - since

    def reading(self) -> AbstractContextManager[None]:
        """Around a wait for the client's next batch; the broker owes an answer once it is there."""
        return self._reading

    def writing(self) -> AbstractContextManager[None]:
        """Around the writing of an answer, which waits until the client reads."""
        return self._writing


class _Reading:
    """Since when the broker has waited for a batch, and how many it has got.

    Made once for a call: this and :class:`_Writing` are on the way of every append.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.since: float | None = None
        self.count = 0

    def __enter__(self) -> None:
        self.since = self._clock.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.since = None
        if kind is None:
            self.count += 1


class _Writing:
    """Since when an answer has waited for its reader, and how many answers there were."""

    def __init__(self, clock: Clock, reading: _Reading) -> None:
        self._clock = clock
        self._reading = reading
        self.since: float | None = None
        self.count = 0

    def __enter__(self) -> None:
        self.since = self._clock.monotonic()

    def __exit__(self, *_: object) -> None:
        self.since = None
        self.count += 1
        if self._reading.since is not None:
            self._reading.since = self._clock.monotonic()


class WatchedReader:
    """A DoPut's batches, read under the eyes of its call."""

    def __init__(self, reader: fl.MetadataRecordBatchReader, call: Call, memory_bytes: int) -> None:
        self._reader = reader
        self._memory_bytes = memory_bytes
        self._reading = call.reading()

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stream."""
        return self._reader.schema

    def read_chunk(self) -> fl.FlightStreamChunk:
        """The next batch; StopIteration when the client has ended the stream."""
        try:
            with self._reading:
                return self._reader.read_chunk()
        except pa.ArrowMemoryError:
            raise memory_error(self._memory_bytes) from None


class WatchedWriter:
    """A DoPut's acknowledgements, written under the eyes of its call."""

    def __init__(self, writer: fl.FlightMetadataWriter, call: Call) -> None:
        self._writer = writer
        self._writing = call.writing()

    def write(self, message: pa.Buffer | bytes) -> None:
        """Writes one acknowledgement; waits while the client reads none.

        Raises:
            FlightCancelledError: the client is gone.
        """
        try:
            with self._writing:
                self._writer.write(message)
        except OSError as error:
            raise fl.FlightCancelledError(f"nobody reads acknowledgements: {error}") from None


class Keepalive:
    """The calls of a broker, and the end of those whose client has stopped."""

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: set[Call] = set()

    @contextmanager
    def call(self, peer: str) -> Iterator[Call]:
        """Around a call of the client that Flight calls ``peer``."""
        call = Call(peer, self._clock)
        with self._lock:
            self._calls.add(call)
        try:
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)

    def end_silent_connections(self) -> None:
        """Shuts down the connections of clients that have stopped."""
        silent = self.silent_peers()
        if not silent:
            return
        addresses = {place for peer in silent if (place := place_of(peer)) is not None}
        ended = 0
        for connection in connections():
            with contextlib.suppress(OSError):  # closed meanwhile
                if self._is_to_end(connection, addresses):
                    connection.shutdown(socket.SHUT_RDWR)
                    ended += 1
        if ended:
            logger.warning(
                "%d connections ended: their clients said nothing for %g s", ended, self.limit_s
            )

    def _is_to_end(self, connection: socket.socket, addresses: set[Peer]) -> bool:
        if connection.family == socket.AF_UNIX:
            return bool(connection.getsockname()) and _is_of_stopped_process(connection)
        silent = peer_of(connection.getpeername()) in addresses
        return silent and quiet_for(connection) > self.limit_s

    def silent_peers(self) -> set[str]:
        """The peers all of whose calls are silent; of Unix sockets, which have one name, any."""
        with self._lock:
            calls = list(self._calls)
        silent = {call.peer for call in calls if call.silent_for() > self.limit_s}
        alive = {call.peer for call in calls if call.silent_for() <= self.limit_s}
        return {peer for peer in silent if peer not in alive or place_of(peer) is None}


def _is_of_stopped_process(connection: socket.socket) -> bool:
    try:
        return psutil.Process(process_behind(connection)).status() in _STOPPED
    except (psutil.Error, OSError):
        return False
