"""The topics that a broker leads. They open at its start, so damage is known at once."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from spark_stream.broker.housekeeping import Agenda
from spark_stream.broker.partition import FIRST_EPOCH, Partition
from spark_stream.cluster.brokers import Brokers
from spark_stream.cluster.leadership import Leadership
from spark_stream.cluster.store import MetadataStore
from spark_stream.cluster.topics import Topic, Topics
from spark_stream.consistency.entries import greatest_numbers
from spark_stream.consistency.ids import LeaderEpoch
from spark_stream.environment import Clock
from spark_stream.errors import (
    BrokerStopping,
    DamagedSegment,
    IsologError,
    LeaderUnavailable,
    NotLeader,
    UnknownPartition,
    UnknownTopic,
)
from spark_stream.storage.directory import LogDirectory
from spark_stream.storage.log_format import LogFormat
from spark_stream.storage.logs import FileLogs, Logs
from spark_stream.storage.settings import Flush, LogSettings, parse_settings
from spark_stream.wire.schemas import TIMESTAMP_COLUMN, is_default

logger = logging.getLogger(__name__)

# Nobody asks later than this what has moved, also while no topic has flush=interval.
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
    """The topics that a broker leads, with their partitions open.

    Another broker's topics are known by their records only: their files are that broker's affair.
    """

    def __init__(
        self,
        directory: LogDirectory,
        store: MetadataStore,
        defaults: LogSettings,
        clock: Clock,
        producer_age_us: int = PRODUCER_AGE_US,
        *,
        holds_store: bool = True,
        logs: Logs | None = None,
    ) -> None:
        """``producer_age_us``: how long a producer that writes nothing is remembered.

        ``holds_store``: the store lies in the broker's own directory, so topics of releases that
        knew one broker only are its. ``logs``: how logs are opened; None: as files of this host.
        """
        self._directory = directory
        self._topics = Topics(store)
        self._brokers = Brokers(store)
        self._defaults = defaults
        self._clock = clock
        self._logs = FileLogs() if logs is None else logs
        self._chores: Agenda[Partition] = Agenda()  # housekeeping, by the steady clock
        self._forces: Agenda[Partition] = Agenda()  # by flush.ms, by the monotonic clock
        self._flush_pause_s = _FLUSH_PAUSE_S
        self._producer_age = producer_age_us
        self._lock = threading.Lock()
        self._stopping = False
        self._leadership = Leadership(store, self.broker_id, holds_store=holds_store)
        self._epoch = FIRST_EPOCH
        self._opening: dict[str, list[Partition]] = {}  # by topic id: open, and not served yet
        if holds_store:
            self._topics.adopt(self.broker_id)
        mine = self._topics.led_by(self.broker_id)
        self._hosted = {topic.name: self._opened(topic) for topic in mine}
        self._note_settings()
        self._epoch = self._led()

    @property
    def broker_id(self) -> str:
        return self._directory.broker_id

    @property
    def brokers(self) -> Brokers:
        """The brokers of the cluster."""
        return self._brokers

    def leads(self, topic: Topic) -> bool:
        """Whether this broker leads the topic's partitions."""
        return topic.leader == self.broker_id

    def topics(self) -> list[HostedTopic]:
        """The topics that this broker leads, by name."""
        hosted = dict(self._hosted)
        return [hosted[name] for name in sorted(hosted)]

    def names(self) -> list[str]:
        """The names of all topics, whoever leads them."""
        return [topic.name for topic in self._topics.all()]

    def topic(self, name: str, topic_id: str | None = None) -> HostedTopic:
        """The topic, which this broker leads.

        Raises:
            UnknownTopic: there is none, or ``topic_id`` is that of an earlier one.
            NotLeader: another broker leads it; the error names that broker and its address.
        """
        hosted = self._hosted.get(name)
        if hosted is None:
            raise self._not_here(self._topics.get(name), topic_id)
        _check_id(hosted.topic, topic_id)
        return hosted

    def find(self, name: str, topic_id: str | None = None) -> Topic:
        """The topic as it is now, whoever leads it; UnknownTopic as in :meth:`topic`."""
        hosted = self._hosted.get(name)
        topic = self._topics.get(name) if hosted is None else hosted.topic
        _check_id(topic, topic_id)
        return topic

    def _not_here(self, topic: Topic, topic_id: str | None) -> IsologError:
        _check_id(topic, topic_id)
        if self.leads(topic):
            return LeaderUnavailable(
                f"topic {topic.name!r} is not open yet, or is being deleted", topic=topic.name
            )
        leader = self._brokers.get(topic.leader)
        where = "an address that is not known" if leader is None else leader.address
        return NotLeader(
            f"topic {topic.name!r} is led by broker {topic.leader} at {where}",
            topic=topic.name,
            leader=topic.leader,
            address="" if leader is None else leader.address,
        )

    def partitions_now(self, topic: Topic) -> int:
        """How many partitions the topic has by now; of one that was deleted, how many it had."""
        hosted = self._hosted.get(topic.name)
        known = topic if hosted is None or hosted.topic.id != topic.id else hosted.topic
        return known.partitions

    def greatest_numbers(self) -> tuple[int, int]:
        """The greatest producer id and transaction number in all logs; -1: there is none."""
        found = [each for hosted in self.topics() for each in hosted.open_partitions()]
        used = [greatest_numbers(each.log.tables()) for each in found]
        producers = max((producer for producer, _ in used), default=-1)
        return producers, max((transaction for _, transaction in used), default=-1)

    # -- what scripts of topics ask ---------------------------------------------------------------

    def make_files(self, topic: Topic, first: int) -> None:
        """Opens partitions ``first`` and following in empty folders; they are not served yet.

        Raises:
            BrokerStopping, DiskFull, StorageFailure: what was made has to be removed.
        """
        settings = parse_settings(topic.config, self._defaults)
        opened = self._opening.setdefault(topic.id, [])
        self._logs.make_folder(self._directory.topic(topic.name, topic.id))
        for number in range(first, topic.partitions):
            if self._stopping:
                raise BrokerStopping("the broker is shutting down")
            if first:  # a broker that died while it altered the topic may have left a folder
                self._logs.remove(self._directory.partition(topic.name, topic.id, number))
            opened.append(self._opened_partition(topic, settings, number))

    def remove_files(self, topic: Topic, first: int) -> None:
        """Closes partitions ``first`` and following, and removes their folders.

        Raises:
            StorageFailure: some of that may be left.
        """
        for partition in self._opening.pop(topic.id, []):
            partition.close(deleted=True)
        folder = self._directory.topic(topic.name, topic.id)
        if first:
            for number in range(first, topic.partitions):
                self._logs.remove(self._directory.partition(topic.name, topic.id, number))
            return
        self._logs.remove(folder)
        # Under the lock: a topic of the same name may be in the making.
        with self._lock:
            self._logs.remove_empty(folder.parent)

    def serve(self, topic: Topic) -> None:
        """From now on calls find the topic in this form, with what :meth:`make_files` opened."""
        settings = parse_settings(topic.config, self._defaults)
        with self._lock:
            if self._stopping:
                raise BrokerStopping("the broker is shutting down")
            known = self._hosted.get(topic.name)
            partitions = [] if known is None else known.partitions
            made = self._opening.pop(topic.id, [])
            self._hosted[topic.name] = HostedTopic(topic, settings, [*partitions, *made])
            self._note_settings()
        for partition in known.open_partitions() if known is not None else ():
            partition.configure(settings)

    def stop_serving(self, topic: Topic) -> None:
        """From now on no call finds the topic; those under way end."""
        with self._lock:
            hosted = self._hosted.get(topic.name)
            if hosted is None or hosted.topic.id != topic.id:
                return
            del self._hosted[topic.name]
            self._note_settings()
        for partition in hosted.open_partitions():
            partition.close(deleted=True)

    def housekeep(self) -> None:
        """Retention and rolling by age, where due; one failing partition stops no other."""
        now = self._clock.steady_us()
        for partition in self._chores.take_due(now):
            due: float | None = now  # after an error the next round tries again
            try:
                due = partition.housekeep()
            except IsologError:
                logger.exception("%s/%d: housekeeping", partition.topic, partition.number)
            if due is not None:
                self._chores.put_down(partition, due)

    def flush_due(self) -> float:
        """Forces what ``flush.ms`` says is due by now; in how many seconds to come again."""
        now = self._clock.monotonic()
        for partition in self._forces.take_due(now):
            due = None
            try:
                due = partition.flush_if_due(now)
            except IsologError:
                logger.exception("%s/%d: flushing", partition.topic, partition.number)
            if due is not None:
                self._forces.put_down(partition, due)
        due = self._forces.next_moment()
        pause = self._flush_pause_s
        return pause if due is None else min(max(due - self._clock.monotonic(), 0.001), pause)

    def _take_note(self, partition: Partition) -> None:
        """A partition has moved. Its lock is held, so this only notes it."""
        self._chores.move(partition)
        if partition.log.format.settings.flush is Flush.INTERVAL:
            self._forces.move(partition)

    def _note_settings(self) -> None:
        """How long may pass until somebody asks what has moved: the least ``flush.ms``."""
        intervals = [
            hosted.settings.flush_ms / 1000
            for hosted in self._hosted.values()
            if hosted.settings.flush is Flush.INTERVAL
        ]
        self._flush_pause_s = min([_FLUSH_PAUSE_S, *intervals])

    def close(self) -> None:
        """Ends all waits and appends, then flushes and closes every log."""
        with self._lock:
            self._stopping = True
            found = [each for topic in self._hosted.values() for each in topic.open_partitions()]
            found += [each for opening in self._opening.values() for each in opening]
        in_order = True
        for partition in found:
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
        ends = self._ends()
        if self._leadership.were_changed(ends):
            logger.error(
                "the logs do not end where the broker left them: files were lost, damaged or"
                " restored from an older copy; a new leader epoch begins, which tells readers"
            )
        epoch = self._leadership.begin(ends, max(last, default=None))
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

    def _opened(self, topic: Topic) -> HostedTopic:
        settings = parse_settings(topic.config, self._defaults)
        hosted = HostedTopic(topic, settings)
        folder = self._directory.topic(topic.name, topic.id)
        if not self._logs.has_folder(folder):
            gone = DamagedSegment(
                f"{folder} is missing, and with it all records of topic {topic.name!r}",
                hint="Restore it from a backup and restart the broker, or delete the topic.",
                path=str(folder),
            )
            logger.error("%s", gone)
            hosted.partitions.extend(gone.again() for _ in range(topic.partitions))
            return hosted
        for number in range(topic.partitions):
            try:
                hosted.partitions.append(self._opened_partition(topic, settings, number))
            except IsologError as error:
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
        log = self._logs.open(path, log_format)
        for cut in log.cuts:
            logger.log(logging.ERROR if cut.grave else logging.WARNING, "recovered %s", cut)
        partition = Partition(
            topic.name,
            topic.id,
            number,
            log,
            self._producer_age,
            self._clock,
            moved=self._take_note,
        )
        partition.lead(self._epoch)
        self._take_note(partition)
        return partition


def _check_id(topic: Topic, topic_id: str | None) -> None:
    """UnknownTopic if the id that is meant is that of an earlier topic of the name."""
    if topic_id is not None and topic_id != topic.id:
        raise UnknownTopic(
            f"topic {topic.name!r} was deleted and made anew: its id is {topic.id}, not {topic_id}",
            topic=topic.name,
            topic_id=topic.id,
        )
