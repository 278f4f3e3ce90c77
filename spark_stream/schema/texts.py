"""Columns as text and as JSON, and dates and times back from text: whole columns, in Arrow's code.

``shown`` is for people and CSV, ``json_texts`` for JSON. Nested values are JSON in both. Binary is
base64, as in Spark, but in default-schema topics (``utf8``) it is text. There, JSON has bytes that
are not UTF-8 as an object, ``{"base64": "…"}``, and ``shown`` has such a byte as ``\\xff``.

The command line's ``json_lines.JsonBlocks`` reads all JSON of this module back to the same values.

Dates, times of day, moments and durations are ISO 8601, and exact. A moment of a column with a zone
is in UTC and ends in ``Z``. A year outside 0 to 9999 has a sign (``+10000-01-01``), as ISO 8601
requires. A duration is in seconds: ``PT1.5S``. It can also be written and read as an interval of
Spark, which is not ISO 8601.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

BASE64: Final = "base64"
"""The only name in a JSON object that encodes bytes which are not UTF-8."""

NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON does not have. They are written as strings, as Spark does."""

_JSON_SHORT: Final = {"\n": "n", "\r": "r", "\t": "t"}
_CONTROL: Final = r"[\x00-\x1f]"

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_DAY_S: Final = 86_400
# Arrow writes and reads only years of four digits. Others are shifted by whole cycles of the
# calendar, 400 years or 146,097 days each, into the cycle that begins in 1970.
_CYCLE_DAYS: Final = 146_097
_CYCLE_YEARS: Final = 400
_FIRST_DAY, _LAST_DAY = -719_528, 2_932_896  # 0000-01-01 and 9999-12-31
_YEAR: Final = r"^(?P<year>[+-][0-9]{4,15})(?P<rest>-.*)$"
_ZONE: Final = r"(?:[zZ]|[+-][0-9]{2}(?::?[0-9]{2})?)$"
_TIME: Final = ":"  # a date without a time has none, but ends like a zone (…-01)
_DURATION: Final = r"^(?P<sign>-?)PT(?P<whole>[0-9]{1,19})(?:\.(?P<part>[0-9]{1,9}))?S$"
_INTERVAL: Final = (
    r"^INTERVAL '(?P<sign>-?)(?P<days>[0-9]{1,9}) (?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2})"
    r":(?P<seconds>[0-9]{2})(?:\.(?P<part>[0-9]{1,9}))?' DAY TO SECOND$"
)
_NO_FRACTION: Final = r"\.0+$"
_ZEROS: Final = r"\.0+$|(\.[0-9]*[1-9])0+$"
"""The zeros at the end of a fraction, which is the first group if it has other digits."""

Integers = npt.NDArray[np.int64]


def date_texts(array: pa.Array) -> pa.StringArray:
    """Write dates: ``2024-02-29``."""
    kind = array.type
    per_day = 1 if pt.is_date32(kind) else _DAY_S * 1_000

    def written(values: pa.Array) -> pa.StringArray:
        return (values.cast(pa.int32()) if per_day == 1 else values).cast(kind).cast(pa.string())

    days = array.cast(pa.int32()).cast(pa.int64()) if per_day == 1 else array.cast(pa.int64())
    return _dated(days, per_day, written)


def moment_texts(array: pa.Array) -> pa.StringArray:
    """Write moments: ``2024-02-29T12:30:00.5``, with a ``Z`` if the type has a zone."""
    plain = pa.timestamp(array.type.unit)  # no zone, so that Arrow needs no zone database

    def written(values: pa.Array) -> pa.StringArray:
        texts = values.cast(plain).cast(pa.string())
        return pc.replace_substring(texts, " ", "T", max_replacements=1)

    texts = _dated(array.cast(pa.int64()), _DAY_S * _PER_SECOND[array.type.unit], written)
    texts = pc.replace_substring_regex(texts, _NO_FRACTION, "")
    return _joined(texts, "Z") if array.type.tz else texts


def time_texts(array: pa.Array) -> pa.StringArray:
    """Write times of day: ``12:30:00.5``."""
    return pc.replace_substring_regex(array.cast(pa.string()), _ZEROS, r"\1")


def duration_texts(array: pa.Array) -> pa.StringArray:
    """Write durations: ``PT90S``, ``-PT0.000001S``."""
    sign, seconds, fraction = _duration_parts(array)
    return _joined(sign, "PT", seconds.cast(pa.string()), fraction, "S")


