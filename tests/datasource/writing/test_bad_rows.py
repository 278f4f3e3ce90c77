"""The rows that do not fit their topic, without I/O: no row is lost, and the leader agrees."""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import InvalidOption
from spark_stream.broker.partition.appends import inspected
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.writing.bad_rows import (
    DEAD_LETTERS,
    RECORD_BYTES_MIN,
    BadRowReason,
    BadRows,
    LetterOrigin,
    letters_of,
    row_bytes_max,
    split_rows,
)
from spark_stream.datasource.writing.routing import to_stored
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.schema.values import record_sizes
from spark_stream.wire.topic_messages import TopicDescription
from tests.examples import examples

LIMIT = 64


def topic(schema: pa.Schema, *, partitions: int = 2, limit: int = LIMIT) -> TopicDescription:
    """Describes a topic as a broker would."""
    described = {"schema": schema, "config": {"max.record.bytes": str(limit)}}
    return TopicDescription("t", "id", partitions=(None,) * partitions, **described)  # type: ignore


def text(*values: bytes | None) -> pa.Array:
    """A column of strings as Spark may send it: not every value is UTF-8."""
    return pa.array(values, pa.binary()).view(pa.string())


TYPED = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("moment", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
    ]
)
GOOD_DAY, FAR_DAY = 19_000, 200_000_000  # the year 549,551 does not fit a timestamp
TEXTS = st.sampled_from([None, b"", b"a", "ä€".encode(), b"\xff", b"\xc3", b"x" * 80])
ROWS = st.lists(
    st.tuples(
        st.integers(0, 9) | st.none(),
        TEXTS,
        st.sampled_from([None, GOOD_DAY, FAR_DAY]),
        st.lists(TEXTS, max_size=3) | st.none(),
    ),
    max_size=30,
)


def typed_rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """The rows of a DataFrame with a date, for a topic with a timestamp."""
    numbers, texts, days, tags = zip(*rows, strict=True) if rows else ((), (), (), ())
    flat = [each for tag in tags for each in tag or ()]
    ends = [0]
    for tag in tags:
        ends.append(ends[-1] + len(tag or ()))
    lists = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        text(*flat),
        pa.list_(pa.field("element", pa.string())),
        mask=pa.array([tag is None for tag in tags], pa.bool_()),
    )
    return pa.record_batch(
        {
            "place": pa.array(range(len(rows)), pa.int64()),
            "number": pa.array(numbers, pa.int64()),
            "text": text(*texts),
            "moment": pa.array(days, pa.int32()).cast(pa.date32()),
            "tags": lists,
        }
    )


def expected(row: tuple[Any, ...]) -> BadRowReason | None:
    """Find the problem of one row, by a slower way."""
    number, words, day, tags = row
    if number is None or None in (tags or ()):
        return BadRowReason.NULL_VALUE
    all_words = [each for each in (words, *(tags or ())) if each is not None]
    if day == FAR_DAY or any(each != each.decode(errors="ignore").encode() for each in all_words):
        return BadRowReason.INVALID_VALUE
    if 8 + 8 + 8 + sum(map(len, all_words)) > LIMIT:  # the row's place is a column too
        return BadRowReason.RECORD_TOO_LARGE
    return None


def test_large_text_that_is_not_utf8_is_a_bad_row():
    """Spark sends such text with ``spark.sql.execution.arrow.useLargeVarTypes``."""
    large = pa.array([b"a", b"\xff", None], pa.large_binary()).view(pa.large_string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), large)
    for column, want in ((large, pa.string()), (lists, pa.list_(pa.string()))):
        known = topic(pa.schema([("text", want)]))
        good, bad = split_rows(pa.record_batch({"text": column}), known, by_column=False)
        assert good.num_rows == 2
        assert [(each.reason, each.rows.num_rows) for each in bad] == [
            (BadRowReason.INVALID_VALUE, 1)
        ]


