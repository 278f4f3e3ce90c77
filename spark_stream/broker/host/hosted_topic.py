"""A topic as a broker has it: its replicas, their folders and logs, and their streams to leaders.

An empty folder never takes the place of a lost one. A topic's folder holds all replicas that the
broker has of it, and a replica has no files before its first record. So if the folder exists,
no record is missing. The maker of a folder has to make sure that this holds for all of these
replicas: when the topic is made, when it gets partitions, when a replica moves here, and when the
broker starts.

A broker doubts its logs if it starts without a folder that it had: it was in the ISR, or the note
of the folder exists (``storage.disk.directory``). So another replica can lead, and no leader counts
an empty replica for entries of the lost one. If others have the lost records, the broker begins
with an empty folder or log. It first reports that (``losing``), since the next start would find
nothing wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.partition.replication import FollowedReplica
from spark_stream.cluster.partitions import PartitionId
from spark_stream.cluster.topics import Topic, unknown, unknown_partition
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import (
    DamagedSegment,
    IsologError,
    NotLeader,
    StorageFailure,
)
from spark_stream.loggers import logger_of
from spark_stream.schema.schemas import TIMESTAMP_COLUMN, is_default
from spark_stream.storage.disk.directory import LogDirectory
from spark_stream.storage.format.log_format import LogFormat
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.logs import FileLogs
from spark_stream.storage.settings import LogSettings


class FollowerLinks(Protocol):
    """The streams by which this broker's replicas follow others."""

    def follow(self, leader: BrokerId, partition: FollowedReplica) -> None:
        """Follow the partition at this leader, and at no other."""

    def unfollow(self, key: PartitionId) -> None:
        """Stop following the partition."""

    def may_lead_at(self, key: PartitionId) -> float:
        """Return the time from which the partition may lead, in seconds of the monotonic clock.

        Its broker may have promised an earlier leader not to lead before that time.
        """


class NoLinks:
    """Links of a broker without others: no partition follows."""

    def follow(self, leader: BrokerId, partition: FollowedReplica) -> None:
        pass

    def unfollow(self, key: PartitionId) -> None:
        pass

    def may_lead_at(self, key: PartitionId) -> float:
        return 0.0


@dataclass(frozen=True)
class HostedTopic:
    """A topic with this broker's replicas. A replica that could not be opened is its error.

    ``elsewhere`` makes the error for a partition that this broker does not lead.
    """

    topic: Topic
    settings: LogSettings
    elsewhere: Callable[[Topic, int], IsologError] = field(repr=False)
    replicas: dict[int, Partition | IsologError] = field(default_factory=dict)

    def partition(self, number: int) -> Partition:
        """Return the partition, which this broker leads.

        Raises:
            UnknownPartition: The topic has no partition of this number.
            NotLeader, LeaderUnavailable: Another broker leads it, or none does at the moment. Or it
                was added a moment ago.
            IsologError: The error with which it could not be opened.
        """
        if number < 0:
            self.check_number(number)
        found = self.replicas.get(number)
        if isinstance(found, Partition) and found.leads:
            return found
        error = self.elsewhere(self.topic, number)
        if isinstance(found, IsologError) and not isinstance(error, NotLeader):
            raise found.again()
        raise error

    def check_number(self, number: int) -> None:
        """Raise UnknownPartition if the topic has no partition of this number."""
        if not 0 <= number < self.topic.partitions:
            raise unknown_partition(self.topic, number)

    def open_partitions(self) -> list[Partition]:
        """Return the replicas that this broker has open, leading or not."""
        found = dict(self.replicas)
        return [each for _, each in sorted(found.items()) if isinstance(each, Partition)]

    def led(self) -> list[Partition]:
        """Return the replicas that this broker leads."""
        return [each for each in self.open_partitions() if each.leads]

    def ends(self) -> Iterator[tuple[str, int]]:
        """Yield each partition's name and its log's end, in the form of ``cluster.generations``."""
        for number, found in self.replicas.items():
            end = found.log.end.entry if isinstance(found, Partition) else -1
            yield f"{self.topic.id}/{number}", end


def format_of(topic: Topic, settings: LogSettings, number: int) -> LogFormat:
    """Return the format of a partition's log."""
    facts = (
        ("isolog.format", "1"),
        ("isolog.topic", topic.name),
        ("isolog.topic_id", topic.id),
        ("isolog.partition", str(number)),
    )
    timestamps = TIMESTAMP_COLUMN if is_default(topic.schema) else None
    return LogFormat(topic.schema, settings, timestamps, facts, topic.earlier)


logger = logger_of(__name__)

_RESTORE = "Restore it from a backup and restart the broker, or delete the topic."
_UNCLEAN = (
    "With unclean.leader.election=true another replica leads, which may lack the last records."
)
_RESTART = "Restore it from a backup, or just restart the broker: it fetches the records anew."


