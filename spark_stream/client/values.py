"""The values that the client's calls return."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from msgspec import Struct


class Written(Struct, frozen=True):
    """An acknowledgement: ``count`` records are in the log, the first of them at ``offset``.

    A batch whose keys spread it over partitions has ``parts``, one for each partition;
    ``partition`` and ``offset`` are then those of its first record, and ``count`` is the sum. A
    batch without records has ``count`` and ``offset`` 0.

    Raises:
        ValueError: ``offset`` or ``count`` is negative. No broker acknowledges such a batch.
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
    """A record of a default-schema topic, as :meth:`Consumer.records` gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
