"""The format of an input, its records as Arrow batches, and the schema of a suitable topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pyarrow.types as pt
from msgspec import Struct, field

from spark_stream.cli.input.json_inputs import json_blocks
from spark_stream.cli.input.text_inputs import (
    COMPRESSIONS,
    Bytes,
    CsvBlocks,
    CsvRecords,
    Idle,
    LineBlocks,
    Parse,
    after_line,
    blocks,
    bytes_of,
    parse_options,
    uncompressed_suffix,
    with_default_names,
    wrong_width,
)
from spark_stream.cli.options import TEXT, Format
from spark_stream.errors import InvalidOption, InvalidRecord
from spark_stream.schema.fitting import (
    NULLS,
    UTF8_HINT,
    Fitting,
    bad_record,
    check_names,
    takes_empty_text,
)
from spark_stream.schema.json_rows import JsonBlocks, check_lines, lines_in
from spark_stream.schema.schemas import METADATA
from spark_stream.schema.types import stored_type, with_inner

BATCH_ROWS: Final = 1 << 16
_SHOWN_MAX: Final = 60
BATCH_BYTES: Final = 16 << 20  # the producer's buffer holds several
_CHANGED: Final = re.compile(r"Column\((/.*)\) changed from (\w+) to (\w+) in row (\d+)")
_INFER_BYTES: Final = 64 << 20
_TOO_FINE: Final = "Topics store microseconds, as Spark does. Round the column first."


SUFFIXES: Final = {
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
    """Return the format of a file's extension, None if unknown."""
    return None if file is None else SUFFIXES.get(uncompressed_suffix(file))


_RENAME: Final = "Rename it to {file}"
_UTF8: Final = f"{UTF8_HINT[:-1]}: iconv -f utf-16 -t utf-8 {{file}}"
_BINARY: Final = {
    b"\x1f\x8b": ("compressed by gzip", f"{_RENAME}.gz."),
    b"BZh": ("compressed by bzip2", f"{_RENAME}.bz2."),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", f"{_RENAME}.zst."),
    b"\x04\x22\x4d\x18": ("compressed by lz4", f"{_RENAME}.lz4."),
    b"PAR1": ("a Parquet file", "Give --format parquet."),
    b"ARRO": ("an Arrow file", "Give --format arrow."),
    b"PK\x03\x04": ("a ZIP archive or a spreadsheet", "Extract it, or export it as CSV."),
    b"\xff\xfe": ("text in UTF-16", _UTF8),
    b"\xfe\xff": ("text in UTF-16", _UTF8),
}
"""First bytes of files that are neither CSV nor JSON, with a description and a remedy."""

_NO_COLUMNS: Final = pa.schema([])


class Reading(Struct, frozen=True):
    """The options for reading an input. ``columns``: names and types of the columns of text.

    ``metadata``: further columns that JSON may have. ``utf8``: see :class:`JsonBlocks`. ``quiet``:
    do not print a message about columns without a name.
    """

    format: Format
    file: Path | None
    columns: pa.Schema | None = None
    metadata: pa.Schema = _NO_COLUMNS
    utf8: bool = False
    key_separator: str | None = None
    headed: bool = True
    delimiter: str | None = None
    nulls: list[str] = field(default_factory=list)
    quiet: bool = False

    @property
    def mark(self) -> str:
        """The delimiter of CSV."""
        if self.delimiter is not None:
            return self.delimiter
        tabs = self.file is not None and uncompressed_suffix(self.file) == ".tsv"
        return "\t" if tabs else ","


Moved = Callable[[float | None], None]
"""Called with the fraction of the input that was read (0 to 1), or None if unknown."""


def ignore(_: object) -> None:
    """Do nothing. For an :data:`Idle` or a :data:`Moved` without effects."""


def records(reading: Reading, idle: Idle, moved: Moved = ignore) -> Iterator[pa.RecordBatch]:
    """Yield the records of an input. Call ``idle`` before each wait, and ``moved`` per batch.

    Raises:
        InvalidRecord: the input does not match its format.
    """
    if reading.format is Format.PARQUET:
        assert reading.file is not None
        yield from parquet_records(reading.file, moved)
    elif reading.format is Format.ARROW:
        yield from arrow_records(reading.file, moved)
    else:
        parse = _parser(reading)
        first = 1
        with readable(reading.file, reading.format), bytes_of(reading.file) as source:
            for block in text_blocks(reading, source, idle):
                batch = parse(block, first)
                moved(source.part())
                first += batch.num_rows
                yield batch


