"""Varints of Kafka's records: zigzag integers in groups of seven bits, the lowest first."""

from __future__ import annotations

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
    sizes = np.ones(len(unsigned), np.int64)
    rest = unsigned.view(np.uint64) >> np.uint64(7)
    while rest.any():
        sizes += rest > 0
        rest >>= np.uint64(7)
    return sizes


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
