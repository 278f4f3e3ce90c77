"""CSV and JSON files of pandas, R and chart libraries have the same rows as in pandas."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pandas as pd
import pyarrow as pa
import pytest
from msgspec import structs

from isolog.errors import InvalidRecord
from spark_stream.cli.input.formats import Reading, format_of, records, schema_of_file
from spark_stream.cli.input.json_inputs import json_blocks
from spark_stream.cli.input.text_inputs import BLOCK_BYTES, bytes_of
from spark_stream.schema.fitting import Fitting
from tests.support import open_files

ARRAY = """
[ {"name": "chevrolet, [chevelle]", "miles": 18, "origin": null,
   "at": {"x": [1, 2]}},
\t{"name": "a \\"b\\" {", "miles": 15.5, "origin": "USA", "at": {"x": []}}
]
"""
ROWS = json.loads(ARRAY)


def produced(
    file: Path, nulls: list[str] | None = None, schema: pa.Schema | None = None
) -> pa.Table:
    """Read a file as ``produce`` does, for a topic with a schema, or with ``--create``."""
    kind = format_of(file)
    assert kind is not None
    reading = Reading(kind, file, nulls=nulls or [])
    schema = schema or schema_of_file(file, kind, reading)
    fitting = Fitting.of_topic(schema, text=True)

    def fitted() -> Iterator[pa.RecordBatch]:
        first = 1
        for batch in records(structs.replace(reading, columns=schema), lambda _: None):
            yield fitting.fit(batch, first)
            first += batch.num_rows

    return pa.Table.from_batches(fitted(), schema=schema)


def lines_of(data: bytes, file: Path) -> list[bytes]:
    file.write_bytes(data)
    with bytes_of(file) as source:
        return b"".join(json_blocks(source, lambda _: None)).split(b"\n")[:-1]


@pytest.mark.parametrize(
    "text",
    [
        '"","Income","Sex"\n"1",9.5,"male"\n"2",NA,NA\n"3",7,"female"\n',  # R
        ",a,b\n0,1,x\n1,,y\n",  # pandas' to_csv()
        "a,,b,\n1,2,3,4\n",
        'n,when,s\n1,2024-01-02,"a, b"\nNA,NA,c\n',
        'n,q\n1,2\n"NA",""\n3,4\n',
        'b,n\ntrue,1\n"",2\n',
    ],
)
def test_csv_has_the_rows_of_pandas(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    expected = pd.read_csv(file).convert_dtypes()
    found = produced(file, ["NA"]).to_pandas().convert_dtypes()
    assert len(found) == len(expected)
    for place, (ours, theirs) in enumerate(zip(found.columns, expected.columns, strict=True)):
        assert ours == (f"_c{place}" if theirs.startswith("Unnamed") else theirs)
        have, want = found.iloc[:, place], expected.iloc[:, place]
        if ours == "when":
            want = pd.to_datetime(want).dt.date
        for a, b in zip(have, want, strict=True):
            assert pd.isna(a) == pd.isna(b)
            assert pd.isna(a) or a == b


@pytest.mark.parametrize("given", ["n,q,s\n1,2,a\n", 'n,q,s\n1,"2",a\n'])
def test_a_null_in_quotes_is_null_except_in_text(tmp_path: Path, given: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(given + '"","NA",""\n"-","","NA"\n')
    found = produced(file, ["NA", "-"]).to_pydict()
    assert found == {"n": [1, None, None], "q": [2, None, None], "s": ["a", "", "NA"]}


def test_empty_text_for_a_number_is_refused_with_a_hint_at_null(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('n\n1\n""\n')
    with pytest.raises(InvalidRecord, match="record 2: column 'n': '' does not fit") as refused:
        produced(file)
    assert refused.value.hint == "If it means null, give --null ''."
    assert produced(file, [""])["n"].to_pylist() == [1, None]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_json_array_of_objects_has_the_rows_of_json(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(ARRAY.encode()) if name.endswith("gz") else ARRAY.encode())
    assert produced(file).to_pylist() == ROWS
    assert pd.read_json(file).to_dict("records")[1] == ROWS[1]


@pytest.mark.parametrize("text", [ARRAY, "\n".join(map(json.dumps, ROWS))])
def test_json_may_begin_with_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    """PowerShell and Python's ``utf-8-sig`` write one."""
    plain, marked = tmp_path / "plain.json", tmp_path / "marked.json"
    plain.write_text(text)
    marked.write_text(text, encoding="utf-8-sig")
    assert produced(marked).equals(produced(plain))


