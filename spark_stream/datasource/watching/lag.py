"""How far a query is behind the log, as its progress tells it.

A progress has, for each source, the offset that its last micro-batch went up to, and as
``latestOffset`` how far the log could be read under the query's isolation level when that batch was
planned. Their difference is the lag: records that the query may read and has not read yet. Offsets
are dense, so it is exact; records of aborted transactions count until they are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from spark_stream.datasource.values.offsets import from_json, known_offsets
from spark_stream.errors import InvalidRequest


class PartitionLag(Struct, frozen=True):
    """One partition of a query: it has read up to ``offset``, and may read up to ``latest``."""

    topic: str
    partition: int
    offset: int
    latest: int

    @property
    def records(self) -> int:
        """How many records the query has still to read."""
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
            yield PartitionLag(name, number, known.get(number, 0), end)


def _parsed(offset: Any) -> Any:
    """Return an offset as an object; Spark gives it as text in some places."""
    if not isinstance(offset, str):
        return {} if offset is None else offset
    try:
        return json.loads(offset)
    except ValueError:
        raise InvalidRequest("no JSON, so no offset of isolog") from None
