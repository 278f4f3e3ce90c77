"""Batches as lines, JSON, CSV, a table, text from a template, or an Arrow stream.

A batch becomes text column by column, and the text is written from Arrow's buffers. No Python loop
touches a row.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from spark_stream.cli.options import Shape
from spark_stream.cli.output.texts import visible
from spark_stream.errors import InvalidOption
from spark_stream.schema.texts import json_lines, shown

_CELL_MAX: Final = 80
_TABLE_ROWS: Final = 1024  # column widths are computed over this many rows at a time


class Writer(Protocol):
    """Writes batches of one schema."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch. Readers of the output see it after the sink is flushed."""

    def close(self) -> None:
        """Write the end of the output."""


def writer_of(shape: Shape, sink: BinaryIO, schema: pa.Schema, *, utf8: bool) -> Writer:
    """Return the writer of a format. ``utf8``: binary is text, as in default-schema topics."""
    if shape is Shape.ARROW:
        return _Arrow(sink, schema)
    if shape is Shape.CSV:
        return _Csv(sink, schema, utf8)
    if shape is Shape.TABLE:
        return _Table(sink, schema, utf8)
    if shape is Shape.JSON:
        return _Lines(sink, lambda batch: json_lines(batch, utf8=utf8))
    return _Lines(sink, lambda batch: batch.column(0))


class _Lines:
    """One line per record. A null is an empty line."""

    def __init__(self, sink: BinaryIO, render: Callable[[pa.RecordBatch], pa.Array]) -> None:
        self._sink = sink
        self._render = render

    def write(self, batch: pa.RecordBatch) -> None:
        _put(self._sink, self._render(batch).cast(pa.binary()), b"\n")

    def close(self) -> None:
        pass


def _put(sink: BinaryIO, values: pa.BinaryArray, end: bytes) -> None:
    """Write all values, each followed by ``end``, from one buffer."""
    values = pc.binary_join_element_wise(
        values, end, b"", null_handling="replace", null_replacement=b""
    )
    _, offsets, data = values.buffers()
    if len(values) and data is not None:
        bounds = memoryview(offsets).cast("i")
        first, last = bounds[values.offset], bounds[values.offset + len(values)]
        sink.write(memoryview(data)[first:last])


class Template:
    """``{key} {value}``: columns by name. ``{{`` is a brace, ``\\t`` a tab, ``\\n`` a new line."""

    def __init__(self, text: str) -> None:
        self.columns: list[str] = []
        self._parts: list[str | int] = []
        text = text.replace("\\t", "\t").replace("\\n", "\n")
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError as error:
            raise _bad_template(str(error)) from None
        for literal, name, form, conversion in pieces:
            self._parts += [literal] if literal else []
            if name is None:
                continue
            if not name or form or conversion:
                raise _bad_template("braces contain the name of a column and no format")
            if name not in self.columns:
                self.columns.append(name)
            self._parts.append(self.columns.index(name))
        if not self.columns:
            raise _bad_template("name at least one column")

    def writer(self, sink: BinaryIO, *, utf8: bool) -> Writer:
        """Return a writer of batches that have exactly :attr:`columns`."""

        def render(batch: pa.RecordBatch) -> pa.Array:
            texts = [_raw(column, utf8) for column in batch.columns]
            parts = [
                each.encode() if isinstance(each, str) else texts[each] for each in self._parts
            ]
            return pc.binary_join_element_wise(
                *parts, b"", null_handling="replace", null_replacement=b""
            )

        return _Lines(sink, render)


def _raw(column: pa.Array, utf8: bool) -> pa.BinaryArray:
    bare = utf8 and pt.is_binary(column.type)
    return column if bare else shown(column, utf8=utf8).cast(pa.binary())


def _bad_template(problem: str) -> InvalidOption:
    return InvalidOption(
        f"--format: {problem}", hint='Example: --format "{partition} {offset} {value}".'
    )


class _Csv:
    """A header, then records. Null is an empty field, an empty text is ``""``."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, utf8: bool) -> None:
        self._utf8 = utf8
        fields = [
            each if _plain(each.type) else pa.field(each.name, pa.string()) for each in schema
        ]
        self._schema = pa.schema(fields)
        self._writer = pacsv.CSVWriter(sink, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            column if _plain(column.type) else shown(column, utf8=self._utf8)
            for column in batch.columns
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _plain(kind: pa.DataType) -> bool:
    return bool(
        pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_string(kind)
    )


class _Arrow:
    """An Arrow IPC stream."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_stream(sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Table:
    """Aligned columns with long cells cut. A wider cell prints the header again."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, utf8: bool) -> None:
        self._sink = sink
        self._schema = schema
        self._utf8 = utf8
        self._widths = [len(_cut(name)) for name in schema.names]
        self._headed = False

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _TABLE_ROWS):
            self._write_some(batch.slice(start, _TABLE_ROWS))

    def _write_some(self, batch: pa.RecordBatch) -> None:
        cells = [self._cells(column) for column in batch.columns]
        needed = [pc.max(pc.utf8_length(each)).as_py() for each in cells]
        widths = [max(old, new) for old, new in zip(self._widths, needed, strict=True)]
        if widths != self._widths or not self._headed:
            self._widths = widths
            self._head()
        parts: list[Any] = []
        for cell, width, kind in zip(cells, widths, self._schema.types, strict=True):
            pad = pc.utf8_lpad if _is_number(kind) else pc.utf8_rpad
            parts += [" │ " if parts else " ", pad(cell, width)]
        rows = pc.utf8_rtrim_whitespace(pc.binary_join_element_wise(*parts, ""))
        _put(self._sink, rows.cast(pa.binary()), b"\n")

    def _cells(self, column: pa.Array) -> pa.StringArray:
        texts = pc.fill_null(shown(column, utf8=self._utf8), "NULL")
        # A terminal would execute control characters, and line breaks would break the table.
        texts = pc.replace_substring_regex(texts, r"[\x00-\x1f\x7f-\x{9f}]+", " ")
        long = pc.greater(pc.utf8_length(texts), _CELL_MAX)
        if not pc.any(long).as_py():
            return texts
        short = pc.binary_join_element_wise(
            pc.utf8_slice_codeunits(texts, 0, _CELL_MAX - 1), "…", ""
        )
        return pc.if_else(long, short, texts)

    def _head(self) -> None:
        cells = [
            _cut(each.name).rjust(width) if _is_number(each.type) else _cut(each.name).ljust(width)
            for each, width in zip(self._schema, self._widths, strict=True)
        ]
        rule = "┼".join("─" * (width + 2) for width in self._widths)
        self._sink.write(
            (" " + " │ ".join(cells)).rstrip().encode() + b"\n" + rule.encode() + b"\n"
        )
        self._headed = True

    def close(self) -> None:
        if not self._headed:
            self._head()


def _cut(name: str) -> str:
    name = visible(name)
    return name if len(name) <= _CELL_MAX else name[: _CELL_MAX - 1] + "…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))
