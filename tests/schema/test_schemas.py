"""The valid schemas of topics, and the lossless fit of a batch to one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from time import thread_time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, example, given, reject, settings
from hypothesis import strategies as st

from isolog.errors import InvalidRequest, IsologError, SchemaMismatch, UnsupportedType
from spark_stream.datasource.spark.types import to_spark
from spark_stream.schema.schemas import (
    DEFAULT_SCHEMA,
    METADATA,
    fitted,
    is_default,
    meant,
    mismatch,
    received_schema,
    stored_schema,
)
from spark_stream.schema.types import distinct_names
from tests.examples import examples

SIMPLE = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint8(),
    pa.uint32(),
    pa.float16(),
    pa.float64(),
    pa.decimal128(38, 10),
    pa.date32(),
    pa.time64("ns"),
    pa.timestamp("us"),
    pa.timestamp("us", "Asia/Tokyo"),
    pa.duration("us"),
    pa.string(),
    pa.binary(),
    pa.binary(16),
]
CONVERTED = [
    (pa.timestamp("ns"), pa.timestamp("us")),
    (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo")),
    (pa.timestamp("s"), pa.timestamp("us")),
    (pa.duration("ns"), pa.duration("us")),
    (pa.time32("ms"), pa.time64("ns")),
    (pa.time64("us"), pa.time64("ns")),
    (pa.date64(), pa.date32()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.decimal32(9, 2), pa.decimal128(9, 2)),
    (pa.decimal64(18, 2), pa.decimal128(18, 2)),
    (pa.decimal256(38, 2), pa.decimal128(38, 2)),
    (pa.decimal128(5, -2), pa.decimal128(7, 0)),
    (pa.decimal128(2, 5), pa.decimal128(5, 5)),
    (pa.large_string(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.int8(), pa.timestamp("ns")), pa.timestamp("us")),
    (pa.large_list(pa.int8()), pa.list_(pa.int8())),
]
REFUSED = [
    pa.decimal256(39, 2),
    pa.decimal128(38, -1),
    pa.month_day_nano_interval(),
    pa.dense_union([pa.field("a", pa.int8())], [0]),
    pa.sparse_union([pa.field("a", pa.int8())], [0]),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.int8()),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    pa.uuid(),
]
NESTS = {
    "column {}": lambda kind: kind,
    "column {}.item": pa.list_,
    "a list of three": lambda kind: pa.list_(kind, 3),
    "a struct": lambda kind: pa.struct([("other", pa.int8()), ("inner", kind)]),
    "the values of a map": lambda kind: pa.map_(pa.string(), kind),
    "a list of structs of lists": lambda kind: pa.list_(pa.struct([("inner", pa.list_(kind))])),
}


def schema_of(*names: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int32()) for name in names])


# -- valid schemas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("kind", SIMPLE, ids=str)
def test_stored_type_is_accepted_at_any_depth(kind, nest):
    schema = pa.schema([("c", nest(kind))])
    assert stored_schema(schema) is schema


@pytest.mark.rule("the types that a topic stores, and the conversion of others", "schema/types.py")
@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize(("kind", "stored"), CONVERTED, ids=str)
def test_type_that_spark_lacks_is_converted_at_any_depth(kind, stored, nest):
    fields = [pa.field("c", nest(kind), nullable=False, metadata={"comment": "c"})]
    found = stored_schema(pa.schema(fields, {"by": "me"}))
    expected = pa.schema([fields[0].with_type(nest(stored))], {"by": "me"})
    assert found.equals(expected, check_metadata=True)


@pytest.mark.parametrize("kind", SIMPLE, ids=str)
def test_spark_has_every_type_that_a_topic_stores(kind):
    to_spark(pa.schema([("c", kind)]))


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_other_type_is_refused_with_its_column_at_any_depth(kind, nest):
    with pytest.raises(UnsupportedType, match="column 'price") as caught:
        stored_schema(pa.schema([("good", pa.int8()), ("price", nest(kind))]))
    assert caught.value.details["got"] == str(kind)
    assert caught.value.details["column"].split(".")[0] == "price"


@pytest.mark.parametrize("nest", NESTS.values(), ids=NESTS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([]), "it has no field"),
        (pa.binary(0), "its values are empty"),
        (pa.list_(pa.int8(), 0), "its values are empty"),
        (pa.list_(pa.int8(), 2**31 - 1), "takes 2147483647 bytes, and 65536 are the limit"),
        (pa.list_(pa.null(), 2**31 - 1), "takes 2147483647 bytes"),
        (pa.list_(pa.list_(pa.float32(), 1 << 10), 1 << 10), "takes 4194304 bytes"),
        (pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]), 1 << 14), "196608 bytes"),
        (pa.binary((1 << 16) + 1), "takes 65537 bytes"),
        (pa.binary(2**31 - 1), "takes 2147483647 bytes"),
    ],
    ids=str,
)
def test_type_without_size_or_with_a_large_fixed_size_is_refused(kind, said, nest):
    with pytest.raises(UnsupportedType, match=said) as caught:
        stored_schema(pa.schema([("good", pa.int8()), ("price", nest(kind))]))
    assert caught.value.details["got"] == str(kind)
    assert caught.value.details["column"].split(".")[0] == "price"


def nested(nest: Callable[[pa.DataType], pa.DataType], times: int) -> pa.DataType:
    kind = pa.int32()
    for _ in range(times):
        kind = nest(kind)
    return kind


DEEP_NESTS = {
    "struct": (63, lambda kind: pa.struct([("f", kind)])),
    "list": (63, pa.list_),
    "map": (31, lambda kind: pa.map_(pa.string(), kind)),
    "dictionary": (63, lambda kind: pa.dictionary(pa.int8(), pa.list_(kind))),
}


@pytest.mark.rule("the greatest depth of a topic's types", "schema/types.py")
@pytest.mark.parametrize(("most", "nest"), DEEP_NESTS.values(), ids=DEEP_NESTS)
def test_deepest_type_is_the_deepest_that_arrow_writes(most, nest):
    kind = stored_schema(pa.schema([("c", nested(nest, most))])).field("c").type
    array = pa.nulls(1, kind)
    pa.record_batch([array], ["c"]).serialize()
    deeper = pa.array([[]], pa.list_(pa.list_(kind)))
    with pytest.raises(pa.ArrowInvalid, match="recursion"):
        pa.record_batch([deeper], ["c"]).serialize()


@pytest.mark.parametrize(("most", "nest"), DEEP_NESTS.values(), ids=DEEP_NESTS)
@pytest.mark.parametrize("more", [1, 2000])
def test_type_nested_too_deep_is_refused_with_its_column(most, nest, more):
    kind = nested(nest, most + more)
    with pytest.raises(
        UnsupportedType, match=r"'c': .* levels deep, and 63 are the limit"
    ) as caught:
        stored_schema(pa.schema([("good", pa.int8()), ("c", kind)]))
    assert caught.value.details["column"] == "c"


def test_vectors_and_digests_have_a_fixed_size():
    kinds = [pa.list_(pa.float32(), 1 << 14), pa.list_(pa.float64(), 4096), pa.binary(32)]
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    assert stored_schema(schema).equals(schema)


CARS = pa.struct([("ok", pa.int8()), ("color", pa.month_day_nano_interval())])
REFUSED_SCHEMAS = [
    (
        pa.schema([("cars", pa.list_(pa.field("item", CARS)))]),
        UnsupportedType,
        "color",
        "cars.item.color",
    ),
    (pa.schema([]), SchemaMismatch, "at least one column", None),
    (
        schema_of("id", "Id"),
        SchemaMismatch,
        "'id' and 'Id' are equal, ignoring case",
        "Id",
    ),
    (
        schema_of("a", "b", "a"),
        SchemaMismatch,
        "'a' and 'a' are equal, ignoring case",
        "a",
    ),
    (schema_of("ok", ""), SchemaMismatch, "a column has no name", ""),
    *(
        (schema_of("a", name), SchemaMismatch, "the name is reserved", name)
        for field in METADATA
        for name in (field.name, field.name.upper())
    ),
]


@pytest.mark.parametrize(("schema", "error", "said", "column"), REFUSED_SCHEMAS)
def test_invalid_schema_is_refused_with_its_column(schema, error, said, column):
    with pytest.raises(error, match=said) as caught:
        stored_schema(schema)
    assert caught.value.details.get("column") == column


def test_struct_field_may_have_a_reserved_name():
    stored_schema(pa.schema([("a", pa.struct([("_offset", pa.int64())]))]))


def test_the_default_schema_is_kafkas_record():
    assert stored_schema(DEFAULT_SCHEMA) is DEFAULT_SCHEMA
    assert is_default(DEFAULT_SCHEMA.with_metadata({"by": "me"}))
    assert not is_default(DEFAULT_SCHEMA.remove(2))
    assert not is_default(
        DEFAULT_SCHEMA.set(3, pa.field("timestamp", DEFAULT_SCHEMA.field("timestamp").type))
    )


# -- the fit of a batch ----------------------------------------------------------------------------

WIDENED = [
    (pa.int8(), pa.int16(), [1, None, -128]),
    (pa.int32(), pa.int64(), [2**31 - 1]),
    (pa.uint8(), pa.int16(), [255]),
    (pa.uint32(), pa.int64(), [2**32 - 1]),
    (pa.uint8(), pa.uint32(), [255]),
    (pa.float16(), pa.float32(), [np.float16(0.5)]),
    (pa.float32(), pa.float64(), [0.5]),
    (pa.int32(), pa.float64(), [2**31 - 1, -(2**31)]),
    (pa.int16(), pa.float32(), [2**15 - 1]),
    (pa.int32(), pa.decimal128(12, 2), [2**31 - 1, None]),
    (pa.int64(), pa.decimal128(19, 0), [-(2**63)]),
    (pa.decimal128(10, 2), pa.decimal128(18, 4), [Decimal("12345678.91"), None]),
    (pa.date32(), pa.timestamp("us"), [date(2024, 2, 29)]),
    (pa.binary(2), pa.binary(), [b"ab", None]),
    (pa.timestamp("s"), pa.timestamp("us"), [datetime(9999, 12, 31), datetime(1, 1, 1)]),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int16()), [[1, 2]]),
    (pa.large_string(), pa.string(), ["ü", None]),
    (pa.large_binary(), pa.binary(), [b"\xff"]),
    (pa.timestamp("us", "Europe/Zurich"), pa.timestamp("us", "UTC"), [-1, 0]),
    (pa.dictionary(pa.int8(), pa.string()), pa.string(), ["a", "a", None]),
    (pa.dictionary(pa.int8(), pa.int8()), pa.int64(), [1]),
    (pa.list_(pa.field("element", pa.int8())), pa.list_(pa.int32()), [[1, None], None, []]),
    (pa.list_(pa.field("item", pa.int8(), nullable=False)), pa.list_(pa.int8()), [[1]]),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), [{"a": 1}, None]),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32()), [[("a", 1)], None]),
]


@pytest.mark.parametrize(("have", "want", "values"), WIDENED, ids=str)
def test_lossless_conversion_is_applied(have, want, values):
    array = pa.array(values, have)
    schema = pa.schema([("c", want)])
    found = fitted(pa.RecordBatch.from_arrays([array], names=["c"]), schema)
    assert found.schema.equals(schema)
    found.validate(full=True)
    moments = pa.types.is_timestamp(want)
    expected = array.cast(want) if moments else pa.array(values, want)
    assert found.column(0).equals(expected)


@pytest.mark.parametrize("kind", [*SIMPLE, *(nest(pa.int8()) for nest in NESTS.values())], ids=str)
def test_column_of_nulls_fits_every_type(kind):
    found = fitted(pa.RecordBatch.from_arrays([pa.nulls(3)], names=["c"]), pa.schema([("c", kind)]))
    found.validate(full=True)
    assert found.schema.types == [kind]
    assert found.column(0).null_count == 3


LOSING = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int8(), pa.uint8()),
    (pa.int32(), pa.float32()),
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.decimal128(11, 2)),
    (pa.decimal128(10, 2), pa.float64()),
    (pa.date32(), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.date32()),
    (pa.int64(), pa.string()),
    (pa.float64(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (pa.binary(), pa.binary(2)),
    (pa.list_(pa.int8()), pa.list_(pa.int8(), 2)),
    (pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us", "UTC"), pa.timestamp("us")),
    (pa.decimal128(10, 2), pa.decimal128(9, 2)),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pa.bool_(), pa.int8()),
    (pa.list_(pa.int64()), pa.list_(pa.int8())),
    (pa.list_(pa.int8()), pa.int8()),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    (pa.struct([("a", pa.int8())]), pa.struct([("A", pa.int64())])),
    (
        pa.struct([("a", pa.int8()), ("b", pa.int8())]),
        pa.struct([("b", pa.int8()), ("a", pa.int8())]),
    ),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())])),
    (pa.list_(pa.struct([("a", pa.int8())])), pa.list_(pa.struct([("b", pa.int8())]))),
    (pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())),
    (pa.list_view(pa.int8()), pa.list_(pa.int8())),
]


@pytest.mark.parametrize(("have", "want"), LOSING, ids=str)
def test_lossy_conversion_is_refused_with_column_and_both_types(have, want):
    batch = pa.RecordBatch.from_arrays([pa.nulls(0, have)], names=["price"])
    with pytest.raises(SchemaMismatch) as caught:
        fitted(batch, pa.schema([("price", want)]))
    expected, got = distinct_names(want, have)
    assert expected != got
    assert f"column 'price': expected {expected}, got {got}" in str(caught.value)
    assert caught.value.details == {"column": "price", "expected": str(want), "got": str(have)}


STRICT = pa.struct([pa.field("a", pa.int8(), nullable=False)])
UNFIT = {
    # Arrow's own cast matches fields by name, and fills missing ones with nulls.
    "field of another name": (
        pa.array([{"first": "Ada"}]),
        pa.struct([("given", pa.string())]),
        "column 'c'",
    ),
    "null in a value that takes none": (
        pa.array([{"a": 1}, {"a": None}], pa.struct([("a", pa.int8())])),
        STRICT,
        "column 'c'",
    ),
    "moment too far away for a finer unit": (
        pa.array([2**60], pa.timestamp("s")),
        pa.timestamp("us"),
        "column 'c': expected timestamp_ntz",
    ),
}


@pytest.mark.parametrize(("values", "want", "said"), UNFIT.values(), ids=UNFIT)
def test_value_that_does_not_fit_is_refused_with_its_column(values, want, said):
    with pytest.raises(SchemaMismatch, match=said):
        fitted(pa.record_batch({"c": values}), pa.schema([("c", want)]))


FITTING = {
    pa.timestamp("ns"): [datetime(2024, 1, 1), None],
    pa.timestamp("ns", "Asia/Tokyo"): [datetime(2024, 1, 1, tzinfo=UTC)],
    pa.timestamp("s"): [datetime(1, 1, 1)],
    pa.duration("ns"): [timedelta(microseconds=-1)],
    pa.time32("ms"): [time(23, 59, 59, 999_000)],
    pa.date64(): [date(1969, 12, 31)],
    pa.uint64(): [2**64 - 1, None],
    pa.decimal256(38, 2): [Decimal("1.25")],
    pa.decimal128(5, -2): [Decimal("1300")],
    pa.decimal64(18, 2): [Decimal("1.25")],
    pa.large_string(): ["ü"],
    pa.string_view(): ["ü", None],
    pa.dictionary(pa.int8(), pa.string()): ["a", None, "a"],
    pa.large_list(pa.timestamp("ns")): [[datetime(2024, 1, 1)], None],
    pa.struct([("at", pa.timestamp("ns"))]): [{"at": datetime(2024, 1, 1)}, None],
    pa.map_(pa.string(), pa.timestamp("ns")): [[("a", datetime(2024, 1, 1))], None],
}


@pytest.mark.parametrize("kind", FITTING, ids=str)
def test_values_of_a_converted_type_fit_the_topic(kind):
    values = FITTING[kind]
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["c"])
    schema = stored_schema(batch.schema)
    assert schema != batch.schema
    found = fitted(batch, schema)
    found.validate(full=True)
    assert found.to_pydict() == {"c": values}


@pytest.mark.parametrize("nest", [NESTS["column {}"], pa.list_], ids=["plain", "in a list"])
def test_nanoseconds_are_refused_with_a_remedy(nest):
    at = pa.array([1_000, 1_001], pa.int64()).cast(pa.timestamp("ns"))
    if nest is pa.list_:
        at = pa.ListArray.from_arrays([0, 1, 2], at)
    batch = pa.RecordBatch.from_arrays([at], names=["at"])
    with pytest.raises(SchemaMismatch, match=r"column 'at': .*not every value fits") as caught:
        fitted(batch, stored_schema(batch.schema))
    assert caught.value.details["column"] == "at"
    assert "1001" in str(caught.value)
    assert "round" in str(caught.value.hint)


def test_names_of_a_maps_parts_do_not_matter():
    have = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int8()))
    batch = pa.record_batch({"m": pa.array([[("a", 1)]], have)})
    want = pa.map_(pa.string(), pa.int16())
    assert fitted(batch, pa.schema([("m", want)])).to_pydict() == {"m": [[("a", 1)]]}


def test_columns_may_have_any_order():
    batch = pa.record_batch({"b": pa.array([1], pa.int32()), "a": pa.array(["x"])})
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    assert fitted(batch, schema).to_pydict() == {"a": ["x"], "b": [1]}


def test_nullability_and_metadata_come_from_the_topic():
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)], metadata={"by": "me"})
    found = fitted(pa.record_batch({"a": pa.array([1], pa.int32())}), schema)
    assert found.schema.equals(schema, check_metadata=True)


def test_batch_that_fits_is_not_copied():
    batch = pa.record_batch({"a": [1]})
    assert fitted(batch, batch.schema) is batch


def batch_of(*names: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1], pa.int32()) for _ in names], names=names)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a",), r"column 'b' \(int\) is missing"),
        ((), r"column 'a' \(int\) is missing"),
        (("a", "b", "c"), r"column 'c' \(int\) is not one of the topic's columns \(a, b\)"),
        (("a", "B"), r"column 'b' \(int\) is missing"),
        (("a", "b", "b"), "column 'b' occurs more than once"),
        (("a", "a"), "column 'a' occurs more than once"),
    ],
    ids=str,
)
def test_missing_unknown_or_duplicate_column_is_refused_by_name(names, told):
    with pytest.raises(SchemaMismatch, match=told):
        fitted(batch_of(*names), schema_of("a", "b"))


def test_mismatch_has_the_order_of_columns():
    found = mismatch(schema_of("a", "b"), schema_of("b", "a"))
    assert "in the order b, a; expected a, b" in str(found)
    assert mismatch(schema_of("a"), schema_of("a")) is None


leaves = st.sampled_from([*SIMPLE, *REFUSED, pa.int32(), pa.int64()])
kinds = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.lists(st.tuples(st.sampled_from("abA"), inner), max_size=3).map(pa.struct),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=5,
)


@pytest.mark.rule("the Arrow types of a topic, and the batches that fit", "schema/schemas.py")
@settings(max_examples=examples(150))
@given(kinds, kinds, st.sampled_from([0, 1, 3]))
@example(pa.list_(pa.list_(pa.null(), 2), 2), pa.list_(pa.list_(pa.null(), 2)), 1)
def test_any_two_types_fit_or_raise_a_typed_error(have, want, rows):
    """A cast that Arrow does not support must not raise Arrow's error either."""
    try:
        batch = pa.RecordBatch.from_arrays([pa.nulls(rows, have)], names=["c"])
        stored_schema(pa.schema([("c", want)]))
    except (pa.ArrowException, IsologError):
        reject()  # Arrow has no such array, or a topic no such type
    try:
        found = fitted(batch, pa.schema([("c", want)]))
    except SchemaMismatch as error:
        event(f"refused: {error.code}")
    else:
        assert found.schema.types == [want]
        assert found.num_rows == rows


