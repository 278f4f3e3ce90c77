"""An array of JSON objects as lines.

A file that is one array of objects is read in blocks that end between two elements, so memory does
not depend on its size. Each element becomes a line.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from spark_stream.cli.input.text_inputs import Bytes, Idle, after_line, blocks
from spark_stream.errors import InvalidRecord

_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_SPACE: Final = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_PLACE: Final = re.compile(r"\(byte (\d+)\)")

_DEPTHS: Final = np.zeros(256, np.int8)
"""The change of depth at each byte."""
_DEPTHS[[*b"[{"]] = 1
_DEPTHS[[*b"]}"]] = -1


def json_blocks(source: Bytes, idle: Idle) -> Iterator[bytes]:
    """Yield blocks of lines. If the input is one array, each of its elements becomes a line.

    Raises:
        InvalidRecord: the array is not JSON.
        RecordTooLarge: see :func:`blocks`.
    """
    ahead = _Ahead(source, idle)
    if not ahead.held.startswith(b"["):
        yield from blocks(ahead, after_line, idle)
        return
    cut = _BetweenElements()
    read = ahead.skipped
    for block in blocks(ahead, cut, idle):
        yield _lines(block, cut.is_last, read)
        read += len(block)


class _Ahead:
    """An input without BOM and leading space, whose first bytes were read to detect an array."""

    def __init__(self, source: Bytes, idle: Idle) -> None:
        self._source = source
        self.held = b""
        self.skipped = 0
        while not self.held:
            if not source.ready():
                idle(source.fileno())
            if not (data := source.read()):
                break
            self.held = data.removeprefix(BOM_UTF8).lstrip(_SPACE)
            self.skipped += len(data) - len(self.held)

    def read(self) -> bytes:
        data, self.held = self.held, b""
        return data or self._source.read()

    def ready(self) -> bool:
        return bool(self.held) or self._source.ready()

    def fileno(self) -> int | None:
        return self._source.fileno()

    def part(self) -> float | None:
        return self._source.part()


class _BetweenElements:
    """A :data:`Cut` of an array before a comma, so that a block starts with ``[`` or a comma."""

    def __init__(self) -> None:
        self.is_last = False
        """Whether the latest block contains the end of the array."""

    def __call__(self, held: bytearray, last: bool) -> int:
        self.is_last = last
        if last:
            return len(held)
        marks = np.frombuffer(held, np.uint8)
        in_text = np.cumsum(_quotes(marks), dtype=np.uint8) % 2 == 1
        changes = _DEPTHS[marks]
        changes[in_text] = 0
        depth = np.cumsum(changes, dtype=np.int32)
        commas = np.flatnonzero((marks == _COMMA) & ~in_text & (depth == changes[0]))
        return int(commas[-1]) if len(commas) else 0


def _quotes(marks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the mask of the unescaped quotes."""
    quotes: NDArray[np.bool_] = marks == _QUOTE
    slashes = np.flatnonzero(marks == _BACKSLASH)
    # In a run of backslashes each one escapes the next. The last of an odd number escapes a quote.
    starts = slashes[np.diff(slashes, prepend=-2) > 1]
    ends = slashes[np.diff(slashes, append=len(marks) + 1) > 1] + 1
    escaped = ends[(ends - starts) % 2 == 1]
    quotes[escaped[escaped < len(marks)]] = False
    return quotes


def _lines(block: bytes, is_last: bool, read: int) -> bytes:
    """Return the elements of a block as lines. ``read`` is the size of the input before it."""
    try:
        found = _ARRAY.decode(b"[" + block[1:] + (b"" if is_last else b"]"))
        if not (found or (is_last and block.startswith(b"["))):
            raise msgspec.DecodeError("a comma without an element (byte 0)")
    except (msgspec.DecodeError, RecursionError) as error:
        problem = _PLACE.sub(lambda place: f"(byte {read + int(place[1])})", str(error))
        raise InvalidRecord(
            f"invalid JSON array: {problem}",
            hint="Check that the file is one array of objects, or has one object on each line.",
        ) from None
    # A raw line feed within an element is between two tokens, because JSON allows none in a text.
    # No token contains a raw null character, so it can mark the end of an element.
    joined = b"\0".join([*found, b""])
    return joined.replace(b"\n", b" ").replace(b"\0", b"\n")
