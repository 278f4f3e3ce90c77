"""Named consumers, and the queries that have a name, as records of the metadata store.

A consumer's record has the positions where it reads on, and the instance that owns its name;
``scripts.transactions.positions`` changes them. A query's record has where the query first started,
and how far its present run has come; ``scripts.queries`` changes them. Only the query's source can
interpret the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.transactions.transactions import PositionOf, ReadPosition
from spark_stream.structs import Positional, learn_types

CONSUMERS: Final = "consumers/"
QUERIES: Final = "queries/"


def encode_positions(positions: Iterable[PositionOf]) -> list[dict[str, Any]]:
    """Encode positions for the store."""
    return [msgspec.to_builtins(each) for each in positions]


def decode_positions(values: Iterable[Mapping[str, Any]]) -> list[PositionOf]:
    """Decode the positions in a record's value."""
    return msgspec.convert(list(values), list[PositionOf])


class Query(Positional):
    """What is known of a query. ``instance`` is its latest run, the only one to record progress.

    ``selection``: which topics it reads. ``starting``: the option that asked for its start.
    ``start``: where that was, None if it is not pinned. Times are in ms since the epoch.
    ``principal``: who runs it; empty if callers are not known.
    """

    instance: str
    selection: str
    isolation: Isolation
    starting: str = ""
    start: str | None = None
    started_ms: int | None = None
    recorded_ms: int | None = None
    positions: tuple[ReadPosition, ...] = ()
    principal: str = ""


def encode_query(query: Query) -> dict[str, Any]:
    """Encode the record's value."""
    value: dict[str, Any] = msgspec.to_builtins(query)
    return value


def decode_query(value: Mapping[str, Any]) -> Query:
    """Decode the query in a record's value."""
    return msgspec.convert(value, Query)


learn_types(list[PositionOf])
learn_types(Query)
