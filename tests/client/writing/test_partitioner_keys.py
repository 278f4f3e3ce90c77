"""The bytes of keys, whole columns against a slow model of each value, and the partitions."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolog.errors import SchemaMismatch, UnsupportedType
from spark_stream.client.writing.partitioner import has_keys, key_bytes, partitions_by
from spark_stream.schema.keys import (
    check_evolved_key,
    check_key,
    key_columns,
    path_of,
    path_text,
    same_columns,
    split_names,
)
from tests.client.writing.test_partitioner import reference_of
from tests.examples import examples

EPOCH = datetime(1970, 1, 1)


def microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def bytes_of(value: Any, kind: pa.DataType) -> bytes:
    """The documented form of one value."""
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        value = math.nan if math.isnan(value) else value + 0.0
        return struct.pack(">d", value)
    if isinstance(value, Decimal):
        return int(value.scaleb(kind.scale)).to_bytes(16, "big", signed=True)
    if isinstance(value, datetime):
        value = microseconds(value.astimezone(UTC).replace(tzinfo=None) - EPOCH)
    elif isinstance(value, date):
        value = (value - EPOCH.date()).days
    elif isinstance(value, time):
        span = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second)
        value = 1000 * microseconds(span + timedelta(microseconds=value.microsecond))
    elif isinstance(value, timedelta):
        value = microseconds(value)
    return struct.pack(">q", value)


def key_of(row: list[Any], kinds: list[pa.DataType]) -> bytes | None:
    if all(value is None for value in row):
        return None
    if len(row) == 1:
        return bytes_of(row[0], kinds[0])
    found = b""
    for value, kind in zip(row, kinds, strict=True):
        if value is None:
            found += b"\0"
            continue
        part = bytes_of(value, kind)
        found += b"\1" + (struct.pack(">i", len(part)) if isinstance(value, str | bytes) else b"")
        found += part
    return found


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(1 << 7), (1 << 7) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan]),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4),
    pa.string(): st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): moments,
    pa.time64("ns"): st.times(),
    pa.duration("us"): st.timedeltas(timedelta(-(10**6)), timedelta(10**6)),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[list[Any]]]:
    """A batch of one to three columns, which may be a slice, and its rows."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    count, before = draw(st.integers(0, 8)), draw(st.integers(0, 2))
    columns = [
        draw(st.lists(st.none() | VALUES[kind], min_size=before + count, max_size=before + count))
        for kind in kinds
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    names = [f"c{place}" for place in range(len(kinds))]
    rows = [list(row) for row in zip(*columns, strict=True)][before:]
    return pa.RecordBatch.from_arrays(arrays, names).slice(before), rows


@pytest.mark.rule("the bytes of a key", "client/writing/partitioner.py")
@settings(max_examples=examples(300))
@given(tables(), st.integers(1, 9))
def test_whole_columns_give_each_record_the_bytes_and_the_partition_of_the_model(table, count):
    batch, rows = table
    keys = [key_of(row, batch.schema.types) for row in rows]
    assert key_bytes(batch, batch.schema.names).to_pylist() == keys
    assert has_keys(batch, batch.schema.names) == any(key is not None for key in keys)
    placed = partitions_by(batch, batch.schema.names, count, keyless=count - 1).tolist()
    assert placed == [
        count - 1 if key is None else (reference_of(key) & 0x7FFFFFFF) % count for key in keys
    ]


@pytest.mark.parametrize(
    "alike",
    [
        [pa.array([7, -1], kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
        [pa.array([1.5, -0.0], pa.float32()), pa.array([1.5, 0.0], pa.float64())],
        [pa.array([Decimal("1.50")], pa.decimal128(p, 2)) for p in (3, 38)],
        [pa.array(["ä", ""]), pa.array(["ä".encode(), b""])],
    ],
    ids=["integers", "floats", "decimals of one scale", "text and bytes"],
)
def test_equal_values_of_types_that_evolve_into_each_other_have_equal_bytes(alike):
    found = [key_bytes(pa.record_batch({"k": each}), ["k"]).to_pylist() for each in alike]
    assert all(each == found[0] for each in found)


def test_values_of_neighbouring_columns_do_not_run_together():
    batch = pa.record_batch({"a": ["ab", "a", None], "b": ["c", "bc", "abc"]})
    assert len(set(key_bytes(batch, ["a", "b"]).to_pylist())) == 3


def test_keys_beyond_the_first_block_get_kafkas_partition():
    batch = pa.record_batch({"n": pa.array(range(70_000))})
    placed = partitions_by(batch, ["n"], 5, keyless=0)
    for row in (0, 65_535, 65_536, 69_999):
        assert placed[row] == (reference_of(struct.pack(">q", row)) & 0x7FFFFFFF) % 5


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.struct([pa.field("x", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.null(),
    ],
    ids=str,
)
def test_a_column_without_a_byte_form_is_refused_by_name(kind):
    schema = pa.schema([("id", pa.int64()), ("nested", kind)])
    with pytest.raises(UnsupportedType, match="column 'nested'") as caught:
        check_key(schema, ["id", "nested"])
    assert caught.value.details["column"] == "nested"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [(["ID"], "is 'id' meant"), (["id", "id"], "named twice"), (["id", ""], "is not one of")],
)
def test_an_unknown_key_column_is_refused_by_name(columns, problem):
    with pytest.raises(SchemaMismatch, match=problem) as caught:
        check_key(pa.schema([("id", pa.int64())]), columns)
    assert caught.value.details["column"] == columns[-1]


@pytest.mark.parametrize(
    ("have", "want", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.float32(), pa.float64(), True),
        (pa.decimal128(10, 2), pa.decimal128(18, 2), True),
        (pa.int32(), pa.float64(), False),
        (pa.decimal128(10, 2), pa.decimal128(18, 4), False),
    ],
)
def test_a_key_column_widens_only_where_equal_values_stay_in_their_partitions(have, want, fits):
    present, asked = pa.schema([("k", have)]), pa.schema([("k", want)])
    if fits:
        check_evolved_key(present, asked, ["k"])
        return
    with pytest.raises(SchemaMismatch, match=r"column 'k' .*partition\.by"):
        check_evolved_key(present, asked, ["k"])


# -- fields of structs -----------------------------------------------------------------------------

NESTED = pa.schema(
    [
        ("user", pa.struct([("id", pa.int64()), ("zip,code", pa.string())])),
        ("user.id", pa.string()),
        (
            "deep",
            pa.struct([("a.b", pa.struct([("c", pa.int32()), ("tags", pa.list_(pa.int8()))]))]),
        ),
        ("tick`s", pa.int8()),
    ]
)


@pytest.mark.rule("names of key columns", "schema/keys.py")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("user.id", ("user.id",)),  # the whole name is a column
        ("`user.id`", ("user.id",)),
        ("`user`.id", ("user", "id")),
        ("user.`id`", ("user", "id")),
        ("user.`zip,code`", ("user", "zip,code")),
        ("deep.`a.b`.c", ("deep", "a.b", "c")),
        ("deep.a.b.c", None),
        ("`tick``s`", ("tick`s",)),
        ("tick`s", ("tick`s",)),
        ("user.nobody", None),
        ("user.id.more", None),
        ("user.", None),
        (".id", None),
        ("`user", None),
        ("", None),
    ],
)
def test_a_name_is_a_column_or_a_field_in_backquotes_or_plain(name, path):
    assert path_of(NESTED, name) == path
    if path is not None and path != ("user", "id"):  # which a column shadows
        assert path_of(NESTED, path_text(path)) == path


