"""The streams of a connection, on either side: their events, and the bytes of errors and greetings.

:class:`Stream` calls back. :class:`BlockingStream` is for threads that wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from spark_stream.errors import (
    BrokerUnavailable,
    InternalError,
    IsologError,
    RequestTimeout,
    UnsupportedVersion,
    from_wire,
)
from spark_stream.loggers import logger_of
from spark_stream.protocol import (
    Body,
    Bytes,
    Cancelled,
    Connection,
    Credited,
    Event,
    Failed,
    Lost,
    Received,
    StreamOver,
)
from spark_stream.transport.channel import SocketChannel

logger = logger_of(__name__)

E = TypeVar("E")
StreamEvent = Received | Credited | Failed | Cancelled | Lost
Handle = Callable[[StreamEvent], None]
"""A handler of a stream's events. It must not block.

It runs on the loop's thread, or also on a thread that waits if :attr:`Stream.handles_anywhere`.
"""

_EMPTY_BYTES: Final = Received(0, b"", b"", end=True).size
ERROR_BYTES_MAX: Final = 256 << 10
_SHORTENED: Final = 10_000


class ConnectionLost(Exception):
    """The connection has ended. ``code`` and the message have the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CallFailed(Exception):
    """The broker ended the stream with an error, in the application's encoding."""

    def __init__(self, error: bytes) -> None:
        super().__init__(f"the broker ended the stream with an error of {len(error)} bytes")
        self.error = error


class StreamCancelled(Exception):
    """The client cancelled the stream."""


TRANSPORT_ERRORS = (CallFailed, ConnectionLost, StreamCancelled, TimeoutError)
"""The exceptions of a stream, which :func:`failure_of` converts to an IsologError."""


def ignore(_: StreamEvent) -> None:
    """Ignore an event: the stream has no use for it."""


class Stream:
    """A stream. Any thread may send; ``handle`` gets its events.

    The last event is a Received with ``end``, Failed, Cancelled or Lost.
    """

    __slots__ = (
        "_forget",
        "_is_done",
        "channel",
        "handle",
        "handles_anywhere",
        "has_ended",
        "number",
        "over",
        "peer",
    )

    def __init__(
        self, channel: SocketChannel, number: int, peer: str, forget: Callable[[int], object]
    ) -> None:
        self.channel = channel
        """The connection of the stream."""
        self._forget = forget
        self._is_done = False  # both sides have sent their last frames
        self.number = number
        self.peer = peer
        """The address of the other side."""
        self.handle: Handle = ignore
        self.handles_anywhere = False
        """Whether a thread that waits for an answer may call ``handle`` in place of the loop's."""
        self.has_ended = False
        """Whether this side has ended it: by its last frame, an error, or a cancellation."""
        self.over: Failed | Cancelled | Lost | None = None
        """The event that ended the stream early, or None."""

    @property
    def version(self) -> int:
        """The version of the protocol that both sides speak."""
        return self.channel.version

    def send(
        self, header: Bytes, body: Body = b"", *, end: bool = False, more: bool = False
    ) -> bool:
        """Send a frame if there is credit for it. Return whether it was sent.

        If it was not sent, retry after the event ``Credited``. ``more``: the frame may wait for the
        next one, or for :meth:`flush`, for at most a second.

        Raises:
            StreamOver: The stream has ended.
        """
        is_last = end and not header and not body

        def act(core: Connection) -> bool:
            if self.has_ended or self.over is not None or not core.is_open(self.number):
                raise StreamOver(f"stream {self.number} has ended")
            if not is_last and (self.channel.is_clogged or not core.may_send(self.number)):
                return False
            core.send(self.number, header, body, end=end)
            if end:
                self.has_ended = True
                self._forget_if_over(core)
            return True

        return self.channel.command(act, more=more)

    def flush(self) -> None:
        """Send the frames that wait for others."""
        self.channel.flush()

    def take_last(self, event: Received) -> None:
        """Handle the last frame."""
        self.handle(event)
        self.channel.command(self._forget_if_over)

    def _forget_if_over(self, core: Connection) -> None:
        if not core.is_open(self.number):
            self._is_done = True
            self._leave()

    def _leave(self) -> None:
        """Stop the events: the stream and its handler no longer refer to each other."""
        self._forget(self.number)
        self.handle = ignore

    def break_off(self, event: Failed | Cancelled | Lost) -> None:
        """Handle the event that ends the stream early. It is called on the loop's thread."""
        self.over = event
        self.handle(event)
        self.handle = ignore

    def grant_credit(self, size: int) -> None:
        """Grant the other side credit for ``size`` more bytes."""
        self.channel.command(Connection.grant_credit, self.number, size)

    def fail(self, error: bytes) -> None:
        """End the stream with an error in the application's encoding. For brokers."""
        self.has_ended = True
        self._leave()
        self.channel.command(Connection.fail, self.number, error)

    def cancel(self) -> None:
        """Cancel the stream, and get no more events. For clients.

        Takes no lock: a generator may call it during garbage collection, on a thread that holds any
        lock.
        """
        if self._is_done:
            return
        self.has_ended = True
        self.over = self.over or Cancelled(self.number)
        self._leave()
        self.channel.command_soon(Connection.cancel, self.number)


