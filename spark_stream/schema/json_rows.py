"""JSON lines in the form of ``texts.json_lines`` as Arrow batches.

Arrow's reader reads most blocks. It does not support objects with arbitrary keys, ``"NaN"``, and
bytes that are not UTF-8. A block with one of these, or with an error, is read line by line.
"""

from __future__ import annotations

import base64
import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.errors import InvalidRecord
from spark_stream.schema.fitting import UTF8_HINT, bad_record, check_names, first_bad, misfit
from spark_stream.schema.schemas import empty_batch
from spark_stream.schema.texts import BASE64, NOT_FINITE

DEPTH_MAX: Final = 128
"""The maximum nesting of values. Arrow's files allow 64. JSON readers crash at far more."""

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NULL: Final = re.compile(rb"(?:^|\})[ \t\r]*null\b", re.MULTILINE)
_NO_COLUMNS: Final = pa.schema([])
_TEXT: Final = pa.string()
_NO_VALUE: Final = (pa.ArrowException, ValueError, TypeError, ArithmeticError)
"""The exceptions for a value that is not of its type."""


class JsonBlocks(Struct, frozen=True):
    """A parser of blocks of JSON lines with the columns of ``schema``. Missing columns are null.

    ``metadata``: further columns that a line may have. The batch has those that occur in its lines.
    ``utf8``: binary is text, or ``{"base64": "…"}`` for other bytes (default-schema topics).
    """

    schema: pa.Schema
    metadata: pa.Schema = _NO_COLUMNS
    utf8: bool = False

    def parse(self, block: bytes, first: int) -> pa.RecordBatch:
        """Parse a block of whole lines. Its first record has the number ``first``.

        Raises:
            InvalidRecord: a line is not JSON, or a value is not of its column's type.
            SchemaMismatch: a line has a column that the topic lacks.
        """
        if not block.strip():
            return empty_batch(self.schema)
        check_lines(block, first)
        try:
            batch = self._read(block)
        except _NO_VALUE:
            raise self._refused(block, first) from None
        unused = [each for each in self.metadata.names if batch[each].null_count == len(batch)]
        batch = batch.drop_columns(unused)
        check_names(
            [each for each in batch.schema.names if each not in self.metadata.names], self.schema
        )
        return batch

    @property
    def _all(self) -> pa.Schema:
        return pa.schema([*self.schema, *self.metadata])

    def _read(self, block: bytes) -> pa.RecordBatch:
        if not any(_is_for_python(each.type) for each in self.schema):
            block.decode()  # Arrow's reader does not check
            fields = [pa.field(each.name, read_type(each.type)) for each in self._all]
            try:
                return _read_json(block, pa.schema(fields))
            except pa.ArrowInvalid:
                pass  # an unsupported form, or an error
        return self._read_lines(block)

    def _read_lines(self, block: bytes) -> pa.RecordBatch:
        rows = [_object(_loaded(each)) for each in lines_in(block)]
        everything = self._all
        names = dict.fromkeys(name for row in rows for name in row)
        check_names([*everything.names, *(set(names) - set(everything.names))], everything)
        arrays = [self._array([row.get(each.name) for row in rows], each) for each in everything]
        return pa.RecordBatch.from_arrays(arrays, names=everything.names)

    def _array(self, values: list[Any], field: pa.Field) -> pa.Array:
        raw = pa.binary() if self.utf8 else pa.string()
        return pa.array(
            [_value(each, field.type, self.utf8) for each in values], read_type(field.type, raw)
        )

    def _refused(self, block: bytes, first: int) -> InvalidRecord:
        """Return the error for the first bad line. Arrow's errors do not name the line."""
        found = lines_in(block)
        row = first_bad(len(found), lambda count: self._read_lines(b"\n".join(found[:count])))
        number, line = first + row, found[row]
        try:
            value = _loaded(line)
        except UnicodeDecodeError:
            return bad_record(number, f"not UTF-8: {line[:60]!r}", UTF8_HINT)
        except ValueError as error:
            return bad_record(number, f"not JSON: {error}: {_shown(line)}")
        if not isinstance(value, _Object):
            return bad_record(number, f"not a JSON object: {_shown(line)}")
        names = [name for name, _ in value]
        for name in names:
            if names.count(name) > 1:
                return bad_record(number, f"duplicate name {name!r}: {_shown(line)}")
        known = dict(value)
        for each in self._all:
            try:
                self._array([known.get(each.name)], each)
            except _NO_VALUE:
                return misfit(each, number, _plain(known[each.name]))
        check_names([*self.schema.names, *(set(names) - set(self._all.names))], self.schema)
        return bad_record(number, f"unreadable: {_shown(line)}")


def read_type(want: pa.DataType, raw: pa.DataType = _TEXT) -> pa.DataType:
    """Return the type of the JSON form of ``want``, a string if JSON has no such type.

    ``raw`` is the type for binary values.
    """
    if pt.is_map(want):
        key = want.key_type
        key = read_type(key, raw) if pt.is_nested(key) else pa.string()
        return pa.map_(key, read_type(want.item_type, raw))
    if pt.is_list(want) or pt.is_fixed_size_list(want):
        return pa.list_(read_type(want.value_type, raw))
    if pt.is_struct(want):
        fields = [want.field(i) for i in range(want.num_fields)]
        return pa.struct([pa.field(each.name, read_type(each.type, raw)) for each in fields])
    if pt.is_integer(want):
        return pa.int64()
    if pt.is_decimal(want):  # wide, because the later cast checks the precision
        return pa.decimal256(76, want.scale)
    if pt.is_float16(want):
        return pa.float32()
    if pt.is_boolean(want) or pt.is_floating(want) or pt.is_null(want):
        return want
    if pt.is_binary(want) or pt.is_fixed_size_binary(want):
        return raw
    return pa.string()