class TopicFolders:
    """One broker's folders. ``losing``: as for :class:`~spark_stream.storage.logs.FileLogs`."""

    def __init__(self, directory: LogDirectory, logs: FileLogs, losing: Callable[[], None]) -> None:
        self.doubts: list[str] = []
        """The losses for which the broker cannot vouch for its logs."""
        self._directory = directory
        self._logs = logs
        self._losing = losing
        self._me = BrokerId(directory.broker_id)
        self._removed: set[str] = set()
        self._gone: set[str] = set()
        """The ids of topics whose folders were removed durably."""

    def has(self, topic: Topic) -> bool:
        """Return whether the topic's folder exists."""
        return self._logs.has_folder(self._directory.topic(topic.name, topic.id))

    def make(
        self, topic: str, topic_id: str, records: Collection[PartitionRecord], *, starts: bool
    ) -> None:
        """Make a topic's folder if it is missing, and force its name in any case.

        A process that died may have made the folder without forcing it: a power cut would then
        remove it.

        ``records``: of all partitions of which this broker has a replica at this time. ``starts``:
        none of these replicas is open, and the broker has not vouched for its logs. Only then may a
        lost folder be filled again.

        Raises:
            UnknownTopic: This process has removed the folder. A maker that was considered dead puts
                such a topic on record, and deletes it again once it sees the removal.
            DamagedSegment: The folder is missing, and must stay missing: the next start would take
                lost logs for empty ones.
            DiskFull, StorageFailure: The folder may exist or not. A starting broker doubts its
                logs.
        """
        folder = self._directory.topic(topic, topic_id)
        had = [each for each in records if each.member(self._me)]
        is_missing = not self._logs.has_folder(folder)
        if is_missing and (had or (records and self._logs.is_folder_lost(folder))):
            if topic_id in self._removed:
                raise unknown(topic)
            alone = [each for each in had if each.is_only_member(self._me)]
            lost = f"{folder} is missing, and with it all records of topic {topic!r}"
            has_others = any(len(each.replicas) > 1 for each in records)
            if starts and has_others:  # in a new generation, it leads no longer
                self.doubts.append(lost)
            if alone:
                may_elect = any(len(each.replicas) > 1 for each in alone)
                hint = f"{_RESTORE} {_UNCLEAN}" if may_elect else _RESTORE
                raise DamagedSegment(lost, hint=hint, path=str(folder))
            if not starts:
                what = f"{lost} here: restart the broker"
                raise DamagedSegment(what, hint=_RESTART, path=str(folder))
            self._losing()
        try:
            self._logs.make_folder(folder)
        except StorageFailure as error:
            if starts:
                self.doubts.append(error.message)
            raise

    def open_log(
        self, topic: Topic, settings: LogSettings, number: int, record: PartitionRecord | None
    ) -> PartitionLog:
        """Open the replica's log.

        Open an empty one if its files are unusable and other replicas have the data.

        Raises:
            DamagedSegment: The files cannot be opened, and no other replica has their records.
            DiskFull: There is no space. No record was lost.
            StorageFailure: The disk fails, so the broker doubts its logs.
        """
        folder = self._directory.partition(topic.name, topic.id, number)
        log_format = format_of(topic, settings, number)
        try:
            log = self._logs.open(folder, log_format)
        except DamagedSegment as error:
            if record is None or record.is_only_member(self._me):
                raise
            kept = self._logs.set_aside(folder)
            self.doubts.append(f"{error.message}; what there was is kept in {kept}")
            log = self._logs.open(folder, log_format)
        except StorageFailure as error:
            self.doubts.append(error.message)
            raise
        for cut in log.cuts:
            logger.log(logging.ERROR if cut.grave else logging.WARNING, "recovered log: %s", cut)
        if not log.intact or log.failed is not None:
            self.doubts.append(
                f"{topic.name}/{number} has lost entries, or its folder, or an fsync failed"
            )
        return log

    def forget(self, topic: Topic) -> None:
        """Allow the loss of the topic's folder: no replica is left. A failure is logged."""
        try:
            self._logs.forget_folder(self._directory.topic(topic.name, topic.id))
        except IsologError:
            logger.exception("cannot remove the note of the folder of %s", topic.name)

    def remove_replica(self, topic: Topic, number: int) -> None:
        """Remove the files of a replica that moved to another broker. A failure is logged."""
        try:
            self._logs.remove(self._directory.partition(topic.name, topic.id, number))
        except IsologError:
            logger.exception("cannot remove the files of moved replica %s/%d", topic.name, number)

    def remove(self, topic: Topic) -> None:
        """Remove the folder of a deleted topic, with everything in it.

        A second call does nothing, unless the folder was made again.

        Raises:
            StorageFailure: some of its files may be left.
        """
        folder = self._directory.topic(topic.name, topic.id)
        self._removed.add(topic.id)
        if topic.id in self._gone and not self._logs.has_folder(folder):
            return
        self._gone.discard(topic.id)
        self._logs.remove_folder(folder)
        self._gone.add(topic.id)
