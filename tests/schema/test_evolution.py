"""Allowed changes of a topic's schema. An evolved schema accepts and returns every value."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from isolog.errors import SchemaMismatch, UnsupportedType
from spark_stream.batches import conformed
from spark_stream.schema.evolution import check_evolution, evolves, misfit
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.schema.types import SPARK_TYPE
from spark_stream.sql.ddl import parse_altered, parse_schema

LADDER = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
PRESENT = pa.schema(
    [pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("price", pa.float32())]
)


def altered(*changes: tuple[str, pa.DataType | None], more: tuple[pa.Field, ...] = ()) -> pa.Schema:
    found = dict(changes)
    fields = [
        field.with_type(found.get(field.name) or field.type)
        for field in PRESENT
        if field.name not in found or found[field.name] is not None
    ]
    return pa.schema([*fields, *more])


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (altered(("name", None)), "column 'name' (string): a column of a topic cannot be dropped"),
        (
            altered(("name", None), more=(pa.field("called", pa.string()),)),
            "cannot be dropped, nor renamed to 'called'",
        ),
        (
            pa.schema([PRESENT.field(1), PRESENT.field(0), PRESENT.field(2)]),
            "column 'name': the columns would change their order, from id, name, price to name,"
            " id, price",
        ),
        (
            pa.schema([pa.field("new", pa.int8()), *PRESENT]),
            "column 'new': a new column must come after the existing ones",
        ),
        (
            altered(("id", pa.int16())),
            "column 'id' from int to smallint: a type cannot become a narrower one",
        ),
        (altered(("id", pa.string())), "column 'id' from int to string: a type can become a wider"),
        (altered(("id", pa.float32())), "column 'id' from int to float: a type can become"),
        (altered(("price", pa.int64())), "column 'price' from float to bigint"),
        (
            altered(more=(pa.field("n", pa.int8(), nullable=False),)),
            "column 'n' (tinyint): a new column takes nulls",
        ),
        (
            pa.schema([PRESENT.field(0), PRESENT.field(1).with_nullable(False), PRESENT.field(2)]),
            "column 'name' (string): a column that may have nulls cannot become NOT NULL",
        ),
        (PRESENT, "topic 't' has this schema already: there is nothing to change"),
        (altered(more=(pa.field("NAME", pa.string()),)), "are equal, ignoring case"),
        (altered(more=(pa.field("_offset", pa.int64()),)), "the name is reserved"),
    ],
)
def test_incompatible_change_is_refused_with_column_and_reason(asked: pa.Schema, said: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check_evolution("t", PRESENT, asked)
    assert said in caught.value.message
    assert "'t'" in caught.value.message or "column" in caught.value.details


def test_default_schema_cannot_change() -> None:
    with pytest.raises(SchemaMismatch, match="has Kafka's columns") as caught:
        check_evolution("t", DEFAULT_SCHEMA, pa.schema([*DEFAULT_SCHEMA, ("more", pa.int8())]))
    assert "typed topic" in (caught.value.hint or "")


def test_a_new_column_gets_a_type_that_a_topic_stores() -> None:
    more = (pa.field("more", pa.dictionary(pa.int8(), pa.timestamp("ns"))),)
    found = check_evolution("t", PRESENT, altered(more=more))
    assert found.field("more").type == pa.timestamp("us")
    more = (pa.field("more", pa.month_day_nano_interval()),)
    with pytest.raises(UnsupportedType, match="'more'"):
        check_evolution("t", PRESENT, altered(more=more))
    for kind in (pa.list_(pa.int8(), 2**31 - 1), pa.struct([("in", pa.struct([]))]), pa.binary(0)):
        with pytest.raises(UnsupportedType, match="'more"):
            check_evolution("t", PRESENT, altered(more=(pa.field("more", kind),)))


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.list_(pa.timestamp("ns", "UTC")), pa.list_(pa.timestamp("us", "UTC"))),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.large_string(), pa.string()),
    ],
)
def test_column_may_become_its_stored_type(have: pa.DataType, want: pa.DataType) -> None:
    present = pa.schema([("c", have)])
    assert check_evolution("t", present, pa.schema([("c", want)])).types == [want]
    if have != pa.uint64():  # the topic's described schema, given back, does the same
        assert check_evolution("t", present, present).types == [want]


@pytest.mark.parametrize(
    ("have", "want", "reason"),
    [
        (pa.int64(), pa.float64(), "not every bigint is exactly a double"),
        (pa.decimal128(10, 2), pa.decimal128(12, 1), "would lose 1 decimal places"),
        (
            pa.decimal128(10, 2),
            pa.decimal128(10, 4),
            "would lose 2 digits before the point",
        ),
        (pa.decimal256(10, 2), pa.decimal128(12, 2), "narrower"),
        (pa.uint8(), pa.uint16(), "no other"),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), "within it: a type cannot become a narrower"),
        (pa.list_(pa.int64()), pa.int64(), "no other"),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), "size of its lists"),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([("b", pa.int8()), ("a", pa.int8())]),
            "fields of a struct cannot be dropped",
        ),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)]),
            "its new field 'b' must take nulls",
        ),
        (
            pa.map_(pa.struct([("a", pa.int8())]), pa.int8()),
            pa.map_(pa.struct([("a", pa.int8()), ("b", pa.int8())]), pa.int8()),
            "the keys of a map cannot get fields",
        ),
        (
            pa.struct([("a", pa.int8())]),
            pa.struct([pa.field("a", pa.int8(), nullable=False)]),
            "'a' within it: a column that may have nulls",
        ),
    ],
)
def test_types_that_do_not_widen(have: pa.DataType, want: pa.DataType, reason: str) -> None:
    wrong = misfit(pa.schema([("c", have)]), pa.schema([("c", want)]))
    assert wrong is not None
    assert reason in wrong.message
    assert (wrong.details["have"], wrong.details["want"]) == (str(have), str(want))


def test_comments_stay_unless_replaced() -> None:
    present = pa.schema(
        [pa.field("a", pa.int8(), metadata={"comment": "first"})], {"made": "by me"}
    )
    made = check_evolution("t", present, pa.schema([("a", pa.int16())]))
    assert made.field("a").metadata == {b"comment": b"first"}
    assert made.metadata == {b"made": b"by me"}
    other = pa.schema([pa.field("a", pa.int16(), metadata={"comment": "second"})])
    assert check_evolution("t", present, other).field("a").metadata == {b"comment": b"second"}


def declared(text: str) -> pa.Field:
    return pa.field("c", pa.string(), metadata={SPARK_TYPE: text})


def test_declared_types_stay_unless_replaced() -> None:
    nested = pa.list_(pa.struct([declared("char(5)")]))
    present = pa.schema([declared("varchar(5)"), pa.field("nested", nested)])
    wider = pa.list_(pa.struct([("c", pa.string()), ("new", pa.int8())]))
    made = check_evolution("t", present, pa.schema([("c", pa.string()), ("nested", wider)]))
    assert made.field("c").equals(declared("varchar(5)"), check_metadata=True)
    kept = made.field("nested").type.value_type.field("c")
    assert kept.equals(declared("char(5)"), check_metadata=True)
    longer = pa.schema([declared("varchar(9)"), ("nested", nested)])
    made = check_evolution("t", present, longer)
    assert made.field("c").equals(declared("varchar(9)"), check_metadata=True)
    with pytest.raises(SchemaMismatch, match="nothing to change"):
        check_evolution("t", made, pa.schema([("c", pa.string()), ("nested", nested)]))


def test_an_empty_declaration_removes_a_declared_type() -> None:
    present = parse_schema("c char(5), nested array<char(5)>")
    made = check_evolution("t", present, parse_altered("c string, nested array<string>"))
    assert not made.field("c").metadata
    assert not made.field("nested").type.value_field.metadata
    with pytest.raises(SchemaMismatch, match="nothing to change"):
        check_evolution("t", made, parse_altered("c string, nested array<string>"))
    made = check_evolution("t", present, parse_altered("c char(9), nested array<char(5)>"))
    assert made.field("c").equals(declared("char(9)"), check_metadata=True)
    assert made.field("nested").equals(present.field("nested"), check_metadata=True)


# -- any schemas ---------------------------------------------------------------------------------


def wider(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    """A type that this one may become, perhaps the same."""
    if kind in LADDER:
        targets = [each for each in LADDER if each.bit_width >= kind.bit_width]
        return draw(st.sampled_from([*targets, *([pa.float64()] if kind != pa.int64() else [])]))
    if kind == pa.float32():
        return draw(st.sampled_from([kind, pa.float64()]))
    if pa.types.is_decimal(kind):
        places = draw(st.integers(0, 4))
        return pa.decimal128(kind.precision + places + draw(st.integers(0, 4)), kind.scale + places)
    if pa.types.is_list(kind):
        return pa.list_(wider(draw, kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, wider(draw, kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                pa.field(
                    each.name,
                    wider(draw, each.type),
                    each.nullable or draw(st.booleans()),
                )
                for each in kind
            ]
        )
    return kind


PLAIN = st.sampled_from(
    [*LADDER, pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.string(), pa.bool_(), pa.date32()]
)
KINDS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
            lambda parts: pa.struct(
                [pa.field(f"f{n}", kind, null) for n, (kind, null) in enumerate(parts)]
            )
        ),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy[object]:
    if pa.types.is_integer(kind):
        edge = 1 << (kind.bit_width - 1)
        found: st.SearchStrategy[object] = st.integers(-edge, edge - 1)
    elif pa.types.is_floating(kind):
        found = st.floats(width=kind.bit_width)
    elif pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        found = st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-kind.scale))
    elif pa.types.is_boolean(kind):
        found = st.booleans()
    elif pa.types.is_date(kind):
        found = st.dates()
    elif pa.types.is_list(kind):
        found = st.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        found = st.dictionaries(st.text(max_size=3), values_of(kind.item_type), max_size=3).map(
            lambda each: list(each.items())
        )
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries(
            {each.name: values_of(each.type, nullable=each.nullable) for each in kind}
        )
    else:
        found = st.text(st.characters(codec="utf-8"), max_size=5)
    return st.one_of(st.none(), found) if nullable else found


@st.composite
def evolved(draw: st.DrawFn) -> tuple[pa.RecordBatch, pa.Schema]:
    """A batch, and a schema that its schema may become."""
    fields = [
        pa.field(f"c{n}", kind, nullable=draw(st.booleans()))
        for n, kind in enumerate(draw(st.lists(KINDS, min_size=1, max_size=4)))
    ]
    rows = draw(st.integers(0, 6))
    arrays = [
        pa.array(
            draw(
                st.lists(values_of(each.type, nullable=each.nullable), min_size=rows, max_size=rows)
            ),
            each.type,
        )
        for each in fields
    ]
    newer = [
        pa.field(each.name, wider(draw, each.type), each.nullable or draw(st.booleans()))
        for each in fields
    ]
    newer += [pa.field(f"n{n}", kind) for n, kind in enumerate(draw(st.lists(KINDS, max_size=2)))]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), pa.schema(newer)


def shown(batch: pa.RecordBatch) -> str:
    """The values as text: NaN equals NaN, 1 equals 1.0 and 1.50 equals 1.5."""
    return _plain(batch.to_pylist())


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_plain(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_plain, value)) + "]"
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return repr(value)
    return str(hash(value)) if value == value else "NaN"  # equal numbers have equal hashes


@pytest.mark.rule("the allowed changes of a topic's schema", "schema/evolution.py")
@given(evolved())
def test_batch_survives_a_round_trip_through_an_evolved_schema(
    case: tuple[pa.RecordBatch, pa.Schema],
) -> None:
    batch, newer = case
    assert misfit(batch.schema, newer) is None
    if not batch.schema.equals(newer):
        event("altered")
        assert check_evolution("t", batch.schema, newer).equals(newer)
        assert misfit(newer, batch.schema) is not None  # there is no way back
    read = conformed(batch.slice(1), newer)
    read.validate(full=True)
    assert read.schema.equals(newer)
    assert shown(read.select(batch.schema.names)) == shown(batch.slice(1))
    assert all(read.column(n).null_count == len(read) for n in newer.names if n[0] == "n")
    back = conformed(read, batch.schema)
    back.validate(full=True)
    assert back.schema.equals(batch.schema)
    assert shown(back) == shown(batch.slice(1))


@pytest.mark.slow
@given(evolved(), st.data())
def test_two_evolutions_equal_one(
    case: tuple[pa.RecordBatch, pa.Schema], data: st.DataObject
) -> None:
    batch, newer = case

    @st.composite
    def further(draw: st.DrawFn) -> pa.Schema:
        return pa.schema(
            [each.with_type(wider(draw, each.type)).with_nullable(True) for each in newer]
        )

    newest = data.draw(further())
    if evolves(newer, newest):
        assert evolves(batch.schema, newest)
        twice = conformed(conformed(batch, newer), newest)
        assert shown(twice) == shown(conformed(batch, newest))


@pytest.mark.parametrize(
    ("values", "have", "want", "said"),
    [
        ([5, 1 << 40], pa.int64(), pa.int32(), "values from 5 to 1099511627776"),
        ([0.1], pa.float64(), pa.float32(), "the value 0.1"),
        ([0.5], pa.float64(), pa.int32(), "the value 0.5"),
        ([Decimal("1.001")], pa.decimal128(10, 3), pa.decimal128(9, 2), "the value 1.001"),
        ([[0.1]], pa.list_(pa.float64()), pa.list_(pa.float32()), "values of array<double>"),
        (
            [[("k", 0.1)]],
            pa.map_(pa.string(), pa.float64()),
            pa.map_(pa.string(), pa.float32()),
            "values of map",
        ),
        (
            [{"a": None}],
            pa.struct([("a", pa.int8())]),
            pa.struct([pa.field("a", pa.int8(), nullable=False)]),
            "values of struct",
        ),
    ],
)
def test_value_beyond_the_older_type_is_refused(
    values: list[object], have: pa.DataType, want: pa.DataType, said: str
) -> None:
    batch = pa.record_batch({"c": pa.array(values, have)})
    with pytest.raises(SchemaMismatch) as caught:
        conformed(batch, pa.schema([("c", want)]))
    assert "column 'c'" in caught.value.message
    assert said in caught.value.message
    assert "Restart the query" in (caught.value.hint or "")


def test_null_beyond_the_older_schema_is_refused() -> None:
    batch = pa.record_batch({"c": pa.array([1, None])})
    with pytest.raises(SchemaMismatch, match="'c': it has nulls"):
        conformed(batch, pa.schema([pa.field("c", pa.int64(), nullable=False)]))
