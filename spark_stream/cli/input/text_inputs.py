"""Text of a pipe or a file in blocks of whole records, and blocks of lines and CSV as batches.

A block of a pipe contains the bytes that are available. A typed line is passed on immediately, and
a fast writer fills large blocks, which are cheap to process. CSV becomes strings, which ``fitting``
casts to the topic's types.
"""

from __future__ import annotations

import csv
import io
import os
import re
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from msgspec import Struct, field

from spark_stream.cli.options import note
from spark_stream.errors import InvalidRecord, RecordTooLarge
from spark_stream.schema.fitting import UTF8_HINT, bad_record, first_bad
from spark_stream.schema.schemas import empty_batch
from spark_stream.wire.limits import BATCH_BYTES_MAX

BLOCK_BYTES: Final = 4 << 20
_LINGER_S: Final = 0.05
COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

Cut = Callable[[bytearray, bool], int]
"""Maps bytes, and whether the input has ended, to the end of the last whole record, or to 0."""

Idle = Callable[[int | None], None]
"""Called before a wait for more input, with the descriptor of the input."""
_QUOTED: Final = rb'"[^"]*+(?>""[^"]*+)*+"'
_HINT: Final = "Close the quote, or double a quote that is part of a text."
_NOT_CSV: Final = "Check --format and --delimiter, and that the text is UTF-8."


class Bytes(Protocol):
    """A source of bytes."""

    def read(self) -> bytes:
        """Wait for bytes and return them. Empty bytes mean the end."""

    def ready(self) -> bool:
        """Return whether :meth:`read` would return without a wait."""

    def fileno(self) -> int | None:
        """Return the descriptor to wait for, None if :meth:`read` never waits."""

    def part(self) -> float | None:
        """Return the fraction of the bytes that was read (0 to 1), None if unknown."""


