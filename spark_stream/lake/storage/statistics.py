"""The statistics of a file in a Delta log: rows, nulls, and the least and greatest values.

They come from the footer of the Parquet file. **A reader skips a file by them, so a bound that is
not certain is left out**: a column with NaN, which Spark sorts above all numbers and Parquet
ignores, bytes, which Delta does not compare, decimals with more digits than a reader's
``double``, and dates beyond those of Python.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

_TEXT_MAX: Final = 32
_GREATEST: Final = "\U0010ffff"
_DIGITS_MAX: Final = 15
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


def file_statistics(footer: Any, schema: pa.Schema, not_numbers: Collection[str]) -> str:
    """Return the statistics of a file as JSON.

    ``footer``: pyarrow's metadata of the file. ``not_numbers``: the columns with NaN.
    """
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    seen = Counter(paths)
    for field in schema:
        if pt.is_nested(field.type) or seen[field.name] != 1:
            continue
        place = paths.index(field.name)
        found = [
            footer.row_group(number).column(place).statistics
            for number in range(footer.num_row_groups)
        ]
        if any(each is None for each in found):
            continue
        if all(each.has_null_count for each in found):
            nulls[field.name] = sum(each.null_count for each in found)
        if field.name not in not_numbers:
            bounds = _bounds(found, field.type)
            if bounds is not None:
                least[field.name], most[field.name] = bounds
    stats = {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }
    return _encoder.encode(stats).decode()


def _bounds(groups: list[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return the least and the greatest value as JSON, or None if they are not certain."""
    form = next((form for test, form in _FORMS if test(kind)), None)
    groups = [each for each in groups if each.num_values]  # a row group of nulls alone has none
    if form is None or not groups or not all(each.has_min_max for each in groups):
        return None
    try:
        low = form(min(each.min for each in groups), False)
        high = form(max(each.max for each in groups), True)
    except (ValueError, OverflowError, TypeError):
        return None
    return None if low is None or high is None else (low, high)


def _text(value: str, upper: bool) -> str | None:
    if not isinstance(value, str):
        return None
    if len(value) <= _TEXT_MAX:
        return value
    if not upper:
        return value[:_TEXT_MAX]
    length = _TEXT_MAX
    while length < len(value) and value[length] == _GREATEST:
        length += 1
    return value[:length] + _GREATEST


def _decimal(value: Decimal, upper: bool) -> Decimal | None:
    is_exact = isinstance(value, Decimal) and len(value.as_tuple().digits) <= _DIGITS_MAX
    return value if is_exact else None


def _float(value: float, upper: bool) -> float | None:
    return value if math.isfinite(value) else None


def _moment(value: datetime, upper: bool) -> str:
    """Return a time with milliseconds, which is the precision of Delta's statistics."""
    value += timedelta(microseconds=999 if upper else 0)
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _day(value: date, upper: bool) -> str:
    return value.isoformat()


_FORMS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[Any, bool], Any]]]] = [
    (pt.is_integer, lambda value, upper: value),
    (pt.is_boolean, lambda value, upper: value),  # deltalake takes none for null alone
    (pt.is_floating, _float),
    (pt.is_string, _text),
    (pt.is_decimal, _decimal),
    (pt.is_date32, _day),
    (pt.is_timestamp, _moment),
]
"""Tests of types, and the functions that return a bound as JSON."""
