"""The schema of a topic that can take a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq
import pyarrow.types as pt

from spark_stream.cli.input.blocks import bytes_of
from spark_stream.cli.input.fitting import NULLS, Fitting, bad_record, check_names
from spark_stream.cli.input.formats import (
    SUFFIXES,
    TEXT,
    Format,
    Reading,
    arrow_records,
    arrow_source,
    check_names_are_text,
    format_of,
    parquet_records,
    readable,
    text_blocks,
)
from spark_stream.cli.input.json_lines import check_lines, lines_in
from spark_stream.cli.input.text_inputs import named, parse_options, wrong_width
from spark_stream.errors import InvalidOption, InvalidRecord
from spark_stream.schema.schemas import METADATA
from spark_stream.schema.types import stored_type, with_inner

_CHANGED: Final = re.compile(r"Column\((/.*)\) changed from (\w+) to (\w+) in row (\d+)")
_INFER_BYTES: Final = 64 << 20
_TOO_FINE: Final = "A topic stores microseconds, as Spark does: round the column first."


def schema_of_file(
    file: Path, kind: Format | None = None, reading: Reading | None = None
) -> pa.Schema:
    """Return a file's columns, in types that a topic and Spark support and that fit all values.

    Those of CSV and JSON lines are inferred from the first 64 MiB; unless ``reading`` says
    otherwise, a column of numbers may have nulls in any usual spelling. Metadata (``_offset``, …)
    is left out.

    Raises:
        InvalidOption: the extension is unknown.
        InvalidRecord: the file does not match its extension, or a moment has too many digits.
        UnsupportedType: a topic cannot store a column's type.
    """
    kind = kind or format_of(file)
    if kind is None or kind is Format.LINES:
        raise InvalidOption(
            f"{file}: which format is it?", hint=f"Known extensions: {' '.join(SUFFIXES)}."
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
            batches = parquet_records(file, _not_shown, risky)
        else:
            batches = arrow_records(file, _not_shown)
        _check(batches, pa.schema([want.field(name) for name in risky]))
    return want


def _not_shown(part: float | None) -> None:
    pass


def _sample(reading: Reading) -> pa.Table:
    """Read the first records of a text file, with types inferred by Arrow."""
    assert reading.file is not None
    sample = bytearray()
    first = 1
    with bytes_of(reading.file) as source:
        for block in text_blocks(reading, source, lambda _: None):
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
    return found.rename_columns(named(found.column_names))


def _mixed(error: pa.ArrowInvalid) -> InvalidRecord | None:
    """Return the error for a column with values of several types, if it is this one."""
    found = _CHANGED.search(str(error))
    if found is None:
        return None
    path, before, after, row = found.groups()
    column = path[1:].replace("/", ".")
    return bad_record(
        int(row) + 1,
        f"column {column!r} has a value of type {after}, and those before are of type {before}",
        "Give the column one type, or give --schema.",
    )


def _plain(kind: pa.DataType, text: bool, path: str) -> pa.DataType:
    """Return a topic's type for a file's; some of those only say how values are stored."""
    if pt.is_null(kind) or (pt.is_time(kind) and text):  # a time of day may be a plain duration
        return pa.string()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(_plain(field.type, text, f"{path}.{field.name}"))

    nested = with_inner(kind, inner)
    return stored_type(kind, path) if nested is None else nested


def _may_lose(have: pa.DataType, want: pa.DataType) -> bool:
    """Return whether the cast may lose a value: a moment that is too fine, or out of range."""
    if pt.is_dictionary(have):
        return _may_lose(have.value_type, want)
    if pt.is_timestamp(have):
        return bool(have.unit != want.unit)
    if not pt.is_nested(have):
        return False
    return any(_may_lose(have.field(i).type, want.field(i).type) for i in range(have.num_fields))


def _check(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    fitting = Fitting(schema, text=False)
    first = 1
    for batch in batches:
        try:
            fitting.fit(batch.select(schema.names), first)
        except InvalidRecord as error:
            raise InvalidRecord(error.message, hint=_TOO_FINE, **error.details) from None
        first += batch.num_rows