@pytest.mark.rule(
    "the rows that do not fit their topic",
    "datasource/writing/bad_rows.py",
)
@given(ROWS)
@settings(max_examples=examples(300), deadline=None)
def test_good_and_bad_rows_are_all_rows_in_their_order(rows: list[tuple[Any, ...]]) -> None:
    schema = TYPED.insert(0, pa.field("place", pa.int64()))
    known = topic(schema)
    good, bad = split_rows(typed_rows(rows), known, by_column=False)
    misfits = {
        place: each.reason for each in bad for place in each.rows.column("place").to_pylist()
    }
    assert sum(each.rows.num_rows for each in bad) == len(misfits)
    assert misfits == {
        place: found for place, row in enumerate(rows) if (found := expected(row)) is not None
    }
    kept = good.column("place").to_pylist()
    assert kept == [place for place in range(len(rows)) if place not in misfits]
    for each in bad:
        places = each.rows.column("place").to_pylist()
        assert places == sorted(places)
    # The leader takes every one of them.
    required = tuple(field for field in schema if not field.nullable or field.name == "tags")
    if good.num_rows:
        verdict = inspected(to_stored(good, known, by_column=False), required, LIMIT)
        assert verdict.flaw is None


def test_a_batch_without_bad_rows_is_the_same_batch() -> None:
    batch = typed_rows([(1, b"a", None, None)]).drop_columns(["place"])
    good, bad = split_rows(batch, topic(TYPED), by_column=False)
    assert good is batch
    assert bad == []


def test_bad_rows_for_a_topic_with_kafkas_columns_have_their_reasons() -> None:
    known = topic(DEFAULT_SCHEMA)
    rows = pa.record_batch(
        {
            "topic": ["t"] * 6,
            "value": text(b"ok", b"\xff is bytes here", b"x" * 80, None, b"ok", b"ok"),
            "partition": pa.array([0, None, 1, 1, 2, -1], pa.int32()),
        }
    )
    good, bad = split_rows(rows, known, by_column=True)
    assert good.column("partition").to_pylist() == [0, None, 1]
    assert [(each.reason, each.rows.column("partition").to_pylist()) for each in bad] == [
        (BadRowReason.UNKNOWN_PARTITION, [2, -1]),
        (BadRowReason.RECORD_TOO_LARGE, [1]),
    ]
    assert bad[0].message == "topic 't' has partitions 0 to 1"


def test_a_header_whose_name_is_not_text_is_an_invalid_value() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    names = text(b"h", b"\xff", b"h")
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.StructArray.from_arrays([names, pa.nulls(3, pa.binary())], fields=list(header)),
    )
    rows = pa.record_batch({"value": text(b"a", b"b", b"c"), "headers": headers})
    good, (bad,) = split_rows(rows, topic(DEFAULT_SCHEMA), by_column=False)
    assert good.column("value").to_pylist() == ["a", "c"]
    assert (bad.reason, bad.message) == (
        BadRowReason.INVALID_VALUE,
        "column 'headers.element.key' has text that is not UTF-8",
    )


# -- values that do not fit, by kind: a good one and a bad one -------------------------------------


def days(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32()).cast(pa.date32())


def decimals(*digits: int) -> pa.Array:
    """Decimals as they may be in a buffer, with more digits than their type has."""
    raw = b"".join(each.to_bytes(16, "little", signed=True) for each in digits)
    return pa.Array.from_buffers(pa.decimal128(5, 2), len(digits), [None, pa.py_buffer(raw)])


def times(*nanoseconds: int) -> pa.Array:
    return pa.array(nanoseconds, pa.int64()).view(pa.time64("ns"))


