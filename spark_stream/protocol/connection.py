"""One connection between a client and a broker, without I/O: bytes in, events out.

A shell owns the socket. It passes received bytes to :meth:`Connection.receive` (or receives into
:attr:`Connection.target`), acts on the events, calls the commands (``open``, ``send`` …), writes
the output of :meth:`Connection.output`, and calls :meth:`Connection.tick` regularly.

The life of a connection: each side sends HELLO first. The broker picks the version. After that
(``Ready``) the client opens streams. A stream carries frames in both directions until each side has
sent its last frame (``end``), the broker fails it (ERROR), or the client cancels it (CANCEL):

==================  =======================================  =====================================
state of a stream   what may happen                          next state
==================  =======================================  =====================================
open                send, receive                            open
open                own last frame sent                      closed for sending
open                the peer's last frame received           closed for receiving
either half closed  the other half ends                      over
any                 ERROR or CANCEL sent or received         over
==================  =======================================  =====================================

Invariants:

* A frame of a stream is delivered after all earlier ones of it, once, and none after its end.

* *Credits* (backpressure). For each stream the receiver grants the sender a number of bytes. DATA
  may be sent while this credit is above 0. So one frame of any size always passes, and may lower it
  below 0. An empty last frame needs no credit. So the bytes of a stream at its receiver are
  bounded, and a slow stream delays no other.

* A frame of a stream that has ended is dropped, because its sender may not have received the end
  yet.

* After ``Lost`` no data is accepted. The pending output (the reason, in GOODBYE) gets one attempt.

* *Floods.* One call handles a bounded number of frames (:attr:`Connection.has_more`). A client that
  sends more control frames than it needs is lost, and so is a client that sends more than a few
  frames before it is trusted.

* A peer that is silent for ``silence_s``, or takes too long for its HELLO or for a frame, is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from spark_stream.protocol.frames import (
    PREFIX,
    Allocate,
    Body,
    Bytes,
    FrameKind,
    FrameReader,
    ProtocolError,
    RawFrame,
    frame_bytes,
    nbytes_of,
)

T = TypeVar("T")

VERSION: Final = 2
"""Of all that travels: frames, methods, their messages, and replication.

It rises with each release that sends what the release before it would misread or refuse.
"""
OLDEST: Final = max(1, VERSION - 1)
"""The previous version is accepted too, so brokers and clients can be upgraded one by one."""
STREAM_MAX: Final = 2**32 - 1
_CREDIT_MAX: Final = 2**40
_STRANGER: Final = (64 << 10, 64 << 10)
"""The largest header and body of a peer that is not trusted yet."""
_STREAMS_OF_STRANGER: Final = 8
FRAMES_OF_STRANGER: Final = 32
"""Frames of a client that is not trusted yet: HELLO, its credential, and PINGs while it waits."""
CONTROL_BURST: Final = 1000
CONTROL_PER_S: Final = 100.0
"""Control frames that a client may send besides those it has earned. It needs one each second."""
_CONTROL_EARNED_MAX: Final = 20_000
_LATE_FRAME_BYTES: Final = 4096
"""The maximum that counts for a DATA frame of an ended stream, whose exact credit is unknown."""


class ConnectionLimits(Struct, frozen=True):
    """The limits and timeouts of one side for the other. Sizes in bytes, times in seconds."""

    header_bytes_max: int = 1 << 20
    body_bytes_max: int = 1 << 30
    streams_max: int = 10_000
    """The number of streams that the peer may have open."""
    credit: int = 1 << 20
    """The bytes that the peer may send on each stream before it is granted more."""
    heartbeat_s: float = 5.0
    """After this time without a byte the peer gets a PING."""
    silence_s: float = 15.0
    """After this time without a byte the peer is lost."""
    handshake_s: float = 10.0
    frame_s: float = 30.0
    """The time for the arrival of a frame, besides the time for its size at ``rate_min``."""
    rate_min: float = 64 << 10
    """Bytes per second."""


DEFAULT_LIMITS: Final = ConnectionLimits()


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The header of HELLO. ``greeting`` is that of the application."""

    least: int
    greatest: int
    credit: int
    streams_max: int
    header_bytes_max: int
    body_bytes_max: int
    greeting: bytes = b""


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The header of OPEN. ``credit``: bytes that may be sent back beyond those of HELLO."""

    method: str
    credit: int
    header: bytes


class Goodbye(msgspec.Struct, frozen=True, array_like=True):
    """The header of GOODBYE: the reason for the end of the connection."""

    code: str
    message: str


# -- events ---------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True):
    """The peer has sent HELLO, and both sides speak one version."""

    version: int
    greeting: bytes


class StreamOpened(msgspec.Struct, frozen=True):
    """The client opened a stream."""

    stream: int
    method: str
    header: Bytes
    body: Bytes
    end: bool

    def __repr__(self) -> str:  # the content may be secret, and large
        return f"StreamOpened({self.stream}, {self.method!r}, …)"


class Received(msgspec.Struct, frozen=True):
    """A frame of a stream. Its bytes use credit until :meth:`Connection.grant_credit`."""

    stream: int
    header: Bytes
    body: Bytes
    end: bool

    @property
    def size(self) -> int:
        """The bytes of credit to grant again."""
        return data_bytes(self.header, self.body)


class Credited(msgspec.Struct, frozen=True):
    """There is credit again on a stream that had none."""

    stream: int


class Failed(msgspec.Struct, frozen=True):
    """The broker ended a stream with an error, in the application's encoding."""

    stream: int
    error: Bytes


