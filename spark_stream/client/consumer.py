"""Reads the records of topics as they come, under an isolation level.

One thread a partition fetches ahead (long polls, so an idle log costs nothing); a bounded queue
joins them. Within a partition records come in the order of their offsets; between partitions in
any.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Final

import pyarrow as pa

from spark_stream.client.closing import Closing
from spark_stream.client.columns import View
from spark_stream.client.connection import Connection
from spark_stream.client.fetching import Fetched, Source, fetch_once
from spark_stream.client.positions import Place, resolve
from spark_stream.client.records import records_of
from spark_stream.client.topics import TopicsClient, level
from spark_stream.client.values import Record
from spark_stream.errors import InternalError, InvalidOption, IsologError, SchemaMismatch
from spark_stream.wire.messages import INT64_MAX
from spark_stream.wire.schemas import is_default

POLL_MS: Final = 2_000
FETCH_BYTES: Final = 4 << 20
_AHEAD_BATCHES: Final = 4  # per partition; with FETCH_BYTES this bounds the memory
_RETRY_PAUSE_S: Final = 0.1
_TICK_S: Final = 0.25

Key = tuple[str, int]


class Consumer(Closing):
    """A consumer of one or more topics. Use it as a context manager, or call :meth:`close`.

    ``batches()`` gives Arrow batches of any topic, ``records()`` the records of default-schema
    topics. Both wait for more unless ``until="latest"``. Not for use from two threads at once.
    """

    def __init__(
        self,
        connection: Connection,
        topics: TopicsClient,
        names: list[str],
        *,
        isolation: str = "read_uncommitted",
        start: Place = "earliest",
        columns: list[str] | None = None,
        metadata: bool = False,
        headers: bool = False,
    ) -> None:
        if not names:
            raise InvalidOption("a consumer needs at least one topic")
        self._connection = connection
        self._topics = topics
        self._isolation = level(isolation)
        self._views: dict[str, View] = {}
        self._ids: dict[str, str] = {}
        self._position: dict[Key, int] = {}
        self._stored: dict[str, pa.Schema] = {}
        for name in names:
            known = topics.describe(name)
            self._stored[name] = known.schema
            self._views[name] = View.of(
                name, known.schema, columns, metadata=metadata, headers=headers
            )
            self._ids[name] = known.id
            found = resolve(topics, name, start, self._isolation, "earliest")
            self._position.update({(name, number): at for number, at in found.items()})
        self._feed: _Feed | None = None
        self._seeks = 0
        self._closed = False

    def records(self, until: str | None = None) -> Iterator[Record]:
        """Every record, as it comes; with ``until="latest"`` up to the isolation's present bound.

        The position counts a record once it is given.

        Raises:
            SchemaMismatch: a topic is typed (use :meth:`batches`).
        """
        for name, stored in self._stored.items():
            if not is_default(stored):
                raise SchemaMismatch(
                    f"topic {name!r} is typed", topic=name, hint="Use batches() for it."
                )
        views = {
            name: View.of(name, stored, ["key", "value", "timestamp", "headers"])
            for name, stored in self._stored.items()
        }
        position = self._position
        for key, fetched in self._fetched(views, until):
            seeks = self._seeks
            for record in records_of(key, fetched):
                position[key] = record[2] + 1
                yield record
                if self._seeks != seeks:
                    break
            else:
                position[key] = fetched.next

    def batches(self, until: str | None = None) -> Iterator[pa.RecordBatch]:
        """Arrow batches, each of one partition, as they come; ``until`` as in :meth:`records`."""
        for key, fetched in self._fetched(self._views, until):
            self._position[key] = fetched.next
            if fetched.batch.num_rows:
                yield fetched.batch

    def position(self) -> dict[Key, int]:
        """``{(topic, partition): offset}`` of the next record of each partition."""
        return dict(self._position)

    def seek(self, position: Mapping[Key, int]) -> None:
        """Goes on from these offsets; partitions that are not named stay where they are."""
        for key, offset in position.items():
            if key not in self._position:
                raise InvalidOption(f"{key} is not a (topic, partition) of this consumer")
            if not isinstance(offset, Integral) or not 0 <= offset <= INT64_MAX:
                raise InvalidOption(f"an offset is at least 0, not {offset!r}")
        self._seeks += 1
        self._position.update({key: int(offset) for key, offset in position.items()})
        self._stop_feed()

    def close(self) -> None:
        """Ends the fetches; iterators that are under way end."""
        self._closed = True
        self._stop_feed()

    def _fetched(
        self, views: Mapping[str, View], until: str | None
    ) -> Iterator[tuple[Key, Fetched]]:
        if until not in (None, "latest"):
            raise InvalidOption(f"until takes 'latest', not {until!r}")
        ends = self._ends() if until else None
        while not self._closed:
            self._stop_feed()
            feed = self._feed = _Feed(
                [
                    (
                        key,
                        self._source(views[key[0]], key),
                        start,
                        None if ends is None else ends[key],
                    )
                    for key, start in self._position.items()
                ]
            )
            try:
                yield from feed.fetched()
            finally:
                feed.stop()
            if self._feed is feed:
                return  # every partition has reached its end, or the consumer was closed
            # Else a seek stopped this feed: go on from the new positions.

    def _ends(self) -> dict[Key, int]:
        return {
            (name, number): end
            for name in self._views
            for number, end in self._topics.offsets(name, isolation=self._isolation).offsets.items()
        }

    def _source(self, view: View, key: Key) -> Source:
        return Source(self._connection, view, self._ids[key[0]], key[1], self._isolation)

    def _stop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.stop()


_Item = tuple[Key, Fetched | None, IsologError | None]


class _Feed:
    """The fetching threads of one iteration. What they fetched ahead is dropped when it stops."""

    def __init__(self, sources: list[tuple[Key, Source, int, int | None]]) -> None:
        self._stopped = threading.Event()
        self._queue: queue.Queue[_Item] = queue.Queue(_AHEAD_BATCHES * len(sources))
        self._running = len(sources)
        for key, source, start, end in sources:
            threading.Thread(
                target=self._follow,
                args=(key, source, start, end),
                name=f"isolog-fetch-{key[0]}-{key[1]}",
                daemon=True,
            ).start()

    def fetched(self) -> Iterator[tuple[Key, Fetched]]:
        """What the threads fetch, until all have ended, one fails, or the feed is stopped."""
        while self._running and not self._stopped.is_set():
            try:
                key, fetched, error = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            if fetched is None:
                self._running -= 1
            else:
                yield key, fetched

    def stop(self) -> None:
        self._stopped.set()

    def _follow(self, key: Key, source: Source, start: int, end: int | None) -> None:
        try:
            self._fetch(key, source, start, end)
        except IsologError as error:
            self._put((key, None, error))
        except Exception as error:  # a defect: whoever iterates must see it, not wait for ever
            self._put((key, None, InternalError(f"{key[0]}/{key[1]}: {error!r}")))
        else:
            self._put((key, None, None))

    def _fetch(self, key: Key, source: Source, start: int, end: int | None) -> None:
        position = start
        failing_since: float | None = None
        if end is not None and start > end:  # empty, or there never was such an offset
            deque(fetch_once(source, start, end), maxlen=0)
        while not self._stopped.is_set() and (end is None or position < end):
            try:
                wait = POLL_MS if end is None else 0
                for fetched in fetch_once(source, position, end, wait, FETCH_BYTES):
                    failing_since = None
                    moved = fetched.next != position
                    position = fetched.next
                    if (fetched.batch.num_rows or moved) and not self._put((key, fetched, None)):
                        return
            except IsologError as error:
                now = time.monotonic()
                failing_since = failing_since or now
                lasting = now - failing_since > source.connection.timeout_s
                if not error.retriable or lasting:
                    raise
                self._stopped.wait(_RETRY_PAUSE_S)

    def _put(self, item: _Item) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=_TICK_S)
            except queue.Full:
                continue
            return True
        return False
