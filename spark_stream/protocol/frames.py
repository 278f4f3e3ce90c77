"""Frames: the division of a stream of bytes into messages. Pure: bytes in, frames out.

Every frame is a prefix of 16 bytes, a header and a body (``docs/protocol.md``). The header is small
and is decoded by its reader. The body is Arrow IPC or another block of bytes, and is not copied: a
large one is received directly into a separate buffer, which then *is* the body.

Invariants of :class:`FrameReader`:

* The frames do not depend on the division of the received bytes.

* A frame's sizes are checked when its prefix is complete, before memory is allocated for it.

* Memory is allocated for at most one unfinished frame.

* A call yields at most ``FRAMES_AT_ONCE`` frames, however small they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec

MARK: Final = 0x4C49
"""The begin of each prefix, by which a peer with another protocol is detected."""
PREFIX: Final = struct.Struct("<HBBIII")  # mark, kind, flags, stream, header bytes, body bytes
END: Final = 1
"""The flag of a frame after which its sender sends no more on the stream."""
FRAMES_AT_ONCE: Final = 64
"""The maximum number of frames per call. A buffer of 256 KiB may hold 16,384, and others wait."""
SMALL_BYTES_MAX: Final = 64 << 10
"""A part of a frame up to this size is copied out of the buffer that it was received in."""

Bytes: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Bytes | tuple[Bytes, ...]
"""A body to send, in one or more parts that are written in order."""
Allocate = Callable[[int], bytearray | memoryview]
"""Makes a writable buffer of exactly this many bytes."""


class FrameKind(IntEnum):
    """The kind of a frame (see the table in ``docs/protocol.md``)."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    CREDIT = 4
    CANCEL = 5
    ERROR = 6
    PING = 7
    PONG = 8
    GOODBYE = 9


_KINDS: Final = {int(kind): kind for kind in FrameKind}


class RawFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame. ``header`` and ``body`` stay valid while they are referenced."""

    kind: FrameKind
    stream: int
    header: Bytes = b""
    body: Bytes = b""
    end: bool = False


class ProtocolError(Exception):
    """The peer broke the protocol, so the connection has to end.

    ``code`` is one of the codes in ``docs/protocol.md``. The peer gets it in GOODBYE.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def frame_bytes(
    kind: FrameKind, stream: int, header: Bytes = b"", body: Body = b"", *, end: bool = False
) -> list[Bytes]:
    """Return a frame as the buffers to write, in order. A large body is not copied."""
    header_bytes, body_bytes = memoryview(header).nbytes, nbytes_of(body)
    prefix = PREFIX.pack(MARK, kind, END if end else 0, stream, header_bytes, body_bytes)
    if body_bytes <= SMALL_BYTES_MAX:
        return [b"".join((prefix, header, *_parts(body)))]
    return [prefix + bytes(header), *filter(len, _parts(body))]


def nbytes_of(body: Body) -> int:
    """Return the size of a body."""
    if isinstance(body, tuple):
        return sum(map(nbytes_of, body))
    return memoryview(body).nbytes


def _parts(body: Body) -> tuple[Bytes, ...]:
    return body if isinstance(body, tuple) else (body,)


