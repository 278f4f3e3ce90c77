"""Convert batches of other programs to a topic's schema. An error names the column and the record.

Conversions are lossless: numbers that do not fit, text that is not a number, and a time zone that
would be dropped are errors. In text (CSV, JSON) values are parsed by the topic's types, and binary
is base64. Timestamps without a zone are UTC.
"""

from __future__ import annotations

import base64
import binascii
import math
import shlex
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from msgspec import Struct

from spark_stream.errors import InvalidRecord, IsologError, SchemaMismatch
from spark_stream.schema.schemas import is_default
from spark_stream.schema.texts import dates_of, durations_of, list_ends, moments_of, shown, times_of
from spark_stream.schema.types import distinct_names, type_name
from spark_stream.schema.values import first_null

NULLS: Final = ("NA", "N/A", "NULL", "null")
"""Spellings of null in files, besides the empty field."""

UTF8_HINT: Final = "Convert the file to UTF-8, for example by iconv."
_MAY_BE_NULL: Final = ("", *NULLS, "NaN", "nan", "None", "-")
_SHOWN_MAX: Final = 60
_HINT: Final = "Correct or remove the record."


class _WrongTypeError(Exception):
    """The types have no common values."""


class Fitting(Struct, frozen=True):
    """A converter of batches to ``schema``. Missing columns in ``optional`` become null.

    ``text``: strings may contain values of any type, as in CSV. ``utf8``: strings are the bytes of
    binary columns, not their base64.
    """

    schema: pa.Schema
    text: bool
    utf8: bool = False
    optional: frozenset[str] = frozenset()

    @classmethod
    def of_topic(cls, schema: pa.Schema, text: bool) -> Fitting:
        """Return the converter to a topic's schema. The client adds a default schema's columns.

        In text, nullable columns may be missing.
        """
        if not is_default(schema):
            nullable = frozenset(each.name for each in schema if each.nullable and text)
            return cls(schema, text, optional=nullable)
        fields = [field.with_nullable(True) for field in schema]
        optional = frozenset(schema.names) - {"value"}
        return cls(pa.schema(fields), text, utf8=True, optional=optional)

    def fit(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Convert a batch to exactly the topic's columns. Its first row is record ``first``.

        Raises:
            SchemaMismatch: a column is missing, unknown, or of an unsuitable type.
            InvalidRecord: a value does not fit.
        """
        names = batch.schema.names
        lacking = [each for each in self.optional if each not in names]
        check_names([*names, *lacking], self.schema)
        arrays = []
        for field in self.schema:
            if field.name in lacking:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = self._column(batch.column(field.name), field, first)
            null = first_null(array, field, field.name)
            if null is not None:
                row, path = null
                raise bad_record(first + row, f"column {path!r} is null, and is NOT NULL")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, array: pa.Array, field: pa.Field, first: int) -> pa.Array:
        def converted(part: pa.Array) -> pa.Array:
            return self._converted(part, field.type)

        try:
            return converted(array)
        except (_WrongTypeError, pa.ArrowNotImplementedError):
            expected, got = distinct_names(field.type, array.type)
            raise SchemaMismatch(
                f"column {field.name!r}: expected {expected}, got {got}",
                column=field.name,
                expected=str(field.type),
                got=str(array.type),
            ) from None
        except (pa.ArrowInvalid, binascii.Error, ValueError):
            row = first_bad(len(array), lambda count: converted(array.slice(0, count)))
            raise misfit(field, first + row, _shown(array.slice(row, 1), self.utf8)) from None

    def _converted(self, array: pa.Array, want: pa.DataType) -> pa.Array:
        have = array.type
        if pt.is_dictionary(have):
            array = array.dictionary_decode()
            have = array.type
        if pt.is_string_view(have) or pt.is_binary_view(have):
            array = array.cast(pa.string() if pt.is_string_view(have) else pa.binary())
            have = array.type
        if have.equals(want):
            return array
        if pt.is_null(have):
            return pa.nulls(len(array), want)
        if pt.is_nested(have) or pt.is_nested(want):
            return self._nested(array, want)
        if self.text and pt.is_floating(have) and pt.is_floating(want):
            return array.cast(want)  # rounded to the nearest
        if _is_text(have) and self.text:
            return self._from_text(array.cast(pa.string()), want)
        if not any(is_from(have) and is_to(want) for is_from, is_to in _LOSSLESS):
            raise _WrongTypeError
        if pt.is_timestamp(have) and pt.is_timestamp(want) and have.tz and not want.tz:
            raise _WrongTypeError
        if pt.is_floating(have) and pt.is_floating(want) and have.bit_width > want.bit_width:
            raise _WrongTypeError
        return array.cast(want)

    def _from_text(self, texts: pa.StringArray, want: pa.DataType) -> pa.Array:
        for is_kind, read in _FROM_TEXT:
            if is_kind(want):
                return read(texts, want)
        if _is_bytes(want) and not self.utf8:
            values = [
                None if each is None else base64.b64decode(each, validate=True)
                for each in texts.to_pylist()
            ]
            return pa.array(values, want)
        return texts.cast(want)

    def _nested(self, array: pa.Array, want: pa.DataType) -> pa.Array:
        have = array.type
        if pt.is_map(have) and pt.is_map(want):
            lists = array.cast(pa.list_(pa.struct([have.key_field, have.item_field])))
            keys, items = lists.flatten().flatten()
            starts = pc.if_else(array.is_null(), pa.scalar(None, pa.int32()), list_ends(lists)[:-1])
            return pa.MapArray.from_arrays(
                pa.concat_arrays([starts, list_ends(lists)[-1:]]),  # a null start is a null map
                self._converted(keys, want.key_type),
                self._converted(items, want.item_type),
                type=want,
            )
        if _is_list(have) and pt.is_fixed_size_list(want):
            return _of_fixed_size(self._converted(array, pa.list_(want.value_field)), want)
        if _is_list(have) and _is_list(want):
            values = self._converted(array.flatten(), want.value_type)
            return pa.ListArray.from_arrays(
                list_ends(array), values, type=want, mask=array.is_null()
            )
        if pt.is_struct(have) and pt.is_struct(want):
            names = [have.field(i).name for i in range(have.num_fields)]
            fields = [want.field(i) for i in range(want.num_fields)]
            if set(names) != {field.name for field in fields} or not fields:
                raise _WrongTypeError
            parts = dict(zip(names, array.flatten(), strict=True))
            children = [self._converted(parts[field.name], field.type) for field in fields]
            return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
        raise _WrongTypeError


def _of_fixed_size(lists: pa.ListArray, want: pa.DataType) -> pa.FixedSizeListArray:
    """Convert lists to a type of fixed size. Raise ArrowInvalid for a list of another size.

    Arrow's cast leaves the values of a null list undefined.
    """
    size = want.list_size
    if pc.any(pc.not_equal(pc.list_value_length(lists), size)).as_py():
        raise pa.ArrowInvalid(f"the size of a list is not {size}")
    starts = np.repeat(list_ends(lists)[:-1].to_numpy(), size)
    places = starts + np.tile(np.arange(size, dtype=np.int32), len(lists))
    absent = np.repeat(lists.is_null().to_numpy(zero_copy_only=False), size)
    values = lists.flatten().take(pa.array(places, mask=absent))
    return pa.FixedSizeListArray.from_arrays(values, type=want, mask=lists.is_null())


def check_names(names: list[str], schema: pa.Schema) -> None:
    """Check that these are the columns of the schema, in any order.

    Raises:
        SchemaMismatch: names the column.
    """
    for name in names:
        if name not in schema.names:
            raise SchemaMismatch(
                f"column {name!r} is not one of the topic's columns ({', '.join(schema.names)})",
                column=name,
            )
        if names.count(name) > 1:
            raise SchemaMismatch(f"duplicate column {name!r}", column=name)
    for field in schema:
        if field.name not in names:
            raise SchemaMismatch(
                f"column {field.name!r} ({type_name(field.type)}) is missing", column=field.name
            )


def first_bad(count: int, attempt: Callable[[int], object]) -> int:
    """Return the first bad row. ``attempt(n)`` raises if one of the first n rows is bad."""
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            attempt(middle)
        except (pa.ArrowException, ValueError, TypeError, IsologError):
            bad = middle
        else:
            good = middle
    return bad - 1


def misfit(field: pa.Field, record: int, value: object) -> InvalidRecord:
    """Return the error for a value that does not fit its column."""
    shown = repr(value) if isinstance(value, str | bytes) else str(value)
    problem = f"column {field.name!r}: {_short(shown)} does not fit {type_name(field.type)}"
    hint = _HINT
    if isinstance(value, str) and value in _MAY_BE_NULL:
        hint = f"If it means null, give --null {shlex.quote(str(value))}."
    elif isinstance(value, float) and math.isnan(value):
        hint = "If it means null, write null. In pandas, df.convert_dtypes() does this."
    return bad_record(record, problem, hint)


def _shown(one: pa.Array, utf8: bool) -> object:
    """Return the value of an array of one, for messages. Python has no nanoseconds."""
    kind = one.type
    if takes_empty_text(kind) or _is_number(kind):
        return one[0].as_py()
    return _Text(shown(one, utf8=utf8)[0].as_py())


class _Text(str):
    """A text without quotes in messages."""

    __slots__ = ()
    __repr__ = str.__str__


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


def bad_record(record: int, problem: str, hint: str = _HINT) -> InvalidRecord:
    """Return the error for a record of the input. Records are numbered from 1."""
    return InvalidRecord(f"record {record}: {problem}", hint=hint, record=record)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def takes_empty_text(kind: pa.DataType) -> bool:
    """Return whether the empty text is a value of the type."""
    return _is_text(kind) or _is_bytes(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


_Is = Callable[[pa.DataType], bool]
_FROM_TEXT: Final[tuple[tuple[_Is, Callable[[pa.StringArray, pa.DataType], pa.Array]], ...]] = (
    (pt.is_timestamp, moments_of),
    (pt.is_date, dates_of),
    (pt.is_time, times_of),
    (pt.is_duration, durations_of),
)
# Lossless conversions between kinds. Arrow's safe cast then checks every value.
_LOSSLESS: Final[tuple[tuple[_Is, _Is], ...]] = (
    (pt.is_integer, _is_number),
    (pt.is_floating, lambda kind: pt.is_floating(kind) or pt.is_integer(kind)),
    (pt.is_decimal, lambda kind: pt.is_decimal(kind) or pt.is_integer(kind)),
    (takes_empty_text, takes_empty_text),
    (pt.is_date, pt.is_date),
    (pt.is_timestamp, pt.is_timestamp),
    (pt.is_time, pt.is_time),
    (pt.is_duration, pt.is_duration),
)
