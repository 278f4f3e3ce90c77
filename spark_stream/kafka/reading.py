"""Reads of a Kafka client: fetches and offsets.

A connection reads each partition by a prefetching reader, from the offset of its first fetch on. A
fetch at another offset starts the reader again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field, structs

from spark_stream.client.log import Log
from spark_stream.client.reading.columns import View
from spark_stream.client.reading.fetching import Fetched, Source
from spark_stream.client.reading.loop import FETCH_BYTES, Fetcher, WantedRange
from spark_stream.consistency.ids import Offset
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.counting import Tally
from spark_stream.errors import (
    IsologError,
    LeaderUnavailable,
    OffsetOutOfRange,
    UnknownPartition,
)
from spark_stream.kafka.memory.budget import MemoryBudget
from spark_stream.kafka.records.batches import pack_marker
from spark_stream.kafka.records.encoding import encode_batch
from spark_stream.kafka.refusals import KafkaCode, code_of
from spark_stream.kafka.typed import as_records, read_columns
from spark_stream.loggers import logger_of
from spark_stream.schema.schemas import is_default
from spark_stream.transport.channel import ChannelWaits, SocketChannel
from spark_stream.wire.messages import EARLIEST, LATEST
from spark_stream.wire.topic_messages import AskedTopic, PartitionOffset, TopicDescription

logger = logger_of(__name__)

ANSWER_BYTES_MAX: Final = 64 << 20
"""The most bytes of records in an answer, but for a single larger record."""

ANSWER_BYTES_MIN: Final = 64 << 10
"""The bytes of records in an answer while slow clients occupy the memory for answers."""

_BOUNDS_S: Final = 5.0
"""The greatest age of the bounds in an answer with records. Without records they are read again.

The leader sends them at the end of each of its fetches too.
"""

AHEAD_BYTES: Final = 32 << 20
"""The k-th partition of a connection prefetches the k-th part of this, at most ``FETCH_BYTES``.

1,000 partitions together have up to 190 MiB.
"""

_AHEAD_MIN: Final = 64 << 10
_SCHEMA_S: Final = 5.0
"""The greatest age of the columns of a typed topic."""

_IDLE_S: Final = 60.0
"""The time without a fetch after which a partition's reader is stopped."""

_LATEST_MS: Final = -1
_EARLIEST_MS: Final = -2

Place = tuple[str, int]
"""Topic and partition."""


def isolation_of(level: int) -> Isolation:
    """Return the isolation level of a request: 0 is ``read_uncommitted``, 1 ``read_committed``.

    Kafka's consumers see replicated records only. So level 0 reads the replicated ones.
    """
    return Isolation.READ_COMMITTED if level == 1 else Isolation.READ_REPLICATED


def topic_of(log: Log, name: str, partition: int) -> TopicDescription:
    """Return the topic of a partition, from the cache if it has the partition.

    Raises:
        UnknownTopic, UnknownPartition: There is no such topic, or no such partition.
    """
    found = log._topics.known(name)
    if partition not in range(len(found.partitions)):
        found = log.describe(name)  # it may have grown
    if partition not in range(len(found.partitions)):
        raise UnknownPartition(f"topic {name!r} has no partition {partition}")
    return found


