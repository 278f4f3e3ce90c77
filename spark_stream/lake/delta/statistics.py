"""The statistics of a table's file: the least and the greatest values of its columns."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Self

import msgspec

from spark_stream.lake.delta.schema import OFFSET, PARTITION, TIMESTAMP
from spark_stream.structs import INT64_MAX

Interval = tuple[int, int]
"""A first and a last value, inclusive."""

ANY: Final = (-INT64_MAX, INT64_MAX)
"""The interval of unknown values."""


class _Values(msgspec.Struct, frozen=True):
    """Values of isolog's columns. The last two are those of the table of cuts."""

    partition: Any = msgspec.field(default=None, name=PARTITION)
    offset: Any = msgspec.field(default=None, name=OFFSET)
    timestamp: Any = msgspec.field(default=None, name=TIMESTAMP)
    cut: Any = None
    time: Any = None


class _Written(msgspec.Struct, frozen=True, rename="camel"):
    num_records: int = 0
    min_values: _Values = _Values()
    max_values: _Values = _Values()


_decoder: Final = msgspec.json.Decoder(_Written)


class Statistics(msgspec.Struct, frozen=True):
    """The statistics of isolog's columns. An unknown interval is ``ANY``, an unknown time None."""

    records: int = 0
    partitions: Interval = ANY
    offsets: Interval = ANY
    newest: datetime | None = None
    cuts: Interval = ANY
    newest_cut: datetime | None = None

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Return the statistics in a text in JSON. They are unknown if it has another form."""
        try:
            found = _decoder.decode(text or "{}")
        except msgspec.MsgspecError:
            return cls()
        least, most = found.min_values, found.max_values
        return cls(
            found.num_records,
            _interval(least.partition, most.partition),
            _interval(least.offset, most.offset),
            _moment(most.timestamp),
            _interval(least.cut, most.cut),
            _moment(most.time),
        )


def _interval(low: object, high: object) -> Interval:
    return (low, high) if isinstance(low, int) and isinstance(high, int) else ANY


def _moment(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
