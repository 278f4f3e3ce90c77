"""The control messages about consumers' names: queries that have one, and what is known under all.

They are bodies and results of DoAction, by the action's name (``wire.actions``).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions import ReadPosition
from spark_stream.structs import Name
from spark_stream.wire.messages import Message

TextField = Annotated[str, Meta(max_length=1 << 20)]
StartField = Annotated[str, Meta(max_length=1 << 24)]
"""A start has some 50 characters a partition, and a name for each topic."""


class PinStart(Message):
    """A run of a query takes its name, and asks where the query first started.

    ``start``: where it would start, in the words of its source; that is pinned if nothing is yet.
    None: it only asks.
    """

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    starting: TextField = ""
    start: StartField | None = None


class PinnedStart(Message):
    """Where the query of the name first started, how that was asked for, and when.

    ``start`` is None where nothing is pinned. Where ``selection`` is another one than the query's,
    the name is that of another query.
    """

    selection: str
    starting: str
    start: str | None = None
    started_ms: int | None = None


class RecordProgress(Message):
    """How far a run of a query has come. ``claim``: it takes the name over with that."""

    consumer: Name
    instance: Name
    selection: TextField
    isolation: Isolation
    positions: list[ReadPosition]
    claim: bool = False


class NamedReader(Message):
    """What is known under a name. ``query``: of a query; otherwise of a client's consumer."""

    consumer: str
    query: bool
    positions: list[ReadPosition]
    selection: str | None = None
    isolation: Isolation | None = None
    starting: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None


class NamedReaders(Message):
    """Everything that is known under consumers' names."""

    consumers: list[NamedReader]
