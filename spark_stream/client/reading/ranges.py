"""Read ranges without a consumer: one of them, or many small ones in few calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from spark_stream.client.reading.fetching import Fetched, Source
from spark_stream.client.reading.loop import Asked, Feed
from spark_stream.consistency.replication.epochs import NOTHING_KNOWN, Lineage
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT

logger = logger_of(__name__)


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


def read_together(wanted: Sequence[WantedRange]) -> Generator[Iterator[Fetched], None, None]:
    """Read many small ranges in one call to each leader. Yield the records of one after the other.

    The order depends on ``wanted`` only, whichever leader answers first. While a range is
    delivered, the other leaders are read ahead, until 36 MiB are held, and one answer more (2 MiB,
    or a larger batch) of each of at most nine calls. Then their calls wait. Taking the next range
    drops the rest of the present one.

    A range ends early if its leader changed, its records were removed, or its broker died. The
    caller then reads the rest alone, or gets the error. All sources must share one router.
    """
    feed = Feed(
        [Asked((each.source.view.topic, each.source.partition), *each) for each in wanted],
        max_bytes=FETCH_BYTES_DEFAULT,
        together=True,
        patience_s=0.0,
    )
    try:
        for number in range(len(wanted)):
            feed.move_to(number)
            yield _first_range(feed, number)
    finally:
        feed.stop()


def _first_range(feed: Feed, number: int) -> Iterator[Fetched]:
    try:
        while not feed.is_over(number):
            found = feed.take_range()
            if found is not None:
                yield found[1]
    except IsologError as error:
        logger.debug("a range is left to be read by itself: %s", error)