@pytest.mark.parametrize("seed", range(20))
def test_each_element_of_an_array_is_a_line(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    def value(depth: int) -> object:
        kind = random.randrange(7 if depth else 5)
        if kind < 5:
            texts = ['[{",:}]', "\\", 'a"b', "\n\r\t\0", "é\u2028😀", ""]
            return [random.randrange(-9, 9), None, True, 1.5e-7, random.choice(texts)][kind]
        if kind == 5:
            return [value(depth - 1) for _ in range(random.randrange(4))]
        return {f"k{n}": value(depth - 1) for n in range(random.randrange(4))}

    rows = [{"a": value(3)} for _ in range(random.randrange(6))]
    indent = random.choice([None, 0, 2, "\t"])
    text = json.dumps(rows, indent=indent, ensure_ascii=random.random() < 0.5)
    text = text.replace("\n", random.choice(["\n", "\r\n"]))
    text = random.choice(["", " \n", "\r\n\t"]) + text + random.choice(["", "\n\n"])
    assert [json.loads(each) for each in lines_of(text.encode(), tmp_path / "a")] == rows


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[{"a":1}', "invalid JSON array: Input data was truncated"),
        ('[{"a":1},]', "trailing comma"),
        ('[{"a":1}]\n[{"a":2}]', "trailing characters"),
        ('[{"a":"x\ny"}]', "invalid character"),
        ("[" * 100_000, "recursion"),
        ('[{"a":1},\n5]', "changed from object to number in row 1"),
        ('[{"a":1},null]', "record 2: not a JSON object: 'null'"),
        ('[{"a":1},{"a":' + "[" * 200 + "]" * 200 + "}]", "record 2: nested deeper than"),
    ],
)
def test_invalid_json_array_is_an_error_of_one_line(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InvalidRecord, match=problem) as refused:
        produced(tmp_path / "a.json")
    assert len(refused.value.message) < 300


GZIPPED = gzip.compress(b"a,b\n1,x\n", mtime=0)  # the bytes are in the id of a test


@pytest.mark.parametrize(
    ("name", "data", "problem", "hint"),
    [
        ("a.csv", b"a,b\n1,x\n2\n3,y\n", "record 2: 1 fields instead of 2: '2'", "--delimiter"),
        ("a.csv", b"a,b\n1,x\n2,y,z\n", "record 2: 3 fields instead of 2: '2,y,z'", "--delimiter"),
        ("a.csv", b"a,b\n1,x\n2,caf\xe9\n", r"record 2: column 'b': b'caf\xe9' is not", "iconv"),
        ("a.csv", b"a,caf\xe9\n1,x\n", r"b'caf\xe9' is not UTF-8", "iconv"),
        ("a.csv", "a,b\n1,x\n".encode("utf-16"), "a.csv is text in UTF-16", "iconv -f utf-16"),
        ("a.csv", GZIPPED, "a.csv is compressed by gzip", "a.csv.gz."),
        ("a.json", GZIPPED, "a.json is compressed by gzip", "a.json.gz."),
        ("a.csv", b"PAR1\x15\x04", "a.csv is a Parquet file", "--format parquet"),
        ("a.json", b'{"a":"\xe9"}\n', r"""record 1: not UTF-8: b'{"a":"\xe9"}'""", "iconv"),
        (
            "a.json",
            b'{"a":{"b":1}}\n{"a":{"b":"x"}}\n',
            "record 2: column 'a.b' has a value of type string, and earlier values of type",
            "--schema",
        ),
    ],
)
def test_error_of_a_file_names_the_column_the_record_and_the_remedy(
    tmp_path: Path, name: str, data: bytes, problem: str, hint: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRecord) as refused:
        produced(tmp_path / name)
    assert problem in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("name", "data", "problem", "hint"),
    [
        ("a.csv", b"a\n1\nNaN\n", "record 2: column 'a': 'NaN' does not fit int", "--null NaN"),
        ("a.json", b'{"a":1}\n{"a":NaN}', "record 2: column 'a': nan does not fit", "write null"),
        ("a.csv", b"\xe9\n1\n", r"the first line is not UTF-8: b'\xe9", "iconv"),
    ],
)
def test_error_of_a_record_for_a_topic_names_the_remedy(
    tmp_path: Path, name: str, data: bytes, problem: str, hint: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRecord) as refused:
        produced(tmp_path / name, schema=pa.schema([("a", pa.int32())]))
    assert problem in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.full  # the size of its blocks: a test below