def text_blocks(reading: Reading, source: Bytes, idle: Idle) -> Iterator[bytes]:
    """Yield blocks of whole records of text.

    Raises:
        InvalidRecord: the first bytes show that the file is not text.
    """
    if reading.format is not Format.LINES and reading.file is not None:
        _check_is_text(reading.file)
    if reading.format is Format.JSON:
        return json_blocks(source, idle)
    cut = CsvRecords(reading.mark) if reading.format is Format.CSV else after_line
    return blocks(source, cut, idle)


def _check_is_text(file: Path) -> None:
    if not file.is_file() or file.suffix.lower() in COMPRESSIONS:
        return
    with file.open("rb") as opened:
        start = opened.read(4)
    for mark, (kind, hint) in _BINARY.items():
        if start.startswith(mark):
            raise InvalidRecord(f"{file} is {kind}", hint=hint.format(file=file))


def _parser(reading: Reading) -> Parse:
    if reading.format is Format.LINES:
        return LineBlocks(reading.key_separator).parse
    assert reading.columns is not None
    if reading.format is Format.JSON:
        return JsonBlocks(reading.columns, reading.metadata, reading.utf8).parse
    names = None if reading.headed else reading.columns.names
    not_text = frozenset(each.name for each in reading.columns if not takes_empty_text(each.type))
    return CsvBlocks(reading.mark, reading.nulls, names, not_text, reading.quiet).parse


