"""The content of a batch in a few bytes: rows and digests by topic, to recognise a replay.

A replayed micro-batch has the same rows, though Spark may put them in another order, or into other
tasks. So the digest is a sum modulo 2^64 of the rows' hashes. A row's hash is a sum of its values'
hashes, mixed once more, so the digest depends on the values that are in one row (decision 186).

* Each column, and each part of a nested type, has a key from its name. Two columns with the same
  value have different hashes, and the order of the columns does not matter.
* A null adds nothing to its row. So a column or a field of a struct without values does not count.
* A number counts by its value, not by its type: integers and floats, and decimals of any places.
  All NaNs are one, and -0.0 is 0.0. So a topic may be altered between a batch and its replay.
* There are two digests: of all values, and of those that are not floating-point numbers. A query
  that sums floats may get another last digit each time, since Spark adds in another order. Then
  only the first one differs (decision 186).

``earlier_content`` has the digest of earlier releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

_Words = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.int64]
_MASK: Final = (1 << 64) - 1
_WORD: Final = 8
_BLOCK: Final = 1 << 14  # intermediate values then stay in the cache of the processor
_BLOCK_BYTES: Final = 1 << 20
_PIECE: Final = 512  # bytes of a text that are hashed as one, a word a pass: this limits the passes
_CHUNK: Final = 64  # bytes of a text that are gathered together
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_PLACE: Final = np.uint64(0xD1B54A32D192ED03)
_LENGTH: Final = np.uint64(0xABC98388FB8FAC03)
_HALF: Final = np.uint64(32)
_EXPONENT: Final = np.uint64(52)
_TAILS: Final = np.array([_MASK << 8 * (_WORD - n) & _MASK for n in range(_WORD + 1)], np.uint64)


class Measure(Struct, frozen=True):
    """Rows, and digests of their values. Measures of parts add up to that of the whole.

    ``floats`` is the digest of all values, ``digest`` that of all but floating-point values.
    """

    rows: int = 0
    digest: int = 0
    floats: int = 0

    def __add__(self, other: Measure) -> Measure:
        return Measure(
            self.rows + other.rows,
            (self.digest + other.digest) & _MASK,
            (self.floats + other.floats) & _MASK,
        )


class Replays(StrEnum):
    """The reaction to a replayed batch that differs from the committed one."""

    FAIL = "fail"
    IGNORE_FLOATS = "ignoreFloats"
    KEEP = "keep"


def sum_measures(parts: Iterable[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Add up the measures of all parts, by topic. Topics without rows are left out."""
    whole: dict[str, Measure] = {}
    for part in parts:
        for topic, each in part.items():
            whole[topic] = whole.get(topic, Measure()) + each
    return {topic: each for topic, each in sorted(whole.items()) if each.rows}


def measure(batch: pa.RecordBatch) -> Measure:
    """Return the measure of a batch."""
    rows = _Hashes(batch.num_rows)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        rows.add(field.name, column)
    digests = [int(_mixed(lane).sum(dtype=np.uint64)) for lane in rows.lanes()]
    return Measure(batch.num_rows, digests[0], digests[-1])