def _read_json(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    table = pajson.read_json(
        pa.BufferReader(block),
        pajson.ReadOptions(block_size=len(block) + 1, use_threads=False),
        pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer"),
    )
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else empty_batch(table.schema)


def _is_for_python(kind: pa.DataType) -> bool:
    """Return whether Arrow's reader would create invalid lists, as for maps and lists of nulls."""
    if not pt.is_nested(kind):
        return False
    inner = [kind.field(i).type for i in range(kind.num_fields)]
    return pt.is_map(kind) or any(pt.is_null(each) or _is_for_python(each) for each in inner)


# -- line by line ----------------------------------------------------------------------------------


class _Object(list[tuple[str, Any]]):
    """A JSON object as a list of pairs, because a map may have a key twice."""


def lines_in(block: bytes) -> list[bytes]:
    """Return the lines of a block that are not blank."""
    return [each for each in block.split(b"\n") if each.strip()]


def _loaded(text: bytes | str) -> Any:
    return json.loads(text, parse_float=Decimal, object_pairs_hook=_Object)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, _Object):
        raise TypeError("no object")
    found = dict(value)
    if len(found) < len(value):
        raise TypeError("duplicate name")
    return found


def _value(value: Any, kind: pa.DataType, utf8: bool) -> Any:
    """Convert a JSON value for an Arrow array of the type :func:`read_type` of ``kind``.

    Raises:
        TypeError, ValueError, ArithmeticError: the value is not of the type. Arrow checks the rest.
    """
    if value is None:
        return None
    if pt.is_map(kind):
        if not isinstance(value, _Object):
            raise TypeError("no object")
        return [
            (_key(key, kind.key_type, utf8), _value(each, kind.item_type, utf8))
            for key, each in value
        ]
    if pt.is_struct(kind):
        found = _object(value)
        if not found.keys() <= {each.name for each in kind}:
            raise TypeError("a field that the type lacks")
        return {each.name: _value(found.get(each.name), each.type, utf8) for each in kind}
    if pt.is_nested(kind):
        if not isinstance(value, list) or isinstance(value, _Object):
            raise TypeError("no list")
        return [_value(each, kind.value_type, utf8) for each in value]
    if pt.is_boolean(kind):
        return _of(value, bool)
    if isinstance(value, bool):
        raise TypeError("true or false")
    if pt.is_integer(kind):
        return _of(value, int)
    if pt.is_decimal(kind):
        return _decimal(value)
    if pt.is_floating(kind):
        return _float(value)
    if utf8 and pt.is_binary(kind):
        return _bytes(value)
    return _of(value, str)


def _key(text: str, kind: pa.DataType, utf8: bool) -> Any:
    """Return the key of a map, parsed as JSON if its type is nested."""
    return _value(_loaded(text), kind, utf8) if pt.is_nested(kind) else text


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _decimal(value: Any) -> Decimal:
    try:
        found = Decimal(value)
    except (InvalidOperation, TypeError):
        raise TypeError("no number") from None
    if not found.is_finite():
        raise TypeError("no number")
    return found


def _float(value: Any) -> float:
    if isinstance(value, str) and value not in NOT_FINITE:
        raise TypeError("no number")
    return float(value)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    found = _object(value)
    if list(found) != [BASE64] or not isinstance(found[BASE64], str):
        raise TypeError("neither text nor bytes")
    return base64.b64decode(found[BASE64], validate=True)


# -- checks ----------------------------------------------------------------------------------------


def check_lines(block: bytes, first: int) -> None:
    """Raise InvalidRecord for lines that crash Arrow's reader: a bare null, or deep nesting."""
    if _NULL.search(block):
        for row, line in enumerate(lines_in(block)):
            if _NULL.search(_STRING.sub(b'""', line)):
                raise bad_record(first + row, f"not a JSON object: {_shown(line)}")
    if block.count(b"[") + block.count(b"{") <= DEPTH_MAX:
        return
    if _depth(block) <= DEPTH_MAX:  # brackets within strings are counted too
        return
    for row, line in enumerate(lines_in(block)):
        if _depth(line) > DEPTH_MAX and _depth(_STRING.sub(b"", line)) > DEPTH_MAX:
            raise bad_record(first + row, f"nested deeper than {DEPTH_MAX} levels: {_shown(line)}")


def _depth(text: bytes) -> int:
    """Return the greatest number of brackets that are open at the same time."""
    marks = np.frombuffer(text, np.uint8)
    opened = (marks == ord("[")) | (marks == ord("{"))
    closed = (marks == ord("]")) | (marks == ord("}"))
    open_now = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64)
    return int((open_now - np.minimum.accumulate(np.minimum(open_now, 0))).max(initial=0))


def _plain(value: Any) -> Any:
    """Return a value for messages, with objects as dicts."""
    if isinstance(value, _Object):
        return {key: _plain(each) for key, each in value}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _shown(line: bytes) -> str:
    return repr(line[:60].decode("utf-8", "replace"))
