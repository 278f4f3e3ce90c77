"""Literals of a filter, read as Spark does: numbers, moments, casts of them.

Moments without a zone are in UTC, even if a Spark session has another time zone: the leader that
compares them has no session.
"""

from __future__ import annotations

import re
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Final
from zoneinfo import ZoneInfo

from spark_stream.sql.tree import Literal, LiteralKind, Value

_DAY_S: Final = 86_400
_EPOCH: Final = date(1970, 1, 1).toordinal()
MOMENTS: Final = (LiteralKind.DATE, LiteralKind.TIMESTAMP_NTZ, LiteralKind.TIMESTAMP)
"""From the narrowest to the widest. Two kinds are compared in the wider one."""
_WHOLE: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TRUE: Final = ("t", "true", "y", "yes", "1")
_FALSE: Final = ("f", "false", "n", "no", "0")

_MOMENT: Final = re.compile(
    r"""(?P<year>\d{4}) (?:-(?P<month>\d{1,2}) (?:-(?P<day>\d{1,2})
        (?: [T\ ] (?P<clock> \d{1,2}:\d{1,2} (?: :\d{1,2} (?:\.\d{0,9})? )? )? \s*(?P<zone>\S.*)? )?
    )?)?""",
    re.VERBOSE,
)
_DAY: Final = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})(?:[ T].*)?)?)?", re.DOTALL
)
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?)?")
_SHIFT: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE: Final = re.compile(r"([+-]?)(inf|infinity|nan)", re.IGNORECASE)


class NotAValue(ValueError):
    """A literal is not a value of a type. The message has the reason."""


def number(text: str) -> Literal:
    """Read a number: 1 is whole, 1.5 a decimal, 1e3 a double."""
    if "e" in text.lower():
        return Literal(LiteralKind.DOUBLE, float(text), text)
    kind = LiteralKind.DECIMAL if "." in text else LiteralKind.WHOLE
    return Literal(kind, Fraction(Decimal(text)), text)


def negated(literal: Literal) -> Literal:
    """Return the number with the other sign."""
    if isinstance(literal.value, bool) or not isinstance(literal.value, Fraction | float):
        raise NotAValue(f"{literal.shown} is not a number")
    return Literal(literal.kind, -literal.value, f"-{literal.shown}")


def cast(literal: Literal, kind: str, precision: tuple[int, int] = (10, 0)) -> Literal:
    """Cast the literal to the type with this name in Spark.

    ``precision``: the precision and the scale of a decimal.

    Raises:
        NotAValue: the type does not have the value, or the cast is not supported.
    """
    value = literal.value
    text = f"CAST({literal.shown} AS {kind.upper()})"
    if value is None:
        return Literal(LiteralKind.NULL, None, text)
    if kind in _WHOLE:
        found = _exact(literal, kind)
        whole = Fraction(int(found))  # truncated, as in Spark
        limit = 1 << (_WHOLE[kind] - 1)
        if not -limit <= whole < limit or (literal.kind is LiteralKind.STRING and whole != found):
            raise NotAValue(f"{literal.shown} does not fit {kind}")
        return Literal(LiteralKind.WHOLE, whole, text)
    if kind == "decimal":
        found = _exact(literal, kind) * 10 ** precision[1]
        rounded = int(abs(found) + Fraction(1, 2)) * (1 if found >= 0 else -1)
        if abs(rounded) >= 10 ** precision[0]:
            raise NotAValue(f"{literal.shown} is not a decimal({precision[0]},{precision[1]})")
        return Literal(LiteralKind.DECIMAL, Fraction(rounded, 10 ** precision[1]), text)
    if kind in ("float", "double"):
        double = as_double(literal)
        return Literal(LiteralKind.DOUBLE, _single(double) if kind == "float" else double, text)
    if kind == "string" and literal.kind is LiteralKind.STRING:
        return literal
    if kind == "binary" and isinstance(value, str):
        return Literal(LiteralKind.BINARY, value.encode(), text)
    if kind == "boolean":
        return Literal(LiteralKind.BOOLEAN, as_boolean(literal), text)
    if kind == "date":
        return Literal(LiteralKind.DATE, as_day(literal), text)
    if kind in ("timestamp", "timestamp_ltz"):
        return Literal(LiteralKind.TIMESTAMP, as_moment(literal), text)
    if kind == "timestamp_ntz":
        return Literal(
            LiteralKind.TIMESTAMP_NTZ, as_moment(literal, LiteralKind.TIMESTAMP_NTZ), text
        )
    if kind == "time":
        return Literal(LiteralKind.TIME, as_time(literal), text)
    raise NotAValue(f"a filter cannot cast a {literal.kind} to {kind}")


def _exact(literal: Literal, kind: str) -> Fraction:
    value = literal.value
    if isinstance(value, Fraction) and literal.kind in (LiteralKind.WHOLE, LiteralKind.DECIMAL):
        return value
    if isinstance(value, float) and value - value == 0:
        return Fraction(value)
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return Fraction(Decimal(value.strip()))
    raise NotAValue(f"{literal.shown} does not fit {kind}")


