"""Blocks of text as Arrow batches: plain lines, CSV, JSON lines. Whole blocks at once.

CSV comes as strings, JSON in the types that JSON has; ``fitting`` makes them the topic's. So both
report a bad value in the same way.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.types as pt

from spark_stream.cli.fitting import bad_record, check_names, first_bad, misfit
from spark_stream.errors import InvalidRecord
from spark_stream.wire.schemas import empty_batch

Parse = Callable[[bytes, int], pa.RecordBatch]
"""A block, and the number of its first record, to a batch."""


def lines(block: bytes) -> pa.BinaryArray:
    """The lines of a block, without their ends (LF or CR LF)."""
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\n")
    # Not pa.array(): its first call imports pandas, a quarter of a second before the first line.
    ends = pa.py_buffer(np.array([0, len(block)], np.int32))
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(block)])
    return pc.split_pattern(whole, "\n").values


def line_records(block: bytes, separator: str | None) -> pa.RecordBatch:
    """Lines as values; what is before the first ``separator`` of a line is the key.

    A line without the separator has no key.
    """
    values = lines(block)
    if separator is None:
        return pa.RecordBatch.from_arrays([values], names=["value"])
    parts = pc.split_pattern(values, separator, max_splits=1)
    ends = parts.offsets[1:]
    keyed = pc.equal(pc.list_value_length(parts), 2)
    first = pc.if_else(keyed, parts.offsets[:-1], pa.scalar(None, parts.offsets.type))
    keys = parts.values.take(first)
    rest = parts.values.take(pc.subtract(ends, 1))
    return pa.RecordBatch.from_arrays([keys, rest], names=["key", "value"])


@dataclass(slots=True)
class CsvBlocks:
    """Blocks of one CSV input, all columns as strings; without ``names`` the first line has them.

    An empty field is null, and so are the spellings in ``nulls``; an empty text is written ``""``.
    """

    delimiter: str = ","
    nulls: list[str] = field(default_factory=list)
    names: list[str] | None = None

    def parse(self, block: bytes, first: int) -> pa.RecordBatch:
        """A block of whole records."""
        if self.names is None:
            self.names, block = self._headed(block)
        strings = pa.schema([(name, pa.string()) for name in self.names])
        if not block.strip():
            return empty_batch(strings)
        seen: list[Any] = []

        def wrong_width(row: Any) -> str:
            seen.append(row)
            return "error"

        try:
            table = pacsv.read_csv(
                pa.BufferReader(block),
                pacsv.ReadOptions(
                    column_names=self.names, block_size=len(block) + 1, use_threads=False
                ),
                pacsv.ParseOptions(
                    delimiter=self.delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=wrong_width,
                ),
                pacsv.ConvertOptions(
                    column_types=strings,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=["", *self.nulls],
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._refused(error, seen, first) from None
        return _one(table)

    def _headed(self, block: bytes) -> tuple[list[str], bytes]:
        try:
            text = io.StringIO(block[: block.find(b"\n") + 1 or None].decode("utf-8-sig"))
            names = next(csv.reader(text, delimiter=self.delimiter, strict=True), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise InvalidRecord(f"the first line has no names of columns: {error}") from None
        return names, block[block.find(b"\n") + 1 :] if b"\n" in block else b""

    def _refused(self, error: Exception, seen: list[Any], first: int) -> InvalidRecord:
        if not seen or seen[0].number is None:
            return InvalidRecord(f"not CSV: {error}")
        row = seen[0]
        problem = f"{row.actual_columns} fields, not {row.expected_columns}: {row.text[:60]!r}"
        return bad_record(first + row.number - 1, problem)


@dataclass(frozen=True, slots=True)
class JsonBlocks:
    """Blocks of JSON lines, read by the columns of ``schema``; what a line lacks is null."""

    schema: pa.Schema

    def parse(self, block: bytes, first: int) -> pa.RecordBatch:
        """A block of whole lines."""
        if not block.strip():
            return empty_batch(self.schema)
        try:
            batch = self._read(block)
        except (pa.ArrowException, ValueError, TypeError):
            raise self._refused(block, first) from None
        check_names(batch.schema.names, self.schema)
        return batch

    def _read(self, block: bytes) -> pa.RecordBatch:
        if any(_has_map(each.type) for each in self.schema):
            return self._read_maps(block)
        fields = [pa.field(each.name, read_type(each.type)) for each in self.schema]
        return _read_json(block, pa.schema(fields), "infer")

    def _read_maps(self, block: bytes) -> pa.RecordBatch:
        """Line by line: Arrow's reader knows no objects with keys that are not known before."""
        whole = [each for each in block.splitlines() if each.strip()]
        rows = [json.loads(each, parse_float=Decimal) for each in whole]
        if not all(isinstance(row, dict) for row in rows):
            raise TypeError
        strange = {name: None for row in rows for name in row if name not in self.schema.names}
        check_names([*self.schema.names, *strange], self.schema)
        arrays = [
            pa.array([_pairs(row.get(each.name), each.type) for row in rows], read_type(each.type))
            for each in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def _refused(self, block: bytes, first: int) -> InvalidRecord:
        """What is wrong with the first bad line; the reader says little of it."""
        found = [line for line in block.splitlines() if line.strip()]
        row = first_bad(len(found), lambda count: self._read(b"\n".join(found[:count])))
        number, line = first + row, found[row]
        try:
            value = json.loads(line)
        except ValueError as error:
            return bad_record(number, f"no JSON: {error}: {_shown(line)}")
        if not isinstance(value, dict):
            return bad_record(number, f"no JSON object: {_shown(line)}")
        for each in self.schema:
            alone = JsonBlocks(pa.schema([each]))
            try:
                alone._read(json.dumps({each.name: value.get(each.name)}).encode())
            except (pa.ArrowException, ValueError, TypeError):
                return misfit(each, number, value[each.name])
        check_names([*self.schema.names, *(set(value) - set(self.schema.names))], self.schema)
        return bad_record(number, f"it cannot be read: {_shown(line)}")


def read_type(want: pa.DataType) -> pa.DataType:
    """The type in which JSON has values of ``want``: moments and bytes are strings there."""
    if pt.is_map(want):
        return pa.map_(pa.string(), read_type(want.item_type))
    if pt.is_list(want) or pt.is_large_list(want):
        return pa.list_(read_type(want.value_type))
    if pt.is_struct(want):
        fields = [want.field(i) for i in range(want.num_fields)]
        return pa.struct([pa.field(each.name, read_type(each.type)) for each in fields])
    if pt.is_integer(want):
        return pa.int64()
    if pt.is_decimal(want):  # the reader does not look at the precision; the later cast does
        return pa.decimal128(38, want.scale)
    if pt.is_boolean(want) or pt.is_floating(want) or pt.is_null(want):
        return want
    return pa.string()


def _read_json(block: bytes, schema: pa.Schema, unexpected: str) -> pa.RecordBatch:
    table = pajson.read_json(
        pa.BufferReader(block),
        pajson.ReadOptions(block_size=len(block) + 1, use_threads=False),
        pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )
    return _one(table)


def _has_map(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        return True
    return pt.is_nested(kind) and any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as Arrow takes it: objects as pairs where the type is a map, decimals exact.

    Raises:
        TypeError: it is an object, a list or a fraction where the type is not.
    """
    if value is None:
        return None
    is_list = pt.is_list(kind) or pt.is_large_list(kind)
    if isinstance(value, list) != is_list:
        raise TypeError
    if isinstance(value, dict) != (pt.is_map(kind) or pt.is_struct(kind)):
        raise TypeError
    if is_list:
        return [_pairs(each, kind.value_type) for each in value]
    if pt.is_map(kind):
        return [(key, _pairs(each, kind.item_type)) for key, each in value.items()]
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {each.name: _pairs(value.get(each.name), each.type) for each in fields}
    if pt.is_decimal(kind):
        return Decimal(value)
    if not isinstance(value, Decimal):
        return value
    if not pt.is_floating(kind):
        raise TypeError  # Arrow would cut it to a whole number
    return float(value)


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_batch(table.schema)


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "replace"))
