"""Where a CSV record ends: at a line's end that is not within quotes.

A quote opens only at the start of a field; within quotes two of them stand for one. A closing
quote that is followed by more text, and one that is missing, are refused: what is between could be
any number of records.
"""

from __future__ import annotations

import re
from typing import Final

from spark_stream.errors import InvalidRecord

_QUOTED: Final = rb'"[^"]*+(?>""[^"]*+)*+"'
_HINT: Final = "Close the quote, or double it if it is part of a text."


class CsvRecords:
    """A :data:`~spark_stream.cli.input.blocks.Cut` of CSV; keeps count of the lines."""

    def __init__(self, delimiter: str) -> None:
        self._line = 1
        mark = re.escape(delimiter.encode())
        ends = mark + rb"\r\n"
        quoted = rb"(?<![^" + ends + rb"])" + _QUOTED
        literal = rb"(?<=[^" + ends + rb'])"'  # within a field that does not begin with one
        text = rb'(?>[^"\r\n]++|' + quoted + rb"(?=[" + ends + rb"]|\Z)|" + literal + rb")*+"
        self._whole = re.compile(rb"(?>" + text + rb"(?>\r?\n|\r(?!\Z)))*+")
        self._last = re.compile(text + rb"\r?\Z")
        self._torn = re.compile(text + quoted + rb"(?!\r?\Z)")

    def __call__(self, held: bytearray, last: bool) -> int:
        """Return the end of the last whole record.

        Raises:
            InvalidRecord: the first record is broken; the message names its line.
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
            f"{problem}, in the CSV record that begins on line {self._line}",
            hint=_HINT,
            line=self._line,
        )
