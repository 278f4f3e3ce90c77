"""Reads of ranges without a consumer: one, many small ones in few calls, a topic's as a table."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.router import Router
from spark_stream.client.connecting.threads import in_parallel
from spark_stream.client.lake_tables import LakeTables, last_recorded_cut
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Fetched, Source, fetched_from_table
from spark_stream.client.reading.loop import Fetcher, WantedRange
from spark_stream.client.topics import Key, Place, TopicsClient, cut_of, resolve
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.errors import IsologError, OffsetEvicted, UnknownPartition
from spark_stream.loggers import logger_of
from spark_stream.wire.limits import FETCH_BYTES_DEFAULT
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import TopicDescription

logger = logger_of(__name__)

_READERS_MAX: Final = 4
SMALL_RANGE: Final = 1_000
"""The most records of a range that shares a call. Larger ranges are read in parallel."""


def read_range(
    source: Source,
    start: int,
    end: int,
    lineage: Lineage = NO_LINEAGE,
    *,
    wait_ms: int = 0,
    checks: bool = False,
) -> Iterator[Fetched]:
    """Yield the visible records of ``[start, end)`` in batches.

    ``lineage``: that of ``start``. An item without rows shows by its ``next`` how far the leader
    has searched without a visible or matching record. A visibility bound below ``end`` ends the
    range early, if it did not move for ``wait_ms``. The last ``next`` is then below ``end``.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DamagedSegment, UnknownTopic: The leader reports it.
        DataLoss: A failover truncated records below ``start`` or ``end``. Continue at ``left``.
        BrokerUnavailable, RequestTimeout, NotLeader, LeaderUnavailable, …: Retries failed until the
            timeout of a call.
    """
    fetcher = Fetcher(
        [WantedRange(source, start, end, lineage, checks)],
        wait_ms=wait_ms,
        max_bytes=FETCH_BYTES_DEFAULT,
    )
    try:
        while fetcher.running:
            found = fetcher.take()
            if found is not None:
                yield found[1]
    finally:
        fetcher.stop()


def check_place(source: Source, start: int, end: int, lineage: Lineage = NO_LINEAGE) -> None:
    """Check with the leader that it has or had these offsets. ``start`` is not below ``end``.

    Raises:
        OffsetOutOfRange, OffsetEvicted, DataLoss: As :func:`read_range`.
    """
    deque(read_range(source, start, end, lineage, checks=True), maxlen=0)


def read_together(wanted: Sequence[WantedRange]) -> Generator[Iterator[Fetched], None, None]:
    """Read many small ranges in one call to each leader. Yield the records of one after the other.

    The order depends on ``wanted`` only, whichever leader answers first. While a range is
    delivered, the ranges of other leaders are prefetched, until 36 MiB are held, and one more
    answer (2 MiB, or a larger batch) of each of at most nine calls. Then their calls wait. Taking
    the next range drops the rest of the present one.

    A range ends early if its leader changed, its records were removed, or its broker died. The
    caller then reads the rest with :func:`read_range`, which raises the error. All sources must
    share one router.
    """
    fetcher = Fetcher(
        wanted,
        max_bytes=FETCH_BYTES_DEFAULT,
        together=True,
        patience_s=0.0,
    )
    try:
        for number in range(len(wanted)):
            fetcher.move_to(number)
            yield _first_range(fetcher, number)
    finally:
        fetcher.stop()


def _first_range(fetcher: Fetcher, number: int) -> Iterator[Fetched]:
    try:
        while not fetcher.is_over(number):
            found = fetcher.take_range()
            if found is not None:
                yield found[1]
    except IsologError as error:
        logger.debug("a range of a shared call failed; it is read separately: %s", error)


class TopicSpan(Struct, frozen=True):
    """The offsets to read of each partition: from ``starts`` to before ``ends``.

    ``from_earliest``: a read that finds records removed continues with the first that is left.
    """

    topic: TopicDescription
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    from_earliest: bool


def topic_spans(
    connection: ClusterConnection,
    topics: TopicsClient,
    names: Sequence[str],
    start: Place,
    end: Place,
    isolation: Isolation,
    *,
    partitions: Sequence[int] | None = None,
    tables: LakeTables | None = None,
) -> dict[str, TopicSpan]:
    """Return the span between two places of each topic. Under ``read_atomic`` the ends are a cut.

    ``partitions``: only these of each topic. Raise UnknownPartition if a topic lacks one.
    ``tables``: the source of records below the log start.
    """
    known = {name: topics.describe(name) for name in names}
    starts = {
        name: resolve(topics, name, start, isolation, "earliest")
        if tables is None
        else tables.resolve(name, start, isolation, "earliest")
        for name in names
    }
    atomic = isolation is Isolation.READ_ATOMIC
    bound = Isolation.READ_COMMITTED if atomic else isolation
    ends = {
        name: resolve(topics, name, end, bound, "latest")
        if tables is None
        else tables.resolve(name, end, bound, "latest")
        for name in names
    }
    if atomic:
        ids = {name: topic.id for name, topic in known.items()}
        if isinstance(end, str):  # the latest cut
            cut = cut_of(connection, ids, lower=_by_key(starts))
        else:
            cut = cut_of(connection, ids, upper=_by_key(ends))
            if tables is not None:
                cut = _cut_below_log(topics, tables, known, cut)
        ends = {name: {} for name in names}
        for (name, number), offset in cut.items():
            ends[name][number] = offset
    spans = {}
    for name, found in ends.items():
        first = dict.fromkeys(found, 0) | starts[name]  # newly added partitions are read from 0
        if partitions is not None:
            first = of_partitions(name, first, partitions)
        spans[name] = TopicSpan(known[name], first, found, start == "earliest")
    return spans


def _cut_below_log(
    topics: TopicsClient,
    tables: LakeTables,
    known: Mapping[str, TopicDescription],
    cut: dict[Key, int],
) -> dict[Key, int]:
    """Return a recorded cut instead of one below a log start, where the log has no transactions."""
    if not any(topic.lakes for topic in known.values()):
        return cut
    starts = _by_key({name: topics.offsets(name, at=EARLIEST).offsets for name in known})
    if all(cut[key] >= at for key, at in starts.items()):
        return cut
    ids = {name: topic.id for name, topic in known.items()}
    return last_recorded_cut(tables.recorded_cuts(ids), cut) or dict.fromkeys(cut, 0)


def table_spans(
    topics: TopicsClient,
    tables: LakeTables,
    names: Sequence[str],
    start: Place,
    end: Place,
    partitions: Sequence[int] | None,
) -> dict[str, TopicSpan]:
    """Return the span between two places of each topic's table.

    Raises:
        OffsetEvicted: No lake has the topic.
        UnknownPartition: A topic lacks one of ``partitions``.
    """
    spans = {}
    for name in names:
        topic = topics.describe(name)
        if not topic.lakes:
            raise OffsetEvicted(
                f"no lake has the topic {name!r}",
                hint="Leave out lake='only', or create a lake of the topic.",
                topic=name,
            )
        starts = tables.place_in_table(topic, start, EARLIEST)
        ends = tables.place_in_table(topic, end, LATEST)
        if partitions is not None:
            of_partitions(name, {each.partition: 0 for each in topic.partitions}, partitions)
            starts = {number: at for number, at in starts.items() if number in partitions}
        spans[name] = TopicSpan(topic, starts, ends, from_earliest=False)
    return spans


def of_partitions(
    topic: str, offsets: Mapping[int, int], partitions: Iterable[int]
) -> dict[int, int]:
    """Return the offsets of these partitions. Raise UnknownPartition if the topic lacks one."""
    numbers = list(partitions)
    for number in numbers:
        if number not in offsets:
            raise UnknownPartition(
                f"topic {topic!r} has partitions 0 to {len(offsets) - 1}, not {number!r}",
                topic=topic,
                partition=number,
            )
    return {number: offsets[number] for number in numbers}


def read_partition(
    router: Router,
    view: View,
    span: TopicSpan,
    number: int,
    isolation: Isolation,
    tables: LakeTables | None = None,
    *,
    in_table: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the visible records of a partition of a span, in batches of at least one row.

    ``tables``: the source of records below the log start, or of all with ``in_table``.
    """
    source = _source(router, view, span, number, isolation, tables)
    first, last = span.starts[number], span.ends[number]
    if in_table:
        rows = fetched_from_table(source, first, last) if first < last else None
        yield from (each.batch for each in rows or () if each.batch.num_rows)
        return
    if first >= last:  # empty, but the leader refuses an offset that never existed
        check_place(source, first, last)
    yield from _read_log(source, first, last, from_earliest=span.from_earliest)


