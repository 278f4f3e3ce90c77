"""Lines, CSV and JSON lines as batches, and the blocks of a stream of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolog.errors import InvalidOption, InvalidRecord, SchemaMismatch
from spark_stream.cli.input.formats import Format, Reading, format_of, records, schema_of_file
from spark_stream.cli.input.text_inputs import (
    CsvBlocks,
    CsvRecords,
    LineBlocks,
    after_line,
    blocks,
)
from spark_stream.schema.fitting import Fitting
from spark_stream.schema.json_rows import JsonBlocks
from spark_stream.sql.ddl import parse_schema, schema_text


class Typed:
    """A typing user: each part becomes available after the previous part was read."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)

    def read(self) -> bytes:
        return self._parts.pop(0) if self._parts else b""

    def ready(self) -> bool:
        return False

    def fileno(self) -> None:
        return None


class FileBytes(Typed):
    """A file, whose bytes are all available."""

    def ready(self) -> bool:
        return True


def test_complete_lines_are_passed_on_and_partial_lines_wait():
    seen: list[str] = []
    found: Iterator[bytes] = blocks(
        Typed(b"one\n", b"tw", b"o\nth", b"ree"), after_line, lambda _: seen.append("idle")
    )
    assert next(found) == b"one\n"
    assert next(found) == b"two\n"
    assert next(found) == b"three"
    assert next(found, None) is None
    assert seen == ["idle"] * 5


def test_available_lines_form_one_block():
    assert list(blocks(FileBytes(b"a\n", b"b\n", b"c"), after_line, lambda _: None)) == [b"a\nb\nc"]


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        (b'a,b\n1,"x\ny"\n2,"z\n', b'a,b\n1,"x\ny"\n'),
        (b'1,"say ""hi""\nthere"\n', b'1,"say ""hi""\nthere"\n'),
        (b'"open\n', b""),
        (b'a,5" pipe,c\n1,"2\n', b'a,5" pipe,c\n'),
        (b'"a"\r\n"b"\r\n"', b'"a"\r\n"b"\r\n'),
        (b'x,"a"', b""),
        (b"a\nb", b"a\n"),
    ],
)
def test_csv_is_not_split_within_quotes(held, whole):
    assert CsvRecords(",")(bytearray(held), False) == len(whole)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_the_last_csv_record_needs_no_end(end):
    text = b'1,"x\ny"' + end
    assert list(blocks(FileBytes(text), CsvRecords(","), lambda _: None)) == [text]


@pytest.mark.parametrize(
    ("text", "good", "line", "problem"),
    [
        (b'a,b\n1,x\n2,"y\n3,z\n4,w\n', b"a,b\n1,x\n", 3, "a quote is not closed"),
        (b'a,b\n1,"x\nx"\n2,"y\n3,"z"\n', b'a,b\n1,"x\nx"\n', 4, "text follows a closing"),
        (b'a\n"b"" \n', b"a\n", 2, "a quote is not closed"),
    ],
)
@pytest.mark.parametrize("kind", [Typed, FileBytes])
def test_broken_quote_is_refused_with_its_line(kind, text, good, line, problem):
    found = blocks(
        kind(*(text[at : at + 5] for at in range(0, len(text), 5))), CsvRecords(","), lambda _: None
    )
    seen: list[bytes] = []
    with pytest.raises(InvalidRecord, match=f"{problem}.* starts on line {line} ") as raised:
        seen.extend(iter(found))
    assert raised.value.details["line"] == line


def test_records_before_a_broken_quote_are_passed_on():
    text = b'a,b\n1,x\n2,"y\n3,z\n'
    found = blocks(FileBytes(text), CsvRecords(","), lambda _: None)
    assert next(found) == b"a,b\n1,x\n"
    with pytest.raises(InvalidRecord, match="line 3"):
        next(found)


def keyed_lines(block: bytes, first: int = 1) -> pa.RecordBatch:
    return LineBlocks("=>").parse(block, first)


def plain_lines(block: bytes, first: int = 1) -> pa.RecordBatch:
    return LineBlocks().parse(block, first)


def csv(block: bytes, first: int = 1) -> pa.RecordBatch:
    return CsvBlocks(";", names=["a", "b"]).parse(block, first)


def json_lines(block: bytes, first: int = 1) -> pa.RecordBatch:
    """Parse with Arrow's reader."""
    return JsonBlocks(parse_schema("a int, b string")).parse(block, first)


def json_with_a_map(block: bytes, first: int = 1) -> pa.RecordBatch:
    """Parse line by line, because Arrow's reader does not support maps."""
    return JsonBlocks(parse_schema("a int, b string, m map<string,int>")).parse(block, first)