def interval_texts(array: pa.Array) -> pa.StringArray:
    """Write durations as Spark does: ``INTERVAL '-1 02:03:04.5' DAY TO SECOND``."""
    sign, seconds, fraction = _duration_parts(array)
    days = pc.divide(seconds, _DAY_S)
    clock = pc.subtract(seconds, pc.multiply(days, _DAY_S)).cast(pa.int32()).cast(pa.time32("s"))
    texts = _joined(sign, days.cast(pa.string()), " ", clock.cast(pa.string()), fraction)
    return _joined("INTERVAL '", texts, "' DAY TO SECOND")


def _duration_parts(array: pa.Array) -> tuple[pa.StringArray, pa.Array, pa.StringArray]:
    """Return the sign, the whole seconds and the fraction (``.5``) of each duration."""
    unit = array.type.unit
    values = array.cast(pa.int64())
    whole = pc.divide(values, _PER_SECOND[unit])  # truncated
    part = pc.subtract(values, pc.multiply(whole, _PER_SECOND[unit]))
    fraction = pc.utf8_lpad(pc.abs(part).cast(pa.string()), _DIGITS[unit], "0")
    fraction = pc.if_else(pc.equal(part, 0), "", _joined(".", pc.utf8_rtrim(fraction, "0")))
    return pc.if_else(pc.less(values, 0), "-", ""), pc.abs(whole), fraction


def dates_of(texts: pa.StringArray, want: pa.DataType) -> pa.Array:
    """Read the dates that :func:`date_texts` wrote, or raise ArrowInvalid."""
    if not _has_years(texts):
        return texts.cast(want)

    def read(plain: pa.StringArray) -> pa.Array:
        return plain.cast(want).cast(pa.int32()).cast(pa.int64())

    return _undated(texts, 1, read).cast(pa.int32()).cast(want)


def moments_of(texts: pa.StringArray, want: pa.DataType) -> pa.Array:
    """Read timestamps, or raise ArrowInvalid. For a type with a zone, text without one is UTC."""
    if not _has_years(texts):
        return _moments(texts, want)
    per_day = _DAY_S * _PER_SECOND[want.unit]
    return _undated(texts, per_day, lambda some: _moments(some, want).cast(pa.int64())).cast(want)


def times_of(texts: pa.StringArray, want: pa.DataType) -> pa.Array:
    """Read times of day, as parts of timestamps: Arrow cannot read them alone."""
    return _joined("1970-01-01 ", texts).cast(pa.timestamp(want.unit)).cast(want)


def durations_of(texts: pa.StringArray, want: pa.DataType) -> pa.Array:
    """Read durations, also in the form of :func:`interval_texts`, or raise ArrowInvalid."""
    texts = _in_seconds(texts)
    found = pc.extract_regex(texts, _DURATION)
    if found.null_count > texts.null_count:
        raise pa.ArrowInvalid("a duration is written PT1.5S")
    digits = _DIGITS[want.unit]
    part = pc.utf8_rtrim(pc.struct_field(found, "part"), "0")
    if pc.any(pc.greater(pc.utf8_length(part), digits)).as_py():
        raise pa.ArrowInvalid(f"a duration in {want.unit} has at most {digits} decimal places")
    sign, whole = pc.struct_field(found, "sign"), pc.struct_field(found, "whole")
    if digits:
        whole = _joined(whole, pc.utf8_rpad(part, digits, "0"))
    # Arrow reads at most as many digits as the greatest number has, leading zeros included.
    whole = pc.replace_substring_regex(whole, r"^0+([0-9])", r"\1")
    return _joined(sign, whole).cast(pa.int64()).cast(want)


def _in_seconds(texts: pa.StringArray) -> pa.StringArray:
    """Rewrite the intervals of Spark among the texts as :func:`duration_texts` does."""
    found = pc.extract_regex(texts, _INTERVAL)
    if found.null_count == len(found):
        return texts
    sign, *counts, part = found.drop_null().flatten()
    days, hours, minutes, seconds = (_numbers(each.cast(pa.int64())) for each in counts)
    whole = pa.array(days * _DAY_S + hours * 3600 + minutes * 60 + seconds).cast(pa.string())
    point = pc.if_else(pc.equal(part, ""), "", ".")
    written = _joined(sign, "PT", whole, point, part, "S")
    return pc.replace_with_mask(texts, found.is_valid(), written)


def _moments(texts: pa.StringArray, want: pa.DataType) -> pa.Array:
    if want.tz is None:
        return texts.cast(want)
    zoned = pc.and_(pc.match_substring(texts, _TIME), pc.match_substring_regex(texts, _ZONE))
    without = pc.if_else(zoned, pa.scalar(None, pa.string()), texts)
    plain = without.cast(pa.timestamp(want.unit)).cast(want)
    return pc.coalesce(pc.if_else(zoned, texts, pa.scalar(None, pa.string())).cast(want), plain)


