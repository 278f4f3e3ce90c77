"""Queries that have a consumer's name, as records of the metadata store.

A record has where the query first started, and how far its present run has come. The start is what
the query's source said, and means something to the source only. ``scripts/queries`` changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

QUERIES: Final = "queries/"


@dataclass(frozen=True, slots=True)
class ReadUpTo:
    """What a query has read of a partition: every record below the offset."""

    topic: str
    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a query. ``instance`` is its latest run, which alone tells of progress.

    ``selection`` says which topics it reads, ``starting`` how its start was asked for, ``start``
    (None: nobody has pinned it) where that was. Times are in ms since the epoch.
    """

    instance: str
    selection: str
    isolation: str
    starting: str = ""
    start: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None
    positions: tuple[ReadUpTo, ...] = ()


def encode_query(query: Query) -> dict[str, Any]:
    """The record's value."""
    return asdict(query)


def decode_query(value: Mapping[str, Any]) -> Query:
    """The query that a record's value holds."""
    positions = tuple(ReadUpTo(**each) for each in value["positions"])
    return Query(**{**value, "positions": positions})