class _Hashes:
    """The hashes of rows, or of the items of lists: sums over the values in each of them."""

    def __init__(self, rows: int) -> None:
        self._plain = np.zeros(rows, np.uint64)
        self._floats: _Words | None = None
        self._constant = 0
        """Is added to each row: from columns without nulls."""

    def lanes(self) -> list[_Words]:
        """Return the hashes without floating-point values, then those with them if there are any.

        Call it once, after all columns were added.
        """
        self._plain += np.uint64(self._constant & _MASK)
        return [self._plain] if self._floats is None else [self._plain, self._plain + self._floats]

    def add(self, name: str, column: Any) -> None:
        """Add the values of a column. ``name`` is its path, for nested columns."""
        column = _decoded(column)
        if column.null_count == len(column):
            return
        kind, key, valid = column.type, _key(name), _validity(column)
        if pt.is_struct(kind):
            self._add_presence(key, valid)
            for field, child in zip(kind, column.flatten(), strict=True):
                self.add(f"{name}\0{field.name}", child)
        elif pt.is_map(kind) or pt.is_list(kind) or pt.is_large_list(kind):
            self._add_lists(name, column, key, valid)
        elif pt.is_floating(kind):
            self._add_presence(key, valid)
            _add_values(self._lane_of_floats(), _floats(column), key, valid, less=key.factor)
        else:
            mixed = _is_text(kind)
            _add_values(self._plain, _loader(kind)(column), key, valid, mixed=mixed)

    def _lane_of_floats(self) -> _Words:
        if self._floats is None:
            self._floats = np.zeros(len(self._plain), np.uint64)
        return self._floats

    def _add_presence(self, key: _Key, valid: _Words | None) -> None:
        """Add a constant for each value that is not null."""
        if valid is None:
            self._constant += int(key.factor)
        else:
            self._plain += valid * key.factor

    def _add_lists(self, name: str, column: Any, key: _Key, valid: _Words | None) -> None:
        ends = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        items = _Hashes(count)
        in_order = not pt.is_map(column.type)
        if in_order:
            items.add(f"{name}\0item", column.values.slice(first, count))
        else:
            items.add(f"{name}\0key", column.keys.slice(first, count))
            items.add(f"{name}\0value", column.items.slice(first, count))
        lanes = [_sums(lane, ends - first, in_order=in_order) for lane in items.lanes()]
        _add_values(self._plain, [lanes[0]], key, valid, mixed=True)
        if len(lanes) > 1:
            less = lanes[0]  # hashed by the call above
            _add_values(self._lane_of_floats(), [lanes[1]], key, valid, mixed=True, less=less)


class _Key(Struct, frozen=True):
    """The key of a column, or of a part of it: the same in each process."""

    salt: np.uint64
    factor: np.uint64


@lru_cache(maxsize=4096)
def _key(name: str) -> _Key:
    found = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=2 * _WORD).digest()
    salt, factor = (int.from_bytes(found[at : at + _WORD], "little") for at in (0, _WORD))
    return _Key(np.uint64(salt), np.uint64(factor | 1))


def _add_values(
    lane: _Words,
    blocks: Iterable[_Words],
    key: _Key,
    valid: _Words | None,
    *,
    mixed: bool = False,
    less: _Words | np.uint64 | None = None,
) -> None:
    """Add the hashes of the blocks of words to the lane. Replace the words by their hashes.

    ``mixed``: the lower bits of a word depend on the whole value. ``less``: the part of the
    hashes that is in the other lane.
    """
    start = 0
    for words in blocks:
        end = start + len(words)
        if not mixed:
            _fold(words)  # a product leaves the lower bits of a value with zeros there
        words += key.salt
        words *= key.factor
        if less is not None:
            words -= less
        if valid is not None:
            words *= valid[start:end]
        lane[start:end] += words
        start = end


def _fold(words: _Words) -> None:
    """Mix the upper halves into the lower ones, in place."""
    halves = words.view(np.uint32)
    halves[::2] ^= halves[1::2]


def _mixed(words: _Words) -> _Words:
    """Mix each word in place, so that sums of words depend on each of them. Return the words."""
    _fold(words)
    words *= _MIX
    _fold(words)
    return words


def _sums(words: _Words, ends: _Places, *, in_order: bool) -> _Words:
    """Return the sum of the mixed words between the ends, for each list. Changes the words."""
    if in_order:
        before = ends[:-1].astype(np.uint64) * _PLACE
        words += np.arange(1, len(words) + 1, dtype=np.uint64) * _PLACE
        words -= np.repeat(before, np.diff(ends))
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(_mixed(words), out=sums[1:])
    return np.diff(sums[ends])


