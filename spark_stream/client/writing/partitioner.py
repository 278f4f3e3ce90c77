"""Which partition a key goes to: Kafka's default, so a job that moves over keeps its partitions.

``partition = (murmur2(key) & 0x7fffffff) % partitions``, with murmur2 (32 bit, seed 0x9747b28c) as
Austin Appleby published it and Kafka's ``Utils.murmur2`` uses it. It is computed for a whole column
at once: the loop below is over four-byte steps of the longest key, never over rows. Rows of one
length class drop out as their keys end.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)

Hashes = npt.NDArray[np.uint32]


def murmur2(keys: pa.Array) -> Hashes:
    """murmur2 of each key; ``keys`` is a binary or string array without nulls, shape (rows,)."""
    if pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type):
        offset_type: type[np.signedinteger] = np.int64
    else:
        offset_type = np.int32
    rows = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    if rows == 0 or offsets_buffer is None:
        return np.zeros(rows, np.uint32)
    offsets = np.frombuffer(offsets_buffer, offset_type)[keys.offset : keys.offset + rows + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = (offsets[1:] - offsets[:-1]).astype(np.int64)
    # Three bytes of padding let the last word of the last key be read as a word.
    data = np.frombuffer((data_buffer.to_pybytes() if data_buffer else b"") + b"\0\0\0\0", np.uint8)
    with np.errstate(over="ignore"):
        hashes = _SEED ^ lengths.astype(np.uint32)
        words = lengths // 4
        for step in range(int(words.max())):
            rest = np.flatnonzero(words > step)
            k = _word(data, starts[rest] + 4 * step) * _M
            k = (k ^ (k >> _R)) * _M
            hashes[rest] = (hashes[rest] * _M) ^ k
        tails = lengths - 4 * words
        rest = np.flatnonzero(tails)
        if len(rest):
            kept = np.uint32(0xFFFFFFFF) >> (np.uint32(32) - 8 * tails[rest].astype(np.uint32))
            last = _word(data, starts[rest] + 4 * words[rest]) & kept
            hashes[rest] = (hashes[rest] ^ last) * _M
        hashes = (hashes ^ (hashes >> np.uint32(13))) * _M
    return hashes ^ (hashes >> np.uint32(15))


def _word(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Hashes:
    """The little-endian 32-bit word at each of these places."""
    word = data[at].astype(np.uint32)
    for byte in (1, 2, 3):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def partitions_of(keys: pa.Array, partitions: int, keyless: int) -> npt.NDArray[np.int32]:
    """The partition of each record; those with a null key all go to ``keyless``."""
    if keys.null_count == len(keys):
        return np.full(len(keys), keyless, np.int32)
    nulls = pc.is_null(keys).to_numpy(zero_copy_only=False)
    hashes = murmur2(keys.fill_null(b"" if not pa.types.is_string(keys.type) else ""))
    found = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    found[nulls] = keyless
    return found