class PartitionReader:
    """A reader of one partition, and the records that were fetched and not yet sent."""

    def __init__(
        self,
        topic: TopicDescription,
        source: Source,
        position: int,
        arrived: Callable[[], None],
        sent: Tally,
        ahead_bytes: int,
    ) -> None:
        self.topic = topic.id, topic.schema
        self._is_default = is_default(topic.schema)
        self.source = source
        self.position = position
        self.used = time.monotonic()
        self.bounds: Bounds | None = None
        self.bounded_at = 0.0
        self._arrived = arrived
        self._sent = sent
        self._ahead_bytes = ahead_bytes
        self._waiting: deque[Fetched] = deque()
        self._fetcher = self._started()

    def _started(self) -> Fetcher:
        wanted = WantedRange(self.source, self.position, None, checks=True)
        return Fetcher([wanted], arrived=self._arrived, max_bytes=self._ahead_bytes)

    @property
    def channel(self) -> SocketChannel | None:
        """The connection of the present fetch, to the leader or a follower. None without one."""
        return self._fetcher.channel

    def move_to(self, position: int) -> None:
        """Read from this position on."""
        self.used = time.monotonic()
        if position != self.position:
            self.stop()
            self._waiting.clear()
            self.position = position
            self._fetcher = self._started()

    @property
    def has_records(self) -> bool:
        """Whether :meth:`take` may return bytes, or raise an error."""
        return bool(self._waiting) or self._fetcher.has_items

    def take(self, most_bytes: int) -> bytes:
        """Return record batches of about this size, and at least one record if there is any.

        Raises:
            IsologError: The partition cannot be read further.
        """
        found, used, before = list[bytes](), 0, self.position
        while fetched := self._next():
            rows = fetched.batch.num_rows
            # The first record is sent in any case.
            size = fetched.batch.nbytes if rows > 1 or found else 0
            left = most_bytes - used
            if size > left:
                fitting = int(rows * left / size)
                if fitting < 1 and found:
                    self._waiting.appendleft(fetched)
                    break
                rows = max(1, fitting)
            offsets = fetched.offsets()
            is_whole = rows == fetched.batch.num_rows
            following = fetched.next if is_whole else int(offsets[rows])
            sent = fetched.batch if is_whole else fetched.batch.slice(0, rows)
            data = encode_batch(sent, offsets[:rows], following)
            found.append(data)
            used += len(data)
            self._sent.add(1, rows, len(data))
            self.position = following
            if not is_whole:
                self._waiting.appendleft(_rest(fetched, rows))
                break
        if not found and self.position > before:
            return pack_marker(self.position - 1)  # only records of aborted transactions
        return b"".join(found)  # without a copy of a single batch

    def _next(self) -> Fetched | None:
        """Return the next fetched records, if there are any."""
        if self._waiting:
            return self._waiting.popleft()
        while self._fetcher.has_items:
            taken = self._fetcher.take(0.0)
            if taken is None:
                return None
            fetched = taken[1]
            if fetched.bounds is not None:
                self.on_bounds(fetched.bounds)
            if fetched.batch.num_rows:
                if self._is_default:
                    return fetched
                return structs.replace(fetched, batch=as_records(fetched.batch))
            self.position = max(self.position, fetched.next)
        return None

    def on_bounds(self, bounds: Bounds) -> None:
        """Record the present bounds of the partition."""
        self.bounds, self.bounded_at = bounds, time.monotonic()

    def stop(self) -> None:
        """Stop the reader."""
        self._fetcher.stop()


def _rest(fetched: Fetched, rows: int) -> Fetched:
    """Return the records after the first ``rows``."""
    offsets = fetched.offsets()[rows:]
    return Fetched(
        fetched.partition,
        int(offsets[0]),
        fetched.next,
        fetched.batch.slice(rows),
        lineage=fetched.lineage,
        scattered=np.ascontiguousarray(offsets),
    )


class _Gathered(Struct):
    """The records for an answer, of ``size`` bytes.

    ``asked``: the requested partitions. ``failed``: the errors of partitions whose readers were
    removed.
    """

    asked: Mapping[Place, Mapping[str, Any]]
    readers: dict[Place, PartitionReader]
    records: dict[Place, bytes] = field(default_factory=dict)
    failed: dict[Place, IsologError] = field(default_factory=dict)
    size: int = 0

    def take(self, room: int) -> None:
        """Add arrived records until ``size`` is ``room``, and at least one if there is any."""
        for place, reader in list(self.readers.items()):
            if self.size >= room and self.size:
                return
            if not reader.has_records:
                continue
            found = self.records.get(place, b"")
            left = min(self.asked[place]["partition_max_bytes"] - len(found), room - self.size)
            if left <= 0 and found:
                continue
            try:
                data = reader.take(max(1, left))
            except IsologError as error:
                del self.readers[place]
                self.failed[place] = error
                continue
            self.records[place] = found + data
            self.size += len(data)


