"""The partition of a key: as Kafka's default, so that migrated jobs keep their partitions.

``partition = (murmur2(key) & 0x7fffffff) % partitions``, with murmur2 (32 bit, seed 0x9747b28c) as
Austin Appleby published it and Kafka's ``Utils.murmur2`` uses it. It is computed for a whole column
at once: the loops below are over blocks of rows, and four-byte steps of the longest key.

Keys of one length form a matrix, whose words are read in place. Keys of several lengths are copied
into a padded buffer, so that reading past the end of the last one is safe.
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
_WORD: Final = np.dtype("<u4")
_BLOCK_ROWS: Final = 8192  # intermediate results stay in the processor's cache
_CHUNK_WORDS: Final = 16  # words of a key that are gathered at once

Hashes = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.signedinteger]


def murmur2(keys: pa.Array) -> Hashes:
    """Return murmur2 of each key, shape (rows,); ``keys`` is a binary or string array.

    The hash of a null is meaningless.
    """
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    hashes: Hashes = np.zeros(len(keys), np.uint32)
    _, offsets_buffer, data = keys.buffers()
    if offsets_buffer is None:
        return hashes
    kind: type[np.signedinteger] = np.int64 if large else np.int32
    offsets = np.frombuffer(offsets_buffer, kind)
    offsets = offsets[keys.offset : keys.offset + len(keys) + 1]
    for row in range(0, len(keys), _BLOCK_ROWS):
        _hash_block(hashes[row : row + _BLOCK_ROWS], data, offsets[row : row + _BLOCK_ROWS + 1])
    return hashes


def _hash_block(hashes: Hashes, data: pa.Buffer | None, offsets: Offsets) -> None:
    lengths = np.diff(offsets)
    np.bitwise_xor(lengths.astype(np.uint32), _SEED, out=hashes)
    if data is not None and offsets[0] < offsets[-1]:
        if (lengths == lengths[0]).all():
            _mix_matrix(hashes, data, int(offsets[0]), int(lengths[0]))
        else:
            _mix_any(hashes, data, offsets, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)


def _mix_matrix(hashes: Hashes, data: pa.Buffer, start: int, length: int) -> None:
    """Mix in the bytes of keys of one length, which are contiguous from ``start`` on."""
    rows, words = len(hashes), length // 4
    matrix = np.ndarray((rows, words), _WORD, data, start, (length, 4))
    for step in range(words):
        hashes *= _M
        hashes ^= _scrambled(matrix[:, step])
    if length > 4 * words:
        rest = np.ndarray(
            (rows, length - 4 * words), np.uint8, data, start + 4 * words, (length, 1)
        )
        for byte in range(rest.shape[1]):
            hashes ^= rest[:, byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes *= _M


def _mix_any(hashes: Hashes, data: pa.Buffer, offsets: Offsets, lengths: Offsets) -> None:
    """Mix in the bytes of keys of any lengths; rows drop out as their keys end."""
    first, end = int(offsets[0]), int(offsets[-1])
    copied = np.zeros(end - first + 4 * _CHUNK_WORDS, np.uint8)  # each key is read to a chunk's end
    copied[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    starts = offsets[:-1].astype(np.int64) - first
    words = lengths >> 2
    most = int(words.max())
    rest: slice | npt.NDArray[np.int64] = slice(None)
    for done in range(0, most, _CHUNK_WORDS):
        if done:
            rest = np.flatnonzero(words > done)
        chunk = _gathered(copied, starts[rest] + 4 * done, min(_CHUNK_WORDS, most - done))
        hashes[rest] = _mix_chunk(hashes[rest], chunk, words[rest] - done)
    tails = lengths & 3
    last = _gathered(copied, starts + 4 * words, 1)[:, 0]
    hashes ^= last & _KEPT.take(tails)
    hashes *= _FACTOR.take(tails)


# By the number of bytes in a key's last, incomplete word: the mask of these bytes, and the factor
# of the hash after them. Without such bytes nothing is mixed in.
_KEPT: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_FACTOR: Final = np.array([1, _M, _M, _M], np.uint32)


def _gathered(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], words: int) -> Hashes:
    """Gather ``words`` words from each of these places on, shape (places, words).

    The words of a place are taken as one item, which is as fast as taking a byte.
    """
    size = 4 * words
    items = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    return items[places].view(_WORD).reshape(-1, words)


def _mix_chunk(hashes: Hashes, chunk: Hashes, words: npt.NDArray[np.integer]) -> Hashes:
    """Mix in as many of the chunk's words as each row still has."""
    for step in range(chunk.shape[1]):
        mixed = hashes * _M
        mixed ^= _scrambled(chunk[:, step])
        hashes = np.where(words > step, mixed, hashes)
    return hashes


def _scrambled(words: Hashes) -> Hashes:
    """Scramble words, as a step of the algorithm, before they are mixed into the hash."""
    found = words * _M
    found ^= found >> _R
    found *= _M
    return found


def partitions_of(keys: pa.Array, partitions: int, keyless: int) -> npt.NDArray[np.int32]:
    """Return the partition of each record; those with a null key all go to ``keyless``."""
    if keys.null_count == len(keys):
        return np.full(len(keys), keyless, np.int32)
    hashes = murmur2(keys)
    found = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        found[pc.is_null(keys).to_numpy(zero_copy_only=False)] = keyless
    return found