@pytest.mark.parametrize(
    ("read", "block", "rows"),
    [
        (plain_lines, b"a\nb\n", [(b"a",), (b"b",)]),
        (plain_lines, b"a\n\nb", [(b"a",), (b"",), (b"b",)]),
        (plain_lines, b"a\r\nb\r\n", [(b"a",), (b"b",)]),
        (plain_lines, b"\n", [(b"",)]),
        (plain_lines, b"\xff\xfe\n", [(b"\xff\xfe",)]),
        (keyed_lines, b"k=>v=>w\n=>x\nk=>\n", [(b"k", b"v=>w"), (b"", b"x"), (b"k", b"")]),
        (csv, b"1;2\n", [("1", "2")]),
    ],
)
def test_a_block_is_read_as_rows(read, block, rows):
    assert [tuple(row.values()) for row in read(block).to_pylist()] == rows


JSON_PROBLEMS = [
    ('{"a":"x"}', "column 'a': 'x' does not fit int"),
    ('{"a":1.5}', "column 'a': 1.5 does not fit int"),
    ('{"b":5}', "column 'b': 5 does not fit string"),
    ('{"a":', "not JSON: "),
    ("[1]", "not a JSON object"),
]


@pytest.mark.parametrize(
    ("read", "good", "bad", "problem"),
    [
        (keyed_lines, "k=>v", "no key", "the line has no key before '=>'"),
        (keyed_lines, "k=>v", "", "the line has no key before '=>'"),
        (csv, "1;2", "5", "1 fields instead of 2: '5'"),
        (csv, "1;2", "5;6;7", "3 fields instead of 2: '5;6;7'"),
        *[
            (read, '{"a":2,"b":"x"}', *case)
            for read in (json_lines, json_with_a_map)
            for case in JSON_PROBLEMS
        ],
    ],
)
def test_bad_record_is_named_by_its_number(read, good, bad, problem):
    block = f"{good}\n{good}\n{bad}\n{good}\n".encode()
    with pytest.raises(InvalidRecord) as raised:
        read(block, 10)
    assert raised.value.message.startswith(f"record 12: {problem}")
    assert raised.value.details["record"] == 12


@pytest.mark.parametrize("read", [json_lines, json_with_a_map])
def test_blank_lines_of_json_are_not_counted(read):
    with pytest.raises(InvalidRecord, match="record 12: "):
        read(b'{"a":1}\n\n{"a":2}\n5\n', 10)


@pytest.mark.parametrize("read", [json_lines, json_with_a_map])
def test_unknown_json_column_is_named(read):
    with pytest.raises(SchemaMismatch, match="'z' is not one of"):
        read(b'{"a":1}\n{"z":1}\n')


def test_csv_distinguishes_null_and_empty_text():
    reader = CsvBlocks(nulls=["NA"])
    found = reader.parse(b'\xef\xbb\xbfa,b\n1,"x\ny"\n,""\nNA,"NA"\n', 1)
    assert found.to_pylist() == [
        {"a": "1", "b": "x\ny"},
        {"a": None, "b": ""},
        {"a": None, "b": "NA"},
    ]
    assert reader.parse(b"5,z\n", 4).to_pylist() == [{"a": "5", "b": "z"}]


NESTED = "id bigint, at timestamp, raw binary, p decimal(5,2), s struct<a:int,l:array<date>>"


@pytest.mark.parametrize("ddl", [NESTED, f"{NESTED}, m map<string,decimal(5,2)>"])
def test_json_lines_are_parsed_by_the_topics_types(ddl):
    schema = parse_schema(ddl)
    lines = (
        b'{"id":9223372036854775807,"at":"2024-01-01T00:00:00Z","raw":"aGk=","p":1.10,'
        b'"s":{"a":1,"l":["2024-02-03",null]}}\n\n{"s":null}\n'
    )
    found = Fitting.of_topic(schema, text=True).fit(JsonBlocks(schema).parse(lines, 1), 1)
    first, second = found.to_pylist()
    assert first["id"] == 9223372036854775807
    assert first["raw"] == b"hi"
    assert str(first["p"]) == "1.10"
    assert [str(each) for each in first["s"]["l"]] == ["2024-02-03", "None"]
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "line", "value"),
    [
        ("struct<a:int,b:int>", '{"a":1}', {"a": 1, "b": None}),
        ("array<struct<a:int,b:int>>", '[{"a":1}]', [{"a": 1, "b": None}]),
        ("map<string,struct<a:int,b:int>>", '{"k":{"a":1}}', [("k", {"a": 1, "b": None})]),
    ],
)
def test_missing_json_fields_are_null(kind, line, value):
    schema = parse_schema(f"c {kind}, d int")
    block = f'{{"c":{line}}}\n'.encode()
    found = Fitting.of_topic(schema, text=True).fit(JsonBlocks(schema).parse(block, 1), 1)
    assert found.to_pylist() == [{"c": value, "d": None}]


