"""The control messages about consumers' names: those of queries and those of clients.

They are bodies and results of DoAction, by the action's name (``wire.actions``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import ReadPosition
from spark_stream.structs import Name
from spark_stream.wire.messages import Description, Message

TextField = Annotated[str, Meta(max_length=1 << 20)]
StartField = Annotated[str, Meta(max_length=1 << 24)]
"""A start has some 50 characters a partition, and a name for each topic."""


class PinStart(Message):
    """A run of a query takes its name, and asks where the query first started.

    ``start``: where it would start, as its source writes it: this is pinned if nothing is yet. None
    if it only asks.
    """

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    starting: TextField = ""
    start: StartField | None = None


class PinnedStart(Message):
    """Where the query of the name first started, how that was asked for, and when.

    ``start`` is None if nothing is pinned. If ``selection`` differs from the query's, the name is
    that of another query. Topics that the caller may not describe are left out of ``start``; a
    ``selection`` or ``starting`` that names one is empty.
    """

    selection: str
    starting: str
    start: str | None = None
    started_ms: int | None = None


class RecordProgress(Message):
    """How far a run of a query has come. ``claim``: the run also takes the name over."""

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    positions: list[ReadPosition]
    claim: bool = False


class ConsumedPartition(Description):
    """Where a named consumer, or a query, reads on in a partition.

    ``end``: the bound of its isolation level now; None if the topic was deleted or made anew.
    The broker leaves it out: only the leaders know it.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    end: int | None = None

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read."""
        return None if self.end is None else max(0, self.end - self.offset)


class ConsumerDescription(Description):
    """What is known under a consumer's name; ``kind``: ``query`` (Spark's) or ``client``.

    Of a query: the ``isolation`` that it reads under, the topics of its ``selection``, how its
    first start was asked for (``starting``) and when it was (``started_ms``), and when it last
    reported its progress (``recorded_ms``). Times are in ms since the epoch. A client's lag is
    counted up to the logs' ends. ``principal``: who has the name; empty if callers are not known.
    ``selection`` or ``starting`` is None if it names a topic that the caller may not describe.
    """

    name: str
    kind: Literal["query", "client"]
    isolation: Isolation | None = None
    selection: str | None = None
    starting: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None
    principal: str = ""
    partitions: tuple[ConsumedPartition, ...] = ()

    @property
    def lag(self) -> int | None:
        """How many offsets are left to read, as far as that is known."""
        known = [each.lag for each in self.partitions if each.lag is not None]
        return sum(known) if known else None


class ConsumerDescriptions(Message):
    """All that is known under consumers' names, by name."""

    consumers: list[ConsumerDescription]
