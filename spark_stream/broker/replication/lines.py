"""A follower's line to its leader: a separate connection with one replication stream.

The line is lost after a long silence of the leader.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, Protocol

from spark_stream.broker.replication.interfaces import ReplicationContext
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.errors import InternalError, IsologError, TlsFailed
from spark_stream.loggers import logger_of
from spark_stream.protocol import Bytes, ConnectionLimits
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, Handle, Stream, StreamEvent, failure_of
from spark_stream.wire.messages import REPLICATE

logger = logger_of(__name__)

_CREDIT_PER_WINDOW: Final = 2


class LineChannel(Protocol):
    """A connection to a leader."""

    def open_with(
        self, begin: Callable[[Stream], Handle], method: str, header: bytes, body: Bytes, /
    ) -> Stream:
        """Open a stream. It raises one of ``TRANSPORT_ERRORS``."""

    def close(self) -> None:
        """Close the connection."""


class ReplicationLine:
    """A line, from its request on. ``opening`` has the bytes that open the stream."""

    def __init__(self, opening: bytes, on_event: OnEvent) -> None:
        self._opening = opening
        self._report = on_event
        self._channel: LineChannel | None = None
        self._stream: Stream | None = None
        self._is_over = False

    def open(self, channel: LineChannel) -> None:
        """Open the stream on a connection, which the line closes at its end.

        Raises:
            Exception: one of ``TRANSPORT_ERRORS``.
        """
        self._channel = channel
        if not self._is_over:
            channel.open_with(self._begin, REPLICATE, b"", self._opening)
        if self._is_over:  # ended during the opening
            self.end()

    @property
    def is_open(self) -> bool:
        """Whether the stream is open, so that its events report its end."""
        return self._stream is not None

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        return self._on_event

    def _on_event(self, event: StreamEvent) -> None:
        self._report(self, event)

    def fail(self, error: IsologError) -> None:
        """Report that no stream could be opened."""
        if not self._is_over:
            self.end()
            self._report(self, error)

    def send(self, header: Bytes) -> bool:
        """Send a message and return True, or return False if there is no credit for it.

        Raises:
            StreamOver: the stream has ended.
        """
        assert self._stream is not None
        return self._stream.send(header)

    def grant_credit(self, size: int) -> None:
        """Grant the leader credit for more bytes."""
        assert self._stream is not None
        self._stream.grant_credit(size)

    def end(self) -> None:
        """End the line in any state. Never block."""
        self._is_over = True
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            self._channel.close()


OnEvent = Callable[[ReplicationLine, StreamEvent | IsologError], None]
"""Receives the events of a line on the loop's thread. An error means that no line was opened."""
OpenLine = Callable[[str, bytes, OnEvent], ReplicationLine]
"""Opens a line to an address, with the bytes that open the stream. It never blocks."""


def limits(settings: ReplicationSettings) -> ConnectionLimits:
    """Return the credit and the timeouts of a follower's connection."""
    return ConnectionLimits(
        credit=_CREDIT_PER_WINDOW * settings.stream_bytes,
        heartbeat_s=settings.beat_s,
        silence_s=settings.death_s,
    )


class Lines:
    """A factory of lines over sockets."""

    def __init__(
        self,
        context: ReplicationContext,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self._settings = context.settings
        self._background = context.background
        self._tls = tls

    def call(self, address: str, opening: bytes, on_event: OnEvent) -> ReplicationLine:
        """Open a line. Its connection is made on another thread."""
        line = ReplicationLine(opening, on_event)
        self._background.submit(self._connect, line, address)
        return line

    def _connect(self, line: ReplicationLine, address: str) -> None:
        """Connect, on a thread that may block."""
        settings = self._settings
        try:
            line.open(
                ClientChannel(
                    address,
                    timeout_s=settings.death_s,
                    limits=limits(settings),
                    tls=None if self._tls is None else self._tls(),
                )
            )
        except TlsFailed as error:
            line.fail(error)
        except TRANSPORT_ERRORS as error:
            line.fail(failure_of(error, address))
        except Exception as error:
            logger.exception("connection to leader at %s failed", address)
            line.fail(InternalError(f"{type(error).__name__}: {error}"))