# -- years that Arrow does not write ---------------------------------------------------------------


def _dated(
    values: pa.Array, per_day: int, written: Callable[[pa.Array], pa.StringArray]
) -> pa.StringArray:
    bounds = pc.min_max(values)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None or (first >= _FIRST_DAY * per_day and last < (_LAST_DAY + 1) * per_day):
        return written(values)
    numbers = _numbers(values)
    cycles = numbers // (_CYCLE_DAYS * per_day)
    moved = _with_nulls(numbers - cycles * (_CYCLE_DAYS * per_day), values)
    texts = written(moved)
    years = pc.utf8_slice_codeunits(texts, 0, 4).cast(pa.int64())
    years = pc.add(years, pa.array(cycles * _CYCLE_YEARS))
    digits = pc.utf8_lpad(pc.abs(years).cast(pa.string()), 4, "0")
    sign = pc.if_else(pc.less(years, 0), "-", pc.if_else(pc.greater(years, 9999), "+", ""))
    return _joined(sign, digits, pc.utf8_slice_codeunits(texts, 4))


def _has_years(texts: pa.StringArray) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, _YEAR)).as_py())


def _undated(
    texts: pa.StringArray, per_day: int, read: Callable[[pa.StringArray], pa.Array]
) -> pa.Array:
    parts = pc.extract_regex(texts, _YEAR)
    digits = pc.replace_substring_regex(pc.struct_field(parts, "year"), r"^\+", "")
    signed = parts.is_valid()
    years = _numbers(pc.if_else(signed, digits, "1970").cast(pa.int64()))
    cycles = (years - 1970) // _CYCLE_YEARS
    near = pa.array(years - cycles * _CYCLE_YEARS).cast(pa.string())
    plain = pc.if_else(signed, _joined(near, pc.struct_field(parts, "rest")), texts)
    found = read(plain)
    # As Python's integers, which do not overflow. Such years are rare.
    moved = _numbers(found).astype(object) + cycles.astype(object) * (_CYCLE_DAYS * per_day)
    try:
        return _with_nulls(moved.astype(np.int64), found)
    except OverflowError:
        raise pa.ArrowInvalid("a date is too far away for its type") from None


def _numbers(values: pa.Array) -> Integers:
    found: Integers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return found


def _with_nulls(numbers: Integers, like: pa.Array) -> pa.Array:
    return pc.if_else(like.is_valid(), pa.array(numbers), pa.scalar(None, pa.int64()))


def shown(array: pa.Array, *, utf8: bool) -> pa.StringArray:
    """Return the text of each value. A null stays null."""
    kind = array.type
    if pt.is_dictionary(kind):
        return shown(array.dictionary_decode(), utf8=utf8)
    if pt.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if pt.is_nested(kind):
        texts = json_texts(array, utf8=utf8)
        return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), texts)
    if _is_bytes(kind):
        return _bytes_shown(array, utf8)
    for is_kind, texts_of in _TEXTS:
        if is_kind(kind):
            return texts_of(array)
    return array.cast(pa.string())


def _bytes_shown(array: pa.Array, utf8: bool) -> pa.StringArray:
    if utf8:
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # a value is not UTF-8: convert each one
    return pa.array([_text_of(each, utf8) for each in array.to_pylist()], pa.string())


def _text_of(value: bytes | None, utf8: bool) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "backslashreplace") if utf8 else base64.b64encode(value).decode()


def _float_texts(array: pa.Array) -> pa.StringArray:
    texts = array.cast(pa.string())
    if not pc.all(pc.is_finite(array)).as_py():
        nan, above, below = NOT_FINITE
        infinite = pc.if_else(pc.greater(array.cast(pa.float64()), 0), above, below)
        texts = pc.if_else(pc.is_nan(array), nan, pc.if_else(pc.is_inf(array), infinite, texts))
    # Without a fraction it would be read as an integer, and integers have no negative zero.
    return pc.if_else(pc.equal(texts, "-0"), "-0.0", texts)


_TEXTS: Final = (
    (pt.is_timestamp, moment_texts),
    (pt.is_date, date_texts),
    (pt.is_time, time_texts),
    (pt.is_duration, duration_texts),
    (pt.is_floating, _float_texts),
)


