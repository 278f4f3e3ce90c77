"""The columns that a user sees, built from the columns that the leader sends."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InternalError, InvalidOption, SchemaMismatch
from spark_stream.client.reading.columns import (
    HEADERS,
    KAFKA_COLUMNS,
    View,
    offsets_of,
    shown_schema,
)
from spark_stream.schema.schemas import DEFAULT_SCHEMA, METADATA, TIMESTAMP

TYPED = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())], {"by": "me"}
)
KAFKAS_NAMES = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def sent(view: View, rows: int = 3) -> pa.RecordBatch:
    """The batch that a leader sends for a view."""
    everything = {
        "key": pa.array([b"k"] * rows),
        "value": pa.array([b"v"] * rows),
        "headers": pa.nulls(rows, HEADERS.type),
        "timestamp": pa.array([0] * rows, TIMESTAMP.type),
        "_timestamp": pa.array([1] * rows, TIMESTAMP.type),
        "id": pa.array(range(rows), pa.int64()),
        "name": pa.array(["n"] * rows),
    }
    whole = pa.RecordBatch.from_pydict(everything)
    return whole.select(view.requested)


def test_a_default_topic_shows_kafkas_columns():
    assert shown_schema(DEFAULT_SCHEMA).names == KAFKAS_NAMES
    assert shown_schema(DEFAULT_SCHEMA, headers=True).names == [*KAFKAS_NAMES, "headers"]
    assert shown_schema(DEFAULT_SCHEMA, metadata=True) == KAFKA_COLUMNS


def test_a_typed_topic_shows_its_own_and_metadata_on_request():
    assert shown_schema(TYPED) == TYPED.remove_metadata()
    assert shown_schema(TYPED, metadata=True).names == [
        "id",
        "name",
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
    ]
    assert shown_schema(TYPED).metadata is None


@pytest.mark.parametrize(
    ("view", "is_own"),
    [
        (View.of("t", DEFAULT_SCHEMA, ["key", "value", "timestamp"]), True),
        (View.of("t", DEFAULT_SCHEMA), False),  # it adds columns
        (View.of("t", TYPED), True),
        (View.of("t", TYPED, ["name"]), True),
        (View.of("t", TYPED, filter="id > 1"), True),
        (View.of("t", TYPED, metadata=True), False),
    ],
)
def test_a_view_that_adds_no_column_decodes_with_its_own_schema(view, is_own):
    leaders = pa.schema([view.field(name) for name in view.requested], {"of": "the leader"})
    assert (view.decoding(leaders) is view.schema) is is_own
    body = sent(view).cast(leaders).serialize()
    rows = pa.ipc.read_record_batch(pa.py_buffer(body), view.decoding(leaders))
    assert view.of_chunk(rows, 0, 7, [(7, 3)]).schema.equals(view.schema, check_metadata=True)


def test_a_view_decodes_other_columns_with_the_leaders_schema():
    view = View.of("t", TYPED)
    nullable = pa.schema([each.with_nullable(True) for each in TYPED])
    wider = pa.schema([TYPED.field("id"), pa.field("name", pa.large_string())])
    for leaders in (nullable, wider, pa.schema([TYPED.field("id")])):
        assert view.decoding(leaders) is leaders


def test_topic_partition_and_offset_are_added_by_the_client():
    default = View.of("t", DEFAULT_SCHEMA, headers=True)
    assert default.requested == ["key", "value", "timestamp", "headers"]
    typed = View.of("t", TYPED, metadata=True)
    assert typed.requested == ["id", "name", "_timestamp"]


def test_a_chunk_of_a_default_topic_has_kafkas_columns():
    view = View.of("events", DEFAULT_SCHEMA)
    batch = view.of_chunk(sent(view), partition=7, base=100)
    batch.validate(full=True)
    assert batch.schema == KAFKA_COLUMNS
    assert batch.drop_columns(["timestamp"]).to_pydict() == {
        "key": [b"k"] * 3,
        "value": [b"v"] * 3,
        "topic": ["events"] * 3,
        "partition": [7] * 3,
        "offset": [100, 101, 102],
        "timestampType": [0] * 3,
    }


def test_a_chunk_of_a_typed_topic_has_its_metadata():
    view = View.of("flights", TYPED, metadata=True)
    batch = view.of_chunk(sent(view), partition=2, base=5)
    batch.validate(full=True)
    assert batch.column("_offset").to_pylist() == [5, 6, 7]
    assert batch.column("_topic").to_pylist() == ["flights"] * 3
    assert batch.column("_partition").to_pylist() == [2] * 3
    assert batch.schema.names == [*TYPED.names, *(field.name for field in METADATA)]


columns_of = {
    "default": (DEFAULT_SCHEMA, [*KAFKAS_NAMES, "headers"]),
    "typed": (TYPED, [*TYPED.names, *(field.name for field in METADATA)]),
}


@given(st.sampled_from(sorted(columns_of)), st.data())
def test_a_view_has_the_chosen_columns_in_their_order(kind, data):
    schema, names = columns_of[kind]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    view = View.of("t", schema, chosen)
    batch = view.of_chunk(sent(view), partition=1, base=10)
    assert batch.schema.names == chosen
    assert batch.schema.equals(view.schema)
    assert batch.num_rows == 3
    for name in set(chosen) & {"offset", "_offset"}:
        assert batch.column(name).to_pylist() == [10, 11, 12]


@pytest.mark.parametrize(("schema", "name"), [(DEFAULT_SCHEMA, "id"), (TYPED, "offset")])
def test_an_unknown_column_is_refused_with_the_existing_ones(schema, name):
    with pytest.raises(
        SchemaMismatch, match=f"topic 't' has no column '{name}'.*; it has"
    ) as caught:
        View.of("t", schema, ["key" if schema is DEFAULT_SCHEMA else "id", name])
    assert caught.value.details == {"column": name}


def test_metadata_and_headers_follow_the_chosen_columns():
    assert View.of("t", TYPED, ["id"], metadata=True).schema.names == [
        "id",
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
    ]
    chosen = View.of("t", TYPED, ["_offset", "id"], metadata=True).schema.names
    assert chosen == ["_offset", "id", "_topic", "_partition", "_timestamp"]
    assert View.of("t", DEFAULT_SCHEMA, ["value"], headers=True).schema.names == [
        "value",
        "headers",
    ]
    assert View.of("t", DEFAULT_SCHEMA, ["value", "offset"], metadata=True).schema.names == [
        "value",
        "offset",
        "topic",
        "partition",
        "timestamp",
        "timestampType",
    ]


def test_columns_as_one_text_are_refused():
    with pytest.raises(InvalidOption, match="a list of names, not 'id'"):
        View.of("t", TYPED, "id")


runs = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=6)


@given(runs, st.sampled_from(sorted(columns_of)))
def test_rows_with_gaps_have_the_offsets_of_their_runs(gaps, kind):
    """``spans`` are [first, count] of each run. The leader dropped the records in between."""
    schema, _ = columns_of[kind]
    spans, at = [], 100
    for gap, count in gaps:
        spans.append((at, count))
        at += count + gap
    expected = [first + n for first, count in spans for n in range(count)]
    assert offsets_of(len(expected), 100, spans).tolist() == expected
    view = View.of("t", schema, metadata=True)
    batch = view.of_chunk(sent(view, len(expected)), 0, 100, spans)
    batch.validate(full=True)
    name = "offset" if kind == "default" else "_offset"
    assert batch.column(name).to_pylist() == expected


def test_offset_runs_that_do_not_match_the_rows_are_refused():
    with pytest.raises(InternalError, match="3 rows came with the offsets of 4"):
        offsets_of(3, 0, [(0, 2), (5, 2)])