def test_a_comma_within_backquotes_is_part_of_a_name():
    assert split_names("user.`zip,code`, `a,``b` ,c") == ("user.`zip,code`", "`a,``b`", "c")
    assert split_names("a,,b") == ("a", "", "b")
    assert split_names(" ") == ()


def test_with_folded_names_a_field_is_found_in_any_case():
    assert path_of(NESTED, "DEEP.`A.B`.C", folded=True) == ("deep", "a.b", "c")
    assert path_of(NESTED, "DEEP.`A.B`.C") is None
    twice = pa.schema([("s", pa.struct([("id", pa.int8()), ("ID", pa.int8())]))])
    assert path_of(twice, "s.Id", folded=True) is None
    assert path_of(twice, "S.ID", folded=True) == ("s", "ID")


def test_two_spellings_of_a_field_are_one_column():
    assert same_columns(NESTED, ["`user`.id"], ["user.`id`"])
    assert not same_columns(NESTED, ["`user`.id"], ["user.id"])
    assert not same_columns(NESTED, ["x"], ["y"])
    assert key_columns(NESTED, ["`user`.id"], ["user.`id`"]) == ("`user`.id",)
    with pytest.raises(SchemaMismatch, match="named twice"):
        check_key(NESTED, ["`user`.id", "user.`id`"])
    with pytest.raises(UnsupportedType, match="cannot be a key"):
        check_key(NESTED, ["deep.`a.b`.tags"])
    with pytest.raises(UnsupportedType, match="cannot be a key"):
        check_key(NESTED, ["user"])


def test_a_key_field_widens_only_where_equal_values_stay_in_their_partitions():
    def nested(kind: pa.DataType) -> pa.Schema:
        return pa.schema([("user", pa.struct([("id", kind)]))])

    check_evolved_key(nested(pa.int32()), nested(pa.int64()), ["user.id"])
    with pytest.raises(SchemaMismatch, match=r"'user\.id' from int to double"):
        check_evolved_key(nested(pa.int32()), nested(pa.float64()), ["user.id"])


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.integers(-3, 3), st.none() | st.text()),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 3),
)
def test_fields_have_the_keys_of_plain_columns_and_null_structs_have_null_fields(rows, skip):
    """``a``: the outer struct is null. ``b``: the inner one is."""
    inner = pa.struct([("id", pa.int64()), ("name", pa.string())])
    structs = [
        None if kind == "a" else {"in": None if kind == "b" else {"id": number, "name": text}}
        for kind, number, text in rows
    ]
    nested = pa.record_batch([pa.array(structs, pa.struct([("in", inner)]))], names=["out"]).slice(
        skip
    )
    numbers = [number if kind == "c" else None for kind, number, _ in rows]
    texts = [text if kind == "c" else None for kind, _, text in rows]
    flat = pa.record_batch(
        {"id": pa.array(numbers, pa.int64()), "name": pa.array(texts, pa.string())}
    ).slice(skip)
    for names in (["id"], ["name"], ["id", "name"]):
        fields = [f"out.in.{name}" for name in names]
        assert key_bytes(nested, fields).equals(key_bytes(flat, names))
        assert has_keys(nested, fields) == has_keys(flat, names)
        places = partitions_by(nested, fields, 7, 3)
        assert places.tolist() == partitions_by(flat, names, 7, 3).tolist()
