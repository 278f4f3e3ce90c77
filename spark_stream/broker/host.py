"""All topics and partitions of a broker. They open at its start, so damage is known at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from spark_stream.broker.partition import FIRST_EPOCH, Partition
from spark_stream.cluster.leadership import Leadership
from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.topics import Topic, Topics, check_name, check_partitions
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    InvalidConfig,
    InvalidTopic,
    IsologError,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.log import LogFormat, PartitionLog
from spark_stream.storage.settings import Flush, LogSettings, parse_settings
from spark_stream.wire.schemas import TIMESTAMP_COLUMN, check_topic_schema, is_default

logger = logging.getLogger(__name__)

# A topic that was just made or altered waits no longer than this for its first flush by interval.
_FLUSH_PAUSE_S: Final = 0.1
PRODUCER_AGE_US: Final = 24 * 3_600 * 1_000_000


@dataclass(frozen=True)
class HostedTopic:
    """A topic with its partitions; one that could not be opened is its error."""

    topic: Topic
    settings: LogSettings
    partitions: list[Partition | IsologError] = field(default_factory=list)

    def partition(self, number: int) -> Partition:
        """The partition; UnknownPartition, or why it could not be opened."""
        if not 0 <= number < len(self.partitions):
            raise UnknownPartition(
                f"topic {self.topic.name!r} has partitions 0 to {len(self.partitions) - 1},"
                f" not {number}",
                topic=self.topic.name,
                partition=number,
            )
        found = self.partitions[number]
        if isinstance(found, IsologError):
            raise found.again()
        return found

    def open_partitions(self) -> list[Partition]:
        return [each for each in self.partitions if isinstance(each, Partition)]


class Host:
    """The topics of one directory."""

    def __init__(
        self,
        directory: LogDirectory,
        store: MetadataStore,
        defaults: LogSettings,
        clock: Clock,
        producer_age_us: int = PRODUCER_AGE_US,
    ) -> None:
        """``producer_age_us``: how long a producer that writes nothing is remembered."""
        self._directory = directory
        self._topics = Topics(store)
        self._defaults = defaults
        self._clock = clock
        self._producer_age = producer_age_us
        self._lock = threading.Lock()
        self._stopping = False
        self._flush_at: dict[str, float] = {}  # topic id -> when its next flush is due
        self._leadership = Leadership(store)
        self._epoch = FIRST_EPOCH
        self._hosted = {topic.name: self._opened(topic) for topic in self._topics.all()}
        self._epoch = self._led()

    def topics(self) -> list[HostedTopic]:
        """All topics, by name."""
        with self._lock:
            return [self._hosted[name] for name in sorted(self._hosted)]

    def topic(self, name: str, topic_id: str | None = None) -> HostedTopic:
        """The topic; UnknownTopic if there is none, or ``topic_id`` is that of an earlier one."""
        hosted = self._hosted.get(name)
        if hosted is None:
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        if topic_id is not None and topic_id != hosted.topic.id:
            raise UnknownTopic(
                f"topic {name!r} was deleted and made anew: its id is {hosted.topic.id},"
                f" not {topic_id}",
                topic=name,
                topic_id=hosted.topic.id,
            )
        return hosted

    def partitions_now(self, topic: Topic) -> int:
        """How many partitions the topic has by now; of one that was deleted, how many it had."""
        hosted = self._hosted.get(topic.name)
        known = topic if hosted is None or hosted.topic.id != topic.id else hosted.topic
        return known.partitions

    def create(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        schema: pa.Schema,
        config: Mapping[str, Any],
    ) -> HostedTopic:
        """Makes a topic; on any error nothing is left of it."""
        check_name(name)
        if replication_factor != 1:
            raise InvalidConfig(
                f"replication_factor {replication_factor}: this is one broker",
                setting="replication_factor",
                hint="Give 1.",
            )
        topic = Topic(
            name=name,
            id=uuid.uuid4().hex,
            schema=check_topic_schema(schema),
            partitions=partitions,
            config={key: str(value) for key, value in config.items()},
        )
        parse_settings(topic.config, self._defaults)
        with self._lock:
            if self._stopping:
                raise BrokerStopping("the broker is shutting down")
            self._topics.create(topic)
            try:
                self._hosted[name] = self._opened(topic, fresh=True)
            except IsologError:
                self._topics.delete(name)
                shutil.rmtree(self._directory.topic(name, topic.id), ignore_errors=True)
                self._topics.forget(topic.id)
                raise
            return self._hosted[name]

    def alter(self, name: str, partitions: int | None, config: Mapping[str, Any]) -> HostedTopic:
        """Gives a topic more partitions, and other settings; on any error it stays as it was.

        The record in the store decides. New partitions are made before it changes, so that what
        cannot be made is never promised: a crash in between leaves empty folders, which the next
        attempt clears away.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTopic: fewer partitions than there are, or too many.
            InvalidConfig: naming the setting.
        """
        with self._lock:
            if self._stopping:
                raise BrokerStopping("the broker is shutting down")
            hosted = self.topic(name)
            old = hosted.topic
            new = replace(
                old,
                partitions=old.partitions if partitions is None else partitions,
                config={**old.config, **{key: str(value) for key, value in config.items()}},
            )
            if new.partitions < old.partitions:
                raise InvalidTopic(
                    f"topic {name!r} has {old.partitions} partitions and cannot have fewer"
                    f" ({new.partitions} were asked for)",
                    topic=name,
                    hint="Partitions can only be added; for fewer, make another topic.",
                )
            settings = parse_settings(new.config, self._defaults)
            check_partitions(new)
            added: list[Partition] = []
            try:
                for number in range(old.partitions, new.partitions):
                    shutil.rmtree(self._directory.partition(name, old.id, number), True)
                    added.append(self._opened_partition(new, settings, number))
                self._topics.replace(old, new)
            except IsologError:
                for partition in added:
                    partition.close(deleted=True)
                    shutil.rmtree(partition.log.directory, ignore_errors=True)
                raise
            for partition in hosted.open_partitions():
                partition.configure(settings)
            self._hosted[name] = HostedTopic(new, settings, [*hosted.partitions, *added])
            return self._hosted[name]

    def delete(self, name: str) -> None:
        """Deletes a topic and its records."""
        with self._lock:
            topic = self._topics.delete(name)
            hosted = self._hosted.pop(name, None)
        for partition in hosted.open_partitions() if hosted else []:
            partition.close(deleted=True)
        folder = self._directory.topic(name, topic.id)
        shutil.rmtree(folder, ignore_errors=True)
        self._topics.forget(topic.id)
        # Under the lock: a topic of the same name may be in the making.
        with self._lock, contextlib.suppress(OSError):
            folder.parent.rmdir()

    def housekeep(self) -> None:
        """Retention and rolling by age; one failing partition stops no other."""
        for hosted in self.topics():
            for partition in hosted.open_partitions():
                try:
                    partition.housekeep()
                except IsologError:
                    logger.exception("%s/%d: housekeeping", partition.topic, partition.number)

    def flush_due(self) -> float:
        """Forces what ``flush.ms`` says is due by now; in how many seconds to come again."""
        now = self._clock.monotonic()
        known, self._flush_at = self._flush_at, {}
        for hosted in self.topics():
            if hosted.settings.flush is Flush.INTERVAL:
                due = known.get(hosted.topic.id, now)
                self._flush_at[hosted.topic.id] = due if due > now else self._flushed(hosted, now)
        left = min(self._flush_at.values(), default=now + _FLUSH_PAUSE_S) - self._clock.monotonic()
        return min(max(left, 0.001), _FLUSH_PAUSE_S)

    def _flushed(self, hosted: HostedTopic, now: float) -> float:
        """Forces a topic's partitions where they are due; when the next one is."""
        due = now + hosted.settings.flush_ms / 1000
        for partition in hosted.open_partitions():
            try:
                due = min(due, partition.flush_if_due(now) or due)
            except IsologError:
                logger.exception("%s/%d: flushing", partition.topic, partition.number)
        return due

    def close(self) -> None:
        """Ends all waits and appends, then flushes and closes every log."""
        with self._lock:
            self._stopping = True
            hosted = list(self._hosted.values())
        in_order = True
        for topic in hosted:
            for partition in topic.open_partitions():
                try:
                    partition.close()
                except IsologError:
                    in_order = False
                    logger.exception("%s/%d: closing", partition.topic, partition.number)
        if in_order:
            try:
                self._leadership.leave(self._epoch, self._ends())
            except IsologError:
                logger.exception("the next start begins a new leader epoch")

    def _led(self) -> LeaderEpoch:
        """Begins to lead all partitions; the epoch in which."""
        found = [each for hosted in self._hosted.values() for each in hosted.open_partitions()]
        last = [each.last_epoch for each in found if each.last_epoch is not None]
        epoch = self._leadership.begin(self._ends(), max(last, default=None))
        for partition in found:
            partition.lead(epoch)
        return epoch

    def _ends(self) -> str:
        """Where all logs end, as a text that differs if one of them ends elsewhere."""
        ends = sorted(
            (each.topic_id, each.number, int(each.log.end.entry))
            for hosted in self._hosted.values()
            for each in hosted.open_partitions()
        )
        return hashlib.sha256(json.dumps(ends).encode()).hexdigest()

    def _opened(self, topic: Topic, *, fresh: bool = False) -> HostedTopic:
        settings = parse_settings(topic.config, self._defaults)
        hosted = HostedTopic(topic, settings)
        for number in range(topic.partitions):
            try:
                hosted.partitions.append(self._opened_partition(topic, settings, number))
            except IsologError as error:
                if fresh:
                    raise
                logger.error("%s/%d cannot be opened: %s", topic.name, number, error)
                hosted.partitions.append(error)
        return hosted

    def _opened_partition(self, topic: Topic, settings: LogSettings, number: int) -> Partition:
        facts = (
            ("isolog.format", "1"),
            ("isolog.topic", topic.name),
            ("isolog.topic_id", topic.id),
            ("isolog.partition", str(number)),
        )
        timestamps = TIMESTAMP_COLUMN if is_default(topic.schema) else None
        log_format = LogFormat(topic.schema, settings, timestamps, facts)
        path = self._directory.partition(topic.name, topic.id, number)
        log = PartitionLog.open(path, log_format)
        for cut in log.cuts:
            logger.log(logging.ERROR if cut.grave else logging.WARNING, "recovered %s", cut)
        partition = Partition(topic.name, topic.id, number, log, self._producer_age, self._clock)
        partition.lead(self._epoch)
        return partition
