"""The consumer: it reads the records of topics as they arrive, under an isolation level.

Records are fetched ahead into one queue (:mod:`spark_stream.client.reading.loop`), by long polls,
so that an idle log costs nothing. Within a partition records arrive in the order of their offsets,
and between partitions in any order.

Under ``read_atomic`` a consumer reads in rounds. It requests a cut, which is a set of offsets that
splits no transaction, reads all partitions up to the cut, and requests the next one. So between two
rounds a reader has seen a transaction completely or not at all.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Final, NoReturn, Self

import pyarrow as pa

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.lake_tables import LakeTables
from spark_stream.client.options import level
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.core import FAIL, LOSS_ERRORS, continue_at, fails_on
from spark_stream.client.reading.fetching import Fetched, Source
from spark_stream.client.reading.group_reader import GroupOptions, GroupReader, check_options
from spark_stream.client.reading.loop import WATCH_S, Fetcher, WantedRange
from spark_stream.client.reading.named_reader import NamedPositions, ReaderHeartbeats, check_name
from spark_stream.client.reading.ranges import check_place
from spark_stream.client.reading.records import (
    RECORDS_MAX,
    Patience,
    Polling,
    checked_records_max,
    records_of,
)
from spark_stream.client.reading.subscription import Subscription, TopicSelection
from spark_stream.client.topics import (
    Key,
    Place,
    Target,
    TopicsClient,
    cut_of,
    offsets_of,
    resolve_with_lineages,
)
from spark_stream.client.values import Record
from spark_stream.consistency.isolation import Isolation, ReaderEnding
from spark_stream.consistency.replication.epochs import NO_LINEAGE, Lineage
from spark_stream.consistency.transactions.transactions import PositionOf
from spark_stream.errors import InvalidOption, InvalidRequest, Unsupported
from spark_stream.structs import INT64_MAX
from spark_stream.transport.lifetime import ProcessBound, check_may_wait, in_child_while_used
from spark_stream.wire.consumer_messages import CheckConsumer

_CUT_PAUSE_FIRST_S: Final = 0.05
_CUT_PAUSE_MAX_S: Final = 0.5


class Consumer(ProcessBound):
    """A consumer of one or more topics, for one thread.

    :meth:`Log.consumer` returns it. Use it as a context manager, or call :meth:`close`.
    :meth:`batches` yields Arrow batches of any topic, and :meth:`records` the records of topics
    with Kafka's columns. Both wait for more records unless ``until="latest"``. :meth:`poll` returns
    the available records. New partitions, and new topics that match a pattern, are read from their
    first record.

    With a ``name`` it continues at the position that was last stored under this name, by
    :meth:`commit` or by ``commit_position`` of a transactional producer. A new consumer with the
    name fences the earlier one. With a ``group`` it reads the partitions that the group assigns to
    it. A record counts as processed when the next one is requested, when :meth:`commit` is called,
    or when the ``with`` block ends without an exception.

    With ``on_loss="fail"`` records that retention removed before they were read raise
    OffsetEvicted, and records that a failover removed afterwards raise DataLoss. With
    ``"continue"`` the consumer logs a warning and continues with the next remaining record.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        topics: TopicsClient,
        selection: TopicSelection,
        *,
        partitions: Iterable[int] | None = None,
        isolation: str = "read_uncommitted",
        start: Place = "earliest",
        columns: list[str] | None = None,
        metadata: bool = False,
        headers: bool = False,
        name: str | None = None,
        on_loss: str = FAIL,
        filter: str | None = None,
        group: GroupOptions | None = None,
        tables: LakeTables | None = None,
    ) -> None:
        if name is not None:
            check_name(name, "name")  # before any call
        self._connection = connection
        self._filter = filter
        self._topics = topics
        self._tables = tables
        self._isolation = level(isolation)
        if group is not None:
            check_options(name, partitions, self._isolation)
        self._fail_on_loss = fails_on(on_loss)
        self._position: dict[Key, int] = {}
        self._lineages: dict[Key, Lineage] = {}  # of the positions, if known
        view = partial(View.of, columns=columns, metadata=metadata, headers=headers, filter=filter)
        self._subscription = Subscription(topics, selection, partitions, view)
        for topic in self._subscription.ids:
            if group is None:  # a position that is stored under a name needs no table
                self._start_at(topic, start, tables if name is None else None)
            else:  # the group has the first positions, and the start has to be valid
                resolve_with_lineages(topics, topic, start, self._isolation)
        if start == "latest" and self._atomic:
            self._position = self._cut({})
            self._lineages.clear()  # a cut comes without lineages
        self._name = name
        self._member: GroupReader | None = None
        self._keeper: NamedPositions | GroupReader | None = None
        """The object that stores positions. None without a name and a group."""
        if name is not None:
            self._keeper = NamedPositions(
                name,
                connection,
                topics,
                self._subscription,
                self._isolation,
                self._position,
                self._lineages,
                tables,
            )
            stored = {topic for topic, _ in self._keeper.committed}
            for topic in self._subscription.ids.keys() - stored:
                if tables is not None and start != "latest":
                    self._start_at(topic, start, tables)
        self._began = dict(self._position)
        if group is not None:
            self._keeper = self._member = GroupReader(
                group,
                connection,
                topics,
                self._subscription,
                self._isolation,
                start,
                self._position,
                self._lineages,
                tables,
            )
        self._handed_out: tuple[Key, int] | None = None
        """The last delivered item, which may be unprocessed: its partition and its first offset."""
        self._checked = time.monotonic()
        self._fetcher: Fetcher | None = None
        in_child_while_used(self._leave_parent)
        self._polling: Polling | None = None
        self._seeks = 0
        self._closed = threading.Event()
        self._has_left = False
        self._ending = ReaderEnding.CLEAN
        self._heartbeats: ReaderHeartbeats | None = None
        if isinstance(self._keeper, NamedPositions):
            self._heartbeats = self._keeper.heartbeats
            weakref.finalize(self, self._heartbeats.end_later).atexit = False

    @property
    def name(self) -> str | None:
        """The name under which positions are stored. None without one."""
        return self._name

    @property
    def group(self) -> str | None:
        """The consumer group of which this is a member. None without a group."""
        return None if self._member is None else self._member.options.group

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed.is_set()

    def records(self, until: str | None = None, timeout: float | None = None) -> Iterator[Record]:
        """Yield records as they arrive. The position moves past a record when it is yielded.

        Args:
            until: ``"latest"``: end at the present bound of the isolation level.
            timeout: Seconds without a record after which the iteration ends.

        Yields:
            The records of each partition, in the order of their offsets.

        Raises:
            InvalidOption: The value of ``until`` or ``timeout`` is not allowed.
            InvalidRequest: The consumer is closed.
            SchemaMismatch: A topic is typed. Use :meth:`batches`.
            OffsetEvicted: Unread records were removed by retention or a trim.
            DataLoss: Records that were read were removed by a failover.
            ConsumerFenced: Another consumer has taken the name over.

        Examples:
            >>> topic = log.create_topic("letters")
            >>> with log.producer() as producer:
            ...     futures = [producer.send("letters", value) for value in "abc"]
            >>> with log.consumer("letters") as consumer:
            ...     [record.value for record in consumer.records(until="latest")]
            [b'a', b'b', b'c']
        """
        return self._records(self._fetched(self.record_views, until, timeout))

    def batches(
        self, until: str | None = None, timeout: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches as they arrive, each with records of one partition.

        Args:
            until: ``"latest"``: end at the present bound of the isolation level.
            timeout: Seconds without a record after which the iteration ends.

        Yields:
            Batches of at least one row, with the columns of their topic.

        Raises:
            InvalidOption: The value of ``until`` or ``timeout`` is not allowed.
            InvalidRequest: The consumer is closed.
            OffsetEvicted: Unread records were removed by retention or a trim.
            DataLoss: Records that were read were removed by a failover.
            ConsumerFenced: Another consumer has taken the name over.
        """
        for key, fetched in self._fetched(self.batch_views, until, timeout):
            batch = self.batch_of(key, fetched)
            if batch.num_rows:
                yield batch

    def poll(self, timeout: float | None = 0.0, max_records: int = RECORDS_MAX) -> list[Record]:
        """Return the next records of one partition, or an empty list.

        Between polls the consumer continues to fetch. The first records of a new consumer take a
        moment, so give a ``timeout``.

        Args:
            timeout: Seconds to wait for the first record. None waits without a limit.
            max_records: The greatest number of records.

        Returns:
            At most ``max_records`` records. The position moves past them.

        Raises:
            InvalidOption: The value of ``timeout`` or ``max_records`` is not allowed.
            InvalidRequest: The consumer is closed.
            SchemaMismatch: A topic is typed. Use :meth:`batches`.

        Examples:
            >>> topic = log.create_topic("pings")
            >>> with log.producer() as producer:
            ...     written = producer.send("pings", b"ping").result()
            >>> with log.consumer("pings") as consumer:
            ...     [record.value for record in consumer.poll(timeout=10.0)]
            [b'ping']
        """
        patience, records_max = Patience(timeout), checked_records_max(max_records)
        found: list[Record] = []
        while not found and self.wait_for_records(patience.seconds_left()):
            found = self.take_records(records_max)
            if not patience.seconds_left():
                break  # no received record is visible and matches the filter
        return found

    # -- for asyncio: waiting for records, and taking them without a wait --------------------------

    def wait_for_records(self, timeout: float) -> bool:
        """Wait for records for :meth:`take_records`. Return whether there are some in time."""
        self._check_open()
        polling, self._polling = self._polling, None
        self._handed_out = None
        if polling is None or self._needs_turn():
            patience = Patience(timeout)
            fetches = self.fetches(self.record_views(), None, patience, polls=True)
            polling = Polling(fetches, patience)
        polling.patience.renew(timeout)
        is_there = polling.wait()
        self._polling = polling  # after an error the next poll starts again
        return is_there

    def take_records(self, records_max: int) -> list[Record]:
        """Return records after :meth:`wait_for_records`. The list may be empty."""
        polling, self._polling = (
            self._polling,
            None,
        )  # after an interrupt the next poll starts again
        if polling is None:
            return []  # a seek came first
        key, found, following, fetched = polling.take(records_max)
        self._handed_out = key, self._position[key]
        self._position[key] = following
        self._keep_lineage(key, fetched)
        self._polling = polling
        return found

    def record_views(self) -> Callable[[str], View]:
        """Return a function from a topic to the view of its records, if it is not typed."""
        self._check_open()
        return self._subscription.record_views(self._filter)

    def batch_views(self) -> Callable[[str], View]:
        """Return a function from a topic to its view for :meth:`batches`."""
        self._check_open()
        return self._subscription.views.__getitem__

    def records_of(self, key: Key, fetched: Fetched, *, waits: bool = True) -> Iterator[Record]:
        """Yield the records of a batch. The position moves past each.

        A member of a group ends early for a rebalance. Between two records it stores positions when
        a commit is due, which may wait for a broker. Without ``waits`` it ends early for a commit
        too.
        """
        return self._records([(key, fetched)], waits=waits)

    def _records(
        self, batches: Iterable[tuple[Key, Fetched]], *, waits: bool = True
    ) -> Iterator[Record]:
        """Yield the records of the batches, as :meth:`records_of`.

        One generator with plain loops, because they run for every record.
        """
        for key, fetched in batches:
            position, member, seeks = self._position, self._member, self._seeks
            needs_turn = None if member is None else member.needs_turn if waits else member.is_due
            if self._heartbeats is not None:
                needs_turn = self._heartbeats.record_activity
            self._keep_lineage(key, fetched)
            records = records_of(key, fetched)
            if needs_turn is None:
                for record in records:
                    position[key] = record[2] + 1
                    yield record
                    if self._seeks != seeks:
                        self._stop_fetcher()  # the next one begins after this record
                        break
                else:
                    position[key] = fetched.next
                continue
            for record in records:
                position[key] = record[2] + 1
                self._handed_out = key, record[2]
                yield record
                if self._seeks != seeks or needs_turn():
                    self._stop_fetcher()
                    break
            else:
                position[key] = fetched.next

    def batch_of(self, key: Key, fetched: Fetched) -> pa.RecordBatch:
        """Return a fetched batch, which may have no rows. The position moves past it."""
        self._keep_lineage(key, fetched)
        self._handed_out = key, self._position[key]
        self._position[key] = fetched.next
        return fetched.batch

    # -- where it is ------------------------------------------------------------------------------

    def position(self) -> dict[Key, int]:
        """Return ``{(topic, partition): offset}`` with the offset of the next record."""
        return dict(self._position)

    def commit(self) -> None:
        """Store the position under the name or the group. The next consumer continues there.

        Raises:
            InvalidOption: The consumer has no name and no group.
            ConsumerFenced: Another consumer has taken the name or a partition over.
            UnknownTopic: A topic was deleted. The positions in the other topics are stored.
            InvalidRequest: The consumer is closed.

        Examples:
            >>> topic = log.create_topic("tasks")
            >>> with log.producer() as producer:
            ...     futures = [producer.send("tasks", value) for value in ("one", "two")]
            >>> with log.consumer("tasks", name="worker") as consumer:
            ...     first = next(consumer.records())
            ...     consumer.commit()
            >>> with log.consumer("tasks", name="worker") as consumer:
            ...     [record.value for record in consumer.records(until="latest")]
            [b'two']
        """
        self._check_open()
        keeper = self._keeper or self._refuse_storing()
        keeper.store(keeper.places())

    def owner(self) -> dict[str, str]:
        """Return ``{name: instance}``, the required owner of the name when positions are stored."""
        return {} if self._keeper is None else self._keeper.owner

    def check_owner(self) -> None:
        """Raise ConsumerFenced if another consumer has taken over the name."""
        for name, owner in self.owner().items():
            self._connection.call(CheckConsumer(consumer=name, instance=owner))
            self._checked = time.monotonic()

    def record_committed(self, places: Iterable[PositionOf]) -> None:
        """Record that these positions are stored."""
        keeper = self._keeper or self._refuse_storing()
        keeper.record_stored(places)

    def places(self, connection: ClusterConnection) -> list[PositionOf]:
        """Return the position in the form in which this connection stores it.

        Raises:
            InvalidOption: The consumer has no name, reads another log, or stores positions
                automatically.
            ConsumerFenced: Another member of the group has taken a partition over.
        """
        keeper = self._keeper or self._refuse_storing()
        if self._member is not None and self._member.options.auto_commit:
            raise InvalidOption(
                "this consumer stores positions automatically, independent of transactions",
                option="auto_commit",
                hint="Use log.consumer(topics, group=..., auto_commit=False).",
            )
        if connection.cluster_id != self._connection.cluster_id:
            raise InvalidOption(
                f"consumer {self.name or self.group!r} reads another log",
                option="name",
                hint="A transaction stores positions of consumers of its own log only.",
            )
        return keeper.places()

    def _refuse_storing(self) -> NoReturn:
        raise InvalidOption(
            "the consumer has no name to store a position under",
            option="name",
            hint="Give it one: log.consumer(topics, name=...).",
        )

    def seek(self, position: Target) -> None:
        """Move the position. The next record is read from there.

        Args:
            position: ``"earliest"``, ``"latest"``, a datetime, ``"committed"`` (the stored
                position, or the first one without a stored position), or ``{(topic, partition):
                offset or datetime}``. A datetime means the first record at or after it. Partitions
                that are not named keep their position.

        Raises:
            InvalidOption: The form, a partition or an offset of the position is not valid.
            InvalidRequest: The consumer is closed, or the group has assigned no partition to it.

        Examples:
            >>> topic = log.create_topic("steps")
            >>> with log.producer() as producer:
            ...     futures = [producer.send("steps", value) for value in "abc"]
            >>> with log.consumer("steps") as consumer:
            ...     consumer.seek({("steps", 0): 1})
            ...     [record.value for record in consumer.records(until="latest")]
            [b'b', b'c']
        """
        self._check_open()
        if self._member is not None and not self._position and position != "committed":
            self._member.receive_partitions()
        if isinstance(position, str) and position in ("earliest", "latest"):
            is_cut = position == "latest" and self._atomic
            found = self._cut({}) if is_cut else self._bounds(position)
            position = {key: offset for key, offset in found.items() if key in self._position}
        elif position == "committed":
            stored = {} if self._keeper is None else self._keeper.committed
            began = self._began if self._member is None else self._member.began
            position = {key: stored.get(key, began.get(key, 0)) for key in self._position}
        elif isinstance(position, datetime):
            position = dict.fromkeys(self._position, position)
        if not isinstance(position, Mapping):
            raise InvalidOption(
                "a position is 'earliest', 'latest', 'committed', a datetime or"
                f" {{(topic, partition): offset or datetime}}, not {position!r}",
                hint="`consumer.position()` shows the present one.",
            )
        for key, place in position.items():
            if key not in self._position:
                raise InvalidOption(
                    f"{key} is not a (topic, partition) of this consumer",
                    hint="`consumer.position()` shows the partitions that the consumer reads.",
                )
            is_offset = isinstance(place, Integral) and 0 <= place <= INT64_MAX
            if not is_offset and not isinstance(place, datetime):
                raise InvalidOption(
                    f"an offset is at least 0, not {place!r}",
                    hint='seek("earliest") goes to the first records, seek("latest") to the end.',
                )
        position = offsets_of(self._topics, position, self._isolation, self._tables)
        self._position.update(position)
        for key in position:
            self._lineages.pop(key, None)
        if self._member is not None:
            self._member.membership.record_seek()
        self._handed_out = None
        self._seeks += 1
        self._polling = None
        self._stop_fetcher()

    def close(self) -> None:
        """Stop fetching and end running iterators. A member of a group leaves it.

        A member with ``auto_commit`` stores its positions first, up to the last processed record.
        In a forked child, and after the end of the program, this has no effect.
        """
        if self._connection.lifetime.is_over:
            return
        self.stop()
        if self._keeper is not None:
            check_may_wait()
        if self._member is not None and not self._has_left:
            self._has_left = True
            self._member.close(self._handed_out, self._ending)
        if self._heartbeats is not None:
            self._heartbeats.end(self._ending)

    def stop(self) -> None:
        """End waiting calls and refuse new ones: the first part of :meth:`close`.

        It does not block, and any thread may call it.
        """
        self._closed.set()
        self._stop_fetcher()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._handed_out = None  # all records are processed
        elif issubclass(kind, Exception):
            self._ending = ReaderEnding.LOST  # its program has failed
        self.close()

    def __aenter__(self) -> NoReturn:
        self._refuse_asyncio()

    def __aiter__(self) -> NoReturn:
        self._refuse_asyncio()

    async def __aexit__(self, *error: object) -> None:
        """Do nothing: Python requires this method before it calls ``__aenter__``."""

    def _refuse_asyncio(self) -> NoReturn:
        raise Unsupported(
            "this consumer is used with `with` and `for`",
            hint="For asyncio connect with `isolog.aio.connect(...)`.",
        )

    def _check_open(self) -> None:
        self._connection.lifetime.check()
        if self._closed.is_set():
            raise InvalidRequest("the consumer is closed", hint="Create another consumer.")

    def _fetched(
        self, views: Callable[[], Callable[[str], View]], until: str | None, timeout: float | None
    ) -> Iterator[tuple[Key, Fetched]]:
        """Yield fetched batches, until ``timeout`` seconds pass without a record."""
        for found in self.fetches(views(), until, Patience(timeout)):
            if found is None:
                return
            yield found

    def fetches(
        self,
        view_of: Callable[[str], View],
        until: str | None,
        patience: Patience,
        *,
        polls: bool = False,
    ) -> Generator[tuple[Key, Fetched] | None]:
        """Yield fetched batches, and None whenever the patience has run out."""
        if until not in (None, "latest"):
            raise InvalidOption(f"until takes 'latest', not {until!r}")
        if not polls:
            self._polling = None

        def round_left() -> float:
            # An iteration with read_atomic reads up to the present cut, because an earlier end
            # would split a transaction. A poll may stop before: the next poll continues.
            return math.inf if self._atomic and not polls else patience.seconds_left()

        def left() -> float:
            if self._needs_turn():
                return 0.0
            return (
                min(round_left(), self._subscription.seconds_to_search())
                if ends is None
                else round_left()
            )

        self._find_topics(now=True)
        ends = self._bounds() if until and not self._atomic else None
        self._take_up(ends or ())
        watch = None if self._name is None else self.check_owner
        pause = _CUT_PAUSE_FIRST_S
        while not self._closed.is_set():
            if self._connection.lifetime.is_parents:
                raise self._connection.lifetime.refusal()
            self._stop_fetcher()
            if watch is not None and time.monotonic() - self._checked > WATCH_S:
                watch()  # under read_atomic fetchers may be too short-lived to watch
            if self._member is not None and self._needs_turn():
                self._member.apply()
            if ends is not None and not self._atomic and not self._position.keys() <= ends.keys():
                ends = {**self._bounds(), **ends}  # partitions were assigned during the iteration
            is_empty = (
                not self._position
            )  # no topic matches the pattern, or no partition is assigned
            if self._atomic and not (until and ends):
                ends = self._cut(self._position)
                while self._find_topics(now=self._below(ends)):
                    ends = self._cut(self._position)  # its transactions may also be in a new topic
                self._take_up(ends)
                is_empty = not self._below(ends)
            if is_empty:
                self._check_position(view_of)
                if until:
                    return
                if not patience.seconds_left():
                    yield None
                self._closed.wait(min(pause, patience.seconds_left()))
                pause = min(_CUT_PAUSE_MAX_S, 2 * pause)
                self._find_topics()
                continue
            pause = _CUT_PAUSE_FIRST_S
            seeks = self._seeks
            fetcher = self._fetcher = Fetcher(
                [
                    WantedRange(
                        self._source(view_of(key[0]), key),
                        start,
                        None if ends is None else ends[key],
                        self._lineages.get(key, NO_LINEAGE),
                    )
                    for key, start in self._position.items()
                    if not self._atomic or ends is None or start < ends[key]
                ],
                watch,
                fail_on_loss=self._fail_on_loss,
            )
            if self._closed.is_set() or self._seeks != seeks:
                self._stop_fetcher()  # a close or seek before this found no fetcher to stop
            try:
                while fetcher.running:
                    for key, fetched in fetcher.fetched(left):
                        yield key, fetched
                        self._handed_out = None
                        if self._needs_turn():
                            self._stop_fetcher()
                            break
                        if fetched.batch.num_rows:
                            patience.restart()
                        if ends is None and (
                            self._grow(key[0], fetched.partitions) or self._find_topics()
                        ):
                            self._stop_fetcher()
                    if self._needs_turn() or (ends is None and self._find_topics()):
                        self._stop_fetcher()
                    elif fetcher.running and not round_left():
                        yield None
            finally:
                fetcher.stop()
            if self._fetcher is fetcher and (until or not self._atomic):
                return  # every partition has reached its end, or the consumer was closed
            # Else a seek, a new partition or topic stopped this fetcher, or the round has ended:
            # continue from the new positions.

    def _find_topics(self, *, now: bool = False) -> bool:
        """Begin to read new topics of the pattern. Return whether there are any."""
        found = self._subscription.find(now=now)
        if self._member is not None:
            self._member.membership.read_also(self._subscription.ids)
            return False  # the group assigns its partitions
        self._take_up(found)
        return bool(found)

    def _start_at(self, topic: str, start: Place, tables: LakeTables | None) -> None:
        """Move the position in a topic to a place."""
        found, lineages = resolve_with_lineages(self._topics, topic, start, self._isolation, tables)
        at = self._subscription.chosen({(topic, number): each for number, each in found.items()})
        self._position.update(at)
        for key in at:
            self._lineages[key] = lineages.get(key[1], NO_LINEAGE)

    def _needs_turn(self) -> bool:
        """Return whether a rebalance of the group is due for this consumer."""
        if self._heartbeats is not None:
            return self._heartbeats.record_activity()
        return self._member is not None and self._member.needs_turn()

    @property
    def _atomic(self) -> bool:
        return self._isolation is Isolation.READ_ATOMIC

    @property
    def _fetching(self) -> Isolation:
        """The isolation level of the fetches: below a cut all transactions are decided."""
        return Isolation.READ_COMMITTED if self._atomic else self._isolation

    def _bounds(self, place: str = "latest") -> dict[Key, int]:
        tables = None if place == "latest" else self._tables
        return self._subscription.chosen(
            {
                (name, number): offset
                for name in self._subscription.ids
                for number, offset in resolve_with_lineages(
                    self._topics, name, place, self._isolation, tables
                )[0].items()
            }
        )

    def _cut(self, lower: Mapping[Key, int]) -> dict[Key, int]:
        ids = self._subscription.ids
        found = cut_of(self._connection, ids, lower) if ids else {}
        return self._subscription.chosen(found)

    def _take_up(self, keys: Iterable[Key]) -> None:
        """Start new partitions at their first record."""
        for key in keys if self._member is None else ():
            self._position.setdefault(key, 0)

    def _grow(self, topic: str, partitions: int | None) -> bool:
        """Begin to read partitions that were added. Return whether there are any."""
        before = len(self._position)
        added = dict.fromkeys((topic, number) for number in range(partitions or 0))
        self._take_up(self._subscription.chosen(added))
        return len(self._position) > before

    def _keep_lineage(self, key: Key, fetched: Fetched) -> None:
        """Keep the lineage of a batch, before the position moves through it."""
        self._lineages[key] = fetched.lineage

    def _below(self, ends: Mapping[Key, int]) -> bool:
        """Return whether there are records below ``ends``. New partitions begin at 0."""
        return any(self._position.get(key, 0) < end for key, end in ends.items())

    def _check_position(self, view_of: Callable[[str], View]) -> None:
        """Check the position with the leaders, and handle removed records."""
        for key, offset in self._position.items():
            source = self._source(view_of(key[0]), key)
            try:
                check_place(source, offset, offset, self._lineages.get(key, NO_LINEAGE))
            except LOSS_ERRORS as error:
                self._position[key] = continue_at(error, fail=self._fail_on_loss)
                self._lineages.pop(key, None)

    def _source(self, view: View, key: Key) -> Source:
        return Source(
            self._topics.router,
            view,
            self._subscription.ids[key[0]],
            key[1],
            self._fetching,
            tables=self._tables,
        )

    def _stop_fetcher(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.stop()

    def _leave_parent(self) -> None:
        """End iterators in a forked child. The running fetches are the parent's."""
        self._seeks += 1
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.leave_parent()
