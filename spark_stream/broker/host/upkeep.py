"""Housekeeping and fsyncs of a broker's partitions: each is visited when something is due.

A broker may have thousands of partitions, and most of them do not change, so a round does not visit
all. A partition reports its changes, and each visit returns when age alone will make the next one
due. The cost of a round grows with the number of due partitions only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Set
from typing import Final, Generic, TypeVar

from spark_stream.broker.partition.partition import Partition
from spark_stream.environment import Clock
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.storage.log.high_watermarks import CommittedMarks, Mark
from spark_stream.storage.settings import Flush, LogSettings

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Members with the times at which they are due. Any thread may :meth:`move` one.

    A single thread calls the other methods. All times are of one clock, and any clock will do.
    """

    def __init__(self) -> None:
        self._moved: dict[K, None] = {}  # ordered, so that runs can be repeated
        self._at: dict[K, float] = {}
        self._earliest: float | None = None  # a lower bound of them

    def move(self, member: K) -> None:
        """Make the member due immediately."""
        self._moved[member] = None

    def take_due(self, now: float) -> list[K]:
        """Return the members that are due at this time, and take them off the agenda."""
        # One by one: replacing the whole could lose an entry of another thread.
        due = [self._moved.popitem()[0] for _ in range(len(self._moved))][::-1]
        if self._earliest is not None and self._earliest <= now:
            due += [member for member, at in self._at.items() if at <= now]
        for member in due:
            self._at.pop(member, None)
        if self._earliest is not None and self._earliest <= now:
            self._earliest = min(self._at.values(), default=None)
        return list(dict.fromkeys(due))

    def schedule(self, member: K, at: float) -> None:
        """Make the member due at this time, instead of an earlier scheduled one."""
        self._at[member] = at
        if self._earliest is None or at < self._earliest:
            self._earliest = at

    def next_moment(self) -> float | None:
        """Return the time before which no member is due, or None if no member is listed."""
        return self._earliest


logger = logger_of(__name__)

_FLUSH_PAUSE_S: Final = 0.1  # changed partitions are visited at least this often
_REST_S: Final = 0.5  # without a topic with flush=interval


class Upkeep:
    """The upkeep of partitions: one thread does the housekeeping, and another one the fsyncs."""

    def __init__(
        self, clock: Clock, marks: CommittedMarks, tiered: Callable[[str, int], int]
    ) -> None:
        """Create the upkeep.

        ``tiered``: by topic id and partition, the offset up to which tables have all records.
        """
        self._clock = clock
        self._tiered = tiered
        self._marks = marks
        self._chores: Agenda[Partition] = Agenda()  # housekeeping, by the steady clock
        self._forces: Agenda[Partition] = Agenda()  # by flush.ms, by the monotonic clock
        self._ticks: Agenda[Partition] = Agenda()  # in-sync checks, by the steady clock
        self._flush_pause_s = _REST_S
        self._remembering = threading.Lock()  # a stopping broker does it too
        self._forces_marks = False

    def take(self, partition: Partition) -> None:
        """Add a new partition, and give it the high watermark that the last process stored."""
        mark = self._marks.recall(_key(partition.topic_id, partition.number))
        if mark is not None:
            partition.core.recall(*mark)
        self.note(partition)

    def forget(self, topic_id: str, number: int) -> None:
        """Drop the stored high watermark of a partition without a replica at this broker."""
        self._marks.forget(_key(topic_id, number))

    def keep_topics(self, ids: Set[str]) -> None:
        """Drop the stored high watermarks of all other topics than these."""
        self._marks.keep_topics(ids)

    def note(self, partition: Partition) -> None:
        """Note a change of a partition. The caller may hold its lock."""
        self._chores.move(partition)
        if partition.has_followers:
            self._ticks.move(partition)
        if partition.log.format.settings.flush is Flush.INTERVAL:
            self._forces.move(partition)

    def note_settings(self, settings: Iterable[LogSettings]) -> None:
        """Visit changed partitions as often as the least ``flush.ms`` requires."""
        intervals = [each.flush_ms / 1000 for each in settings if each.flush is Flush.INTERVAL]
        self._flush_pause_s = min([_FLUSH_PAUSE_S, *intervals]) if intervals else _REST_S

    def housekeep(self) -> None:
        """Roll and remove segments by age where due. A failing partition does not stop others."""
        now = self._clock.steady_us()
        looked_at = self._chores.take_due(now)
        for partition in looked_at:
            due: float | None = now  # after an error the next round retries
            try:
                due = partition.housekeep(self._tiered(partition.topic_id, partition.number))
            except IsologError as error:
                logger.error("housekeeping of %s failed: %s", partition.name, error)
            if due is not None:
                self._chores.schedule(partition, due)

        self.remember(looked_at)

    def remember(self, partitions: Iterable[Partition]) -> None:
        """Store the high watermarks of these partitions."""
        with self._remembering:
            self._remember(partitions)

    def _remember(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            found = partition.committed()
            if found is not None:
                self._forces_marks |= partition.log.format.settings.flush is not Flush.NONE
                self._marks.note(_key(partition.topic_id, partition.number), Mark(*found))
        try:
            self._marks.write(forced=self._forces_marks)
        except IsologError as error:  # an older file is allowed
            logger.warning("cannot store high watermarks: %s", error)
        else:
            self._forces_marks = False

    def tick_due(self) -> None:
        """Tick the leaders whose followers may lag too far behind at this time."""
        now = self._clock.steady_us()
        for partition in self._ticks.take_due(now):
            due = partition.role.tick_due()
            if due is not None and due <= now:
                partition.role.tick()
                due = partition.role.tick_due()
            if due is not None:
                self._ticks.schedule(partition, max(due, now + 1))

    def flush_due(self) -> float:
        """Force the files that are due by ``flush.ms``. Return the seconds until the next call."""
        now = self._clock.monotonic()
        for partition in self._forces.take_due(now):
            due = None
            try:
                due = partition.flush_if_due(now)
            except IsologError as error:
                logger.error("flush of %s failed: %s", partition.name, error)
                due = now + self._flush_pause_s
            if due is not None:
                self._forces.schedule(partition, due)
        due = self._forces.next_moment()
        pause = self._flush_pause_s
        return pause if due is None else min(max(due - self._clock.monotonic(), 0.001), pause)


def _key(topic_id: str, number: int) -> str:
    return f"{topic_id}/{number}"
