"""Damaged Parquet and Arrow files: a typed error or valid rows, never a traceback."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isolog.errors import InvalidRecord, IsologError, SchemaMismatch
from spark_stream.cli.input.formats import Reading, format_of, records, schema_of_file
from spark_stream.schema.fitting import Fitting
from tests.examples import examples

ROWS = 60
FILES = examples(1500)
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "name": pa.array([None if n % 7 == 0 else f"n{n % 9}é" for n in range(ROWS)]),
        "kind": pa.array([f"c{n % 3}" for n in range(ROWS)]).dictionary_encode(),
        "at": pa.array(range(ROWS), pa.timestamp("ms")),
        "tags": pa.array([["a"] * (n % 3) for n in range(ROWS)]),
        "place": pa.array([{"x": n, "y": "s"} for n in range(ROWS)]),
        "counts": pa.array([[("k", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
    }
)


def parquet(compression: str, version: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        TABLE,
        file,
        compression=compression,
        row_group_size=25,
        write_page_checksum=True,
        data_page_version=version,
    )
    return file.getvalue()


def arrow(writer: Callable[..., pa.RecordBatchWriter], compression: str | None) -> bytes:
    file = io.BytesIO()
    with writer(
        file, TABLE.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as opened:
        opened.write_table(TABLE, max_chunksize=25)
    return file.getvalue()


WHOLE = {
    "plain.parquet": parquet("none", "1.0"),
    "zstd.parquet": parquet("zstd", "2.0"),
    "plain.arrow": arrow(pa.ipc.new_file, None),
    "lz4.arrow": arrow(pa.ipc.new_file, "lz4"),
    "plain.arrows": arrow(pa.ipc.new_stream, None),
    "zstd.arrows": arrow(pa.ipc.new_stream, "zstd"),
}


def flip_a_bit(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def overwrite_bytes(data: bytearray, random: Random) -> None:
    for _ in range(random.randrange(2, 30)):
        data[random.randrange(len(data))] = random.randrange(256)


def cut(data: bytearray, random: Random) -> None:
    del data[random.randrange(len(data)) :]


def insert_bytes(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.randrange(1, 20))


def damage_the_header(data: bytearray, random: Random) -> None:
    for _ in range(random.randrange(1, 4)):
        data[random.randrange(min(len(data), 1500))] = random.randrange(256)


def damage_the_footer(data: bytearray, random: Random) -> None:
    for _ in range(random.randrange(1, 6)):
        data[-1 - random.randrange(min(len(data), 3000))] = random.randrange(256)


def damage_names(data: bytearray, random: Random) -> None:
    for name in (b"name", b"tags", b"place", b"counts"):
        at = data.find(name)
        while at >= 0:
            if random.random() < 0.5:
                data[at + random.randrange(len(name))] = random.choice(b"\xff\xc3\x80\x00z")
            at = data.find(name, at + 1)


DAMAGES = [
    flip_a_bit,
    overwrite_bytes,
    cut,
    insert_bytes,
    damage_the_header,
    damage_the_footer,
    damage_names,
]


def produced(file: Path, known: pa.Schema | None) -> pa.Table:
    """Read a file like ``produce``, for a topic with this schema or with --create."""
    schema = schema_of_file(file) if known is None else known
    fitting = Fitting.of_topic(schema, text=False)
    kind = format_of(file)
    assert kind is not None

    def fitted() -> Iterator[pa.RecordBatch]:
        first = 1
        for batch in records(Reading(kind, file, columns=schema), lambda _: None):
            yield fitting.fit(batch, first)
            first += batch.num_rows

    return pa.Table.from_batches(fitted(), schema=schema)


def test_damaged_files_give_a_typed_error_or_valid_rows(tmp_path: Path) -> None:
    random = Random(39)
    schemas = {}
    for name, data in WHOLE.items():
        (tmp_path / name).write_bytes(data)
        whole = produced(tmp_path / name, None)
        assert whole.num_rows == ROWS
        schemas[name] = whole.schema
    refused = 0
    for number in range(FILES):
        name = random.choice(list(WHOLE))
        damage = random.choice(DAMAGES)
        data = bytearray(WHOLE[name])
        damage(data, random)
        (tmp_path / name).write_bytes(data)
        try:
            found = produced(tmp_path / name, schemas[name] if number % 2 else None)
        except IsologError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(f"file {number}: {damage.__name__} of {name}") from error
        found.validate(full=True)
    assert refused > FILES / 2


@pytest.mark.parametrize("name", WHOLE)
def test_column_names_that_are_not_utf8_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(WHOLE[name].replace(b"tags", b"t\xffgs"))
    with pytest.raises(InvalidRecord, match=r"b't\\xffgs.*' is not UTF-8"):
        produced(file, None)
    with pytest.raises(InvalidRecord, match=r"b't\\xffgs.*' is not UTF-8"):
        produced(file, TABLE.schema)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_file_with_a_duplicate_column_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    moments = pa.array([1, 2], pa.timestamp("ns"))
    table = pa.Table.from_arrays([moments, moments], names=["at", "at"])
    file = tmp_path / f"twice.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, file)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(SchemaMismatch, match="duplicate column 'at'"):
        schema_of_file(file)


def test_the_checksums_of_pages_are_verified(tmp_path: Path) -> None:
    file = tmp_path / "plain.parquet"
    place = WHOLE[file.name].index("n1é".encode())
    data = bytearray(WHOLE[file.name])
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidRecord, match="checksum"):
        produced(file, None)


def test_text_of_a_parquet_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "invalid.parquet"
    text = pa.array([b"a", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"s": text}), file)
    with pytest.raises(InvalidRecord, match="Invalid UTF8 sequence at string index 1"):
        produced(file, None)