def parquet_records(
    file: Path, moved: Moved, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a Parquet file in pieces. ``columns`` None means all."""
    with (
        readable(file, Format.PARQUET),
        pq.ParquetFile(file, page_checksum_verification=True) as source,
    ):
        total, done = max(1, source.metadata.num_rows), 0
        for batch in source.iter_batches(BATCH_ROWS, columns=columns):
            done += batch.num_rows
            moved(done / total)
            yield from _pieces(_valid(batch))


def arrow_records(file: Path | None, moved: Moved) -> Iterator[pa.RecordBatch]:
    """Yield the records of an IPC stream or file in pieces. Standard input is a stream."""
    with readable(file, Format.ARROW):
        if file is None:
            with pa.ipc.open_stream(open(0, "rb", closefd=False)) as stream:
                check_names_are_text(stream.schema)
                for batch in stream:
                    moved(None)
                    yield from _pieces(_valid(batch))
            return
        with arrow_source(file) as source:
            check_names_are_text(source.schema)
            count = getattr(source, "num_record_batches", None)
            batches = source if count is None else map(source.get_batch, range(count))
            for number, batch in enumerate(batches, 1):
                moved(number / count if count else None)
                yield from _pieces(_valid(batch))


def arrow_source(file: Path) -> Any:
    """Open an Arrow IPC file or stream."""
    mapped = pa.memory_map(str(file))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)


def check_names_are_text(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError if the name of a field is not UTF-8. Arrow does not check names."""
    for each in fields:
        _ = each.name  # pyarrow decodes it here
        check_names_are_text(each.type.field(i) for i in range(each.type.num_fields))


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check the batch's buffers and return it. Arrow does not validate them when it reads."""
    batch.validate(full=True)
    return batch


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the batch into parts of at most ``BATCH_ROWS`` and about ``BATCH_BYTES``."""
    rows = BATCH_ROWS
    if batch.nbytes > BATCH_BYTES:
        rows = max(1, min(rows, batch.num_rows * BATCH_BYTES // batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


@contextmanager
def readable(file: Path | None, kind: Format) -> Iterator[None]:
    """Convert errors of Arrow and of the system about a file to InvalidRecord."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        name = "standard input" if file is None else str(file)
        text = str(error).partition("\n")[0]
        hint = "Check the file and --format."
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror
        elif isinstance(error, UnicodeDecodeError):
            text, hint = f"{error.object[:_SHOWN_MAX]!r} is not UTF-8", UTF8_HINT
        raise InvalidRecord(f"{name} cannot be read as {kind}: {text}", hint=hint) from error


def schema_of_file(
    file: Path, kind: Format | None = None, reading: Reading | None = None
) -> pa.Schema:
    """Return a file's columns with types that topics and Spark support and that fit all values.

    The types of CSV and JSON lines are inferred from the first 64 MiB. Without ``reading`` a column
    of numbers may have nulls in any usual spelling. Metadata (``_offset``, …) is left out.

    Raises:
        InvalidOption: the extension is unknown.
        InvalidRecord: the file does not match its extension, or a timestamp has too many digits.
        UnsupportedType: a topic cannot store the type of a column.
    """
    kind = kind or format_of(file)
    if kind is None or kind is Format.LINES:
        raise InvalidOption(
            f"{file}: unknown file format", hint=f"Known extensions: {' '.join(SUFFIXES)}."
        )
    with readable(file, kind):
        if kind is Format.PARQUET:
            have = pq.read_schema(file)
        elif kind is Format.ARROW:
            with arrow_source(file) as source:
                have = source.schema
        else:
            sample = _sample(reading or Reading(kind, file, nulls=[*NULLS]))
            have = sample.schema
        check_names_are_text(have)
    check_names(have.names, have)
    metadata = {field.name for field in METADATA}
    fields = [field for field in have if field.name not in metadata]
    text = kind in TEXT
    want = pa.schema([pa.field(f.name, _plain(f.type, text, f.name), f.nullable) for f in fields])
    risky = [a.name for a, b in zip(fields, want, strict=True) if _may_lose(a.type, b.type)]
    if risky:
        if text:
            batches: Iterable[pa.RecordBatch] = sample.to_batches()
        elif kind is Format.PARQUET:
            batches = parquet_records(file, ignore, risky)
        else:
            batches = arrow_records(file, ignore)
        _check_timestamps(batches, pa.schema([want.field(name) for name in risky]))
    return want


def _sample(reading: Reading) -> pa.Table:
    """Read the first records of a text file, with types inferred by Arrow."""
    assert reading.file is not None
    sample = bytearray()
    first = 1
    with bytes_of(reading.file) as source:
        for block in text_blocks(reading, source, ignore):
            if reading.format is Format.JSON:
                check_lines(block, first)
                first += len(lines_in(block))
            sample += block
            if len(sample) >= _INFER_BYTES:
                break
    size = len(sample) + 1
    if reading.format is Format.JSON:
        options = pajson.ReadOptions(block_size=size)
        try:
            return pajson.read_json(pa.BufferReader(sample), options)
        except pa.ArrowInvalid as error:
            raise _mixed(error) or error from None
    seen: list[Any] = []
    try:
        found = pacsv.read_csv(
            pa.BufferReader(sample),
            pacsv.ReadOptions(block_size=size, use_threads=False),
            parse_options(reading.mark, seen),
            pacsv.ConvertOptions(null_values=["", *reading.nulls], strings_can_be_null=True),
        )
    except pa.ArrowInvalid:
        if not seen or seen[0].number is None:
            raise
        raise wrong_width(seen[0], seen[0].number - 1) from None
    return found.rename_columns(with_default_names(found.column_names))


def _mixed(error: pa.ArrowInvalid) -> InvalidRecord | None:
    """Return the error for a column with values of several types, None for other errors."""
    found = _CHANGED.search(str(error))
    if found is None:
        return None
    path, before, after, row = found.groups()
    column = path[1:].replace("/", ".")
    return bad_record(
        int(row) + 1,
        f"column {column!r} has a value of type {after}, and earlier values of type {before}",
        "Use one type in the column, or give --schema.",
    )


def _plain(kind: pa.DataType, text: bool, path: str) -> pa.DataType:
    """Return the type of a topic for the type of a file."""
    if pt.is_null(kind) or (pt.is_time(kind) and text):  # a time of day may be a duration
        return pa.string()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_plain(field.type, text, f"{path}.{field.name}"))

    nested = with_inner(kind, inner)
    return stored_type(kind, path) if nested is None else nested


def _may_lose(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether the cast may fail for a timestamp that is too precise or out of range."""
    if pt.is_dictionary(have):
        return _may_lose(have.value_type, want)
    if pt.is_timestamp(have):
        return bool(have.unit != want.unit)
    if not pt.is_nested(have):
        return False
    return any(_may_lose(have.field(i).type, want.field(i).type) for i in range(have.num_fields))


def _check_timestamps(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    fitting = Fitting(schema, text=False)
    first = 1
    for batch in batches:
        try:
            fitting.fit(batch.select(schema.names), first)
        except InvalidRecord as error:
            raise InvalidRecord(error.message, hint=_TOO_FINE, **error.details) from None
        first += batch.num_rows
