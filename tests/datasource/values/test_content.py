"""The digest of a batch's content is the same for the same rows in any division and order."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_stream.datasource.values.content import Measure, measure, sum_measures
from tests.examples import examples

ROWS = 60
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
    "large array": (pa.large_list(pa.string()), lambda n: ["x" * n, None][: n % 3], ["other"]),
    "variant": (
        pa.struct([("value", pa.binary()), ("metadata", pa.binary())]),
        lambda n: {"value": bytes([12, n]), "metadata": b"\x01\0\0"},
        {"value": b"\0", "metadata": b"\x01\0\0"},
    ),
    "large decimal": (pa.decimal128(38, 4), lambda n: Decimal(n << 99) / 16, Decimal(1 << 100)),
    "decimal of 256 bits": (pa.decimal256(60, 4), lambda n: Decimal(n << 99), Decimal(1)),
    "fixed binary": (pa.binary(3), lambda n: bytes([n, 0, n]), b"abc"),
    "fixed array": (pa.list_(pa.int32(), 2), lambda n: [n, None], [0, 0]),
    "text view": (pa.string_view(), lambda n: f"a text of some length {n}", "another"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda n: f"d{n % 5}", "other"),
    "unsigned": (pa.uint64(), lambda n: (1 << 64) - 1 - n, 5),
    "duration": (pa.duration("us"), lambda n: n * 1_000_000, 1),
    "time": (pa.time64("us"), lambda n: n, 777),
    "interval": (pa.month_day_nano_interval(), lambda n: (n, 1, n), (0, 0, 5)),
}


def values(name: str) -> list[Any]:
    _, make, _ = COLUMNS[name]
    return [None if n % 7 == 3 else make(n) for n in range(ROWS)]


def digest(name: str, found: list[Any]) -> int:
    return measure(pa.record_batch({"c": pa.array(found, COLUMNS[name][0])})).digest


@pytest.mark.rule(
    "the difference between a replay and another batch",
    "datasource/values/content.py",
    "datasource/writing/transactions.py",
)
@pytest.mark.parametrize("name", COLUMNS)
def test_neither_order_nor_tasks_change_the_digest(name: str) -> None:
    rows = values(name)
    whole = digest(name, rows)
    mixed = random.Random(name).sample(rows, ROWS)
    assert digest(name, mixed) == whole
    batch = pa.record_batch({"c": pa.array(mixed, COLUMNS[name][0])})
    parts = [batch.slice(start, 13) for start in range(0, ROWS, 13)]  # without hidden values
    total = sum((measure(part) for part in parts), Measure())
    assert (total.rows, total.digest) == (ROWS, whole)


@pytest.mark.parametrize("name", COLUMNS)
def test_another_value_has_another_digest(name: str) -> None:
    rows = values(name)
    for at in (0, 17, ROWS - 1):
        for other in (COLUMNS[name][2], None):
            changed = [*rows[:at], other, *rows[at + 1 :]]
            assert changed == rows or digest(name, changed) != digest(name, rows)


def test_bytes_under_a_null_do_not_change_the_digest() -> None:
    data = pa.py_buffer(bytes(range(24)))
    mask = pa.py_buffer(b"\x05")
    hidden = pa.Array.from_buffers(pa.int64(), 3, [mask, data])
    plain = pa.array([hidden[0].as_py(), None, hidden[2].as_py()], pa.int64())
    assert measure(pa.record_batch({"c": hidden})) == measure(pa.record_batch({"c": plain}))


def test_equal_sums_of_different_values_have_different_digests() -> None:
    assert digest("bigint", [1, 4]) != digest("bigint", [2, 3])
    assert digest("string", ["row-0012"]) != digest("string", ["row-0021"])
    one = pa.record_batch({"a": pa.array([1]), "b": pa.array([2])})
    other = pa.record_batch({"a": pa.array([2]), "b": pa.array([1])})
    assert measure(one) != measure(other)


def test_the_digest_depends_on_the_row_of_each_value() -> None:
    def of(*rows: tuple[int, str]) -> Measure:
        return measure(pa.record_batch({"n": [n for n, _ in rows], "t": [t for _, t in rows]}))

    assert of((1, "a"), (2, "b")) == of((2, "b"), (1, "a"))
    assert of((1, "a"), (2, "b")).digest != of((1, "b"), (2, "a")).digest


@pytest.mark.parametrize("name", COLUMNS)
def test_the_measure_of_a_batch_is_the_sum_over_its_rows(name: str) -> None:
    """So a value's hash depends neither on its neighbours nor on its place in Arrow's buffers."""
    batch = pa.record_batch({"c": pa.array(values(name), COLUMNS[name][0])})
    rows = [measure(batch.slice(row, 1)) for row in range(ROWS)]
    assert sum(rows, Measure()) == measure(batch)


def test_columns_in_another_order_are_the_same_content() -> None:
    one = pa.record_batch({"a": pa.array([1]), "b": pa.array(["x"])})
    assert measure(one) == measure(one.select(["b", "a"]))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_floats_count_with_all_their_bits_in_a_separate_digest(kind: pa.DataType) -> None:
    def of(*found: float | None) -> Measure:
        return measure(pa.record_batch({"f": pa.array(found, kind)}))

    assert of(0.1, None, 7.5) == of(7.5, 0.1, None)
    assert of(0.1) + of(None, 7.5) == of(0.1, None, 7.5)
    assert of(0.1, 0.1, 7.5) != of(0.1, 7.5, 7.5)
    last_digit = of(1.0 + (2.0**-23 if kind == pa.float32() else 2.0**-52))
    assert last_digit.floats != of(1.0).floats
    assert last_digit.digest == of(1.0).digest
    assert of(0.3, None).digest != of(0.3, 0.3).digest
    assert of(0.3, math.inf, math.nan, None) == of(math.nan, None, 0.3, math.inf)
    assert len({of(x).floats for x in (math.inf, -math.inf, math.nan, 2.0**63, -(2.0**63))}) == 5


def test_the_digest_of_floats_depends_on_their_rows() -> None:
    def of(*rows: tuple[int, float]) -> Measure:
        return measure(pa.record_batch({"n": [n for n, _ in rows], "f": [f for _, f in rows]}))

    one, other = of((1, 0.5), (2, 0.25)), of((1, 0.25), (2, 0.5))
    assert one.floats != other.floats
    assert one.digest == other.digest


def test_no_two_pairs_of_short_numbers_have_one_digest() -> None:
    numbers = [quarters / 4 for quarters in range(-40, 41)]
    pairs = [(a, b) for a in numbers for b in numbers if a <= b]
    found = {measure(pa.record_batch({"f": pa.array(pair)})).floats for pair in pairs}
    assert len(found) == len(pairs)


def test_zeros_are_equal_and_so_are_nans() -> None:
    other_nan = struct.unpack("<d", struct.pack("<q", 0x7FF8000000000123))[0]
    one = pa.record_batch({"f": [0.0, float("nan"), 0.0]})
    assert measure(pa.record_batch({"f": [-0.0, other_nan, 0.0]})) == measure(one)


def test_nested_floats_change_the_digest_of_floats() -> None:
    kind = pa.struct([("l", pa.list_(pa.float32())), ("m", pa.map_(pa.string(), pa.float64()))])

    def of(first: float, second: float) -> Measure:
        row = {"l": [first, None], "m": [("k", second)]}
        return measure(pa.record_batch({"s": pa.array([row], kind)}))

    assert len({of(1.5, 2.5).floats, of(1.25, 2.5).floats, of(1.5, 2.25).floats}) == 3
    assert of(1.5, 2.5).digest == of(1.25, 2.25).digest


def test_the_digest_is_the_same_in_every_release() -> None:
    """It is stored: a changed digest would refuse an identical replay."""
    batch = pa.record_batch(
        [
            pa.array([1, None, 3]),
            pa.array(["a", "", "a longer text" * 50]),
            pa.array([0.5, float("nan"), -0.0]),
            *(pa.array(values(name)[:3], kind) for name, (kind, *_) in COLUMNS.items()),
        ],
        ["n", "t", "f", *COLUMNS],
    )
    assert measure(batch) == Measure(3, 13076991462939136961, 4580490938696943332)


def test_measures_add_up_by_topic_without_topics_that_have_no_rows() -> None:
    parts = [{"a": Measure(1, 2), "b": Measure()}, {"a": Measure(3, (1 << 64) - 1)}]
    assert sum_measures(parts) == {"a": Measure(4, 1)}


def test_numbers_that_differ_only_in_their_upper_bits_have_different_digests() -> None:
    numbers = [number << 56 for number in range(16)]
    pairs = [{"a": [a], "b": [b]} for a in numbers for b in numbers]
    assert len({measure(pa.record_batch(pair)).digest for pair in pairs}) == len(pairs)


def test_the_digest_depends_on_the_field_of_each_value() -> None:
    def of(value: Any, kind: pa.DataType) -> int:
        return measure(pa.record_batch({"c": pa.array([value], kind)})).digest

    fields = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    assert of({"a": 1, "b": 2}, fields) != of({"a": 2, "b": 1}, fields)
    entries = pa.map_(pa.int64(), pa.int64())
    assert of([(1, 2)], entries) != of([(2, 1)], entries)
    assert of([(1, 2), (3, 4)], entries) != of([(1, 4), (3, 2)], entries)


def test_the_order_counts_in_a_list_but_not_in_a_map() -> None:
    def of(value: Any, kind: pa.DataType) -> int:
        return measure(pa.record_batch({"c": pa.array([value], kind)})).digest

    entries = pa.map_(pa.int64(), pa.int64())
    assert of([(1, 2), (3, 4)], entries) == of([(3, 4), (1, 2)], entries)
    assert of([1, 2], pa.list_(pa.int64())) != of([2, 1], pa.list_(pa.int64()))


# -- altered topics -------------------------------------------------------------------------------


WIDENED: dict[str, tuple[pa.DataType, list[Any], pa.DataType]] = {
    "int to bigint": (pa.int32(), [-7, None, 1 << 30], pa.int64()),
    "smallint to double": (pa.int16(), [-7, None, 99], pa.float64()),
    "int to double": (pa.int32(), [0, None, -(1 << 31)], pa.float64()),
    "float to double": (pa.float32(), [0.1, None, -3.0, math.inf, math.nan, 1e30], pa.float64()),
    "decimal": (
        pa.decimal128(12, 2),
        [Decimal("0.00"), None, Decimal("-12.50"), Decimal("9999999999.99"), Decimal("300.00")],
        pa.decimal128(38, 20),
    ),
    "places that need more than 64 bits": (
        pa.decimal128(19, 1),
        [Decimal(-(10**17)), Decimal("123456789012345678.9"), Decimal(2**60) / 2],
        pa.decimal128(38, 20),
    ),
    "array": (pa.list_(pa.int32()), [[1, None], [], None], pa.list_(pa.float64())),
    "map": (pa.map_(pa.int32(), pa.float32()), [[(1, 0.1)]], pa.map_(pa.int64(), pa.float64())),
    "struct": (
        pa.struct([("a", pa.int8())]),
        [{"a": 1}, {"a": None}, None],
        pa.struct([("a", pa.int64())]),
    ),
}


@pytest.mark.rule(
    "a replay after a topic was altered is the same batch", "datasource/values/content.py"
)
@pytest.mark.parametrize("change", WIDENED)
def test_a_widened_value_has_the_same_digest(change: str) -> None:
    have, found, want = WIDENED[change]
    narrow = pa.array(found, have)
    whole = measure(pa.record_batch({"c": narrow}))
    widened = measure(pa.record_batch({"c": narrow.cast(want)}))
    assert (widened.rows, widened.floats) == (whole.rows, whole.floats)


def test_columns_and_fields_without_values_do_not_change_the_digest() -> None:
    before = pa.struct([("a", pa.int64())])
    after = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.float64())]))])
    rows = [{"a": 1}, {"a": None}, None]
    lists = [[each] for each in rows]
    one = pa.record_batch({"s": pa.array(rows, before), "l": pa.array(lists, pa.list_(before))})
    other = pa.record_batch(
        {
            "s": pa.array(rows, after),
            "l": pa.array(lists, pa.list_(after)),
            "new": pa.nulls(3, pa.list_(pa.string())),
            "void": pa.nulls(3),
        }
    )
    assert measure(one) == measure(other)


def test_nulls_of_different_levels_have_different_digests() -> None:
    kind = pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))
    rows = [None, [], [None], [None, None], [{"m": None}], [{"m": []}], [{"m": [("k", None)]}]]
    found = {measure(pa.record_batch({"c": pa.array([row], kind)})).digest for row in rows}
    assert len(found) == len(rows)


# -- any values -----------------------------------------------------------------------------------

WIDE = 1 << 40
LEAVES: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.int64(): lambda chance: chance.choice([0, 1, -1, chance.randrange(-WIDE, WIDE)]),
    pa.int8(): lambda chance: chance.randrange(-128, 128),
    pa.bool_(): lambda chance: chance.random() < 0.5,
    pa.float64(): lambda chance: chance.choice([0.0, -0.0, math.nan, 0.5, 2.0, chance.random()]),
    pa.float32(): lambda chance: chance.choice([0.0, -0.0, math.nan, 0.5, 2.0, -math.inf]),
    pa.string(): lambda chance: "".join(chance.choices("ab\0é", k=chance.choice([0, 1, 9, 70]))),
    pa.large_binary(): lambda chance: chance.randbytes(chance.choice([0, 8, 8, 600])),
    pa.decimal128(30, 3): lambda chance: Decimal(chance.randrange(-(10**20), 10**20)) / 1000,
    pa.decimal128(9, 2): lambda chance: Decimal(chance.randrange(500)) / 100,
    pa.date32(): lambda chance: date(2026, 1, chance.randrange(1, 29)),
    pa.dictionary(pa.int8(), pa.string()): lambda chance: chance.choice("abc"),
}
Made = tuple[pa.DataType, Callable[[random.Random], Any]]


def any_type(chance: random.Random, depth: int = 0) -> Made:
    """A type, and a function that makes values of it, a fifth of them null at each level."""
    shape = chance.choice(["leaf", "leaf", "list", "map", "struct"]) if depth < 3 else "leaf"
    if shape == "leaf":
        kind, make = chance.choice(list(LEAVES.items()))
    else:
        inner = [any_type(chance, depth + 1) for _ in range(2)]
        (one, first), (two, second) = inner
        if shape == "list":
            kind = pa.list_(one)
            make = lambda chance: [first(chance) for _ in range(chance.randrange(4))]  # noqa: E731
        elif shape == "map":
            kind = pa.map_(pa.int8(), one)
            make = lambda chance: [(n, first(chance)) for n in range(chance.randrange(3))]  # noqa: E731
        else:
            kind = pa.struct([("a", one), ("b", two)])
            make = lambda chance: {"a": first(chance), "b": second(chance)}  # noqa: E731
    return kind, lambda chance: None if chance.random() < 0.2 else make(chance)


def plain(value: Any) -> str:
    """Return the value as a text, the same for values that count as equal."""
    return repr(value).replace("-0.0", "0.0")


def batch(rows: list[list[Any]], kinds: list[pa.DataType]) -> pa.RecordBatch:
    found = [pa.array(*each) for each in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.record_batch(found, [f"c{n}" for n in range(len(kinds))])


@pytest.mark.parametrize("seed", range(10))
def test_any_rows_have_one_digest_in_any_order_and_another_after_any_change(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(examples(120)):
        made = [any_type(chance) for _ in range(chance.randrange(1, 5))]
        rows = [[make(chance) for _, make in made] for _ in range(chance.randrange(2, 12))]

        kinds = [kind for kind, _ in made]
        whole = measure(batch(rows, kinds))
        mixed = batch(chance.sample(rows, len(rows)), kinds)
        cuts = sorted({0, len(rows), *chance.choices(range(len(rows)), k=2)})
        parts = [mixed.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
        assert sum(map(measure, parts), Measure()) == whole
        assert measure(pa.concat_batches(parts)) == whole
        row, column = chance.randrange(len(rows)), chance.randrange(len(made))
        other = made[column][1](chance)
        changed = [list(each) for each in rows]
        changed[row][column] = other
        if plain(other) != plain(rows[row][column]):
            assert measure(batch(changed, kinds)).floats != whole.floats
        swapped = [list(each) for each in rows]
        a, b = swapped[row], swapped[row - 1]
        a[column], b[column] = b[column], a[column]
        if sorted(map(plain, swapped)) != sorted(map(plain, rows)):
            assert measure(batch(swapped, kinds)).floats != whole.floats


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_a_text_has_one_hash_whatever_the_lengths_of_its_neighbours(kind: pa.DataType) -> None:
    chance = random.Random(7)
    lengths = [*range(70), *range(120, 132), 255, 256, 257, *range(508, 520), 1024, 1025, 2000]
    texts = [chance.randbytes(length) for length in lengths] + [b"\0" * n for n in range(1, 20)]
    alone = [measure(pa.record_batch({"c": pa.array([text], kind)})) for text in texts]
    assert len({each.digest for each in alone}) == len(texts)
    column = pa.array([b"before", *texts, b"behind"], kind).slice(1, len(texts))
    assert measure(pa.record_batch({"c": column})) == sum(alone, Measure())
    for text, own in zip(texts, alone, strict=True):  # all of one length
        same = pa.record_batch({"c": pa.array([text] * 3, kind)})
        assert measure(same) == own + own + own


def test_a_digest_continues_from_block_to_block_of_rows() -> None:
    texts = [b"%010d" % number for number in range(40_000)]
    texts[20_000] = b"another length"
    whole = pa.record_batch({"c": pa.array(texts), "n": pa.array(range(40_000))})
    parts = [whole.slice(start, 7_000) for start in range(0, 40_000, 7_000)]
    assert sum(map(measure, parts), Measure()) == measure(whole)


@pytest.mark.parametrize("places", [(7, 15), (15, 23), (7, 23), (0, 8)], ids=str)
def test_two_changed_bytes_of_a_text_change_the_digest(places: tuple[int, int]) -> None:
    """This includes the last bytes of two words, which a product does not move."""
    texts = []
    for one, other in itertools.product(range(32), range(64)):
        text = bytearray(24)
        text[places[0]], text[places[1]] = one, other
        texts.append(bytes(text))
    found = {measure(pa.record_batch({"t": [text]})).digest for text in texts}
    assert len(found) == len(texts)


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
def test_the_digest_depends_on_the_order_of_bytes_in_a_text(
    one: list[str], other: list[str]
) -> None:
    assert digest("string", one) != digest("string", other)
    assert digest("string", one[::-1]) == digest("string", one)
