"""A line to a leader: a connection of its own, and the stream of replication on it.

It is lost when the leader is silent for too long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from spark_stream.broker.replication.background import Background
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.errors import InternalError, IsologError
from spark_stream.protocol import Bytes, ConnectionLimits
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.failures import TRANSPORT_ERRORS, failure_of
from spark_stream.transport.streams import Handle, Stream, StreamEvent
from spark_stream.wire.methods import REPLICATE

logger = logging.getLogger(__name__)

_CREDIT_PER_WINDOW: Final = 2


class ReplicationLine(Protocol):
    """A line from when it is asked for."""

    def send(self, header: Bytes) -> bool:
        """Send a message if there is credit for it; raises StreamOver."""

    def consumed(self, size: int) -> None:
        """Let the leader send so many bytes more."""

    def end(self) -> None:
        """End it, whatever its state is; it waits for nothing."""


Happened = Callable[[ReplicationLine, StreamEvent | IsologError], None]
"""Takes the events of a line, on the loop's thread; an error: there is no line."""
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

    def __init__(self, settings: ReplicationSettings, background: Background) -> None:
        self._settings = settings
        self._background = background

    def call(self, address: str, opening: bytes, happened: Happened) -> ReplicationLine:
        """Open a line."""
        line = _SocketLine(address, opening, happened, self._settings)
        self._background.submit(line.connect)
        return line


class _SocketLine:
    def __init__(
        self, address: str, opening: bytes, happened: Happened, settings: ReplicationSettings
    ) -> None:
        self._address = address
        self._opening = opening
        self._happened = happened
        self._settings = settings
        self._channel: ClientChannel | None = None
        self._stream: Stream | None = None
        self._is_over = False

    def connect(self) -> None:
        """Connect; on a thread that may wait."""
        try:
            self._channel = ClientChannel(
                self._address, timeout_s=self._settings.death_s, limits=limits(self._settings)
            )
            self._channel.open_with(self._begin, REPLICATE, b"", self._opening)
        except TRANSPORT_ERRORS as error:
            self._happened(self, failure_of(error, self._address))
        except Exception as error:
            logger.exception("connecting to %s", self._address)
            self._happened(self, InternalError(f"{type(error).__name__}: {error}"))
        if self._is_over:  # it was ended meanwhile
            self.end()

    def _begin(self, stream: Stream) -> Handle:
        self._stream = stream
        return lambda event: self._happened(self, event)

    def send(self, header: Bytes) -> bool:
        assert self._stream is not None
        return self._stream.send(header)

    def consumed(self, size: int) -> None:
        assert self._stream is not None
        self._stream.consumed(size)

    def end(self) -> None:
        self._is_over = True
        if self._stream is not None:
            self._stream.cancel()
        if self._channel is not None:
            self._channel.close()
