"""How far a query is behind the log, as its progress tells it.

A progress has, for each source, the offset that its last micro-batch went up to, and as
``latestOffset`` the bound of the query's isolation level when that batch was planned, with the
number of records that an open transaction held back then. The lag is what
:func:`spark_stream.consistency.isolation.lag_of` counts. Offsets are dense, so it is exact. Records
of aborted transactions count until the query has passed them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from spark_stream.datasource.values.offsets import from_json, known_offsets
from spark_stream.errors import InvalidRequest


class PartitionLag(Struct, frozen=True):
    """One partition of a query: it has read up to ``offset``, and may read up to ``latest``.

    ``held_back``: the records after ``latest`` that an open transaction holds back.
    """

    topic: str
    partition: int
    offset: int
    latest: int
    held_back: int = 0

    @property
    def records(self) -> int:
        """The unread records, with those that are held back."""
        return self.readable + self.held_back

    @property
    def readable(self) -> int:
        """The records that the query could read now."""
        return max(0, self.latest - self.offset)


def lags(progress: Mapping[str, Any]) -> list[PartitionLag]:
    """Return the lag of each partition of a progress (Spark's JSON, parsed).

    Sources of other formats are left out, as they have other offsets.
    """
    return [lag for source in progress.get("sources", ()) for lag in _lags_of(source)]


def _lags_of(source: Mapping[str, Any]) -> Iterator[PartitionLag]:
    try:
        reached, latest = (from_json(_parsed(source.get(n))) for n in ("endOffset", "latestOffset"))
    except InvalidRequest:
        return  # another format's
    for name, topic in sorted(latest.items()):
        known = known_offsets(reached, name, topic.id)
        for number, end in sorted(topic.offsets.items()):
            yield PartitionLag(
                name, number, known.get(number, 0), end, topic.held_back.get(number, 0)
            )


def _parsed(offset: Any) -> Any:
    """Return an offset as an object; Spark gives it as text in some places."""
    if not isinstance(offset, str):
        return {} if offset is None else offset
    try:
        return json.loads(offset)
    except ValueError:
        raise InvalidRequest("no JSON, so no offset of isolog") from None