def as_whole(literal: Literal) -> Fraction:
    """Cast a string to a whole number, as Spark does before it compares."""
    return Fraction(cast(literal, "bigint").value)  # type: ignore[arg-type]  # checked by the cast


def as_double(literal: Literal) -> float:
    """Convert a number, or a string that is one, to a double."""
    value = literal.value
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        text = value.strip()
        if _NOT_FINITE.fullmatch(text) or _NUMBER.fullmatch(text):
            return float(text)
    if isinstance(value, Fraction) and literal.kind in (LiteralKind.WHOLE, LiteralKind.DECIMAL):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    raise NotAValue(f"{literal.shown} is not a double")


def as_boolean(literal: Literal) -> bool:
    """Convert a boolean, or a string that is one, to a boolean."""
    value = literal.value
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        return value.strip().lower() in _TRUE
    raise NotAValue(f"{literal.shown} is not a boolean")


def as_day(literal: Literal) -> Fraction:
    """Return midnight of a date, in seconds. As in Spark, text after the day is ignored."""
    value = literal.value
    if literal.kind in MOMENTS and isinstance(value, Fraction):
        return value // _DAY_S * _DAY_S * Fraction(1)
    if isinstance(value, str):
        found = _DAY.fullmatch(value.strip())
        if found is None:
            raise NotAValue(f"{value!r} is not a date; an example is '2024-01-31'")
        return Fraction((_day_of(found, value).toordinal() - _EPOCH) * _DAY_S)
    raise NotAValue(f"{literal.shown} is not a date")


def as_moment(literal: Literal, kind: LiteralKind = LiteralKind.TIMESTAMP) -> Fraction:
    """Return a date or timestamp in seconds. A string is cast to ``kind``, one of ``MOMENTS``."""
    value = literal.value
    if literal.kind in MOMENTS and isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        if kind is LiteralKind.DATE:
            return as_day(literal)
        return _moment(value, zoned=kind is LiteralKind.TIMESTAMP)
    raise NotAValue(f"{literal.shown} is not a timestamp")


def as_time(literal: Literal) -> Fraction:
    """Return a time of day, in seconds."""
    value = literal.value
    if literal.kind is LiteralKind.TIME and isinstance(value, Fraction):
        return value
    if isinstance(value, str):
        return _clock(value.strip())
    raise NotAValue(f"{literal.shown} is not a time")


def _moment(text: str, *, zoned: bool) -> Fraction:
    """Read a moment, in seconds. Without ``zoned``, its zone must exist but is ignored."""
    found = _MOMENT.fullmatch(text.strip())
    if found is None:
        raise NotAValue(f"{text!r} is not a date or timestamp; an example is '2024-01-31 12:00:00'")
    try:
        day = _day_of(found, text)
        seconds = _clock(found["clock"]) if found["clock"] else Fraction(0)
        moment = Fraction((day.toordinal() - _EPOCH) * _DAY_S) + seconds
        shift = _shift(found["zone"], day, seconds) if found["zone"] else 0
        return moment - shift if zoned else moment
    except (ValueError, OverflowError) as error:
        if isinstance(error, NotAValue):
            raise
        raise NotAValue(f"{text!r}: {error}") from None


def _day_of(found: re.Match[str], text: str) -> date:
    try:
        return date(int(found["year"]), int(found["month"] or 1), int(found["day"] or 1))
    except ValueError as error:
        raise NotAValue(f"{text!r}: {error}") from None


def _clock(text: str) -> Fraction:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise NotAValue(f"{text!r} is not a time of day; an example is '12:00:00'")
    hour, minute, second = (int(part or 0) for part in found.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise NotAValue(f"{text!r} is not a time of day")
    parts = (found[4] or "")[:6].ljust(6, "0")  # Spark's moments are in microseconds
    return Fraction(hour * 3600 + minute * 60 + second) + Fraction(int(parts), 1_000_000)


def _shift(zone: str, day: date, seconds: Fraction) -> Fraction:
    """Return the offset of local time from UTC, in seconds. East of UTC it is positive."""
    if zone in ("Z", "UTC", "GMT"):
        return Fraction(0)
    found = _SHIFT.fullmatch(zone)
    if found is not None:
        shift = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
        where: timezone | ZoneInfo = timezone(shift if found[1] == "+" else -shift)
    else:
        try:
            where = ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise NotAValue(f"there is no time zone {zone!r}") from None
    local = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=int(seconds))
    shift_s = local.replace(tzinfo=where).utcoffset() or timedelta(0)
    return Fraction(shift_s // timedelta(seconds=1))


def _single(value: float) -> float:
    """Return the nearest float of 32 bits."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def shown(value: Value) -> str:
    """Write a Python value in SQL, for messages."""
    return repr(value) if isinstance(value, str) else str(value)