@pytest.mark.parametrize(
    ("kind", "values", "path"),
    [
        ("struct<a:int,b:int NOT NULL>", ['{"a":1,"b":2}', "null", '{"a":1}'], "c.b"),
        ("array<struct<b:int NOT NULL>>", ['[{"b":2}]', "[null]", '[{"b":2},{}]'], "c.element.b"),
        ("map<string,struct<b:int NOT NULL>>", ['{"k":{"b":2}}', "{}", '{"k":{}}'], "c.value.b"),
    ],
)
def test_missing_not_null_field_is_named_with_its_record(kind, values, path):
    schema = parse_schema(f"c {kind}")
    block = "\n".join(f'{{"c":{each}}}' for each in values).encode()
    with pytest.raises(InvalidRecord) as raised:
        Fitting.of_topic(schema, text=True).fit(JsonBlocks(schema).parse(block, 1), 1)
    assert raised.value.message == f"record 3: column {path!r} is null, and is NOT NULL"


@pytest.mark.rule("file formats of `produce`", "cli/input/formats.py")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.csv", Format.CSV),
        ("a.TSV.gz", Format.CSV),
        ("a.jsonl.zst", Format.JSON),
        ("a.parquet", Format.PARQUET),
        ("a.arrows", Format.ARROW),
        ("a.txt", None),
    ],
)
def test_the_extension_names_the_format(name, found):
    assert format_of(Path(name)) is found


def test_a_schema_is_derived_from_a_file_of_each_format(tmp_path):
    table = pa.table(
        {"i": pa.array([1], pa.int16()), "d": pa.array(["x"]).dictionary_encode(), "n": pa.nulls(1)}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert schema_text(schema_of_file(tmp_path / "a.parquet")) == "i smallint, d string, n string"
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    assert schema_of_file(tmp_path / "a.arrow").equals(schema_of_file(tmp_path / "a.parquet"))
    (tmp_path / "a.csv").write_text("n,at,s\n1,2024-01-01T00:00:00Z,x\nNA,,y\n")
    assert schema_text(schema_of_file(tmp_path / "a.csv")) == "n bigint, at timestamp, s string"
    (tmp_path / "a.jsonl").write_text('{"a":1.5,"l":[{"b":true}]}\n')
    assert (
        schema_text(schema_of_file(tmp_path / "a.jsonl")) == "a double, l array<struct<b:boolean>>"
    )


def test_files_that_do_not_match_their_format_are_refused(tmp_path):
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(InvalidRecord, match="cannot be read as"):
            schema_of_file(tmp_path / name)
        with pytest.raises(InvalidRecord, match="cannot be read as"):
            list(records(Reading(Format(name[2:]), tmp_path / name), lambda _: None))
    with pytest.raises(InvalidOption, match="unknown file format"):
        schema_of_file(tmp_path / "a.txt")


def test_invalid_buffers_of_a_file_are_refused(tmp_path):
    batch = pa.record_batch({"s": pa.array(["abc", "def"])})
    with pa.ipc.new_stream(tmp_path / "a.arrows", batch.schema) as writer:
        writer.write_batch(batch)
    data = (tmp_path / "a.arrows").read_bytes()
    offsets = bytes(pa.array([0, 3, 6], pa.int32()).buffers()[1])
    assert data.count(offsets) == 1
    wild = bytes(pa.array([0, 2**30, 6], pa.int32()).buffers()[1])
    (tmp_path / "a.arrows").write_bytes(data.replace(offsets, wild))
    with pytest.raises(InvalidRecord, match="cannot be read as arrow"):
        list(records(Reading(Format.ARROW, tmp_path / "a.arrows"), lambda _: None))


def test_large_batch_of_a_file_is_split(tmp_path):
    batch = pa.record_batch({"x": pa.array([b"." * 1000] * 40_000)})
    with pa.ipc.new_stream(tmp_path / "a.arrows", batch.schema) as writer:
        writer.write_batch(batch)
    found = list(records(Reading(Format.ARROW, tmp_path / "a.arrows"), lambda _: None))
    assert len(found) > 1
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))