def lists(items: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays([0, 1, 2], items)


def structs(field: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([field], ["f"])


def maps(keys: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays([0, 1, 2], keys, values)


TEXT = text(b"good", b"bad \xff")
DAYS = days(GOOD_DAY, FAR_DAY)
NTZ = pa.timestamp("us")
LISTS = pa.list_(NTZ)
DAY_NS = 86_400 * 10**9
NO_TIME = "has a time out of range"
NO_TEXT = "has text that is not UTF-8"
FAR = "has a date that is out of range for timestamp_ntz"
MANY_DIGITS = "has a number with more digits than decimal(5,2)"
MISFITS = {
    "text": (TEXT, pa.string(), f"'c' {NO_TEXT}"),
    "surrogate": (text(b"\xf0\x9f\x98\x80", b"\xed\xa0\x80"), pa.string(), f"'c' {NO_TEXT}"),
    "text in lists": (lists(TEXT), pa.list_(pa.string()), f"'c.element' {NO_TEXT}"),
    "text in structs": (structs(TEXT), pa.struct([("f", pa.string())]), f"'c.f' {NO_TEXT}"),
    "keys": (maps(TEXT, DAYS), pa.map_(pa.string(), pa.date32()), f"'c.key' {NO_TEXT}"),
    "date": (DAYS, NTZ, f"'c' {FAR}"),
    "early date": (days(-106_751_991, -106_751_992), NTZ, f"'c' {FAR}"),
    "late date": (days(106_751_991, 106_751_992), NTZ, f"'c' {FAR}"),
    "date in lists": (lists(DAYS), LISTS, f"'c.element' {FAR}"),
    "date in structs": (structs(DAYS), pa.struct([("f", NTZ)]), f"'c.f' {FAR}"),
    "date in maps": (
        maps(DAYS, lists(DAYS)),
        pa.map_(DAYS.type, LISTS),
        f"'c.value.element' {FAR}",
    ),
    "decimal": (decimals(99_999, 100_000), pa.decimal128(5, 2), f"'c' {MANY_DIGITS}"),
    "negative decimal": (decimals(-99_999, -100_000), pa.decimal128(5, 2), f"'c' {MANY_DIGITS}"),
    "decimal widened": (decimals(1, 10**20), pa.decimal128(7, 3), f"'c' {MANY_DIGITS}"),
    "time": (times(DAY_NS - 1, DAY_NS), pa.time64("ns"), f"'c' {NO_TIME}"),
    "negative time": (times(0, -1), pa.time64("ns"), f"'c' {NO_TIME}"),
}


def half_bad(kind: str, rows: int) -> tuple[pa.RecordBatch, TopicDescription]:
    """Rows of which every second one is bad, and their topic."""
    column, want, _ = MISFITS[kind]
    places = pa.array(range(rows), pa.int64())
    values = column.take(pa.array([row % 2 for row in range(rows)]))
    batch = pa.record_batch({"place": places, "c": values})
    return batch, topic(pa.schema([("place", pa.int64()), ("c", want)]), limit=1000)


@pytest.mark.parametrize("kind", MISFITS)
def test_bad_rows_of_one_cause_have_one_message_without_the_value(kind: str) -> None:
    batch, known = half_bad(kind, 20)
    for rows in (batch, batch.slice(4, 10)):
        good, (bad,) = split_rows(rows, known, by_column=False)
        places = rows.column("place").to_pylist()
        assert good.column("place").to_pylist() == places[::2]
        assert bad.rows.column("place").to_pylist() == places[1::2]
        assert (bad.reason, bad.message) == (
            BadRowReason.INVALID_VALUE,
            f"column {MISFITS[kind][2]}",
        )
        stored = to_stored(good, known, by_column=False)
        assert inspected(stored, (), 1000).flaw is None


def calls(action: Callable[[], object]) -> int:
    """Count the calls of functions, also of those that are not Python's."""
    found: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: found.update([event]))
    try:
        action()
    finally:
        sys.setprofile(before)
    return found["call"] + found["c_call"]


@pytest.mark.parametrize("kind", MISFITS)
def test_calls_do_not_grow_with_the_number_of_bad_rows(kind: str) -> None:
    def write(batch: pa.RecordBatch, known: TopicDescription) -> None:
        for bad in split_rows(batch, known, by_column=False)[1]:
            list(letters_of(bad, ORIGIN, 1 << 20))

    few, many = half_bad(kind, 20), half_bad(kind, 8_000)
    write(*few)  # imports, and compiles patterns
    assert calls(lambda: write(*many)) < 2 * calls(lambda: write(*few))


@given(st.lists(st.none() | st.binary(max_size=8) | st.text(max_size=4).map(str.encode)))
@settings(max_examples=examples(100), deadline=None)
def test_text_is_invalid_where_python_cannot_decode_it(values: list[bytes | None]) -> None:
    batch = pa.record_batch({"c": text(*values)})
    good, _ = split_rows(batch, topic(pa.schema([("c", pa.string())])), by_column=False)
    kept = [
        each for each in values if each is None or each.decode(errors="ignore").encode() == each
    ]
    assert good.column("c").cast(pa.binary()).to_pylist() == kept


def test_values_in_a_struct_that_is_null_are_validated_as_the_leader_does() -> None:
    hidden = pa.StructArray.from_arrays([TEXT], ["f"], mask=pa.array([True, True]))
    known = topic(pa.schema([("c", hidden.type)]))
    good, (bad,) = split_rows(pa.record_batch({"c": hidden}), known, by_column=False)
    assert (good.num_rows, bad.rows.num_rows) == (1, 1)
    assert inspected(to_stored(good, known, by_column=False), (), LIMIT).flaw is None


# -- letters --------------------------------------------------------------------------------------

ORIGIN = LetterOrigin("query/q", 7, 3)


def letters(rows: pa.RecordBatch, limit: int = 1 << 20, **more: Any) -> list[dict[str, Any]]:
    given = {"topic": "t", "reason": BadRowReason.NULL_VALUE, "message": "m", **more}
    found = [
        each
        for batch in letters_of(BadRows(rows=rows, **given), ORIGIN, limit)
        for each in batch.to_pylist()
    ]
    assert len(found) == rows.num_rows
    return found


def test_a_letter_has_the_row_as_spark_reads_it_back() -> None:
    far = pa.array([FAR_DAY], pa.int32()).cast(pa.date32())
    rows = pa.record_batch(
        {
            "n": pa.array([1.5]),
            "nan": pa.array([float("nan")]),
            "bytes": pa.array([b"\x00\xff"]),
            "text": text(b"a\xff\n"),
            "moment": pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)]),
            "far": far,
            "none": pa.nulls(1),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        }
    )
    (letter,) = letters(rows)
    assert json.loads(letter.pop("row")) == {
        "n": 1.5,
        "nan": "NaN",
        "bytes": "AP8=",
        "text": "a\ufffd\n",
        "moment": "2026-01-01T00:00:00Z",
        "far": "+549551-05-28",
        "none": None,
        "map": {"k": 1},
    }
    assert letter == {
        "reason": "NULL_VALUE",
        "message": "m",
        "topic": "t",
        "sink": "query/q",
        "batch": 7,
        "task": 3,
        "truncated": False,
    }


