"""A line to a leader: a connection of its own, and the stream of replication on it.

It is lost when the leader is silent for too long.
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
        """Open a stream; raises one of ``TRANSPORT_ERRORS``."""

    def close(self) -> None:
        """Close the connection."""


class ReplicationLine:
    """A line, from the request for it on. ``opening``: the bytes that open the stream."""

    def __init__(self, opening: bytes, happened: Happened) -> None:
        self._opening = opening
        self._happened = happened
        self._channel: LineChannel | None = None
        self._stream: Stream | None = None
        self._is_over = False

    def open(self, channel: LineChannel) -> None:
        """Open the stream on a connection, which is the line's own.

        Raises: as :meth:`LineChannel.open_with`.
        """
        self._channel = channel
        if not self._is_over:
            channel.open_with(self._begin, REPLICATE, b"", self._opening)
        if self._is_over:  # it was ended meanwhile
            self.end()

    @property
    def is_open(self) -> bool:
        """Whether its stream was opened: events of the stream then tell what becomes of it."""
        return self._stream is not None

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        return self._on_event

    def _on_event(self, event: StreamEvent) -> None:
        self._happened(self, event)

    def fail(self, error: IsologError) -> None:
        """Note that there is no stream."""
        if not self._is_over:
            self.end()
            self._happened(self, error)

    def send(self, header: Bytes) -> bool:
        """Send a message if there is credit for it; raises StreamOver."""
        assert self._stream is not None
        return self._stream.send(header)

    def grant_credit(self, size: int) -> None:
        """Let the leader send so many bytes more."""
        assert self._stream is not None
        self._stream.grant_credit(size)

    def end(self) -> None:
        """End it, whatever its state is; this waits for nothing."""
        self._is_over = True
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            self._channel.close()


Happened = Callable[[ReplicationLine, StreamEvent | IsologError], None]
"""Takes the events of a line, on the loop's thread; an error means that there is no line."""
Call = Callable[[str, bytes, Happened], ReplicationLine]
"""Opens a line to an address, with the bytes that open the stream; waits for nothing."""


def limits(settings: ReplicationSettings) -> ConnectionLimits:
    """Return what a follower's connection allows, and how long it waits."""
    return ConnectionLimits(
        credit=_CREDIT_PER_WINDOW * settings.stream_bytes,
        heartbeat_s=settings.beat_s,
        silence_s=settings.death_s,
    )


class Lines:
    """Opens lines over sockets."""

    def __init__(
        self,
        context: ReplicationContext,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self._settings = context.settings
        self._background = context.background
        self._tls = tls

    def call(self, address: str, opening: bytes, happened: Happened) -> ReplicationLine:
        """Open a line."""
        line = ReplicationLine(opening, happened)
        self._background.submit(self._connect, line, address)
        return line

    def _connect(self, line: ReplicationLine, address: str) -> None:
        """Connect; on a thread that may wait."""
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
            logger.exception("connecting to %s failed", address)
            line.fail(InternalError(f"{type(error).__name__}: {error}"))