@pytest.mark.parametrize("array", [True, pytest.param(False, marks=pytest.mark.full)])
def test_memory_does_not_depend_on_the_size_of_a_json_file(tmp_path: Path, array: bool) -> None:
    """Subprocesses read the files, because the peak of this process includes other tests."""
    tags = {f"k{n}": list("abc") for n in range(20)}
    row = json.dumps({"id": 1, "text": "x" * 100, "places": [1, 2, 3], **tags}).encode()
    start, between, end = (b"[", b",\n", b"]") if array else (b"", b"\n", b"\n")
    peaks = []
    for size in (1 << 20, 20 << 20):
        file = tmp_path / f"{size}.json"
        file.write_bytes(start + between.join([row] * (size // len(row))) + end)
        read = subprocess.run(
            [sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, check=True
        )
        peaks.append(int(read.stdout))
    assert peaks[1] - peaks[0] < 200 << 10  # in KiB


PEAK = """
import sys
from pathlib import Path
from msgspec import structs
from spark_stream.cli.input.formats import schema_of_file
from spark_stream.cli.input.formats import Format, Reading, records
reading = Reading(Format.JSON, Path(sys.argv[1]))
columns = schema_of_file(reading.file, reading.format, reading)
for each in records(structs.replace(reading, columns=columns), lambda _: None):
    pass
status = Path("/proc/self/status").read_text().splitlines()
print(next(line for line in status if line.startswith("VmHWM")).split()[1])
"""


def test_array_is_split_into_blocks_of_limited_size(tmp_path: Path) -> None:
    rows = 20_000
    row = json.dumps({"id": 1, "text": "\\" * 500 + '"'}).encode()
    file = tmp_path / "a.json"
    file.write_bytes(b"[" + b",\n".join([row] * rows) + b"]")
    with bytes_of(file) as source:
        sizes = [len(block) for block in json_blocks(source, lambda _: None)]
    assert sum(sizes) == rows * (len(row) + 1)
    assert max(sizes) < 3 * BLOCK_BYTES


@pytest.mark.parametrize("seed", range(20))
def test_array_in_small_pieces_has_the_rows_of_json(seed: int) -> None:
    """The pieces may end anywhere, such as in a string or between a backslash and a quote."""
    random = Random(seed)
    texts = ['[{",:}]', "\\", '\\"', 'a"b', "", "é\n"]
    rows = [
        {random.choice(texts): [random.choice(texts), {"a": random.choice(texts)}]}
        for _ in range(random.randrange(9))
    ]
    data = json.dumps(rows, indent=random.choice([None, 1])).encode()
    found = b"".join(json_blocks(Pieces(data, random), lambda _: None))
    assert [json.loads(each) for each in found.split(b"\n")[:-1]] == rows
    for _ in range(30):
        at = random.randrange(len(data))
        damaged = data[:at] + random.choice([b"", b",", b"]", b"[", b'"']) + data[at + 1 :]
        try:
            expected = json.loads(damaged)
        except ValueError:
            expected = None
        try:
            found = b"".join(json_blocks(Pieces(damaged, random), lambda _: None))
            if not damaged.startswith(b"["):
                continue
            assert [json.loads(each) for each in found.split(b"\n")[:-1]] == expected
        except InvalidRecord:
            assert expected is None


@pytest.mark.parametrize("text", ['[{"a":1}, , {"a":2}]', '[{"a":1}, ]', '[,{"a":1}]'])
def test_a_comma_without_an_element_is_refused_in_every_block(text: str) -> None:
    with pytest.raises(InvalidRecord, match="invalid JSON array"):
        list(json_blocks(Pieces(text.encode(), Random(1)), lambda _: None))


def test_error_of_a_later_block_names_the_byte_in_the_file(tmp_path: Path) -> None:
    text = "[" + '{"a":1},' * 1_000_000 + '{"a":1 2},' + '{"a":1}]'
    with pytest.raises(InvalidRecord, match=rf"\(byte {text.index(' 2') + 1}\)"):
        lines_of(text.encode(), tmp_path / "a.json")


class Pieces:
    """An input that arrives in small pieces, with a pause after each."""

    def __init__(self, data: bytes, random: Random) -> None:
        self._data, self._random = data, random

    def read(self) -> bytes:
        size = self._random.randrange(1, 12)
        found, self._data = self._data[:size], self._data[size:]
        return found

    def ready(self) -> bool:
        return False

    def fileno(self) -> None:
        return None

    def part(self) -> None:
        return None


def test_lines_of_a_pipe_are_passed_on_before_it_ends(tmp_path: Path) -> None:
    class Pipe(Pieces):
        def __init__(self) -> None:
            self.parts = [b" \n", b'{"a":1}\n', b'{"a":2}\n{"a"', b":3}"]

        def read(self) -> bytes:
            return self.parts.pop(0) if self.parts else b""

    pipe = Pipe()
    found = json_blocks(pipe, lambda _: None)
    assert next(found).strip() == b'{"a":1}'
    assert len(pipe.parts) == 2
    assert b"".join(found) == b'{"a":2}\n{"a":3}'


def test_files_are_closed(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    produced(file)
    assert str(file) not in open_files().values()