class Streams:
    """The streams of one connection, by number. ``peer`` is the address of the other side."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._streams: dict[int, Stream] = {}

    def add(self, channel: SocketChannel, number: int) -> Stream:
        """Add a stream, which gets its events from then on."""
        stream = self._streams[number] = Stream(channel, number, self.peer, self.forget)
        return stream

    def forget(self, number: int) -> None:
        """Remove a stream, so that it gets no more events."""
        self._streams.pop(number, None)

    def dispatch(self, event: Event) -> None:
        """Pass an event to its stream. For the loop's thread, and for one that waits."""
        match event:
            case Received() | Credited():
                found = self._streams.get(event.stream)
                if found is not None:
                    if isinstance(event, Received) and event.end:
                        found.take_last(event)
                    else:
                        found.handle(event)
            case Failed() | Cancelled():
                found = self._streams.pop(event.stream, None)
                if found is not None:
                    found.break_off(event)
            case Lost():
                streams, self._streams = self._streams, {}
                for each in streams.values():
                    _call_guarded(each.break_off, event)
            case _:
                pass

    def handles_anywhere(self, event: Event) -> bool:
        """Return whether another thread than the loop's may dispatch the event."""
        if not isinstance(event, Received | Credited | Failed):
            return False
        found = self._streams.get(event.stream)
        return found is None or found.handles_anywhere

    def on_drained(self) -> None:
        """Pass ``Credited`` to all streams. It is called on the loop's thread."""
        for number, stream in list(self._streams.items()):
            _call_guarded(stream.handle, Credited(number))


def _call_guarded(handle: Callable[[E], None], event: E) -> None:
    """Pass an event to one of several streams. Log its failure, so that the others get theirs."""
    try:
        handle(event)
    except Exception:
        logger.exception("a stream could not handle %r", event)