def test_long_json_is_cut_and_marked() -> None:
    rows = pa.record_batch({"v": ["ä" * 100, "b"]})
    long, short = letters(rows, limit=50, message="m" * 5000, topic="\udcff" * 5000)
    assert (long["truncated"], short["truncated"]) == (True, False)
    assert len(long["row"].encode()) <= 50
    assert long["row"].startswith('{"v":"ää')
    assert len(long["message"]) == 1024
    assert len(long["topic"]) == 1024


@given(st.lists(st.binary(max_size=12), min_size=1, max_size=20), st.integers(10, 60))
@settings(max_examples=examples(100), deadline=None)
def test_bytes_that_are_not_text_are_replaced_and_no_character_is_cut(
    values: list[bytes], limit: int
) -> None:
    rows = pa.record_batch({"v": text(*values)})
    for value, letter, short in zip(values, letters(rows), letters(rows, limit), strict=True):
        assert json.loads(letter["row"]) == {"v": value.decode(errors="replace")}
        whole, cut = letter["row"].encode(), short["row"].encode()
        assert whole.startswith(cut)
        assert min(limit, len(whole)) - len(cut) in range(4)
        assert (letter["truncated"], short["truncated"]) == (False, len(whole) > limit)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.integers(100, 1000))
@settings(max_examples=examples(100), deadline=None)
def test_letter_never_exceeds_the_limit_of_its_topic(values: list[bytes], names: int) -> None:
    """Escapes may make a row six times as long."""
    rows = pa.record_batch({"v": text(*values), "x" * names: pa.nulls(len(values))})
    known = topic(DEAD_LETTERS, limit=RECORD_BYTES_MIN)
    bad = BadRows("t" * 300, BadRowReason.INVALID_VALUE, "\x00" * 3000, rows)
    for batch in letters_of(bad, LetterOrigin("s" * 255, 1 << 62, 7), row_bytes_max(known)):
        required = tuple(field for field in DEAD_LETTERS if not field.nullable)
        assert inspected(batch, required, RECORD_BYTES_MIN).flaw is None


