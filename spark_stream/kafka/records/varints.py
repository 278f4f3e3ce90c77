"""Varints of Kafka's records: zigzag integers in groups of seven bits, the lowest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_stream.kafka.refusals import CorruptBatch

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

VARINT_BYTES: Final = 5
"""The most bytes of an integer of 32 bits."""

VARLONG_BYTES: Final = 10
"""The most bytes of an integer of 64 bits."""


def read_varints(data: Bytes, at: Ints, most: int = VARINT_BYTES) -> tuple[Ints, Ints]:
    """Read a varint at each place. Return the values, and the places after them.

    Raises:
        CorruptBatch: A varint is longer than ``most`` bytes, or ends after the data.
    """
    _check_inside(data, at)
    byte = data[at]
    value = (byte & 127).astype(np.int64)
    at = at + 1
    more = np.flatnonzero(byte & 128)
    shift = 7
    while len(more):
        if shift >= 7 * most:
            raise CorruptBatch(f"a varint is longer than {most} bytes")
        places = at[more]
        _check_inside(data, places)
        byte = data[places]
        value[more] |= (byte & np.uint8(127)).astype(np.int64) << shift
        at[more] = places + 1
        more = more[byte >= 128]
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _check_inside(data: Bytes, at: Ints) -> None:
    if len(at) and (int(at.min()) < 0 or int(at.max()) >= len(data)):
        raise CorruptBatch("a record ends after its batch")


def read_varint(data: memoryview, at: int, most: int = VARINT_BYTES) -> tuple[int, int]:
    """Read one varint as :func:`read_varints`."""
    value = shift = 0
    for place in range(at, at + most):
        if not 0 <= place < len(data):
            raise CorruptBatch("a record ends after its batch")
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise CorruptBatch(f"a varint is longer than {most} bytes")


def zigzag(values: Ints) -> Ints:
    """Return the unsigned values that varints store."""
    found: Ints = (values << 1) ^ (values >> 63)
    return found


def varint_sizes(unsigned: Ints) -> Ints:
    """Return the number of bytes of each varint. ``unsigned``: results of :func:`zigzag`."""
    rest = unsigned.view(np.uint64)
    least, greatest = _extremes(rest)
    sizes = np.full(len(unsigned), least, np.int64)
    for size in range(least, greatest):
        sizes += rest >> np.uint64(7 * size) > 0
    return sizes


def _extremes(unsigned: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Return the least and the greatest number of bytes of these varints."""
    if not len(unsigned):
        return 1, 1
    return _size(int(unsigned.min())), _size(int(unsigned.max()))


def _size(unsigned: int) -> int:
    return max(1, -(-unsigned.bit_length() // 7))


def pack_varints(count: int, parts: Sequence[Ints | None]) -> tuple[Ints, Bytes] | None:
    """Join the varints of each row. Return the ends of the rows, and their bytes.

    Return None if a row may have more than 8 bytes, or a varint more than 4: each row is built in
    a word. For a byte of zero, a part is None.
    """
    words, at, most = np.zeros(count, np.uint64), np.zeros(1, np.uint64), 0
    for part in parts:
        values = np.zeros(1, np.uint64) if part is None else part.view(np.uint64)
        least, greatest = _extremes(values)
        most += greatest
        if greatest > len(_CONTINUED) or most > _WORD_BYTES:
            return None
        found = values & np.uint64(127)
        for group in range(1, greatest):
            found |= (values & np.uint64(127 << 7 * group)) << np.uint64(group)
        sizes = np.full(1, least) if least == greatest else varint_sizes(values.view(np.int64))
        found |= _CONTINUED[sizes - 1]
        words |= found << at
        at = at + (sizes * 8).astype(np.uint64)
    sizes = np.broadcast_to((at // np.uint64(8)).astype(np.int64), count)
    table = words.astype("<u8").view(np.uint8).reshape(count, _WORD_BYTES)
    if len(at) == 1:
        return np.cumsum(sizes), table[:, : int(sizes[0]) if count else 0].ravel()
    return np.cumsum(sizes), table[np.arange(_WORD_BYTES) < sizes[:, None]]


_WORD_BYTES: Final = 8
_CONTINUED: Final = np.array([0, 0x80, 0x8080, 0x808080], np.uint64)
"""The bits of the bytes that are not the last one, for varints of 1 to 4 bytes."""


def varint_columns(unsigned: Ints) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Return the bytes of each varint as a row, and which of them are used."""
    sizes = varint_sizes(unsigned)
    width = int(sizes.max()) if len(sizes) else 1
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    groups = ((unsigned.view(np.uint64)[:, None] >> shifts) & np.uint64(127)).astype(np.uint8)
    place = np.arange(width)
    groups[place < (sizes[:, None] - 1)] |= 128
    return groups, place < sizes[:, None]


def put_varint(out: bytearray, value: int) -> None:
    """Append the varint of one integer."""
    rest = (value << 1) ^ (value >> 63)
    while rest >= 128:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
