"""The output of ``consume -o json`` round-trips through ``produce --format json`` exactly."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from spark_stream.client.reading.columns import HEADERS, KAFKA_COLUMNS
from spark_stream.schema.fitting import Fitting
from spark_stream.schema.json_rows import JsonBlocks
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.schema.texts import json_lines
from spark_stream.schema.types import stored_type
from tests.examples import examples

DAY_NS = 86_400 * 10**9
INT64 = some.integers(-(2**63), 2**63 - 1)
INT32 = some.integers(-(2**31), 2**31 - 1)
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32()]

SIMPLE: dict[pa.DataType, some.SearchStrategy[Any]] = {
    pa.null(): some.none(),
    pa.bool_(): some.booleans(),
    pa.float16(): some.floats(width=16).map(np.float16),
    pa.float32(): some.floats(width=32),
    pa.float64(): some.floats(),
    pa.string(): some.text(),
    pa.binary(): some.binary(),
    pa.binary(3): some.binary(min_size=3, max_size=3),
    pa.date32(): INT32,
    **{
        kind: some.integers(0, 2**kind.bit_width - 1)
        if pt.is_unsigned_integer(kind)
        else some.integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)
        for kind in INTEGERS
    },
    **{pa.timestamp("us", zone): INT64 for zone in (None, "UTC", "Asia/Tokyo")},
    pa.duration("us"): INT64,
    pa.time64("ns"): some.integers(0, DAY_NS - 1),
    **{
        kind: some.integers(-(10**kind.precision) + 1, 10**kind.precision - 1).map(
            lambda digits, scale=kind.scale: Decimal(f"{digits}E{-scale}")
        )
        for kind in (
            pa.decimal128(10, 2),
            pa.decimal128(38, 0),
            pa.decimal128(38, 38),
        )
    },
}
KEYS = [kind for kind in SIMPLE if not pt.is_null(kind)]


def values_of(kind: pa.DataType) -> some.SearchStrategy[Any]:
    """Values of a type and nulls, as Python values for Arrow."""
    return some.none() | not_null(kind)


def not_null(kind: pa.DataType) -> some.SearchStrategy[Any]:
    if pt.is_struct(kind):
        return some.fixed_dictionaries({each.name: values_of(each.type) for each in kind})
    if pt.is_map(kind):
        pairs = some.tuples(not_null(kind.key_type), values_of(kind.item_type))
        return some.lists(pairs, max_size=3)
    if pt.is_fixed_size_list(kind):
        size = kind.list_size
        return some.lists(values_of(kind.value_type), min_size=size, max_size=size)
    if pt.is_nested(kind):
        return some.lists(values_of(kind.value_type), max_size=3)
    return SIMPLE[kind]


def struct_of(kinds: list[pa.DataType]) -> pa.DataType:
    return pa.struct([(f'f "{n}"', kind) for n, kind in enumerate(kinds)])


def nested(inner: some.SearchStrategy[pa.DataType]) -> some.SearchStrategy[pa.DataType]:
    keys = some.sampled_from([*KEYS, struct_of([pa.int32(), pa.string()]), pa.list_(pa.date32())])
    return some.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.list_(kind, 2)),
        some.lists(inner, max_size=3).map(struct_of),
        some.builds(pa.map_, keys, inner),
    )


def test_simple_types_are_all_types_of_topics():
    assert [stored_type(kind, "c") for kind in SIMPLE] == list(SIMPLE)


# pyarrow creates invalid arrays of nested nulls.
TYPES = some.recursive(some.sampled_from(KEYS), nested, max_leaves=4)


@some.composite
def columns(draw: some.DrawFn) -> pa.Array:
    kind = draw(TYPES)
    values = draw(some.lists(values_of(kind), min_size=1, max_size=5))
    return pa.array([None, *values], kind).slice(1)  # with an offset into its buffers


def fact(value: pa.Scalar) -> Any:
    """Return an exact form of a value, in which NaN equals NaN and zeros have signs."""
    if not value.is_valid:
        return None
    kind = value.type
    if pt.is_struct(kind):
        return {name: fact(value[name]) for name in value}
    if pt.is_nested(kind):
        return [fact(each) for each in value.values]
    if pt.is_temporal(kind):
        return value.value
    return repr(value.as_py())


def facts(column: pa.Array) -> list[Any]:
    return [fact(each) for each in column]


def strict(line: str) -> Any:
    """Parse with a reader of the JSON standard only."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def there_and_back(
    batch: pa.RecordBatch, *, utf8: bool = False, intervals: bool = False
) -> pa.RecordBatch:
    lines = json_lines(batch, utf8=utf8, intervals=intervals).to_pylist()
    for line in lines:
        strict(line)
    block = "\n".join(lines).encode()
    read = JsonBlocks(batch.schema, utf8=utf8).parse(block, 1)
    found = Fitting(batch.schema, text=True, utf8=utf8).fit(read, 1)
    found.validate(full=True)
    return found


