"""Read ranges without a consumer: one of them, or many small ones in few calls."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_stream.client.reading.feed import Asked, Feed
from spark_stream.client.reading.fetching import Fetched, Source
from spark_stream.consistency.replication.lineage import NOTHING_KNOWN, Lineage
from spark_stream.errors import IsologError
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT

logger = logging.getLogger(__name__)


class WantedRange(NamedTuple):
    """The records ``[start, end)`` of a source."""

    source: Source
    start: int
    end: int


def read_range(
    source: Source,
    start: int,
    end: int,
    lineage: Lineage = NOTHING_KNOWN,
    *,
    wait_ms: int = 0,
    checks: bool = False,
) -> Iterator[Fetched]:
    """Yield all that is visible of ``[start, end)``; return when the range is done.

    ``lineage``: that of ``start``. An item without rows tells how far the leader looked: nothing
    there is visible, or matches a filter. A bound below ``end`` (records that are not visible yet)
    ends the range as well, if it did not move for ``wait_ms``: see the last ``next``.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DamagedSegment, UnknownTopic: as the leader says.
        DataLoss: records below ``start``, or ``end``, were cut off; continue at ``left``.
        BrokerUnavailable, RequestTimeout, NotLeader, LeaderUnavailable, …: retried for as long as
            a call may take.
    """
    key = source.view.topic, source.partition
    feed = Feed(
        [Asked(key, source, start, end, lineage, checks)],
        wait_ms=wait_ms,
        max_bytes=FETCH_BYTES_DEFAULT,
    )
    try:
        while feed.running:
            found = feed.take()
            if found is not None:
                yield found[1]
    finally:
        feed.stop()


def check_place(source: Source, start: int, end: int, lineage: Lineage = NOTHING_KNOWN) -> None:
    """Ask the leader whether it has, or had, these offsets; ``start`` is not below ``end``.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DataLoss: as :func:`read_range`.
    """
    deque(read_range(source, start, end, lineage, checks=True), maxlen=0)


def read_together(wanted: Sequence[WantedRange]) -> Iterator[tuple[int, Fetched]]:
    """Read many small ranges in one call to each leader; yield which range, and records of it.

    It only saves calls: a range that fails (its leader has changed, its records are gone, a broker
    is away) just ends; its rest is read, or its error raised, when the caller reads it alone. All
    sources must share one router.
    """
    feed = Feed(
        [Asked((each.source.view.topic, each.source.partition), *each) for each in wanted],
        max_bytes=FETCH_BYTES_DEFAULT,
        together=True,
        patience_s=0.0,
    )
    try:
        while feed.running:
            try:
                found = feed.take_range()
            except IsologError as error:
                logger.debug("a range is left to be read by itself: %s", error)
                continue
            if found is not None:
                yield found
    finally:
        feed.stop()
