"""A search for the visible records of several partitions that match a filter, from a place.

A search reads offsets and times, window by window, in all partitions together. It ends with enough
records, or after a short time, with the range that it has searched. The next search continues from
there. So a search of any length has bounded steps, and this process keeps no state of it.

Of each partition, a search needs at most as many records as the page. A partition without a filter
is left out as soon as its next records are farther away in time than the whole page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Source
from spark_stream.client.reading.loop import WantedRange
from spark_stream.client.reading.ranges import read_range, read_together
from spark_stream.client.topics import cut_of
from spark_stream.client.values import to_microseconds
from spark_stream.consistency.isolation import Isolation
from spark_stream.console.client import ConsoleClient
from spark_stream.errors import InvalidOption, LeaderUnavailable, UnknownPartition
from spark_stream.schema.schemas import is_default
from spark_stream.wire.topic_messages import AskedTopic, PartitionOffset, TopicDescription

_WINDOW_MAX: Final = 1 << 16
_PATIENCE_S: Final = 1.5
_PARTITIONS_MAX: Final = 1024


class SearchRequest(Struct, frozen=True):
    """A search before or after an offset of each partition.

    ``partition``: None means all. ``since`` and ``until``: only records from and before these
    times. ``offset``: only records from this offset. ``before`` and ``after``: the place to start.
    None for both means the end of the log, or its start with ``oldest_first``. ``reached``: the
    place at which an earlier search from the same start ended.
    """

    topic: str
    partition: int | None = None
    isolation: str = str(Isolation.READ_UNCOMMITTED)
    filter: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    offset: int = 0
    before: Mapping[int, int] | None = None
    after: Mapping[int, int] | None = None
    reached: Mapping[int, int] | None = None
    oldest_first: bool = False
    limit: int = 50
    columns: tuple[str, ...] = ()

    @property
    def forward(self) -> bool:
        """Whether the search proceeds to later records."""
        return self.after is not None or (self.oldest_first and self.before is None)


class Searched(Struct):
    """The searched range ``[start, end)`` of a partition, and its records.

    ``least`` and ``greatest``: the first and the end offset of the whole search. ``origin``: the
    place to start. ``found``: offset and time (ms) of each record since ``reached``, by offset.
    """

    partition: int
    least: int
    greatest: int
    origin: int
    near: int
    forward: bool
    stable: int | None
    found: list[tuple[int, int]]

    @property
    def start(self) -> int:
        """The first searched offset."""
        return min(self.origin, self.near)

    @property
    def end(self) -> int:
        """The end of the searched offsets, exclusive."""
        return max(self.origin, self.near)

    @property
    def limit(self) -> int:
        """The offset at which the search of this partition is complete."""
        return self.greatest if self.forward else self.least

    def window(self, size: int) -> tuple[int, int]:
        """Return the next offsets to search."""
        if self.forward:
            return self.near, min(self.near + size, self.limit)
        return max(self.near - size, self.limit), self.near

    def add(self, window: tuple[int, int], rows: Sequence[tuple[int, int]], most: int) -> None:
        """Add the records of a window. Of more than ``most`` records keep the nearest."""
        if self.forward:
            self.found, self.near = [*self.found, *rows], window[1]
            self._cut(self.found[:most])
        else:
            self.found, self.near = [*rows, *self.found], window[0]
            self._cut(self.found[-most:])

    def drop_farthest(self) -> None:
        """Leave the farthest record to the next search."""
        self._cut(self.found[:-1] if self.forward else self.found[1:], dropped=self.farthest[0])

    def _cut(self, kept: list[tuple[int, int]], dropped: int | None = None) -> None:
        if dropped is not None:
            self.near = dropped if self.forward else dropped + 1
        elif len(kept) < len(self.found):
            self.near = kept[-1][0] + 1 if self.forward else kept[0][0]
        self.found = kept

    @property
    def farthest(self) -> tuple[int, int]:
        """The record that is the farthest from the start."""
        return self.found[-1 if self.forward else 0]


class Search:
    """A search of a topic for one page, which ends early after a short time."""

    def __init__(
        self,
        client: ConsoleClient,
        topic: TopicDescription,
        request: SearchRequest,
        chosen: Isolation,
    ) -> None:
        self._client = client
        self._topic = topic
        self._request = request
        self._chosen = chosen
        self._numbers = _numbers(topic, request.partition)
        self._deadline = time.monotonic() + _PATIENCE_S

    def run(self) -> list[Searched]:
        """Return the searched range and the records of each partition."""
        states, limit = self.places(), self._request.limit
        # The partitions that were searched least are first, so that a slow one delays no other.
        active = sorted(states, key=lambda each: each.end - each.start)
        size = -(-limit // len(states))
        while active := self._unfinished(active, states):
            if not self._round(active, size):
                break
            size = min(2 * size, _WINDOW_MAX)
        for _ in range(sum(len(each.found) for each in states) - limit):
            farther = max if self._request.forward else min
            farther((each for each in states if each.found), key=_farthest_ms).drop_farthest()
        return states

    def _unfinished(self, active: Sequence[Searched], states: Sequence[Searched]) -> list[Searched]:
        """Return the partitions whose next records can be on the page."""
        limit, forward = self._request.limit, self._request.forward
        times = sorted((at for each in states for _, at in each.found), reverse=not forward)
        last_ms = times[limit - 1] if len(times) >= limit else None

        def is_useful(each: Searched) -> bool:
            if each.near == each.limit or len(each.found) >= limit:
                return False
            if last_ms is None or not each.found:
                return True
            own_ms = each.farthest[1]
            return own_ms <= last_ms if forward else own_ms >= last_ms

        return [each for each in active if is_useful(each)]

    def _round(self, active: Sequence[Searched], size: int) -> bool:
        """Search the next window of each partition. Return False after the deadline."""
        windows = [each.window(size) for each in active]
        view = self.view(self.own_columns)
        wanted = [
            WantedRange(self.source(view, each.partition), *window)
            for each, window in zip(active, windows, strict=True)
        ]
        with closing(read_together(wanted)) as ranges:
            for each, window, one, batches in zip(active, windows, wanted, ranges, strict=True):
                rows, end = _read(batches, window[0])
                if end < window[1]:
                    rows, end = _read(read_range(one.source, *window), window[0])
                each.add(window, rows, self._request.limit)
                if time.monotonic() > self._deadline:
                    return False
        return True

    # -- places -----------------------------------------------------------------------------------

    def places(self) -> list[Searched]:
        """Return the place at which the search of each partition starts."""
        request, now = self._request, self._offsets(facts=True)
        least = {number: each.log_start_offset for number, each in now.items()}
        greatest = self._bounds(now)
        if request.since is not None:
            for number, each in self._at(request.since).items():
                least[number] = max(least[number], each.offset)
        if request.until is not None:
            for number, each in self._at(request.until).items():
                greatest[number] = min(greatest[number], each.offset)
        states = []
        for number in self._numbers:
            high = greatest[number]
            low = min(max(least[number], request.offset), high)
            if request.forward:
                origin = (request.after or {}).get(number, low)
            else:
                origin = (request.before or {}).get(number, high)
            origin = min(max(origin, low), high)
            near = (request.reached or {}).get(number, origin)
            near = min(max(near, origin), high) if request.forward else max(min(near, origin), low)
            facts = now[number].facts
            stable = None if facts is None else facts.last_stable_offset
            states.append(Searched(number, low, high, origin, near, request.forward, stable, []))
        return states

    def _offsets(self, **fields: Any) -> Mapping[int, PartitionOffset]:
        request = AskedTopic.of(topic=self._topic.name, partitions=self._numbers, **fields)
        found = self._client.topics.look_up([request])
        for error in found.unknown.values():
            raise error
        return found.topics[self._topic.name].partitions

    def _at(self, moment: datetime) -> Mapping[int, PartitionOffset]:
        return self._offsets(timestamp=to_microseconds(moment))

    def _bounds(self, now: Mapping[int, PartitionOffset]) -> dict[int, int]:
        """Return the end offset of the level in each partition."""
        if self._chosen is Isolation.READ_UNCOMMITTED:
            return {number: each.log_end_offset for number, each in now.items()}
        if self._chosen is Isolation.READ_ATOMIC:
            cut = cut_of(self._client.connection, {self._topic.name: self._topic.id})
            return {number: cut[self._topic.name, number] for number in self._numbers}
        bounds = {}
        for number, each in now.items():
            assert each.facts is not None
            replicated = self._chosen is Isolation.READ_REPLICATED
            bound = each.facts.high_watermark if replicated else each.facts.last_stable_offset
            if bound is None:
                raise LeaderUnavailable(
                    f"{self._topic.name}/{number}: the new leader has not determined the high"
                    " watermark yet",
                    hint="Try again in a moment, or read with read_uncommitted.",
                )
            bounds[number] = bound
        return bounds

    # -- reads ------------------------------------------------------------------------------------

    @property
    def own_columns(self) -> list[str]:
        """The columns with the offset and the time of a record."""
        return (
            ["offset", "timestamp"]
            if is_default(self._topic.schema)
            else [
                "_offset",
                "_timestamp",
            ]
        )

    def view(self, columns: Sequence[str]) -> View:
        """Return a view of these columns of the matching records."""
        return View.of(
            self._topic.name, self._topic.schema, list(columns), filter=self._request.filter
        )

    def source(self, view: View, number: int) -> Source:
        """Return the source of a partition under the level. Below a cut all are decided."""
        below_cut = self._chosen is Isolation.READ_ATOMIC
        isolation = Isolation.READ_COMMITTED if below_cut else self._chosen
        return Source(self._client.topics.router, view, self._topic.id, number, isolation)


def _read(batches: Iterator[Any], start: int) -> tuple[list[tuple[int, int]], int]:
    """Return the offsets and times of a read, and the offset at which it ended."""
    rows: list[tuple[int, int]] = []
    end = start
    for each in batches:
        end = each.next
        offsets, moments = each.batch.columns
        times = [(one or 0) // 1000 for one in moments.cast("int64").to_pylist()]
        rows += zip(offsets.to_pylist(), times, strict=True)
    return rows, end


def _farthest_ms(each: Searched) -> int:
    return each.farthest[1]


def _numbers(topic: TopicDescription, partition: int | None) -> list[int]:
    count = len(topic.partitions)
    if partition is None:
        if count > _PARTITIONS_MAX:
            raise InvalidOption(
                f"topic {topic.name!r} has too many partitions for one page: {count}",
                hint="Choose one partition.",
                option="partition",
            )
        return list(range(count))
    if not 0 <= partition < count:
        raise UnknownPartition(
            f"topic {topic.name!r} has partitions 0 to {count - 1}, not {partition}",
            topic=topic.name,
            partition=partition,
        )
    return [partition]