def test_comparison_of_wide_schemas_is_fast():
    """A client's schema must not block a broker: the comparison takes no longer than its read."""
    wide = pa.schema([(f"c{number}", pa.int8()) for number in range(50_000)])
    other = pa.schema([*wide, ("more", pa.int8())])
    turned = pa.schema([wide.field(1), wide.field(0), *list(wide)[2:]])
    started = thread_time()
    assert mismatch(wide, wide) is None
    assert "is missing" in str(mismatch(other, wide))
    assert "is not one of the topic's columns" in str(mismatch(wide, other))
    assert "in the order" in str(mismatch(wide, turned))
    assert thread_time() - started < 5  # by comparing each with each: minutes


@pytest.mark.parametrize(
    "kind",
    [
        pa.schema([("a", pa.int8()), ("naXe", pa.int8())]),
        pa.schema([("a", pa.struct([("b", pa.list_(pa.field("naXe", pa.int8())))]))]),
        pa.schema([("a", pa.timestamp("us", "naXe"))]),
        pa.schema([("a", pa.dictionary(pa.int8(), pa.struct([("naXe", pa.int8())])))]),
    ],
    ids=str,
)
def test_schema_with_texts_that_are_not_utf8_is_refused(kind):
    data = kind.serialize().to_pybytes()
    assert received_schema(data, "it") == kind
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        received_schema(data.replace(b"naXe", b"na\xffe"), "it")


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 8, b"\x10\0\0\0\0\0\0\0"])
def test_bytes_that_are_not_a_schema_are_refused(data):
    with pytest.raises(InvalidRequest, match="it is not an Arrow IPC schema"):
        received_schema(data, "it")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("CARRIER", " (is 'carrier' meant?)"),
        ("carier", " (is 'carrier' meant?)"),
        ("offset", " (is '_offset' meant?)"),
        ("delay", " (is 'Delay' meant?)"),
        ("x", ""),
    ],
)
def test_nearest_name_is_suggested_in_any_case(name, told):
    assert meant(name, ["carrier", "_offset", "Delay"]) == told
