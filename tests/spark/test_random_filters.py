"""Random predicates: a filter has Spark's result for every row.

``ISOLOG_FILTERS`` is their number, ``ISOLOG_SEED`` the first seed (``make filters``).
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from isolog.errors import InvalidFilter
from spark_stream.sql.filters import row_filter
from tests.sql.rows import SPARKS_TYPES

COUNT: Final = int(os.environ.get("ISOLOG_FILTERS", "100"))
SEED: Final = int(os.environ.get("ISOLOG_SEED", "1"))
AT_ONCE: Final = 100

DAYS: Final = (
    "1970-01-01",
    "1970-01-02",
    "2023-11-14",
    "2023-11",
    "0001-01-01",
    "9999-12-31",
    "2023-11-15",
)
CLOCKS: Final = (
    " 00:00:00",
    "T22:13:20",
    " 22:13:20.000001",
    " 12:00",
    " 23:59:59.999999",
    " 23:59:59.9999999",
)
ZONES: Final = ("", "", "", "Z", "+05:00", "-10:00", " Europe/Paris", " UTC", "+02")
NUMBERS: Final = (
    *("0", "1", "-1", "5", "127", "128", "-128", "2147483647", "-2147483648", "2147483648"),
    *("9223372036854775807", "9007199254740993", "16777217", "1.5", "0.1", "-2.25", "1.50"),
    *("99999999.99", "1.505", "0.1D", "1.5D", "1e1", "16777216F", "9007199254740992D", "0.1F"),
    *("double('NaN')", "double('Infinity')", "cast(1 as tinyint)", "cast(1.5 as decimal(4,2))"),
)
NUMBER_TEXTS: Final = ("1", "5", "-128", "9007199254740993", "1.5", "0.1", "NaN")
TEXTS: Final = ("'ab'", "'a%b'", "''", "'10'", "'é\\nz'", "'b'", "'5'", "'1'", "'x'")
RAWS: Final = ("X'6162'", "X''", "X'61'", "'ab'", "X'c3a90a7a'")
FLAGS: Final = ("true", "false", "'true'", "'no'")
COLUMNS: Final = {
    "number": ("i8", "i32", "i64", "f32", "f64", "dec", "st.p"),
    "text": ("s", "st.q", "cast(raw as string)"),
    "raw": ("raw",),
    "moment": ("day", "ts", "ntz"),
    "flag": ("flag",),
}


class Predicates:
    """Predicates of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def one(self, depth: int = 2) -> str:
        """Return the next predicate."""
        pick = self._chance.random()
        if depth and pick < 0.12:
            return f"not ({self.one(depth - 1)})"
        if depth and pick < 0.3:
            word = self._chance.choice(("and", "or"))
            return f"({self.one(depth - 1)}) {word} ({self.one(depth - 1)})"
        if depth and pick < 0.36:
            word = self._chance.choice(("is true", "is not true", "is false", "is not false"))
            return f"({self.one(depth - 1)}) {word}"
        return self._leaf()

    def _leaf(self) -> str:
        kind = self._chance.choice(list(COLUMNS))
        column = self._chance.choice(COLUMNS[kind])
        shape = self._chance.random()
        if shape < 0.06:
            return f"{column} is {self._chance.choice(('', 'not '))}null"
        if kind == "text" and shape < 0.25:
            pattern = "".join(self._chance.choices("ab%_é", k=self._chance.randint(0, 4)))
            return f"{column} {self._chance.choice(('', 'not '))}like '{pattern}'"
        if shape < 0.5:
            many = self._chance.choice((1, 2, 3, 5, 5, 60))
            items = ", ".join(self._item(kind) for _ in range(many))
            return f"{column} {self._chance.choice(('', 'not '))}in ({items})"
        if shape < 0.6:
            return f"{column} between {self._value(kind)} and {self._value(kind)}"
        order = self._chance.choice(("=", "!=", "<", "<=", ">", ">=", "<=>"))
        other = self._value(kind)
        if shape < 0.7:
            other = self._chance.choice(COLUMNS[kind])
        sides = [column, other]
        return f" {order} ".join(sides if self._chance.random() < 0.8 else sides[::-1])

    def _item(self, kind: str) -> str:
        """Return an item of a list: now and then a column, or a number as a text."""
        pick = self._chance.random()
        if pick < 0.03:
            return self._chance.choice(COLUMNS[kind])
        if kind == "number" and pick < 0.1:
            return f"'{self._chance.choice(NUMBER_TEXTS)}'"
        return self._value(kind)

    def _value(self, kind: str) -> str:
        if self._chance.random() < 0.04:
            return "null"
        if kind == "moment":
            return self._moment()
        values = {"number": NUMBERS, "text": TEXTS, "raw": RAWS, "flag": FLAGS}[kind]
        return self._chance.choice(values)

    def _moment(self) -> str:
        chance = self._chance
        text = chance.choice(DAYS)
        if text.count("-") == 2 and chance.random() < 0.6:
            text += chance.choice(CLOCKS)
            text += chance.choice(ZONES) if text.count(":") == 2 else ""  # Spark refuses others
        zoned = any(text.endswith(zone) for zone in ZONES if zone)
        kinds = ["", "", "timestamp "]
        kinds += ["date "] if " " not in text and "T" not in text else []
        kinds += [] if zoned else ["timestamp_ntz "]
        return f"{chance.choice(kinds)}'{text}'"


def said_by_spark(frame: DataFrame, texts: list[str]) -> dict[str, list[bool | None]]:
    """Return Spark's results of the predicates, without those that it refuses or that fail."""
    try:
        found = frame.selectExpr(*(f"({text}) as p{n}" for n, text in enumerate(texts))).toArrow()
    except PySparkException:
        if len(texts) == 1:
            return {}
        half = len(texts) // 2
        return said_by_spark(frame, texts[:half]) | said_by_spark(frame, texts[half:])
    return {text: found[f"p{n}"].to_pylist() for n, text in enumerate(texts)}


def said_by_us(text: str) -> list[bool | None] | None:
    """Return the results of our filter, or None if it is refused."""
    try:
        mask: Any = row_filter(text, "t", SPARKS_TYPES.schema).bound.mask(SPARKS_TYPES.column)
    except InvalidFilter:
        return None
    if isinstance(mask, pa.Scalar):
        return [mask.as_py()] * SPARKS_TYPES.num_rows
    found: list[bool | None] = mask.to_pylist()
    return found


@pytest.mark.rule("filter semantics: types, nulls, NaN", "sql/comparisons.py", "sql/predicates.py")
@pytest.mark.timeout(60 + COUNT)
def test_random_predicates_have_the_same_result_as_in_spark(utc_rows: DataFrame) -> None:
    compared, wrong = 0, []
    for seed in range(SEED, SEED + -(-COUNT // AT_ONCE)):
        made = Predicates(seed)
        ours = {text: said_by_us(text) for text in (made.one() for _ in range(AT_ONCE))}
        taken = [text for text, mask in ours.items() if mask is not None]
        for text, spark_says in said_by_spark(utc_rows, taken).items():
            compared += 1
            if ours[text] != spark_says:
                wrong.append(f"seed {seed}: {text}\n  ours  {ours[text]}\n  Spark {spark_says}")
    assert not wrong, f"{len(wrong)} of {compared} differ:\n" + "\n".join(wrong[:20])
    assert compared > COUNT // 2