class Cancelled(msgspec.Struct, frozen=True):
    """The client cancelled a stream."""

    stream: int


class Ending(msgspec.Struct, frozen=True):
    """The peer opens and accepts no new streams. Open ones continue."""

    code: str
    message: str


class Lost(msgspec.Struct, frozen=True):
    """The connection has ended, and all its streams with it."""

    code: str
    message: str


Event = Ready | StreamOpened | Received | Credited | Failed | Cancelled | Ending | Lost


def data_bytes(header: Bytes, body: Body) -> int:
    """Return the credit that a DATA frame uses."""
    return PREFIX.size + memoryview(header).nbytes + nbytes_of(body)


class StreamOver(Exception):
    """The stream or its sending side has ended, perhaps by the peer a moment ago."""


class _Stream(Struct):
    credit: int  # bytes that may be sent
    granted: int  # bytes that the peer may send
    unreturned: int = 0  # consumed, and not granted again yet
    sends: bool = True
    receives: bool = True


class ControlBudget:
    """The control frames that a client may send.

    They are PING, PONG, CREDIT, CANCEL of an old stream, and DATA without content.

    Each stream that the client opens and each DATA frame that it gets allows one more: a CANCEL
    that crosses the answer, or the CREDIT for the frame. Heartbeats need one frame each second.
    """

    def __init__(self, now: float) -> None:
        self._left: float = CONTROL_BURST
        self._refilled = now

    def earn(self) -> None:
        """Allow one more frame."""
        if self._left < _CONTROL_EARNED_MAX:
            self._left += 1

    def spend(self, now: float) -> bool:
        """Count a frame. Return False if it is one too many."""
        if self._left < CONTROL_BURST:
            earned = (now - self._refilled) * CONTROL_PER_S
            self._left = min(CONTROL_BURST, self._left + earned)
        self._refilled = now
        self._left -= 1
        return self._left >= 0