@pytest.mark.rule("the text of values in `consume`", "cli/output/formats.py", "schema/texts.py")
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(columns())
def test_json_of_nested_types_round_trips(column):
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    assert facts(there_and_back(batch)["c"]) == facts(column)


@pytest.mark.parametrize("kind", SIMPLE, ids=str)
@settings(max_examples=examples(10), deadline=None)
@given(data=some.data())
def test_json_of_each_simple_type_round_trips(kind, data):
    column = pa.array(data.draw(some.lists(values_of(kind), min_size=1)), kind)
    batch = pa.RecordBatch.from_arrays([column], names=["c"])
    assert facts(there_and_back(batch)["c"]) == facts(column)


@settings(max_examples=examples(30), deadline=None)
@given(some.lists(some.none() | INT64, min_size=1))
def test_intervals_in_sparks_form_are_parsed(values):
    batch = pa.record_batch({"c": pa.array([values], pa.list_(pa.duration("us")))})
    assert facts(there_and_back(batch, intervals=True)["c"]) == facts(batch["c"])


TEXTS = some.sampled_from(["base64", '{"base64":"/w=="}', r"\xff", ""]).map(str.encode)
BYTES = some.binary() | some.text().map(str.encode) | TEXTS


@settings(max_examples=examples(50), deadline=None)
@given(
    some.lists(
        some.fixed_dictionaries(
            {
                "key": some.none() | BYTES,
                "value": some.none() | BYTES,
                "headers": some.none()
                | some.lists(
                    some.fixed_dictionaries({"key": some.text(), "value": some.none() | BYTES})
                ),
                "timestamp": INT64,
            }
        ),
        min_size=1,
    )
)
def test_json_of_default_schema_records_round_trips_any_bytes(rows):
    batch = pa.RecordBatch.from_pylist(rows, schema=DEFAULT_SCHEMA)
    found = there_and_back(batch, utf8=True)
    for name in batch.schema.names:
        assert facts(found[name]) == facts(batch[name])


def test_bytes_that_are_not_utf8_are_marked_as_base64():
    batch = pa.record_batch({"value": pa.array(["é".encode(), b"\xff"], pa.binary())})
    lines = json_lines(batch, utf8=True).to_pylist()
    assert lines == ['{"value":"é"}', '{"value":{"base64":"/w=="}}']


def test_metadata_columns_are_optional_in_json():
    metadata = pa.schema([*KAFKA_COLUMNS][2:5])
    assert metadata.names == ["topic", "partition", "offset"]
    schema = pa.schema([KAFKA_COLUMNS.field("value"), HEADERS])
    blocks = JsonBlocks(schema, metadata, utf8=True)
    assert blocks.parse(b'{"value":"a"}\n', 1).schema.names == ["value", "headers"]
    found = blocks.parse(b'{"value":"a","partition":1,"offset":5}\n{"value":"b"}\n', 1)
    assert found.schema.names == ["value", "headers", "partition", "offset"]
    assert found["partition"].to_pylist() == [1, None]