class PlainInput:
    """A pipe, a terminal, or an uncompressed file."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._size = os.fstat(number).st_size  # 0 for a pipe

    def read(self) -> bytes:
        return os.read(self._number, BLOCK_BYTES)

    def ready(self) -> bool:
        return bool(select.select([self._number], [], [], 0)[0])

    def fileno(self) -> int:
        return self._number

    def part(self) -> float | None:
        if not self._size:
            return None
        return min(1.0, os.lseek(self._number, 0, os.SEEK_CUR) / self._size)


class Compressed:
    """A compressed file."""

    def __init__(self, file: Path, compression: str) -> None:
        self._file = pa.OSFile(str(file))
        self._stream = pa.CompressedInputStream(self._file, compression)

    def read(self) -> bytes:
        data: bytes = self._stream.read(BLOCK_BYTES)
        return data

    def ready(self) -> bool:
        return True

    def fileno(self) -> None:
        return None

    def part(self) -> float | None:
        return float(self._file.tell() / max(1, self._file.size()))


@contextmanager
def bytes_of(file: Path | None) -> Iterator[Bytes]:
    """Open a file, decompressed according to its extension. None means standard input."""
    if file is None:
        yield PlainInput(0)
        return
    compression = COMPRESSIONS.get(file.suffix.lower())
    if compression is not None:
        yield Compressed(file, compression)
        return
    number = os.open(file, os.O_RDONLY)
    try:
        yield PlainInput(number)
    finally:
        os.close(number)


def uncompressed_suffix(file: Path) -> str:
    """Return the extension without the compression: ``.csv`` for ``a.csv.gz``."""
    if file.suffix.lower() in COMPRESSIONS:
        file = file.with_suffix("")
    return file.suffix.lower()


def blocks(source: Bytes, cut: Cut, idle: Idle) -> Iterator[bytes]:
    """Yield blocks of whole records. Call ``idle`` before each wait for input.

    Raises:
        RecordTooLarge: a record is larger than a batch may be.
        InvalidRecord: ``cut`` found a broken record.
    """
    held = bytearray()
    since = 0.0
    enough = BLOCK_BYTES
    if not source.ready():
        idle(source.fileno())
    while data := source.read():
        if not held:
            since = time.monotonic()
        held += data
        waited = time.monotonic() - since > _LINGER_S
        if len(held) < enough and (not waited or enough > BLOCK_BYTES) and source.ready():
            continue
        if end := cut(held, False):
            yield bytes(held[:end])
            del held[:end]
            enough = BLOCK_BYTES
        elif len(held) > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"a record exceeds the limit of {BATCH_BYTES_MAX} bytes",
                hint="Check --format. If it is right, split the value.",
            )
        elif len(held) >= enough:
            enough = 2 * len(held)  # avoids repeated searches of the same bytes
        if not source.ready():
            idle(source.fileno())
    while held:
        end = cut(held, True)
        yield bytes(held[:end])
        del held[:end]


def after_line(held: bytearray, last: bool) -> int:
    """Return the end of the last whole line. It is a :data:`Cut`."""
    return len(held) if last else held.rfind(b"\n") + 1


class CsvRecords:
    """A :data:`Cut` of CSV, which counts the lines."""

    def __init__(self, delimiter: str) -> None:
        self._line = 1
        mark = re.escape(delimiter.encode())
        ends = mark + rb"\r\n"
        quoted = rb"(?<![^" + ends + rb"])" + _QUOTED
        literal = rb"(?<=[^" + ends + rb'])"'  # within a field that does not start with a quote
        text = rb'(?>[^"\r\n]++|' + quoted + rb"(?=[" + ends + rb"]|\Z)|" + literal + rb")*+"
        self._whole = re.compile(rb"(?>" + text + rb"(?>\r?\n|\r(?!\Z)))*+")
        self._last = re.compile(text + rb"\r?\Z")
        self._torn = re.compile(text + quoted + rb"(?!\r?\Z)")

    def __call__(self, held: bytearray, last: bool) -> int:
        """Return the end of the last whole record.

        Raises:
            InvalidRecord: the first record is broken. The message names its line.
        """
        if b'"' not in held:
            end = len(held) if last else held.rfind(b"\n") + 1
        else:
            found = self._whole.match(held)
            assert found is not None  # the pattern also matches nothing
            end = found.end()
            rest = memoryview(held)[end:]
            if last and self._last.match(rest):
                end = len(held)
            if end == 0:
                self._check(held, last)
        self._line += held.count(b"\n", 0, end)
        return end

    def _check(self, held: bytearray, last: bool) -> None:
        if self._torn.match(held):
            raise self._broken("text follows a closing quote")
        if last:
            raise self._broken("a quote is not closed before the end of the input")

    def _broken(self, problem: str) -> InvalidRecord:
        return InvalidRecord(
            f"{problem}, in the CSV record that starts on line {self._line}",
            hint=_HINT,
            line=self._line,
        )


Parse = Callable[[bytes, int], pa.RecordBatch]
"""Parses a block. The second argument is the number of its first record."""


def lines(block: bytes) -> pa.BinaryArray:
    """Return the lines of a block, without their ends (LF or CR LF)."""
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\n")
    # Not pa.array(), whose first call imports pandas and so delays the first line by 0.25 s.
    ends = pa.py_buffer(np.array([0, len(block)], np.int32))
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(block)])
    return pc.split_pattern(whole, "\n").values


class LineBlocks(Struct, frozen=True):
    """A parser of blocks of lines. The text before a line's first ``separator`` is the key."""

    separator: str | None = None

    def parse(self, block: bytes, first: int) -> pa.RecordBatch:
        """Parse a block of whole lines. Its first record has the number ``first``.

        Raises:
            InvalidRecord: a line has no separator.
        """
        values = lines(block)
        if self.separator is None:
            return pa.RecordBatch.from_arrays([values], names=["value"])
        parts = pc.split_pattern(values, self.separator, max_splits=1)
        keyless = pc.index(pc.list_value_length(parts), 1).as_py()
        if keyless >= 0:
            text = values[keyless].as_py()[:60].decode(errors="replace")
            ends = f"{self.separator!r} (--key-separator)"
            raise bad_record(
                first + keyless,
                f"the line has no key before {ends}: {text!r}",
                "Add a key to each line, or leave out --key-separator.",
            )
        keys = parts.values.take(parts.offsets[:-1])
        rest = parts.values.take(pc.subtract(parts.offsets[1:], 1))
        return pa.RecordBatch.from_arrays([keys, rest], names=["key", "value"])


def with_default_names(names: list[str]) -> list[str]:
    """Replace empty names of columns by their position, as Spark does: ``_c0``."""
    return [name or f"_c{place}" for place, name in enumerate(names)]