def test_letters_have_no_row_if_their_topic_takes_only_smaller_records() -> None:
    """The setting may be lowered after the start of a query."""
    limit = row_bytes_max(topic(DEAD_LETTERS, limit=1000))
    bad = BadRows("t", BadRowReason.NULL_VALUE, "m", pa.record_batch({"n": ["x" * 9000]}))
    (batch,) = letters_of(bad, ORIGIN, limit)
    assert (batch["row"].to_pylist(), batch["truncated"].to_pylist()) == ([""], [True])


def test_letters_of_many_or_large_rows_are_split_into_batches() -> None:
    many = pa.record_batch({"n": pa.array(range(10_000))})
    batches = list(letters_of(BadRows("t", BadRowReason.NULL_VALUE, "m", many), ORIGIN, 100))
    assert [batch.num_rows for batch in batches] == [4096, 4096, 1808]
    assert batches[1].column("row")[0].as_py() == '{"n":4096}'
    large = pa.record_batch({"v": ["x" * (9 << 20)] * 2 + ["y" * (65 << 20), "z"]})
    batches = list(
        letters_of(BadRows("t", BadRowReason.RECORD_TOO_LARGE, "m", large), ORIGIN, 1 << 20)
    )
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(len(row["row"]), row["truncated"]) for row in rows] == [
        (1 << 20, True),
        (1 << 20, True),
        (0, True),
        (9, False),
    ]
    assert all(record_sizes(batch).max() < 2 << 20 for batch in batches)


# -- options --------------------------------------------------------------------------------------

PLACE = {"path": "x", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"onBadRecord": "drop"}, "onBadRecord takes fail | deadLetter, not 'drop'"),
        ({"deadLetterTopic": "d"}, "deadLetterTopic needs onBadRecord=deadLetter"),
        (
            {"deadLetterTopic": "d", "onBadRecord": "fail"},
            "deadLetterTopic needs onBadRecord=deadLetter",
        ),
        ({"onBadRecord": "deadLetter"}, "needs deadLetterTopic"),
        ({"onBadRecord": "deadLetter", "deadLetterTopic": " t "}, "the topic that the query"),
        ({"onBadRecord": "deadLetter", "deadLetterTopic": " "}, "is not a topic name"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        sink_options({**PLACE, **options})
    assert message in caught.value.message


def test_bad_rows_fail_the_query_by_default() -> None:
    assert sink_options(PLACE).dead_letter_topic is None
    given = {"onbadrecord": "DEADLETTER", "deadlettertopic": " d "}
    assert sink_options({**PLACE, **given}).dead_letter_topic == "d"
