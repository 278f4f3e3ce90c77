"""Reads the records of topics as they come, under an isolation level.

One thread a partition fetches ahead (long polls, so an idle log costs nothing); a bounded queue
joins them. Within a partition records come in the order of their offsets; between partitions in
any.

Under ``read_atomic`` a consumer goes from cut to cut: it asks for offsets that no transaction lies
on both sides of, reads all partitions up to them, and asks for the next. So between
two of these rounds a reader has seen all of a transaction, or nothing of it.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Integral
from typing import Final

import pyarrow as pa

from spark_stream.client.closing import Closing
from spark_stream.client.connecting.connection import Connection
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.cuts import Key, cut_of
from spark_stream.client.reading.feed import WATCH_S, Asked, Feed
from spark_stream.client.reading.fetching import Fetched, Source, check_place
from spark_stream.client.reading.losses import FAIL, GONE, fails_on, where_to_go_on
from spark_stream.client.reading.positions import Place, resolve, seen
from spark_stream.client.reading.records import records_of
from spark_stream.client.topics import TopicsClient, level
from spark_stream.client.transactions import TransactionsClient
from spark_stream.client.values import Record
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.lineage import NOTHING_KNOWN, Lineage
from spark_stream.errors import InvalidOption, InvalidRequest, SchemaMismatch
from spark_stream.wire.messages import INT64_MAX
from spark_stream.wire.schemas import is_default
from spark_stream.wire.transaction_messages import ConsumerPosition, NamedConsumer

_OF_A_RECORD: Final = ("key", "value", "timestamp", "headers")
_CUT_PAUSE_FIRST_S: Final = 0.05
_CUT_PAUSE_MAX_S: Final = 0.5


class Consumer(Closing):
    """A consumer of one or more topics. Use it as a context manager, or call :meth:`close`.

    ``batches()`` gives Arrow batches of any topic, ``records()`` the records of default-schema
    topics. Both wait for more unless ``until="latest"``. Not for use from two threads at once.

    With a ``name`` it goes on from the position that was stored last under that name
    (:meth:`commit`, or ``commit_position`` of a transactional producer); topics without one, and
    those that were made anew since, begin at ``start``. Making one takes the name over: a consumer
    that had it stores no position any more, and is told by ConsumerFenced, when it tries to, or
    within a few seconds of iterating.

    Partitions that a topic gets later are read from their first record on, wherever the consumer
    started.

    ``on_loss``: records that retention removed before they were read, or that a failover took back
    after, are an error (``fail``: OffsetEvicted, DataLoss), or the consumer warns and goes on with
    what is left (``continue``).
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
        name: str | None = None,
        on_loss: str = FAIL,
        filter: str | None = None,
    ) -> None:
        if not names:
            raise InvalidOption("a consumer needs at least one topic")
        if name is not None:
            try:
                NamedConsumer.of(consumer=name)  # before anything is asked
            except InvalidRequest:
                raise InvalidOption(
                    f"a consumer's name is a text of 1 to 255 characters, not {name!r}"
                ) from None
        self._connection = connection
        self._filter = filter
        self._topics = topics
        self._transactions = TransactionsClient(connection)
        self._name = name
        self._instance = uuid.uuid4().hex
        self._isolation = level(isolation)
        self._fail_on_loss = fails_on(on_loss)
        self._views: dict[str, View] = {}
        self._ids: dict[str, str] = {}
        self._position: dict[Key, int] = {}
        self._lineages: dict[Key, Lineage] = {}  # of the positions, where they are known
        self._stored: dict[str, pa.Schema] = {}
        for topic in names:
            known = topics.describe(topic)
            self._stored[topic] = known.schema
            self._views[topic] = View.of(
                topic, known.schema, columns, metadata=metadata, headers=headers, filter=filter
            )
            self._ids[topic] = known.id
            found, lineages = seen(topics, topic, start, self._isolation)
            self._position.update({(topic, number): at for number, at in found.items()})
            self._lineages.update({(topic, number): each for number, each in lineages.items()})
        if start == "latest" and self._atomic:
            self._position = cut_of(self._transactions, self._ids)
            self._lineages.clear()  # a cut does not tell them
        if name is not None:
            stored = self._taken_over(name)
            self._position.update(stored)
            self._start_added(stored)
        self._checked = time.monotonic()
        self._feed: Feed | None = None
        self._seeks = 0
        self._closed = threading.Event()

    @property
    def name(self) -> str | None:
        """The name under which positions are stored; None if they are not stored."""
        return self._name

    def records(self, until: str | None = None, timeout: float | None = None) -> Iterator[Record]:
        """Every record, as it comes; with ``until="latest"`` up to the isolation's present bound.

        With a ``timeout`` it ends once no record came for so many seconds. The position counts a
        record once it is given.

        Raises:
            InvalidOption: ``until`` or ``timeout`` has a value that it does not take.
            SchemaMismatch: a topic is typed (use :meth:`batches`).
        """
        for name, stored in self._stored.items():
            if not is_default(stored):
                raise SchemaMismatch(
                    f"topic {name!r} is typed", topic=name, hint="Use batches() for it."
                )
        views = {
            name: replace(
                View.of(name, stored, _OF_A_RECORD, filter=self._filter), with_offsets=True
            )
            for name, stored in self._stored.items()
        }
        position = self._position
        for key, fetched in self._fetched(views, until, timeout):
            seeks = self._seeks
            self._reached(key, fetched)
            for record in records_of(key, fetched):
                position[key] = record[2] + 1
                yield record
                if self._seeks != seeks:
                    break
            else:
                position[key] = fetched.next

    def batches(
        self, until: str | None = None, timeout: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Arrow batches, each of one partition, as they come; the rest as in :meth:`records`."""
        for key, fetched in self._fetched(self._views, until, timeout):
            self._reached(key, fetched)
            self._position[key] = fetched.next
            if fetched.batch.num_rows:
                yield fetched.batch

    def position(self) -> dict[Key, int]:
        """``{(topic, partition): offset}`` of the next record of each partition."""
        return dict(self._position)

    def commit(self) -> None:
        """Stores the position under the consumer's name: the next one of that name goes on there.

        Raises:
            InvalidOption: the consumer has no name.
            ConsumerFenced: another consumer has taken the name over.
        """
        places = self.places(self._connection)
        self._transactions.commit_position(places, self.owner())

    def owner(self) -> dict[str, str]:
        """``{name: instance}``: who has to own the name for the position to be stored."""
        return {} if self._name is None else {self._name: self._instance}

    def check_owner(self) -> None:
        """ConsumerFenced if another consumer has taken the name over."""
        if self._name is not None:
            self._transactions.check_consumer(self._name, self._instance)
            self._checked = time.monotonic()

    def places(self, connection: Connection) -> list[ConsumerPosition]:
        """The position as it is stored, by whoever writes through this connection.

        Raises:
            InvalidOption: the consumer has no name, or the connection is to another log.
        """
        if self._name is None:
            raise InvalidOption(
                "the consumer has no name to store a position under",
                option="name",
                hint="Give it one: log.consumer(topics, name=...).",
            )
        if connection.cluster_id != self._connection.cluster_id:
            raise InvalidOption(f"consumer {self._name!r} reads another log", option="name")
        return [
            ConsumerPosition(
                consumer=self._name,
                topic=topic,
                topic_id=self._ids[topic],
                partition=number,
                offset=offset,
                lineage=self._lineages.get((topic, number), NOTHING_KNOWN),
            )
            for (topic, number), offset in self._position.items()
        ]

    def seek(self, position: Mapping[Key, int]) -> None:
        """Goes on from these offsets; partitions that are not named stay where they are."""
        if not isinstance(position, Mapping):
            raise InvalidOption(
                f"a position is {{(topic, partition): offset}}, not {position!r}",
                hint="`consumer.position()` shows the present one.",
            )
        for key, offset in position.items():
            if key not in self._position:
                raise InvalidOption(f"{key} is not a (topic, partition) of this consumer")
            if not isinstance(offset, Integral) or not 0 <= offset <= INT64_MAX:
                raise InvalidOption(f"an offset is at least 0, not {offset!r}")
        self._position.update({key: int(offset) for key, offset in position.items()})
        for key in position:
            self._lineages.pop(key, None)
        self._seeks += 1
        self._stop_feed()

    def close(self) -> None:
        """Ends the fetches; iterators that are under way end."""
        self._closed.set()
        self._stop_feed()

    def _fetched(
        self, views: Mapping[str, View], until: str | None, timeout: float | None
    ) -> Iterator[tuple[Key, Fetched]]:
        if until not in (None, "latest"):
            raise InvalidOption(f"until takes 'latest', not {until!r}")
        if timeout is not None and not timeout >= 0:
            raise InvalidOption(f"timeout takes seconds, not {timeout!r}", option="timeout")
        patience = math.inf if timeout is None else timeout
        idle_until = time.monotonic() + patience

        def seconds_left() -> float:
            return idle_until - time.monotonic()

        def round_left() -> float:
            # A round that is begun is read to its cut: else a transaction is seen in part.
            return math.inf if self._atomic else seconds_left()

        ends = self._bounds() if until and not self._atomic else None
        self._take_up(ends or ())
        watch = None if self._name is None else self.check_owner
        pause = _CUT_PAUSE_FIRST_S
        while not self._closed.is_set():
            self._stop_feed()
            if watch is not None and time.monotonic() - self._checked > WATCH_S:
                watch()  # under read_atomic no feed may live so long
            if self._atomic and not (until and ends):
                ends = cut_of(self._transactions, self._ids, self._position)
                self._take_up(ends)
                if not self._below(ends):
                    self._check_position(views)
                    if until or seconds_left() <= 0:
                        return
                    self._closed.wait(min(pause, max(0.0, seconds_left())))
                    pause = min(_CUT_PAUSE_MAX_S, 2 * pause)
                    continue
                pause = _CUT_PAUSE_FIRST_S
            seeks = self._seeks
            feed = self._feed = Feed(
                [
                    Asked(
                        key,
                        self._source(views[key[0]], key),
                        start,
                        None if ends is None else ends[key],
                        self._lineages.get(key, NOTHING_KNOWN),
                    )
                    for key, start in self._position.items()
                    if not self._atomic or ends is None or start < ends[key]
                ],
                watch,
                fail_on_loss=self._fail_on_loss,
            )
            if self._closed.is_set() or self._seeks != seeks:
                self._stop_feed()  # whoever asked meanwhile found no feed to stop
            try:
                for key, fetched in feed.fetched(round_left):
                    yield key, fetched
                    if fetched.batch.num_rows:
                        idle_until = time.monotonic() + patience
                    if ends is None and self._grown(key[0], fetched.partitions):
                        self._stop_feed()
            finally:
                feed.stop()
            if self._feed is feed and (until or not self._atomic):
                return  # every partition has reached its end, or the consumer was closed
            # Else a seek or a new partition stopped this feed, or the round is over: go on from the
            # new positions.

    @property
    def _atomic(self) -> bool:
        return self._isolation is Isolation.READ_ATOMIC

    @property
    def _fetching(self) -> Isolation:
        """The level of the fetches: what lies below a cut is decided."""
        return Isolation.READ_COMMITTED if self._atomic else self._isolation

    def _bounds(self) -> dict[Key, int]:
        return {
            (name, number): end
            for name in self._views
            for number, end in self._topics.offsets(name, isolation=self._isolation).offsets.items()
        }

    def _take_up(self, keys: Iterable[Key]) -> None:
        """Partitions that were added since begin at their first record."""
        for key in keys:
            self._position.setdefault(key, 0)

    def _grown(self, topic: str, partitions: int | None) -> bool:
        """Begins to read partitions that were added; tells whether there are any."""
        before = len(self._position)
        self._take_up((topic, number) for number in range(partitions or 0))
        return len(self._position) > before

    def _start_added(self, stored: Mapping[Key, int]) -> None:
        """Partitions that were added since the position was stored begin at their first record."""
        for topic in {topic for topic, _ in stored}:
            first = resolve(self._topics, topic, "earliest", self._isolation, "earliest")
            for number, offset in first.items():
                if (topic, number) not in stored:
                    self._position[topic, number] = offset
                    self._lineages.pop((topic, number), None)

    def _reached(self, key: Key, fetched: Fetched) -> None:
        """The position is about to move through what was fetched."""
        self._lineages[key] = fetched.lineage

    def _below(self, ends: Mapping[Key, int]) -> bool:
        return any(self._position[key] < end for key, end in ends.items())

    def _check_position(self, views: Mapping[str, View]) -> None:
        """Raises OffsetOutOfRange, or tells of a loss, if the log does not have the position."""
        for key, offset in self._position.items():
            source = self._source(views[key[0]], key)
            try:
                check_place(source, offset, offset, self._lineages.get(key, NOTHING_KNOWN))
            except GONE as error:
                self._position[key] = where_to_go_on(error, fail=self._fail_on_loss)
                self._lineages.pop(key, None)

    def _taken_over(self, name: str) -> dict[Key, int]:
        """The stored positions, without those of topics that were deleted or made again since."""
        stored = [
            each
            for each in self._transactions.take_consumer(name, self._instance)
            if self._ids.get(each.topic) == each.topic_id
        ]
        for each in stored:
            self._lineages[each.topic, each.partition] = each.lineage
        return {(each.topic, each.partition): each.offset for each in stored}

    def _source(self, view: View, key: Key) -> Source:
        return Source(self._topics.router, view, self._ids[key[0]], key[1], self._fetching)

    def _stop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.stop()