def _decoded(column: Any) -> Any:
    """Return the column in one of the forms whose values are hashed."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _decoded(column.storage)
    if pt.is_dictionary(kind):
        return _decoded(column.dictionary_decode())
    if pt.is_run_end_encoded(kind):
        return _decoded(pc.run_end_decode(column))
    if pt.is_fixed_size_list(kind) or pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return column.cast(pa.large_list(kind.value_field))
    if pt.is_string_view(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return column.cast(pa.large_binary())
    if pt.is_decimal256(kind):
        return column.cast(pa.string())
    if pt.is_decimal(kind):
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    if pt.is_interval(kind):
        return _decoded(column.view(pa.binary(kind.bit_width // 8)))
    return column


def _validity(column: Any) -> _Words | None:
    """Return 1 for each value and 0 for each null, or None without nulls."""
    if not column.null_count:
        return None
    return _bits(column, 0).astype(np.uint64)


def _bits(column: Any, buffer: int) -> npt.NDArray[np.uint8]:
    packed = np.frombuffer(column.buffers()[buffer], np.uint8)
    start = column.offset
    found = np.unpackbits(packed, count=start + len(column), bitorder="little")
    return found[start:]


def _fixed(column: Any, kind: str, width: int) -> Iterator[npt.NDArray[Any]]:
    """Yield blocks of fixed-width values, ``width`` of this kind for each row."""
    size = np.dtype(kind).itemsize * width
    values = np.frombuffer(
        column.buffers()[1], kind, len(column) * width, column.offset * size
    ).reshape(-1, width)
    for start in range(0, len(values), _BLOCK):
        yield values[start : start + _BLOCK]


# -- blocks of words, from the values of a column -------------------------------------------------


def _loader(kind: pa.DataType) -> Callable[[Any], Iterator[_Words]]:
    if pt.is_boolean(kind):
        return _booleans
    if pt.is_decimal(kind):
        return _decimals
    return _texts if _is_text(kind) else _integers


def _is_text(kind: pa.DataType) -> bool:
    small = pt.is_string(kind) or pt.is_binary(kind)
    return bool(small or pt.is_large_string(kind) or pt.is_large_binary(kind))


def _booleans(column: Any) -> Iterator[_Words]:
    yield _bits(column, 1).astype(np.uint64)


def _integers(column: Any) -> Iterator[_Words]:
    kind = "u" if pt.is_unsigned_integer(column.type) else "i"
    for values in _fixed(column, f"<{kind}{column.type.bit_width // 8}", 1):
        yield values[:, 0].astype(np.uint64)  # negative numbers in two's complement


def _floats(column: Any) -> Iterator[_Words]:
    """Yield integral numbers as integers have them, and the bits of other doubles."""
    for values in _fixed(column, f"<f{column.type.bit_width // 8}", 1):
        doubles = values[:, 0].astype(np.float64)
        with np.errstate(invalid="ignore"):  # NaN, infinity, too large numbers
            whole = doubles.astype(np.int64)
        integral = whole.astype(np.float64) == doubles
        if np.isnan(doubles.max()):
            doubles[np.isnan(doubles)] = np.nan
        words = doubles.view(np.uint64)
        np.copyto(words, whole.view(np.uint64), where=integral)
        yield words


def _decimals(column: Any) -> Iterator[_Words]:
    """Yield words that are the same for a value with more or fewer places.

    A number of units of 10^-scale is ``odd * 2^zeros * 5^-scale * 2^-scale``. More places change
    neither ``odd * 5^-scale``, of which 64 bits count, nor ``zeros - scale``.
    """
    scale = column.type.scale
    fives = np.uint64(pow(5, -scale, 1 << 64))
    for units in _fixed(column, "<u8", 2):
        low, high = units[:, 0], units[:, 1]
        above = low == 0
        if above.any():
            sign = (high.view(np.int64) >> np.int64(63)).view(np.uint64)
            low, high = np.where(above, high, low), np.where(above, sign, high)
        lowest = np.maximum(low & (~low + np.uint64(1)), np.uint64(1))
        zeros = (lowest.astype(np.float64).view(np.uint64) >> _EXPONENT) - np.uint64(1023)
        words = (low >> zeros) | (high << (np.uint64(64) - zeros))
        words *= fives
        zeros += above * np.uint64(64) - np.uint64(scale & _MASK)
        zeros *= low != 0
        words += zeros * _PLACE
        yield words


def _texts(column: Any) -> Iterator[_Words]:
    large = pt.is_large_string(column.type) or pt.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    width = 8 if large else 4
    ends = np.frombuffer(offsets, f"<i{width}", len(column) + 1, column.offset * width)
    size = max(1, (int(ends[-1]) - int(ends[0])) // len(column))
    rows = min(max(_BLOCK_BYTES // size, 1), _BLOCK)
    for start in range(0, len(column), rows):
        yield _text_hashes(data, ends[start : start + rows + 1].astype(np.int64))


def _text_hashes(data: pa.Buffer, edges: _Places) -> _Words:
    """Hash the texts between the edges. A text is a number: it may begin with any zeros.

    The length makes the difference.
    """
    lengths = np.diff(edges)
    shortest, longest = int(lengths.min()), int(lengths.max())
    hashes = np.zeros(len(lengths), np.uint64)
    if _WORD <= shortest == longest <= _PIECE:
        _mix_matrix(hashes, data, int(edges[0]), longest)
        hashes += np.uint64(longest * int(_LENGTH) & _MASK)
        return hashes
    if 0 < longest <= _PIECE:
        _mix_any(hashes, data, edges[:-1], lengths)
    elif longest:
        counts = np.maximum(-(-lengths // _PIECE), 1)
        ends = np.concatenate([[0], np.cumsum(counts)])
        text = np.repeat(np.arange(len(lengths)), counts)
        before = (np.arange(len(text)) - ends[text]) * _PIECE
        pieces = np.zeros(len(text), np.uint64)
        _mix_any(pieces, data, edges[text] + before, np.minimum(lengths[text] - before, _PIECE))
        hashes = pieces[ends[:-1]]
        np.copyto(hashes, _sums(pieces, ends, in_order=True), where=counts > 1)
    hashes += lengths.astype(np.uint64) * _LENGTH
    return hashes


def _mix_words(hashes: _Words, rounds: Iterable[_Words]) -> None:
    """Mix a word into each hash, in each round."""
    halves = hashes.view(np.uint32)
    lower, upper = halves[::2], halves[1::2]
    for words in rounds:
        hashes ^= words
        hashes *= _MIX
        lower ^= upper


def _mix_matrix(hashes: _Words, data: pa.Buffer, start: int, length: int) -> None:
    """Mix in texts of one length, which are stored in sequence from ``start`` on."""
    whole, first = divmod(length, _WORD)
    if first:
        words = np.ndarray(len(hashes), "<u8", data, start, (length,))
        _mix_words(hashes, [words << np.uint64(8 * (_WORD - first))])
    shape, steps = (whole, len(hashes)), (_WORD, length)
    _mix_words(hashes, np.ndarray(shape, "<u8", data, start + first, steps))


def _mix_any(hashes: _Words, data: pa.Buffer, starts: _Places, lengths: _Places) -> None:
    """Mix in texts of any lengths, a chunk of each together, so that all end with the last word.

    The words before a text are zeros, which leave its hash at zero.
    """
    first, stops = int(starts[0]), starts + lengths
    size, longest = int(stops[-1]) - first, int(lengths.max())
    width = min(1 << max(3, (longest - 1).bit_length()), _CHUNK)
    copied = np.zeros(width + size, np.uint8)  # a text is read from the begin of a chunk
    copied[width:] = np.frombuffer(data, np.uint8, size, first)
    chunks = np.ndarray(size + 1, f"V{width}", copied, strides=(1,))
    for behind in range((longest - 1) // width * width, -1, -width):
        live: Any = np.flatnonzero(lengths > behind) if behind else slice(None)
        words = chunks[np.maximum(stops[live] - (first + behind), 0)].view("<u8")
        words = words.reshape(-1, width // _WORD)
        left = lengths[live] - behind
        shortest, found = int(left.min()), hashes[live]
        for at in range(width - -(-min(longest - behind, width) // _WORD) * _WORD, width, _WORD):
            word, tail = words[:, at // _WORD], width - at - _WORD
            if shortest < tail + _WORD:
                word = word & _TAILS[np.clip(left - tail, 0, _WORD)]
            _mix_words(found, [word])
        hashes[live] = found