class CsvBlocks(Struct):
    """A parser of blocks of one CSV input. All columns are strings.

    Without ``names`` the first line has the names. An empty field and the spellings in ``nulls``
    are null, an empty text is written ``""``. With ``nulls``, quoted nulls and empty texts are also
    null in the columns ``not_text``.
    """

    delimiter: str = ","
    nulls: list[str] = field(default_factory=list)
    names: list[str] | None = None
    not_text: frozenset[str] = frozenset()
    quiet: bool = False

    def parse(self, block: bytes, first: int) -> pa.RecordBatch:
        """Parse a block of whole records."""
        if self.names is None:
            self.names, block = self._headed(block)
        strings = pa.schema([(name, pa.string()) for name in self.names])
        if not block.strip():
            return empty_batch(strings)
        seen: list[Any] = []
        try:
            table = pacsv.read_csv(
                pa.BufferReader(block),
                pacsv.ReadOptions(
                    column_names=self.names, block_size=len(block) + 1, use_threads=False
                ),
                parse_options(self.delimiter, seen),
                pacsv.ConvertOptions(
                    column_types=strings,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=["", *self.nulls],
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._refused(error, seen, first, block) from None
        if self.nulls and b'"' in block:
            table = self._without_quoted_nulls(table)
        return _one(table)

    def _without_quoted_nulls(self, table: pa.Table) -> pa.Table:
        nulls = pa.array(["", *self.nulls])
        for place, name in enumerate(table.column_names):
            if name in self.not_text:
                column = table.column(place)
                column = pc.if_else(pc.is_in(column, nulls), pa.scalar(None, pa.string()), column)
                table = table.set_column(place, name, column)
        return table

    def _headed(self, block: bytes) -> tuple[list[str], bytes]:
        header = block[: block.find(b"\n") + 1 or None]
        try:
            text = io.StringIO(header.decode("utf-8-sig"))
            names = next(csv.reader(text, delimiter=self.delimiter, strict=True), [])
        except UnicodeDecodeError:
            raise InvalidRecord(
                f"the first line is not UTF-8: {header[:60]!r}", hint=UTF8_HINT
            ) from None
        except csv.Error as error:
            raise InvalidRecord(
                f"the first line is not a list of column names: {error}", hint=_NOT_CSV
            ) from None
        if "" in names and not self.quiet:
            given = ", ".join(f"_c{place}" for place, name in enumerate(names) if not name)
            note(f"columns without a name in the header are named {given}, as in Spark")
        return with_default_names(names), block[block.find(b"\n") + 1 :] if b"\n" in block else b""

    def _refused(
        self, error: Exception, seen: list[Any], first: int, block: bytes
    ) -> InvalidRecord:
        if seen and seen[0].number is not None:
            return wrong_width(seen[0], first + seen[0].number - 1)
        assert self.names is not None
        values = pacsv.read_csv(
            pa.BufferReader(block),
            pacsv.ReadOptions(column_names=self.names, block_size=len(block) + 1),
            pacsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            pacsv.ConvertOptions(column_types=dict.fromkeys(self.names, pa.binary())),
        )
        rows = {name: _first_not_utf8(values[name]) for name in self.names}
        found = [(row, name) for name, row in rows.items() if row is not None]
        if not found:
            return InvalidRecord(f"not CSV: {error}", hint=_NOT_CSV)
        row, name = min(found)
        text = values[name][row].as_py()[:60]
        return bad_record(first + row, f"column {name!r}: {text!r} is not UTF-8", UTF8_HINT)


def parse_options(delimiter: str, ragged: list[Any]) -> pacsv.ParseOptions:
    """Return the parse options of CSV. The first row of another width is added to ``ragged``."""

    def refuse(row: Any) -> str:
        ragged.append(row)
        return "error"

    return pacsv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse
    )


def wrong_width(row: Any, record: int) -> InvalidRecord:
    """Return the error for a record with too few or too many fields."""
    problem = f"{row.actual_columns} fields instead of {row.expected_columns}: {row.text[:60]!r}"
    hint = "Check --delimiter. A field with a delimiter or a line break needs quotes."
    return bad_record(record, problem, hint)


def _first_not_utf8(column: pa.ChunkedArray) -> int | None:
    """Return the first row whose bytes are not UTF-8, or None."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return first_bad(len(column), lambda count: column[:count].cast(pa.string()))
    return None


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_batch(table.schema)