def json_texts(array: pa.Array, *, utf8: bool, intervals: bool = False) -> pa.StringArray:
    """Return each value as JSON. A null is ``null``.

    ``intervals``: durations have the text of Spark's intervals, which ``from_json`` reads.
    """
    kind = array.type
    if pt.is_dictionary(kind):
        return json_texts(array.dictionary_decode(), utf8=utf8, intervals=intervals)
    if pt.is_map(kind):
        texts = _json_maps(array, utf8, intervals)
    elif pt.is_struct(kind):
        texts = _json_structs(array, utf8, intervals)
    elif pt.is_nested(kind):
        texts = _json_lists(array, utf8, intervals)
    elif pt.is_duration(kind) and intervals:
        texts = _quoted(interval_texts(array))
    elif pt.is_floating(kind):
        texts = _float_texts(array)
        texts = pc.if_else(pc.is_finite(array), texts, _joined('"', texts, '"'))
    elif pt.is_integer(kind) or pt.is_decimal(kind) or pt.is_boolean(kind):
        texts = array.cast(pa.string())
    elif pt.is_null(kind):
        texts = pa.nulls(len(array), pa.string())
    elif utf8 and _is_bytes(kind):
        texts = _json_bytes(array)
    else:
        texts = _quoted(shown(array, utf8=utf8))
    return pc.fill_null(texts, "null")


def json_lines(batch: pa.RecordBatch, *, utf8: bool, intervals: bool = False) -> pa.StringArray:
    """Return each row as a JSON object, with values as in :func:`json_texts`."""
    return _json_objects(batch.schema.names, batch.columns, utf8, intervals)


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROL)).as_py():
        for code in range(0x20):
            escaped = _JSON_SHORT.get(chr(code), f"u{code:04x}")
            texts = pc.replace_substring(texts, chr(code), f"\\{escaped}")
    return _joined('"', texts, '"')


def _json_bytes(array: pa.Array) -> pa.StringArray:
    try:
        return _quoted(array.cast(pa.string()))
    except pa.ArrowInvalid:
        pass  # a value is not UTF-8: convert each one
    values = array.to_pylist()
    texts = [_as_text(each) for each in values]
    raw = [
        None if text is not None or value is None else base64.b64encode(value).decode()
        for text, value in zip(texts, values, strict=True)
    ]
    encoded = _joined(f'{{"{BASE64}":"', pa.array(raw, pa.string()), '"}')
    return pc.coalesce(_quoted(pa.array(texts, pa.string())), encoded)


def _as_text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _json_objects(
    names: list[str], columns: list[pa.Array], utf8: bool, intervals: bool
) -> pa.StringArray:
    parts: list[Any] = []
    for name, column in zip(names, columns, strict=True):
        label = json.dumps(name, ensure_ascii=False)
        texts = json_texts(column, utf8=utf8, intervals=intervals)
        parts += [f"{',' if parts else '{'}{label}:", texts]
    return _joined(*parts, "}")


def _json_structs(array: pa.StructArray, utf8: bool, intervals: bool) -> pa.StringArray:
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    if not names:
        return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), "{}")
    objects = _json_objects(names, array.flatten(), utf8, intervals)
    return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), objects)


def _json_lists(array: pa.Array, utf8: bool, intervals: bool) -> pa.StringArray:
    items = json_texts(array.flatten(), utf8=utf8, intervals=intervals)
    return _joined("[", _items_joined(array, list_ends(array), items), "]")


def _json_maps(array: pa.MapArray, utf8: bool, intervals: bool) -> pa.StringArray:
    """Write maps as Spark does: objects, whose keys are strings whatever their type."""
    rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    maps = array.take(pa.array(rows))  # a copy, whose buffers have only the values of these maps
    ends = np.zeros(len(array) + 1, np.int32)
    ends[rows + 1] = np.diff(maps.offsets.to_numpy())
    labels = _quoted(shown(maps.keys, utf8=utf8))
    items = _joined(labels, ":", json_texts(maps.items, utf8=utf8, intervals=intervals))
    return _joined("{", _items_joined(array, pa.array(np.cumsum(ends, dtype=np.int32)), items), "}")


def _items_joined(array: pa.Array, ends: pa.Array, items: pa.StringArray) -> pa.StringArray:
    """Join the items of each list or map with commas, by offsets as of :func:`list_ends`."""
    return pc.binary_join(pa.ListArray.from_arrays(ends, items, mask=array.is_null()), ",")


def list_ends(lists: pa.Array) -> pa.Array:
    """Return the offsets of lists in their flattened values: 0, and where each list ends."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    lengths = pc.if_else(lists.is_valid(), lengths, pa.scalar(0, lengths.type))
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=ends[1:])
    # Without a validity bitmap, which Arrow does not accept besides that of the lists.
    return pa.Array.from_buffers(pa.int32(), len(ends), [None, pa.py_buffer(ends)])


def _joined(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))