class BlockingStream:
    """A stream for threads that wait. One thread receives. Any thread sends, one at a time."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._received: queue.SimpleQueue[StreamEvent | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._ended = False
        stream.handles_anywhere = True
        stream.handle = self.take

    @property
    def peer(self) -> str:
        """The address of the other side."""
        return self._stream.peer

    @property
    def is_over(self) -> bool:
        """Whether the other side ended the stream early."""
        return self._stream.over is not None

    def take(self, event: StreamEvent) -> None:
        """Queue an event."""
        if not isinstance(event, Credited):
            self._received.put(event)
            self._stream.channel.wake()
        if not isinstance(event, Received):
            with self._changed:
                self._changed.notify_all()

    def receive(self, timeout_s: float | None = None) -> Received | None:
        """Return the next frame, or None after the last one, or after :meth:`cancel`.

        Raises:
            CallFailed, ConnectionLost, StreamCancelled: the end of the stream.
            TimeoutError: No frame arrived in time. The stream is still open.
        """
        if self._ended:
            return None
        if self._received.empty():
            timeout_s = self._stream.channel.read_until(self._has_received, timeout_s)
        try:
            event = self._received.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no frame from {self.peer} in time") from None
        if not isinstance(event, Received):
            self._ended = True
            if event is None:
                return None
            raise error_of(event, self.peer)
        size = event.size
        if event.end:
            self._ended = True
            return None if size == _EMPTY_BYTES else event
        self._stream.grant_credit(size)
        return event

    def send(
        self, header: Bytes, body: Bytes = b"", *, end: bool = False, timeout_s: float | None = None
    ) -> None:
        """Send a frame. Wait while there is no credit.

        Raises:
            CallFailed, ConnectionLost, StreamCancelled: the end of the stream.
            StreamOver: This side has ended it.
            TimeoutError: There was no credit in time. The frame was not sent.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if self._stream.send(header, body, end=end):
                return
            with self._changed:
                while not self._stream.send(header, body, end=end):
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError(f"no credit from {self.peer} in time")
                    self._changed.wait(left)
        except StreamOver:
            if self._stream.has_ended and self._stream.over is None:
                raise
            with self._changed:  # the loop's thread is about to set the reason
                while self._stream.over is None:
                    self._changed.wait()
            raise error_of(self._stream.over, self.peer) from None

    def fail(self, error: bytes) -> None:
        """End the stream with an error in the application's encoding. For brokers."""
        self._stream.fail(error)
        self._wake()

    def cancel(self) -> None:
        """Cancel the stream. A thread that receives gets None. For clients."""
        self._stream.cancel()
        self._wake()

    def _has_received(self) -> bool:
        return not self._received.empty()

    def _wake(self) -> None:
        self._received.put(None)
        self._stream.channel.wake()
        with self._changed:
            self._changed.notify_all()


def error_of(event: StreamEvent, peer: str) -> Exception:
    """Return the exception for the end of a stream."""
    match event:
        case Failed():
            return CallFailed(bytes(event.error))
        case Lost():
            return ConnectionLost(event.code, f"{peer}: {event.message}")
        case _:
            return StreamCancelled(f"{peer} cancelled the stream")


class Greeting(msgspec.Struct, frozen=True):
    """The cluster and the id of a broker, in its HELLO."""

    cluster_id: str
    broker_id: str


# Made during the import: msgspec crashes if two threads decode a new class concurrently.
_GREETINGS: Final = msgspec.msgpack.Decoder(Greeting)

_ERRORS: Final = msgspec.msgpack.Decoder(dict)


def greeting_bytes(cluster_id: str, broker_id: str) -> bytes:
    """Return the greeting of a broker."""
    return msgspec.msgpack.encode(Greeting(cluster_id, broker_id))


def read_greeting(data: bytes, address: str) -> Greeting:
    """Return the greeting of the broker at ``address``.

    Raises:
        BrokerUnavailable: No broker of this release sent the greeting.
    """
    try:
        return _GREETINGS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BrokerUnavailable(
            f"{address} is not a broker of this release", address=address
        ) from None


def error_bytes(error: IsologError) -> bytes:
    """Return the bytes of an error. A large one is shortened, and has no details."""
    value = error.to_wire()
    data = msgspec.msgpack.encode(value)
    if len(data) > ERROR_BYTES_MAX:
        value |= {"message": error.message[:_SHORTENED], "details": {}}
        data = msgspec.msgpack.encode(value)
    return data


def failure_of(error: Exception, address: str) -> IsologError:
    """Return the error for the caller, from an exception of a stream."""
    match error:
        case CallFailed():
            value: dict[str, Any] = _ERRORS.decode(error.error)
            return from_wire(value)
        case TimeoutError():
            return RequestTimeout(f"no answer from {address} in time", address=address)
        case ConnectionLost(code="VERSION"):
            return UnsupportedVersion(str(error), address=address)
        case ConnectionLost() | StreamCancelled() | OSError():
            return BrokerUnavailable(str(error), address=address)
        case _:
            return InternalError(f"{address}: {error}", address=address)
