"""The digest of earlier releases, which is compared with their records."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_stream.datasource.values.content import Measure
from spark_stream.datasource.values.earlier_content import measure_by_column

MASK = (1 << 64) - 1


def digest(found: pa.Array) -> int:
    return measure_by_column(pa.record_batch({"c": found})).digest


def test_the_digest_is_the_same_in_every_release() -> None:
    """It is stored: a changed digest would refuse an identical replay."""
    batch = pa.record_batch(
        {
            "n": pa.array([1, None, 3]),
            "t": pa.array(["a", "", "a longer text"]),
            "f": pa.array([0.5, float("nan"), -0.0]),
        }
    )
    assert measure_by_column(batch) == Measure(3, 4187153750280040531, 1444823975401610425)


def plain_sum(name: str, texts: list[bytes]) -> int:
    """The digest of a column of texts, value by value."""

    def scrambled(value: int) -> int:
        value = value * 0x9E3779B97F4A7C15 & MASK
        return value ^ value >> 32

    def piece(number: int, text: bytes) -> int:
        found = len(text) + number * 512 * 8
        for at in range(0, len(text), 8):
            word = text[at : at + 8].rjust(8, b"\0")
            found = (found ^ int.from_bytes(word, "little")) * 0x9E3779B97F4A7C15 & MASK
        return scrambled(found)

    def factor(part: str) -> int:
        scheme = hashlib.blake2b(f"{name}/{part}".encode(), digest_size=8)
        return int.from_bytes(scheme.digest(), "little") | 1

    lengths = sum(scrambled(len(text)) for text in texts)
    pieces = sum(
        piece(number, text[at : at + 512])
        for text in texts
        for number, at in enumerate(range(0, len(text), 512))
    )
    return (lengths * factor("lengths") + pieces * factor("pieces")) & MASK


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize(
    "lengths",
    [
        *([n] for n in (1, 7, 8, 9, 63, 64, 65, 100, 511, 512, 513, 2000)),
        range(20),
        range(0, 200, 3),
        range(500, 530),
        (0, 0, 5, 1100, 64),
    ],
    ids=str,
)
def test_digest_of_texts_equals_that_of_a_plain_loop(
    kind: pa.DataType, lengths: Sequence[int]
) -> None:
    chance = random.Random(7)
    texts = [chance.randbytes(length) for length in lengths] * (1 + 9000 // (500 * len(lengths)))
    column = pa.array([b"before", *texts, b"behind"], kind).slice(1, len(texts))
    assert digest(column) == plain_sum("c", texts)
    exact = pa.array(texts, kind)  # nothing lies behind the last of them
    assert digest(exact) == plain_sum("c", texts)


def test_digest_continues_over_blocks_of_rows() -> None:
    texts = [b"%010d" % number for number in range(9000)]
    texts[4096] = b"another length"
    assert digest(pa.array(texts)) == plain_sum("c", texts)
