"""What ``produce`` reads: which format a file has, its schema, and its records as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pyarrow.types as pt

from spark_stream.cli.blocks import (
    after_csv_record,
    after_line,
    blocks,
    bytes_of,
    uncompressed_suffix,
)
from spark_stream.cli.fitting import NULLS
from spark_stream.cli.json_lines import JsonBlocks
from spark_stream.cli.text_inputs import CsvBlocks, Parse, line_records
from spark_stream.errors import InvalidOption, InvalidRecord

BATCH_ROWS: Final = 1 << 16
BATCH_BYTES: Final = 16 << 20  # some of them fit into the producer's buffer at once
_INFER_BYTES: Final = 64 << 20


class Format(StrEnum):
    """How records are written down."""

    LINES = "lines"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"


TEXT: Final = (Format.LINES, Format.CSV, Format.JSON)
_SUFFIXES: Final = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}


def format_of(file: Path | None) -> Format | None:
    """The format that a file's extension names."""
    return None if file is None else _SUFFIXES.get(uncompressed_suffix(file))


@dataclass(frozen=True, slots=True)
class Reading:
    """How an input is to be read. ``columns`` are the names and types that text is read by."""

    format: Format
    file: Path | None
    columns: pa.Schema | None = None
    key_separator: str | None = None
    headed: bool = True
    delimiter: str | None = None
    nulls: list[str] = field(default_factory=list)


def records(reading: Reading, idle: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The records of an input; ``idle`` is called before a wait for more.

    Raises:
        InvalidRecord: the input is not what its format says.
    """
    if reading.format is Format.PARQUET:
        assert reading.file is not None
        yield from _parquet(reading.file)
    elif reading.format is Format.ARROW:
        yield from _arrow(reading.file)
    else:
        cut = after_csv_record if reading.format is Format.CSV else after_line
        parse = _parser(reading)
        first = 1
        for block in blocks(bytes_of(reading.file), cut, idle):
            batch = parse(block, first)
            first += batch.num_rows
            yield batch


def _parser(reading: Reading) -> Parse:
    if reading.format is Format.LINES:
        return lambda block, _: line_records(block, reading.key_separator)
    assert reading.columns is not None
    if reading.format is Format.JSON:
        return JsonBlocks(reading.columns).parse
    names = None if reading.headed else reading.columns.names
    return CsvBlocks(_delimiter(reading), reading.nulls, names).parse


def _delimiter(reading: Reading) -> str:
    if reading.delimiter is not None:
        return reading.delimiter
    tabs = reading.file is not None and uncompressed_suffix(reading.file) == ".tsv"
    return "\t" if tabs else ","


def _parquet(file: Path) -> Iterator[pa.RecordBatch]:
    with _readable(file, Format.PARQUET), pq.ParquetFile(file) as source:
        for batch in source.iter_batches(BATCH_ROWS):
            yield from _pieces(batch)


def _arrow(file: Path | None) -> Iterator[pa.RecordBatch]:
    """An IPC stream or file; from standard input a stream."""
    with _readable(file, Format.ARROW):
        if file is None:
            with pa.ipc.open_stream(open(0, "rb", closefd=False)) as stream:
                for batch in stream:
                    yield from _pieces(batch)
            return
        with _arrow_source(file) as source:
            count = getattr(source, "num_record_batches", None)
            for batch in source if count is None else map(source.get_batch, range(count)):
                yield from _pieces(batch)


def _arrow_source(file: Path) -> Any:
    mapped = pa.memory_map(str(file))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts that are small enough to be sent."""
    rows = BATCH_ROWS
    if batch.nbytes > BATCH_BYTES:
        rows = max(1, min(rows, batch.num_rows * BATCH_BYTES // batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@contextmanager
def _readable(file: Path | None, kind: Format) -> Iterator[None]:
    """Arrow's errors about a file as ours."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        name = "standard input" if file is None else str(file)
        text = str(error).partition("\n")[0]
        raise InvalidRecord(
            f"{name} cannot be read as {kind}: {text}", hint="Check the file, or give its --format."
        ) from error


def schema_of_file(
    file: Path, kind: Format | None = None, reading: Reading | None = None
) -> pa.Schema:
    """The columns of a file, in types that a topic and Spark take.

    Those of CSV and JSON lines are told from the first 64 MiB; unless ``reading`` says otherwise, a
    column of numbers may have nulls in any usual spelling.

    Raises:
        InvalidOption: the extension is not known.
        InvalidRecord: the file is not what its extension says.
    """
    kind = kind or format_of(file)
    if kind is None or kind is Format.LINES:
        raise InvalidOption(
            f"{file}: which format is it?", hint=f"Known extensions: {' '.join(_SUFFIXES)}."
        )
    with _readable(file, kind):
        if kind is Format.PARQUET:
            schema = pq.read_schema(file)
        elif kind is Format.ARROW:
            with _arrow_source(file) as source:
                schema = source.schema
        else:
            schema = _inferred(reading or Reading(kind, file, nulls=[*NULLS]))
    return pa.schema([pa.field(each.name, _plain(each.type), each.nullable) for each in schema])


def _inferred(reading: Reading) -> pa.Schema:
    with pa.input_stream(str(reading.file), compression="detect") as source:
        sample = source.read(_INFER_BYTES)
    cut = after_csv_record if reading.format is Format.CSV else after_line
    if len(sample) == _INFER_BYTES:
        sample = sample[: cut(bytearray(sample))]
    size = len(sample) + 1
    if reading.format is Format.JSON:
        options = pajson.ReadOptions(block_size=size)
        return pajson.read_json(pa.BufferReader(sample), options).schema
    return pacsv.read_csv(
        pa.BufferReader(sample),
        pacsv.ReadOptions(block_size=size),
        pacsv.ParseOptions(delimiter=_delimiter(reading), newlines_in_values=True),
        pacsv.ConvertOptions(null_values=["", *reading.nulls], strings_can_be_null=True),
    ).schema


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without what only matters in a file: dictionaries, units that are not Spark's."""
    if pt.is_dictionary(kind):
        return _plain(kind.value_type)
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pt.is_null(kind) or pt.is_time(kind):  # nothing but nulls; a time of day that a CSV file has
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type), kind.value_field.nullable))
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, _plain(each.type), each.nullable) for each in fields])
    return kind