def _source(
    router: Router,
    view: View,
    span: TopicSpan,
    number: int,
    isolation: Isolation,
    tables: LakeTables | None,
) -> Source:
    if isolation is Isolation.READ_ATOMIC:
        isolation = Isolation.READ_COMMITTED  # all transactions below a cut are decided
    return Source(router, view, span.topic.id, number, isolation, tables=tables)


def _read_log(
    source: Source, first: int, last: int, *, from_earliest: bool
) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            for each in read_range(source, first, last):
                first = each.next
                if each.batch.num_rows:
                    yield each.batch
            return
        except OffsetEvicted as error:
            left = error.details.get("log_start_offset")
            if not from_earliest or left is None:
                raise
            first = left  # the read starts at the earliest record that is left


def read_table(
    router: Router,
    view: View,
    span: TopicSpan,
    isolation: Isolation,
    tables: LakeTables | None = None,
    *,
    in_table: bool = False,
) -> pa.Table:
    """Return the records of :func:`read_partition` as one table, partitions one after another.

    Small ranges share a call to each leader.
    """
    numbers = sorted(span.starts)
    small: list[int] = []
    if not in_table:
        small = [n for n in numbers if span.ends[n] - span.starts[n] <= SMALL_RANGE]
    if len(small) == 1:
        small = []

    def of_partition(number: int) -> list[pa.RecordBatch]:
        return list(
            read_partition(router, view, span, number, isolation, tables, in_table=in_table)
        )

    sources = [_source(router, view, span, number, isolation, tables) for number in small]
    parts = dict(zip(small, _read_small(sources, span), strict=True))
    large = [number for number in numbers if number not in parts]
    parts.update(zip(large, in_parallel(of_partition, large, _READERS_MAX), strict=True))
    return pa.Table.from_batches(
        [batch for number in numbers for batch in parts[number]], view.schema
    )


def _read_small(sources: Sequence[Source], span: TopicSpan) -> list[list[pa.RecordBatch]]:
    """Return the records of small ranges. The rest of a range that ended early is read alone."""
    starts, ends = span.starts, span.ends
    wanted = [
        WantedRange(each, starts[each.partition], ends[each.partition], checks=True)
        for each in sources
    ]
    found = []
    with closing(read_together(wanted)) as together:
        for source, fetched in zip(sources, together, strict=True):
            first, last = starts[source.partition], ends[source.partition]
            is_checked = False
            batches = []
            for each in fetched:
                is_checked, first = True, each.next
                if each.batch.num_rows:
                    batches.append(each.batch)
            if first < last:
                batches.extend(_read_log(source, first, last, from_earliest=span.from_earliest))
            elif not is_checked:
                check_place(source, first, last)
            found.append(batches)
    return found


def _by_key(offsets: Mapping[str, Mapping[int, int]]) -> dict[Key, int]:
    return {(name, number): at for name, found in offsets.items() for number, at in found.items()}