class Connection:
    """One side of a connection. Not thread-safe: its shell has a lock.

    ``greeting``: the bytes that the peer gets in ``Ready``. ``allocate``: makes buffers of large
    bodies. ``now``, in all methods, is in seconds on a monotonic clock. A peer that is not
    ``trusted`` may send small frames on few streams only, until :meth:`trust`.
    """

    def __init__(
        self,
        *,
        is_client: bool,
        greeting: bytes,
        now: float,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        allocate: Allocate = bytearray,
        versions: tuple[int, int] = (OLDEST, VERSION),
        trusted: bool = True,
    ) -> None:
        self._trusted = trusted
        self._frames_of_stranger = FRAMES_OF_STRANGER
        self._control = ControlBudget(now)
        self._late_bytes = 0  # that may still arrive on streams that this side has failed
        self._has_ponged = False  # a PONG is in the output
        self._is_client = is_client
        self._limits = limits
        self._versions = versions
        self._reader = FrameReader(
            *(limits.header_bytes_max, limits.body_bytes_max) if trusted else _STRANGER, allocate
        )
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._output: list[Bytes] = []
        self._peer: Hello | None = None
        self.version = 0
        """The version that both sides speak, or 0 before HELLO."""
        self._greeting = greeting
        self._began = self._last_received = self._ticked = now
        self._frame_began: float | None = None
        self._pinged = False
        self._is_mute = False  # no frame was sent since the last tick
        self._ending = False
        self.lost: Lost | None = None
        """The reason why the connection ended, or None while it is open."""
        self.was_refused = False
        """Whether this side ended the connection because of received frames, or by `refuse`."""
        if is_client:
            self._hello(*versions)

    # -- input ------------------------------------------------------------------------------

    @property
    def target(self) -> memoryview | None:
        """The buffer for the next bytes while a large part arrives. Then call `on_filled`."""
        return None if self.lost else self._reader.target

    def on_filled(self, count: int, now: float) -> list[Event]:
        """Continue after ``count`` bytes were received into :attr:`target`."""
        return self._events(self._reader.on_filled(count), now)

    def receive(self, data: Bytes, now: float) -> list[Event]:
        """Handle received bytes. Later, no part of ``data`` is referenced.

        One call handles at most ``FRAMES_AT_ONCE`` frames.
        """
        return self._events(self._reader.receive(data), now)

    @property
    def has_more(self) -> bool:
        """Whether whole frames are left. Call :meth:`receive` again, without data."""
        return self.lost is None and self._reader.has_more

    def closed_by_peer(self, message: str = "the peer closed the connection") -> list[Event]:
        """Handle the end, or an error, of the socket."""
        return [] if self.lost else [self._lose("CLOSED", message)]

    def trust(self) -> None:
        """Accept frames up to the limits after this call."""
        self._trusted = True
        self._reader.raise_limits(self._limits.header_bytes_max, self._limits.body_bytes_max)

    def refuse(self, code: str, message: str) -> list[Event]:
        """End the connection, and send the reason to the peer."""
        if self.lost:
            return []
        self.was_refused = True
        return [self._end(code, message)]

    def on_heard(self, now: float) -> None:
        """Record that the peer receives output, while this side reads nothing on purpose.

        That is a sign of life. A frame that has begun to arrive cannot continue in that time.
        """
        self._last_received = now
        if self._frame_began is not None:
            self._frame_began = now

    def tick(self, now: float) -> list[Event]:
        """Handle the passing of time: send a heartbeat to a silent peer, or end the connection.

        Call it every :attr:`tick_s`. After a late call the connection does not end: this process
        was held up, and has not received the peer's data of that time.
        """
        is_late, self._ticked = now - self._ticked > 3 * self.tick_s, now
        if self.lost or is_late:
            return []
        is_mute, self._is_mute = self._is_mute, True
        limits, silent_s = self._limits, now - self._last_received
        if self._peer is None and now - self._began > limits.handshake_s:
            return [self._end("TIMEOUT", f"no HELLO within {limits.handshake_s:g} s")]
        if silent_s > limits.silence_s:
            return [self._end("SILENT", f"nothing was received for {silent_s:.1f} s")]
        if self._frame_began is not None:
            allowed_s = limits.frame_s + self._reader.frame_bytes / limits.rate_min
            if now - self._frame_began > allowed_s:
                return [self._end("TIMEOUT", f"a frame was not whole within {allowed_s:.1f} s")]
            if is_mute and self._peer is not None:
                # A frame on a slow link may take longer than its sender's limit of silence, and the
                # sender's PING is queued behind it. So this side sends a sign of life by itself.
                self._put(FrameKind.PONG, 0)
        if silent_s > limits.heartbeat_s and not self._pinged and self._peer is not None:
            self._pinged = True
            self._put(FrameKind.PING, 0)
        return []

    @property
    def tick_s(self) -> float:
        """The seconds between two calls of :meth:`tick`."""
        return min(1.0, self._limits.heartbeat_s / 2)

    def _events(self, frames: Iterator[RawFrame], now: float) -> list[Event]:
        events: list[Event] = []
        if self.lost:
            return events
        self._last_received, self._pinged = now, False
        try:
            for frame in frames:
                self._frame_began = None
                self._check_rate(frame, now)
                event = self._event_of(frame)
                if event is not None:
                    events.append(event)
                    if self.lost:
                        return events
        except ProtocolError as error:
            events += self.refuse(error.code, error.message)
            return events
        if self._reader.is_between_frames:
            self._frame_began = None
        elif self._frame_began is None:
            self._frame_began = now
        return events

    def _check_rate(self, frame: RawFrame, now: float) -> None:
        """Count a client's frame.

        Raises:
            ProtocolError: The client sends more frames than any client needs.
        """
        if self._is_client:
            return
        if not self._trusted:
            self._frames_of_stranger -= 1
            if self._frames_of_stranger < 0:
                raise ProtocolError(
                    "TOO_MANY_FRAMES",
                    f"more than {FRAMES_OF_STRANGER} frames without authentication",
                )
        match frame.kind:
            case FrameKind.OPEN:
                self._control.earn()
            case FrameKind.PING | FrameKind.PONG | FrameKind.CREDIT:
                self._check_control(frame, now)
            case FrameKind.CANCEL if frame.stream not in self._streams:
                self._check_control(frame, now)
            case FrameKind.DATA if not (frame.header or frame.body or frame.end):
                self._check_control(frame, now)
            case FrameKind.DATA if frame.stream not in self._streams:
                self._late_bytes -= min(data_bytes(frame.header, frame.body), _LATE_FRAME_BYTES)
                if self._late_bytes < 0 and frame.stream <= self._last_stream:
                    raise ProtocolError("NO_CREDIT", f"DATA on stream {frame.stream} after its end")
            case _:
                pass

    def _check_control(self, frame: RawFrame, now: float) -> None:
        if not self._control.spend(now):
            raise ProtocolError(
                "TOO_MANY_FRAMES", f"more {frame.kind.name} and other control frames than needed"
            )

    def _event_of(self, frame: RawFrame) -> Event | None:
        if self._peer is None and frame.kind not in (FrameKind.HELLO, FrameKind.GOODBYE):
            raise ProtocolError("NO_HELLO", f"{frame.kind.name} before HELLO")
        match frame.kind:
            case FrameKind.HELLO:
                return self._on_hello(frame)
            case FrameKind.OPEN:
                return self._on_open(frame)
            case FrameKind.DATA:
                return self._data(frame)
            case FrameKind.CREDIT:
                return self._on_credit(frame)
            case FrameKind.ERROR:
                self._check_sent_by(frame, is_client=False)
                return Failed(frame.stream, frame.header) if self._drop(frame.stream) else None
            case FrameKind.CANCEL:
                self._check_sent_by(frame, is_client=True)
                return Cancelled(frame.stream) if self._drop(frame.stream) else None
            case FrameKind.PING:
                if not self._has_ponged:  # one answers all PINGs before it
                    self._has_ponged = True
                    self._put(FrameKind.PONG, 0)
                return None
            case FrameKind.PONG:
                return None
            case FrameKind.GOODBYE:
                return self._on_goodbye(_decoded(frame, _GOODBYE))

    def _on_hello(self, frame: RawFrame) -> Event:
        if self._peer is not None:
            raise ProtocolError("SECOND_HELLO", "HELLO was sent twice")
        hello = _decoded(frame, _HELLO)
        least, greatest = self._versions
        version = min(greatest, hello.greatest)
        if version < max(least, hello.least):
            mine, its = _versions_text(least, greatest), _versions_text(hello.least, hello.greatest)
            client, broker = (mine, its) if self._is_client else (its, mine)
            raise ProtocolError(
                "VERSION",
                f"no version of the protocol in common: the client speaks {client}, the broker"
                f" {broker}",
            )
        self._peer, self.version = hello, version
        if not self._is_client:
            self._hello(version, version)
        return Ready(version, hello.greeting)

    def _on_open(self, frame: RawFrame) -> Event | None:
        self._check_sent_by(frame, is_client=True)
        if frame.stream <= self._last_stream:
            raise ProtocolError("STREAM_NUMBER", f"stream {frame.stream} was opened out of order")
        self._last_stream = frame.stream
        most = self._limits.streams_max if self._trusted else _STREAMS_OF_STRANGER
        if len(self._streams) >= most:
            raise ProtocolError("TOO_MANY_STREAMS", f"more than {most} streams are open")
        opening = _decoded(frame, _OPENING)
        if opening.credit < 0:
            raise ProtocolError(
                "CREDIT", f"a stream was opened with a negative credit: {opening.credit}"
            )
        self._add(frame.stream, more_credit=opening.credit)
        self._received_on(frame.stream, frame.end)
        return StreamOpened(frame.stream, opening.method, opening.header, frame.body, frame.end)

    def _data(self, frame: RawFrame) -> Event | None:
        stream = self._known(frame)
        if stream is None:
            return None
        if not stream.receives:
            raise ProtocolError("STREAM_ENDED", f"DATA on stream {frame.stream} after its end")
        size = data_bytes(frame.header, frame.body)
        if stream.granted <= 0 and not (frame.end and size == PREFIX.size):
            raise ProtocolError("NO_CREDIT", f"DATA on stream {frame.stream} without credit")
        stream.granted -= size
        self._received_on(frame.stream, frame.end)
        return Received(frame.stream, frame.header, frame.body, frame.end)

    def _on_credit(self, frame: RawFrame) -> Event | None:
        stream = self._known(frame)
        if stream is None:
            return None
        amount = _decoded(frame, _CREDIT)
        if amount <= 0 or stream.credit + amount > _CREDIT_MAX:
            raise ProtocolError("CREDIT", f"invalid credit: {amount}")
        had_none, stream.credit = stream.credit <= 0, stream.credit + amount
        return Credited(frame.stream) if had_none and stream.credit > 0 else None

    def _on_goodbye(self, goodbye: Goodbye) -> Event:
        self._ending = True
        if goodbye.code == "STOPPING":
            return Ending(goodbye.code, goodbye.message)
        return self._lose(goodbye.code, goodbye.message)

    def _known(self, frame: RawFrame) -> _Stream | None:
        """Return the frame's stream, or None if that has ended.

        Raises:
            ProtocolError: The stream was never opened.
        """
        found = self._streams.get(frame.stream)
        if found is None and not 0 < frame.stream <= self._last_stream:
            raise ProtocolError(
                "UNKNOWN_STREAM", f"{frame.kind.name} on stream {frame.stream}, which is not open"
            )
        return found

    def _check_sent_by(self, frame: RawFrame, *, is_client: bool) -> None:
        if self._is_client is is_client:
            sender = "a broker" if is_client else "a client"
            raise ProtocolError("WRONG_SIDE", f"{frame.kind.name} was sent by {sender}")
        if frame.kind is not FrameKind.OPEN:
            self._known(frame)

    # -- commands -------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the client, on this side or the other, may open streams."""
        return self._peer is not None and not self._ending and self.lost is None

    @property
    def open_streams(self) -> int:
        """The number of streams that have not ended."""
        return len(self._streams)

    def open(
        self, method: str, header: bytes, body: Bytes = b"", *, end: bool = False, credit: int = 0
    ) -> int | None:
        """Open a stream and return its number, or None while the broker allows no more.

        ``end``: it is the last frame of this side. ``credit``: bytes that may come back beyond the
        usual.

        Raises:
            StreamOver: The connection takes no new streams (any more, or yet).
        """
        if not self.is_ready or self._last_stream == STREAM_MAX:
            raise StreamOver("the connection takes no new streams")
        assert self._is_client
        assert self._peer is not None
        if len(self._streams) >= self._peer.streams_max:
            return None
        opening = msgspec.msgpack.encode(Opening(method, credit, header))
        self._check_size(opening, body)
        self._last_stream += 1
        stream = self._add(self._last_stream)
        stream.granted += credit
        stream.sends = not end
        self._put(FrameKind.OPEN, self._last_stream, opening, body, end=end)
        return self._last_stream

    def is_open(self, stream: int) -> bool:
        """Return whether the stream may still carry frames in a direction."""
        return stream in self._streams

    def may_send(self, stream: int) -> bool:
        """Return whether there is credit on the stream. False if it has ended."""
        found = self._streams.get(stream)
        return found is not None and found.sends and found.credit > 0

    def send(self, stream: int, header: Bytes, body: Body = b"", *, end: bool = False) -> None:
        """Send a frame on a stream that has credit. An empty last frame needs none.

        Raises:
            StreamOver: The stream, or its sending side, has ended.
            ValueError: There is no credit, or the frame is larger than the peer's limit.
        """
        found = self._streams.get(stream)
        if found is None or not found.sends:
            raise StreamOver(f"stream {stream} takes no more frames")
        self._check_size(header, body)
        size = data_bytes(header, body)
        if found.credit <= 0 and not (end and size == PREFIX.size):
            raise ValueError(f"stream {stream} has no credit")
        found.credit -= size
        self._control.earn()
        self._put(FrameKind.DATA, stream, header, body, end=end)
        if end:
            found.sends = False
            self._forget_if_over(stream, found)

    def grant_credit(self, stream: int, size: int) -> None:
        """Grant the peer credit for ``size`` more bytes on a stream. Collect small amounts."""
        found = self._streams.get(stream)
        if found is None or not found.receives or self.lost:
            return
        found.unreturned += size
        allows_more = found.granted <= 0 < found.granted + found.unreturned
        if found.unreturned >= self._limits.credit // 2 or allows_more:
            found.granted += found.unreturned
            self._put(FrameKind.CREDIT, stream, msgspec.msgpack.encode(found.unreturned))
            found.unreturned = 0

    def fail(self, stream: int, error: bytes) -> None:
        """End a stream with an error, unless it has ended. For brokers."""
        assert not self._is_client
        found = self._streams.pop(stream, None)
        if found is not None:
            if found.receives:  # the client may have sent more before it gets the error
                self._late_bytes += PREFIX.size
                if found.granted > 0:
                    self._late_bytes += found.granted + _LATE_FRAME_BYTES
            self._put(FrameKind.ERROR, stream, error)

    def cancel(self, stream: int) -> None:
        """Cancel a stream, unless it has ended. For clients."""
        assert self._is_client
        if self._drop(stream):
            self._put(FrameKind.CANCEL, stream)

    def stop(self, message: str) -> None:
        """Send the peer a request to open no more streams. Open ones continue."""
        if self.lost is None and not self._ending:
            self._ending = True
            self._put(FrameKind.GOODBYE, 0, msgspec.msgpack.encode(Goodbye("STOPPING", message)))

    def output(self) -> list[Bytes]:
        """Return the buffers to write next, in order, and remove them."""
        output, self._output, self._has_ponged = self._output, [], False
        return output

    # -- inside ---------------------------------------------------------------------------------

    def _hello(self, least: int, greatest: int) -> None:
        limits = self._limits
        hello = Hello(
            least,
            greatest,
            limits.credit,
            limits.streams_max,
            limits.header_bytes_max,
            limits.body_bytes_max,
            self._greeting,
        )
        self._put(FrameKind.HELLO, 0, msgspec.msgpack.encode(hello))

    def _add(self, number: int, more_credit: int = 0) -> _Stream:
        assert self._peer is not None
        stream = _Stream(self._peer.credit + more_credit, self._limits.credit)
        self._streams[number] = stream
        return stream

    def _received_on(self, number: int, end: bool) -> None:
        if end:
            stream = self._streams[number]
            stream.receives = False
            self._forget_if_over(number, stream)

    def _forget_if_over(self, number: int, stream: _Stream) -> None:
        if not stream.sends and not stream.receives:
            del self._streams[number]

    def _drop(self, number: int) -> bool:
        """End a stream in both directions. Return whether it was open."""
        return self._streams.pop(number, None) is not None

    def _check_size(self, header: Bytes, body: Body) -> None:
        assert self._peer is not None
        for what, size, limit in (
            ("header", memoryview(header).nbytes, self._peer.header_bytes_max),
            ("body", nbytes_of(body), self._peer.body_bytes_max),
        ):
            if size > limit:
                raise ValueError(f"a {what} of {size} bytes; at most {limit}")

    def _put(
        self,
        kind: FrameKind,
        stream: int,
        header: Bytes = b"",
        body: Body = b"",
        *,
        end: bool = False,
    ) -> None:
        self._is_mute = False
        self._output += frame_bytes(kind, stream, header, body, end=end)

    def _end(self, code: str, message: str) -> Lost:
        """End the connection, and send the reason to the peer."""
        self._put(FrameKind.GOODBYE, 0, msgspec.msgpack.encode(Goodbye(code, message)))
        return self._lose(code, message)

    def _lose(self, code: str, message: str) -> Lost:
        self._streams.clear()
        self.lost = Lost(code, message)
        return self.lost


# Made during the import: msgspec crashes if two threads decode a new class concurrently.
_HELLO: Final = msgspec.msgpack.Decoder(Hello)
_OPENING: Final = msgspec.msgpack.Decoder(Opening)
_GOODBYE: Final = msgspec.msgpack.Decoder(Goodbye)
_CREDIT: Final = msgspec.msgpack.Decoder(int)


def _versions_text(least: int, greatest: int) -> str:
    return f"{greatest}" if least == greatest else f"{least} to {greatest}"


def _decoded(frame: RawFrame, decoder: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return decoder.decode(frame.header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("BAD_HEADER", f"the header of {frame.kind.name}: {error}") from None
