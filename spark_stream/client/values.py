"""What the client's calls return."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Written:
    """An acknowledgement: ``count`` records are in the log, the first of them at ``offset``.

    A batch that its keys spread over partitions has its ``parts``, one a partition; ``partition``
    and ``offset`` are then those of its first record, and ``count`` is the sum. A batch without
    records has ``count`` and ``offset`` 0.

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


@dataclass(frozen=True, slots=True)
class Branch:
    """The identity that a producer has in transaction ``number`` of its transactional id."""

    transactional_id: str
    number: int
    producer_id: int
    epoch: int


class Record(NamedTuple):
    """A record of a default-schema topic, as :meth:`Consumer.records` gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class ConsumedPartition:
    """Where a named consumer, or a query, reads on in a partition.

    ``end``: the bound of its isolation level now; None where the topic was deleted or made anew.
    """

    topic: str
    partition: int
    offset: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read."""
        return None if self.end is None else max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """What is known under a consumer's name; ``kind``: ``query`` (Spark's) or ``client``.

    Of a query: the ``isolation`` that it reads under, the topics of its ``selection``, how its
    first start was asked for (``starting``) and when it was, and when it last told how far it has
    come. Times are in ms since the epoch. A client's lag is counted up to the logs' ends.
    """

    name: str
    kind: str
    isolation: str | None
    selection: str | None
    starting: str | None
    started_ms: int | None
    recorded_ms: int | None
    partitions: tuple[ConsumedPartition, ...]

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read, as far as that is known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None
