"""Dates, times of day, moments and durations as text, and back: whole columns at once, exactly.

The texts are ISO 8601. A moment of a column with a zone is in UTC and ends in ``Z``. A year
outside 0 to 9999 has a sign (``+10000-01-01``), as ISO 8601 requires. A duration is in seconds:
``PT1.5S``. It can also be written and read as an interval of Spark, which is not ISO 8601.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_DAY_S: Final = 86_400
# Arrow writes and reads years of four digits. Others are shifted by whole cycles of the calendar,
# 400 years or 146,097 days each, into the cycle that begins in 1970.
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
    """Read times of day: Arrow can read them only as part of a moment."""
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
    # Arrow reads no more digits than the greatest number has, leading zeros included.
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
    # As Python's integers, which do not overflow; such years are rare.
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


def _joined(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")
