"""Batches as text: JSON that every reader takes back, CSV, tables, templates."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as some

from isolog.errors import InvalidOption
from spark_stream.cli.output.formats import Shape, Template, writer_of
from spark_stream.schema.texts import json_lines
from spark_stream.sql.ddl import parse_schema


def written(shape: Shape, *batches: pa.RecordBatch, utf8: bool = False) -> str:
    sink = io.BytesIO()
    writer = writer_of(shape, sink, batches[0].schema, utf8=utf8)
    for batch in batches:
        writer.write(batch)
    sink.flush()
    text = sink.getvalue().decode()
    writer.close()
    return text


def test_every_kind_of_value_has_its_json():
    schema = parse_schema(
        "b boolean, i int, d double, p decimal(10,2), s string, x binary, day date, ts timestamp,"
        " ntz timestamp_ntz, a array<array<int>>, st struct<a:int,at:timestamp>, e struct<>,"
        " m map<int,array<date>>, n void"
    )
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
    row = {
        "b": True,
        "i": -1,
        "d": 0.1,
        "p": Decimal("1.10"),
        "s": "x",
        "x": b"\xff",
        "day": dt.date(2024, 1, 2),
        "ts": moment,
        "ntz": dt.datetime(2024, 1, 2),
        "a": [[1, None], None, []],
        "st": {"a": None, "at": moment},
        "e": {},
        "m": [(5, [dt.date(2024, 1, 2)]), (6, None)],
    }
    batch = pa.RecordBatch.from_pylist(
        [row, {}, {"d": float("nan"), "a": [], "m": []}], schema=schema
    )
    expected = {
        "b": True,
        "i": -1,
        "d": 0.1,
        "p": 1.10,
        "s": "x",
        "x": "/w==",
        "day": "2024-01-02",
        "ts": "2024-01-02T03:04:05.000006Z",
        "ntz": "2024-01-02T00:00:00",
        "a": [[1, None], None, []],
        "st": {"a": None, "at": "2024-01-02T03:04:05.000006Z"},
        "e": {},
        "m": {"5": ["2024-01-02"], "6": None},
        "n": None,
    }
    nothing = dict.fromkeys(schema.names)
    rows = [expected, nothing, nothing | {"d": "NaN", "a": [], "m": {}}]
    assert [json.loads(each) for each in written(Shape.JSON, batch).splitlines()] == rows
    # Rows of a slice, which shares its buffers with the whole.
    assert json.loads(written(Shape.JSON, batch.slice(2))) == rows[2]
    assert written(Shape.JSON, batch.slice(0, 0)) == ""


@given(some.lists(some.none() | some.text(), min_size=1))
def test_json_round_trips_any_text(texts):
    batch = pa.record_batch({'a "name"\n': pa.array(texts, pa.string())})
    lines = json_lines(batch, utf8=False).to_pylist()
    assert [json.loads(line)['a "name"\n'] for line in lines] == texts
    assert not any("\n" in line for line in lines)


def test_null_structs_with_not_null_fields_in_maps_are_null_in_json():
    field = pa.field("i", pa.int32(), nullable=False)
    structs = pa.StructArray.from_arrays(
        [pa.array([1, None, 3, None], pa.int32())],
        fields=[field],
        mask=pa.array([False, True, False, True]),
    )
    maps = pa.MapArray.from_arrays([0, 2, None, 2, 4], pa.array(["a", "b", "c", "d"]), structs)
    lines = ['{"a":{"i":1},"b":null}', "{}", "null", '{"c":{"i":3},"d":null}']
    for start in range(4):
        batch = pa.record_batch({"m": maps.slice(start)})
        found = json_lines(batch, utf8=False).to_pylist()
        assert found == [f'{{"m":{line}}}' for line in lines[start:]]


def test_bytes_of_default_schema_topics_are_text():
    batch = pa.record_batch({"value": pa.array(["é".encode(), b"\xff!", None], pa.binary())})
    assert [
        json.loads(each)["value"] for each in written(Shape.JSON, batch, utf8=True).splitlines()
    ] == [
        "é",
        {"base64": "/yE="},
        None,
    ]


def test_raw_prints_the_bytes_unchanged():
    sink = io.BytesIO()
    batch = pa.record_batch({"value": pa.array([b"skipped", b"\xff", None, b"a"], pa.binary())})
    writer_of(Shape.RAW, sink, batch.schema, utf8=True).write(batch.slice(1))
    assert sink.getvalue() == b"\xff\n\na\n"


def test_csv_is_read_back_by_other_readers():
    schema = parse_schema("i int, s string, ts timestamp, a array<int>, x binary")
    rows = [
        {
            "i": 1,
            "s": 'a "b",\nc',
            "ts": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
            "a": [1],
            "x": b"hi",
        },
        {"s": ""},
    ]
    text = written(Shape.CSV, pa.RecordBatch.from_pylist(rows, schema=schema))
    options = pacsv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    found = pacsv.read_csv(
        io.BytesIO(text.encode()),
        parse_options=pacsv.ParseOptions(newlines_in_values=True),
        convert_options=options,
    )
    assert found.drop_columns(["ts"]).to_pylist() == [
        {"i": 1, "s": 'a "b",\nc', "a": "[1]", "x": "aGk="},
        {"i": None, "s": "", "a": None, "x": None},
    ]
    assert '"2024-01-01T00:00:00Z"' in text


def test_table_aligns_columns_and_cuts_long_cells():
    batch = pa.record_batch({"n": [1, 1000], "name": ["a\tb", "x" * 100]})
    head, rule, first, second = written(Shape.TABLE, batch).splitlines()
    assert head == "    n │ name"
    assert rule.startswith("──────┼──────")
    assert first == "    1 │ a b"
    assert second == f" 1000 │ {'x' * 79}…"


def test_a_table_has_no_control_characters():
    batch = pa.record_batch({"n\x1b[31m": ["a\x1b[31mb\x7f\x9bc"]})
    head, _, row = written(Shape.TABLE, batch).splitlines()
    assert head == " n\\x1b[31m"
    assert row == " a [31mb c"


def test_table_repeats_its_header_for_a_wider_cell():
    narrow = pa.record_batch({"n": [1], "s": ["a"]})
    wide = pa.record_batch({"n": [1], "s": ["abc"]})
    lines = written(Shape.TABLE, narrow, narrow, wide, narrow).splitlines()
    assert lines == [
        " n │ s",
        "───┼───",
        " 1 │ a",
        " 1 │ a",
        " n │ s",
        "───┼─────",
        " 1 │ abc",
        " 1 │ a",
    ]


def test_a_template_formats_each_record():
    template = Template("{{{offset}}}\\t{key}={value}{key}")
    assert template.columns == ["offset", "key", "value"]
    batch = pa.record_batch(
        {
            "offset": pa.array([7, 8]),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"\xff", b""], pa.binary()),
        }
    )
    sink = io.BytesIO()
    template.writer(sink, utf8=True).write(batch)
    assert sink.getvalue() == b"{7}\tk=\xffk\n{8}\t=\n"


@pytest.mark.parametrize("text", ["plain", "{", "{}", "{value:>5}", "{value!r}", ""])
def test_invalid_templates_are_refused(text):
    with pytest.raises(InvalidOption, match="--format"):
        Template(text)
