"""The digest of a batch as earlier releases recorded it: a sum over each column by itself.

It ignores which values are in one row, so it is no longer recorded. A batch that was committed by
the previous release may be replayed by this one: its record is compared with this digest (decision
186). It can be removed two releases later.

* A fixed-width value counts whole. A text is hashed in pieces of 512 bytes, each byte at its place.
* Floating-point values have a separate digest, of their exact bits. All NaNs count as one, and
  -0.0 counts as 0.0.
* Each column has a factor from its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_stream.datasource.values.content import Measure

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
_MASK: Final = (1 << 64) - 1
_FLOATS: Final = "/floats"  # ends the name of a part whose values are floating-point numbers
_WORD: Final = 8
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(32)
_EIGHT: Final = np.uint64(8)
_PIECE: Final = 512  # bytes of a text that are hashed as one, a word a pass: this limits the passes
_CHUNK: Final = 64  # bytes of a text that are gathered together
_BLOCK_ROWS: Final = 4096  # intermediate values then stay in the processor's cache


def measure_by_column(batch: pa.RecordBatch) -> Measure:
    """Return the measure of a batch as earlier releases recorded it."""
    digest = floats = 0
    for field, column in zip(batch.schema, batch.columns, strict=True):
        for name, value in _sums(field.name, column):
            if name.endswith(_FLOATS):
                floats += value * _factor(name)
            else:
                digest += value * _factor(name)
    return Measure(batch.num_rows, digest & _MASK, floats & _MASK)


def _sums(name: str, column: Any) -> Iterator[tuple[str, int]]:
    """Yield the parts of a column by name, and a sum over each."""
    yield f"{name}/null", column.null_count
    if column.null_count:
        column = column.drop_null()  # the bytes under a null are arbitrary
    kind = column.type
    if pa.types.is_null(kind) or not len(column):
        return
    if pa.types.is_struct(kind):
        for field, child in zip(kind, column.flatten(), strict=True):
            yield from _sums(f"{name}.{field.name}", child)
    elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _nested(name, column)
    elif pa.types.is_boolean(kind):
        yield f"{name}/true", column.true_count
    elif pa.types.is_floating(kind):
        yield f"{name}{_FLOATS}", _scrambled(_bits(column))
    elif _is_text(kind):
        yield from _text(name, column)
    else:
        yield from _fixed(name, column)


def _nested(name: str, column: Any) -> Iterator[tuple[str, int]]:
    ends = column.offsets.to_numpy(zero_copy_only=False)
    yield f"{name}/lengths", _scrambled(np.diff(ends))
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    if pa.types.is_map(column.type):
        yield from _sums(f"{name}.key", column.keys.slice(first, count))
        yield from _sums(f"{name}.value", column.items.slice(first, count))
    else:
        yield from _sums(f"{name}.item", column.values.slice(first, count))


def _fixed(name: str, column: Any) -> Iterator[tuple[str, int]]:
    width = column.type.bit_width // 8
    data = column.buffers()[1]
    start = column.offset * width
    values = np.frombuffer(data, np.uint8, len(column) * width, start)
    if width <= _WORD and width & (width - 1) == 0:
        yield f"{name}/values", _scrambled(values.view(f"<i{width}"))
        return
    words = values.reshape(len(column), width)  # decimals: 16 or 32 bytes
    for at in range(0, width, _WORD):
        part = np.ascontiguousarray(words[:, at : at + _WORD])
        if part.shape[1] == _WORD:
            yield f"{name}/values {at}", _scrambled(part.view("<u8")[:, 0])
        else:
            yield f"{name}/values {at}", int(part.sum(dtype=np.uint64))


def _bits(column: Any) -> npt.NDArray[Any]:
    """Return the bits of floating-point values, the same for values that Spark takes for equal.

    The bytes are in reverse order: a number with a few digits has its only bits at the upper end,
    where scrambling would leave them.
    """
    width = column.type.bit_width // 8
    start = column.offset * width
    values = np.frombuffer(column.buffers()[1], f"<f{width}", len(column), start) + 0  # no -0.0
    values[np.isnan(values)] = np.nan
    return values.view(f">i{width}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def _text(name: str, column: Any) -> Iterator[tuple[str, int]]:
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    width = 8 if large else 4
    ends = np.frombuffer(offsets, f"<i{width}", len(column) + 1, column.offset * width)
    lengths = np.diff(ends)
    yield f"{name}/lengths", _scrambled(lengths)
    if not lengths.any():
        return
    found = 0
    for row in range(0, len(lengths), _BLOCK_ROWS):
        edges = ends[row : row + _BLOCK_ROWS + 1]
        found += _pieces(data, edges, lengths[row : row + _BLOCK_ROWS])
    yield f"{name}/pieces", found & _MASK


def _pieces(data: pa.Buffer, edges: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> int:
    """Sum the hashes of all pieces of the texts that lie between the edges.

    Each byte counts with its place in its piece, and with the number of that piece in its text.
    """
    length = int(lengths[0])
    if _WORD <= length <= _PIECE and (lengths == length).all():
        hashes = np.full(len(lengths), length, np.uint64)
        _mix_matrix(hashes, data, int(edges[0]), length)
        return _scrambled(hashes)
    first, end = int(edges[0]), int(edges[-1])
    copied = np.zeros(end - first + _CHUNK, np.uint8)  # a text is read to the end of a chunk
    copied[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    starts, lengths = edges[:-1].astype(np.int64) - first, lengths.astype(np.int64)
    numbers: Any = 0
    if lengths.max() > _PIECE:
        counts = -(-lengths // _PIECE)
        text = np.repeat(np.arange(len(lengths)), counts)
        numbers = np.arange(len(text)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = starts[text] + numbers * _PIECE
        lengths = np.minimum(lengths[text] - numbers * _PIECE, _PIECE)
    hashes = (lengths + numbers * _PIECE * _WORD).astype(np.uint64)
    _mix_any(hashes, copied, starts, lengths)
    return _scrambled(hashes)


def _mix_matrix(hashes: _Words, data: pa.Buffer, start: int, length: int) -> None:
    """Mix in texts of one length, which are stored in sequence from ``start`` on."""
    whole, left = divmod(length, _WORD)
    for at in range(0, whole * _WORD, _WORD):
        hashes ^= np.ndarray(len(hashes), "<u8", data, start + at, (length,))
        hashes *= _MIX
    if left:
        last = np.ndarray(len(hashes), "<u8", data, start + length - _WORD, (length,))
        hashes ^= last & np.uint64(_MASK << 8 * (_WORD - left) & _MASK)
        hashes *= _MIX


def _mix_any(
    hashes: _Words, data: npt.NDArray[np.uint8], starts: _Places, lengths: _Places
) -> None:
    """Mix texts of different lengths into ``hashes``, up to 64 bytes of each text in each pass.

    A text that has ended is in no later pass.
    """
    live: Any = slice(None)
    for done in range(0, int(lengths.max()), _CHUNK):
        if done:
            live = np.flatnonzero(lengths > done)
        left = lengths[live] - done
        shortest, longest = int(left.min()), min(int(left.max()), _CHUNK)
        items = np.ndarray(len(data) - _CHUNK + 1, f"V{_CHUNK}", data, strides=(1,))
        words = items[starts[live] + done].view("<u8").reshape(-1, _CHUNK // _WORD)
        found = hashes[live]
        for at in range(0, longest, _WORD):
            word = words[:, at // _WORD]
            if shortest >= at + _WORD:  # every text has a whole word here
                found ^= word
                found *= _MIX
                continue
            bytes_left = np.clip(left - at, 0, _WORD)
            shift = (_WORD - np.maximum(bytes_left, 1)).astype(np.uint64) * _EIGHT
            found = np.where(bytes_left > 0, (found ^ (word << shift)) * _MIX, found)
        hashes[live] = found


def _scrambled(values: np.ndarray) -> int:
    """Sum the values, each scrambled, so that {1, 4} and {2, 3} have different sums."""
    words: _Words = values.astype(np.uint64)  # a copy, negative numbers in two's complement
    words *= _MIX
    words ^= words >> _SHIFT
    return int(words.sum(dtype=np.uint64))


@lru_cache(maxsize=4096)
def _factor(name: str) -> int:
    """Return an odd number for a part of a column, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") | 1
