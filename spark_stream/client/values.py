"""The values that the client's calls return, and conversion of times to microseconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from numbers import Integral
from typing import Final, NamedTuple

from msgspec import Struct

from spark_stream.errors import InvalidRecord
from spark_stream.structs import INT64_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Written(Struct, frozen=True):
    """An acknowledgement of written records.

    A batch whose keys spread it over partitions has one part for each partition.

    Attributes:
        topic: The name of the topic.
        partition: The partition of the first record.
        offset: The offset of the first record. 0 for a batch without records.
        count: The number of records.
        parts: The acknowledgement of each partition, if there are several.

    Raises:
        ValueError: ``offset`` or ``count`` is negative.
    """

    topic: str
    partition: int
    offset: int
    count: int = 1
    parts: tuple[Written, ...] = ()

    def __post_init__(self) -> None:
        if self.offset < 0 or self.count < 0:
            raise ValueError(f"{self.count} records cannot be written at offset {self.offset}")


class Record(NamedTuple):
    """A record of a topic with Kafka's columns.

    Attributes:
        topic: The name of the topic.
        partition: The number of the partition.
        offset: The offset in the partition.
        timestamp: The time of the record, in UTC.
        key: The key, or None.
        value: The value, or None.
        headers: ``(name, value)`` of each header, in their order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def to_microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970. A datetime without a zone is in UTC.

    So the records that a program reads do not depend on its machine's time zone, as with Spark's
    options.
    """
    if moment.tzinfo is None:
        moment = datetime.combine(moment.date(), moment.time(), UTC)
    span = moment - _EPOCH  # astimezone() overflows at both ends of the calendar
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def timestamp_us(timestamp: int | datetime | None) -> int:
    """Return a record's timestamp in microseconds: from milliseconds, a datetime, or now."""
    if timestamp is None:
        return time.time_ns() // 1000
    if isinstance(timestamp, datetime):
        return to_microseconds(timestamp)
    if not isinstance(timestamp, Integral) or isinstance(timestamp, bool):
        raise InvalidRecord(
            f"timestamp takes whole milliseconds since 1970, or a datetime, not {timestamp!r}",
            hint="time.time() is in seconds: use int(time.time() * 1000), or leave it out.",
        )
    moment = int(timestamp) * 1000
    if not -INT64_MAX <= moment <= INT64_MAX:
        raise InvalidRecord(f"timestamp {timestamp} is out of range", hint="It is in milliseconds.")
    return moment