class FetchSession:
    """The readers of one connection. They count the batches that they send.

    ``answers``: the memory for the answers of all connections.
    """

    def __init__(self, log: Log, sent: Tally, answers: MemoryBudget) -> None:
        self._log = log
        self._sent = sent
        self._answers = answers
        self._held = 0
        self._readers: dict[tuple[Place, Isolation], PartitionReader] = {}
        self._arrived = threading.Event()
        self._waits = ChannelWaits()
        self._described: dict[str, float] = {}

    def close(self) -> None:
        """Stop all readers."""
        for each in self._readers.values():
            each.stop()
        self._readers.clear()
        self.on_sent()

    def on_sent(self) -> None:
        """Free the memory of the answer, which the client has received."""
        if self._held:
            self._answers.give_back(self._held)
            self._held = 0

    def fetch(self, fields: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Return the fields of the answer to a fetch, at the latest at the deadline."""
        isolation = isolation_of(fields["isolation_level"])
        left, least = min(fields["max_bytes"], ANSWER_BYTES_MAX), fields["min_bytes"]
        answers: dict[Place, dict[str, Any]] = {}
        asked = {
            (topic["topic"], each["partition"]): each
            for topic in fields["topics"]
            for each in topic["partitions"]
        }
        gathered = _Gathered(asked, self._readers_of(asked, isolation, answers))
        while True:
            self._arrived.clear()
            before = gathered.size
            granted = self._answers.take_some(left - before, ANSWER_BYTES_MIN)
            try:
                gathered.take(before + granted)
            finally:
                added = gathered.size - before
                self._held += added
                self._answers.give_back(granted - added)
            for place, error in gathered.failed.items():
                self._drop(place, isolation)
                answers[place] = self._failure(place, error)
            wait_s = deadline - time.monotonic()
            if answers or gathered.size >= min(least, before + granted) or wait_s <= 0:
                break
            self._await_arrival(gathered.readers.values(), wait_s)
        for place in gathered.readers:
            answers[place] = {"records": gathered.records.get(place, b"")}
        self._add_bounds(asked, gathered.readers, answers)
        self._stop_idle()
        return {"responses": _by_topic("topic", asked, answers)}

    def _on_arrival(self) -> None:
        self._arrived.set()
        self._waits.wake()

    def _await_arrival(self, readers: Iterable[PartitionReader], wait_s: float) -> None:
        """Wait for records or an error of a reader. Read one of their connections until then."""
        self._waits.channel = next(filter(None, (each.channel for each in readers)), None)
        left_s = self._waits.read_until(self._arrived.is_set, wait_s)
        self._arrived.wait(left_s)

    def _readers_of(
        self,
        asked: Mapping[Place, Mapping[str, Any]],
        isolation: Isolation,
        answers: dict[Place, dict[str, Any]],
    ) -> dict[Place, PartitionReader]:
        found = {}
        for place, each in asked.items():
            try:
                found[place] = self._reader(place, isolation, each["fetch_offset"])
            except Exception as error:
                answers[place] = self._failure(place, error)
        return found

    def _reader(self, place: Place, isolation: Isolation, position: int) -> PartitionReader:
        name, number = place
        topic = self._present(topic_of(self._log, name, number))
        if position < 0:
            raise OffsetOutOfRange(f"{name}/{number}: there is no offset {position}")
        reader = self._readers.get((place, isolation))
        if reader is not None and reader.topic != (topic.id, topic.schema):
            self._drop(place, isolation)
            reader = None
        if reader is None:
            view = View.of(name, topic.schema, read_columns(topic.schema))
            source = Source(
                self._log._topics.router,
                view,
                topic.id,
                number,
                isolation,
                tables=self._log._tables,
            )
            share = AHEAD_BYTES // (len(self._readers) + 1)
            ahead_bytes = min(FETCH_BYTES, max(_AHEAD_MIN, share))
            reader = PartitionReader(
                topic, source, position, self._on_arrival, self._sent, ahead_bytes
            )
            self._readers[place, isolation] = reader
        reader.move_to(position)
        return reader

    def _present(self, topic: TopicDescription) -> TopicDescription:
        """Return a typed topic as it is now: it may have other columns than some seconds ago."""
        now = time.monotonic()
        if is_default(topic.schema) or now - self._described.get(topic.name, 0.0) < _SCHEMA_S:
            return topic
        self._described[topic.name] = now
        return self._log.describe(topic.name)

    def _drop(self, place: Place, isolation: Isolation) -> None:
        reader = self._readers.pop((place, isolation), None)
        if reader is not None:
            reader.stop()

    def _failure(self, place: Place, error: Exception) -> dict[str, Any]:
        code = code_of(error)
        if code is KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._log._topics.drop(place[0])
        logger.debug("%s/%d: a fetch failed: %s", *place, error)
        return {"error_code": int(code), "high_watermark": -1, "records": b""}

    def _stop_idle(self) -> None:
        now = time.monotonic()
        for (place, isolation), reader in list(self._readers.items()):
            if now - reader.used > _IDLE_S:
                self._drop(place, isolation)

    def _add_bounds(
        self,
        asked: Iterable[Place],
        readers: Mapping[Place, PartitionReader],
        answers: dict[Place, dict[str, Any]],
    ) -> None:
        """Add the bounds of the partitions. Those without records are looked up again."""
        now = time.monotonic()
        outdated: list[Place] = []
        for place in asked:
            answer = answers[place]
            if "error_code" in answer:
                continue
            reader = readers[place]
            is_old = reader.bounds is None or now - reader.bounded_at > _BOUNDS_S
            if is_old or not answer["records"]:
                outdated.append(place)
        for place, found in bounds_of(self._log, outdated).items():
            if isinstance(found, IsologError):
                answers[place] = self._failure(place, found)
            else:
                readers[place].on_bounds(found)
        for place, reader in readers.items():
            answer = answers[place]
            if "error_code" in answer or reader.bounds is None:
                continue
            answer["high_watermark"] = max(reader.bounds.high_watermark, reader.position)
            answer["last_stable_offset"] = max(reader.bounds.last_stable_offset, reader.position)
            answer["log_start_offset"] = reader.bounds.log_start_offset


def bounds_of(log: Log, places: Sequence[Place]) -> dict[Place, Bounds | IsologError]:
    """Return the bounds of partitions, by a call to each leader."""
    found: dict[Place, Bounds | IsologError] = {}
    for place, each in _looked_up(log, places, facts=True).items():
        if isinstance(each, IsologError):
            found[place] = each
            continue
        facts = each.facts
        if facts is None or facts.high_watermark is None or facts.last_stable_offset is None:
            found[place] = LeaderUnavailable(f"{place[0]}/{place[1]}: the leader has no bounds yet")
            continue
        found[place] = Bounds(
            Offset(each.log_start_offset),
            Offset(facts.last_stable_offset),
            Offset(facts.high_watermark),
            Offset(each.log_end_offset),
        )
    return found


def _looked_up(
    log: Log, places: Sequence[Place], **given: Any
) -> dict[Place, PartitionOffset | IsologError]:
    """Look up offsets. ``given``: fields of an ``AskedTopic``."""
    if not places:
        return {}
    try:
        asked = [
            AskedTopic.of(topic=topic, partitions=numbers, **given)
            for topic, numbers in numbers_by_topic(places).items()
        ]
        found = log._topics.look_up(asked)
    except IsologError as error:
        return dict.fromkeys(places, error)
    answers: dict[Place, PartitionOffset | IsologError] = {}
    for topic, number in places:
        topic_offsets = found.topics.get(topic)
        failure = found.unknown.get(topic)
        known = None if topic_offsets is None else topic_offsets.partitions.get(number)
        missing = UnknownPartition(f"topic {topic!r} has no partition {number}")
        answers[topic, number] = failure or known or missing
    return answers


def list_offsets(log: Log, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the answer to a look-up of offsets.

    A time stands for the first record whose timestamp is at or after it, and for -1 without one.
    """
    isolation = isolation_of(fields["isolation_level"])
    answers: dict[Place, dict[str, Any]] = {}
    by_time: dict[int, list[Place]] = {}
    asked: list[Place] = []
    for topic in fields["topics"]:
        for each in topic["partitions"]:
            place = topic["name"], each["partition_index"]
            asked.append(place)
            by_time.setdefault(each["timestamp"], []).append(place)
    for timestamp, places in by_time.items():
        at = EARLIEST if timestamp == _EARLIEST_MS else LATEST
        micros = None if timestamp < 0 else timestamp * 1_000
        by_place = _looked_up(
            log, places, at=at, isolation=isolation, timestamp=micros, facts=micros is not None
        )
        for place, found in by_place.items():
            if isinstance(found, IsologError):
                answers[place] = {"error_code": int(code_of(found)), "offset": -1}
            elif micros is None:
                answers[place] = {"offset": found.offset}
            elif found.offset < _bound(found, isolation):
                answers[place] = {"offset": found.offset, "timestamp": timestamp}
            else:
                answers[place] = {"offset": -1}
    return {"topics": _by_topic("name", asked, answers)}


def _bound(found: PartitionOffset, isolation: Isolation) -> int:
    """Return the end of the records that are visible under the isolation level."""
    facts = found.facts
    if facts is None:
        return found.log_end_offset
    is_committed = isolation is Isolation.READ_COMMITTED
    bound = facts.last_stable_offset if is_committed else facts.high_watermark
    return found.log_end_offset if bound is None else bound


def numbers_by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    """Return the numbers of partitions by their topics."""
    found: dict[str, list[int]] = {}
    for topic, number in places:
        found.setdefault(topic, []).append(number)
    return found


def _by_topic(
    field: str, asked: Iterable[Place], answers: Mapping[Place, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the answers by topic. ``field``: the field with the name of the topic."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, number in asked:
        topics.setdefault(name, []).append({"partition_index": number, **answers[name, number]})
    return [{field: name, "partitions": each} for name, each in topics.items()]
