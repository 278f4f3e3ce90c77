"""The digest of a batch's content: the same for the same rows, however they come."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_stream.datasource.values.content import Measure, measured, summed

ROWS = 60
MASK = (1 << 64) - 1
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "bigint": (pa.int64(), lambda n: n - 30, 10**9),
    "int": (pa.int32(), lambda n: n - 30, 10**6),
    "smallint": (pa.int16(), lambda n: n, 999),
    "tinyint": (pa.int8(), lambda n: n, 99),
    "boolean": (pa.bool_(), lambda n: n % 3 == 0, False),
    "string": (pa.string(), lambda n: f"a text of some length {n}", "a text of some length 06"),
    "short": (pa.string(), lambda n: str(n)[: n % 4], "zz"),
    "binary": (pa.binary(), lambda n: bytes([n]) * (n % 20), b"other"),
    "large": (pa.large_string(), lambda n: f"{n}-{n}", "x"),
    "decimal": (pa.decimal128(20, 2), lambda n: Decimal(n) / 4, Decimal("-7.01")),
    "date": (pa.date32(), lambda n: date(2026, 1, 1 + n % 28), date(1970, 1, 1)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: MOMENT.replace(minute=n), MOMENT),
    "array": (pa.list_(pa.int32()), lambda n: [n, None] * (n % 3), [1, 2, 3]),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        lambda n: [(str(k), n) for k in range(n % 3)],
        [("a", 1)],
    ),
    "struct": (
        pa.struct([("n", pa.int64()), ("t", pa.string())]),
        lambda n: {"n": n, "t": str(n)},
        {"n": -1, "t": "u"},
    ),
    "names": (pa.list_(pa.string()), lambda n: ["x" * n, str(n)], ["other"]),
}


def values(name: str) -> list[Any]:
    _, make, _ = COLUMNS[name]
    return [None if n % 7 == 3 else make(n) for n in range(ROWS)]


def digest(name: str, found: list[Any]) -> int:
    return measured(pa.record_batch({"c": pa.array(found, COLUMNS[name][0])})).digest


@pytest.mark.rule(
    "what tells a replay from another batch",
    "datasource/values/content.py",
    "datasource/writing/branches.py",
)
@pytest.mark.parametrize("name", COLUMNS)
def test_neither_order_nor_tasks_change_the_digest(name: str) -> None:
    rows = values(name)
    whole = digest(name, rows)
    mixed = random.Random(name).sample(rows, ROWS)
    assert digest(name, mixed) == whole
    batch = pa.record_batch({"c": pa.array(mixed, COLUMNS[name][0])})
    parts = [batch.slice(start, 13) for start in range(0, ROWS, 13)]  # what slices hide is not seen
    total = sum((measured(part) for part in parts), Measure())
    assert total == Measure(ROWS, whole)


@pytest.mark.parametrize("name", COLUMNS)
def test_another_value_has_another_digest(name: str) -> None:
    rows = values(name)
    for at in (0, 17, ROWS - 1):
        for other in (COLUMNS[name][2], None):
            changed = [*rows[:at], other, *rows[at + 1 :]]
            assert changed == rows or digest(name, changed) != digest(name, rows)


def test_what_stands_under_a_null_does_not_count() -> None:
    data = pa.py_buffer(bytes(range(24)))
    mask = pa.py_buffer(b"\x05")
    hidden = pa.Array.from_buffers(pa.int64(), 3, [mask, data])
    plain = pa.array([hidden[0].as_py(), None, hidden[2].as_py()], pa.int64())
    assert measured(pa.record_batch({"c": hidden})) == measured(pa.record_batch({"c": plain}))


def test_sums_that_are_alike_by_chance_are_told_apart() -> None:
    assert digest("bigint", [1, 4]) != digest("bigint", [2, 3])
    assert digest("string", ["row-0012"]) != digest("string", ["row-0021"])
    one = pa.record_batch({"a": pa.array([1]), "b": pa.array([2])})
    other = pa.record_batch({"a": pa.array([2]), "b": pa.array([1])})
    assert measured(one) != measured(other)


def test_columns_in_another_order_are_the_same_content() -> None:
    one = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"])})
    assert measured(one) == measured(one.select(["b", "a"]))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_floats_count_with_all_their_bits_in_a_digest_of_their_own(kind: pa.DataType) -> None:
    def of(*found: float | None) -> Measure:
        return measured(pa.record_batch({"f": pa.array(found, kind)}))

    assert of(0.1, None, 7.5) == of(7.5, 0.1, None)
    assert of(0.1) + of(None, 7.5) == of(0.1, None, 7.5)
    assert of(0.1, 0.1, 7.5) != of(0.1, 7.5, 7.5)
    last_digit = of(1.0 + (2.0**-23 if kind == pa.float32() else 2.0**-52))
    assert last_digit.floats != of(1.0).floats
    assert last_digit.digest == of(1.0).digest
    assert of(0.3, None).digest != of(0.3, 0.3).digest


def test_no_two_pairs_of_short_numbers_have_one_digest() -> None:
    numbers = [quarters / 4 for quarters in range(-40, 41)]
    pairs = [(a, b) for a in numbers for b in numbers if a <= b]
    found = {measured(pa.record_batch({"f": pa.array(pair)})).floats for pair in pairs}
    assert len(found) == len(pairs)


def test_zeros_are_equal_and_so_are_nans() -> None:
    other_nan = struct.unpack("<d", struct.pack("<q", 0x7FF8000000000123))[0]
    one = pa.record_batch({"f": [0.0, float("nan"), 0.0]})
    assert measured(pa.record_batch({"f": [-0.0, other_nan, 0.0]})) == measured(one)


def test_floats_within_other_values_count() -> None:
    kind = pa.struct([("l", pa.list_(pa.float32())), ("m", pa.map_(pa.string(), pa.float64()))])

    def of(first: float, second: float) -> Measure:
        row = {"l": [first, None], "m": [("k", second)]}
        return measured(pa.record_batch({"s": pa.array([row], kind)}))

    assert len({of(1.5, 2.5).floats, of(1.25, 2.5).floats, of(1.5, 2.25).floats}) == 3
    assert of(1.5, 2.5).digest == of(1.25, 2.25).digest


def test_the_digest_is_the_same_in_every_release() -> None:
    """It is on record: another one would refuse a replay that is the same."""
    batch = pa.record_batch(
        {
            "n": pa.array([1, None, 3]),
            "t": pa.array(["a", "", "a longer text"]),
            "f": pa.array([0.5, float("nan"), -0.0]),
        }
    )
    assert measured(batch) == Measure(3, 4187153750280040531, 1444823975401610425)


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
def test_texts_of_any_lengths_have_the_digest_that_a_loop_gives(
    kind: pa.DataType, lengths: Sequence[int]
) -> None:
    chance = random.Random(7)
    texts = [chance.randbytes(length) for length in lengths] * (1 + 9000 // (500 * len(lengths)))
    column = pa.array([b"before", *texts, b"behind"], kind).slice(1, len(texts))
    assert measured(pa.record_batch({"c": column})).digest == plain_sum("c", texts)
    exact = pa.array(texts, kind)  # nothing lies behind the last of them
    assert measured(pa.record_batch({"c": exact})).digest == plain_sum("c", texts)


def test_a_digest_goes_on_from_block_to_block_of_rows() -> None:
    texts = [b"%010d" % number for number in range(9000)]
    texts[4096] = b"another length"
    assert measured(pa.record_batch({"c": pa.array(texts)})).digest == plain_sum("c", texts)


def test_measures_add_up_by_topic_and_leave_out_what_has_no_rows() -> None:
    parts = [{"a": Measure(1, 2), "b": Measure()}, {"a": Measure(3, (1 << 64) - 1)}]
    assert summed(parts) == {"a": Measure(4, 1)}


def orders(*numbers: int) -> list[str]:
    return [f'{{"id":{number},"status":"ok"}}' for number in numbers]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (orders(12, 43), orders(21, 34)),
        (["2013-01-12 00:00:00"], ["2013-01-21 00:00:00"]),
        (["a" * 512 + "b" * 512], ["b" * 512 + "a" * 512]),
        (["x" * 600 + "12" + "y" * 600], ["x" * 600 + "21" + "y" * 600]),
        (["ab", "c"], ["a", "bc"]),
    ],
    ids=["numbers within a text", "a date", "pieces", "a long text", "where one ends"],
)
def test_texts_that_differ_only_in_the_order_of_their_bytes(
    one: list[str], other: list[str]
) -> None:
    assert digest("string", one) != digest("string", other)
    assert digest("string", one[::-1]) == digest("string", one)