class FrameReader:
    """The division of received bytes into frames.

    ``header_bytes_max``, ``body_bytes_max``: larger frames are refused. ``allocate`` makes the
    buffers of large headers and bodies.
    """

    def __init__(
        self, header_bytes_max: int, body_bytes_max: int, allocate: Allocate = bytearray
    ) -> None:
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max
        self._allocate = allocate
        self._kept = b""  # received, and not yet a whole part, or not yet yielded
        self.has_more = False
        """Whether the last call left whole frames. Call :meth:`receive` again, without data."""
        self._prefix: tuple[FrameKind, bool, int, int, int] | None = None
        self._header: Bytes | None = None
        self._large: Bytes | None = None  # the large part that is being received
        self._view: memoryview | None = None  # the rest of it

    def raise_limits(self, header_bytes_max: int, body_bytes_max: int) -> None:
        """Accept larger frames after this call."""
        self._header_bytes_max = header_bytes_max
        self._body_bytes_max = body_bytes_max

    @property
    def is_between_frames(self) -> bool:
        """Whether no frame has begun to arrive."""
        return self._prefix is None and not self._kept

    @property
    def frame_bytes(self) -> int:
        """The whole size of the frame that is arriving, or 0 before its prefix is complete."""
        return 0 if self._prefix is None else PREFIX.size + self._prefix[3] + self._prefix[4]

    @property
    def target(self) -> memoryview | None:
        """The buffer for the next bytes: the rest of a large part, if one is arriving.

        After receiving into it, call :meth:`on_filled`. Without a target call :meth:`receive`.
        """
        return self._view

    def on_filled(self, count: int) -> Iterator[RawFrame]:
        """Continue after ``count`` bytes were received into :attr:`target`.

        Raises:
            ProtocolError: as :meth:`receive`.
        """
        assert self._view is not None
        assert self._large is not None
        self._view = self._view[count:]
        if not self._view.nbytes:
            part, self._large, self._view = self._large, None, None
            if (frame := self._frame_of(part)) is not None:
                yield frame
            self._prepare_large(memoryview(b""))

    def receive(self, data: Bytes) -> Iterator[RawFrame]:
        """Yield the frames that these bytes complete. The rest of ``data`` is copied.

        After ``FRAMES_AT_ONCE`` frames the rest is kept, and :attr:`has_more` is set.

        Raises:
            ProtocolError: not this protocol, an unknown kind, or a frame that is too large.
        """
        view, left, self.has_more = memoryview(data), FRAMES_AT_ONCE, False
        while self._view is not None and view.nbytes:
            count = min(view.nbytes, self._view.nbytes)
            self._view[:count] = view[:count]
            view = view[count:]
            yield from self.on_filled(count)
        if self._view is not None:
            return
        if self._kept:
            kept = self._kept + bytes(view) if view.nbytes else self._kept
            view, self._kept = memoryview(kept), b""
        while view.nbytes >= (wanted := self._part_bytes()):
            if not left:
                self._kept, self.has_more = bytes(view), True
                return
            part, view = bytes(view[:wanted]), view[wanted:]
            if (frame := self._frame_of(part)) is not None:
                left -= 1
                yield frame
        if not self._prepare_large(view):
            self._kept = bytes(view)

    def _prepare_large(self, begun: memoryview) -> bool:
        """Allocate the buffer of the next part if it is large. Return False if it is small.

        ``begun``: the first bytes of the part.
        """
        wanted = self._part_bytes()
        if self._prefix is None or wanted <= SMALL_BYTES_MAX:
            return False
        self._large = self._allocate(wanted)
        rest = memoryview(self._large)
        rest[: begun.nbytes] = begun
        self._view = rest[begun.nbytes :]
        return True

    def _part_bytes(self) -> int:
        """Return the size of the next part: a prefix, a header or a body."""
        if self._prefix is None:
            return PREFIX.size
        return self._prefix[3] if self._header is None else self._prefix[4]

    def _frame_of(self, part: Bytes) -> RawFrame | None:
        """Add the next part. Return the frame if that completes it."""
        if self._prefix is None:
            self._prefix = self._checked(part)
        elif self._header is None:
            self._header = part
        else:
            return self._whole(self._header, part)
        if self._header is None and self._prefix[3] == 0:
            self._header = b""
        if self._header is not None and self._prefix[4] == 0:
            return self._whole(self._header, b"")
        return None

    def _whole(self, header: Bytes, body: Bytes) -> RawFrame:
        assert self._prefix is not None
        kind, end, stream, _, _ = self._prefix
        self._prefix = self._header = None
        return RawFrame(kind, stream, header, body, end)

    def _checked(self, prefix: Bytes) -> tuple[FrameKind, bool, int, int, int]:
        mark, number, flags, stream, header_bytes, body_bytes = PREFIX.unpack(prefix)
        kind = _KINDS.get(number)
        if mark != MARK:
            raise ProtocolError("NOT_ISOLOG", "the peer does not speak isolog's protocol")
        if kind is None or flags & ~END:
            raise ProtocolError("UNKNOWN_FRAME", f"frame of kind {number} with flags {flags}")
        for what, size, limit in (
            ("header", header_bytes, self._header_bytes_max),
            ("body", body_bytes, self._body_bytes_max),
        ):
            if size > limit:
                raise ProtocolError(
                    "FRAME_TOO_LARGE",
                    f"a {kind.name} frame with a {what} of {size} bytes; at most {limit} are taken",
                )
        return kind, bool(flags & END), stream, header_bytes, body_bytes
