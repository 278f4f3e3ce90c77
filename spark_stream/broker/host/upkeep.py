"""Housekeeping and forces of a broker's partitions: each is visited when something is due.

A broker may have thousands of partitions, and nothing happens in most of them, so a round does not
visit all. A partition reports that it has changed, and each visit returns when age alone will make
the next one due. A round costs what is due in it, and nothing for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Set
from typing import Final, Generic, TypeVar

from spark_stream.broker.partition.partition import Partition
from spark_stream.environment import Clock
from spark_stream.errors import IsologError
from spark_stream.loggers import logger_of
from spark_stream.storage.log.committed import CommittedMarks, Mark
from spark_stream.storage.settings import Flush, LogSettings

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """When each member is due. Any thread may :meth:`move` one; one thread does the rest.

    All moments are times of one clock; any clock will do.
    """

    def __init__(self) -> None:
        self._moved: dict[K, None] = {}  # ordered, so that runs can be repeated
        self._at: dict[K, float] = {}
        self._earliest: float | None = None  # not above the least of them

    def move(self, member: K) -> None:
        """Make the member due at once."""
        self._moved[member] = None

    def take_due(self, now: float) -> list[K]:
        """Return the members that are due by now; they are not due any more."""
        # One by one: to replace the whole could lose what another thread adds at that moment.
        due = [self._moved.popitem()[0] for _ in range(len(self._moved))][::-1]
        if self._earliest is not None and self._earliest <= now:
            due += [member for member, at in self._at.items() if at <= now]
        for member in due:
            self._at.pop(member, None)
        if self._earliest is not None and self._earliest <= now:
            self._earliest = min(self._at.values(), default=None)
        return list(dict.fromkeys(due))

    def put_down(self, member: K, at: float) -> None:
        """Make the member due at this moment instead of any earlier one."""
        self._at[member] = at
        if self._earliest is None or at < self._earliest:
            self._earliest = at

    def next_moment(self) -> float | None:
        """Return the time before which no member is due, or None if no member is listed."""
        return self._earliest


logger = logger_of(__name__)

# What has moved is looked at this often, or more, even if no topic has flush=interval.
_FLUSH_PAUSE_S: Final = 0.1


class Upkeep:
    """Keeps partitions in order: one thread does the housekeeping, another one forces."""

    def __init__(self, clock: Clock, marks: CommittedMarks) -> None:
        self._clock = clock
        self._marks = marks
        self._chores: Agenda[Partition] = Agenda()  # housekeeping, by the steady clock
        self._forces: Agenda[Partition] = Agenda()  # by flush.ms, by the monotonic clock
        self._ticks: Agenda[Partition] = Agenda()  # who is in sync, by the steady clock
        self._flush_pause_s = _FLUSH_PAUSE_S
        self._remembering = threading.Lock()  # a stopping broker does it too
        self._forces_marks = False

    def take(self, partition: Partition) -> None:
        """Look after a new partition; give it the high watermark that the last process stored."""
        mark = self._marks.recall(_key(partition.topic_id, partition.number))
        if mark is not None:
            partition.core.recall(*mark)
        self.note(partition)

    def forget(self, topic_id: str, number: int) -> None:
        """Drop the stored high watermark of a partition that has no replica here any more."""
        self._marks.forget(_key(topic_id, number))

    def keep_topics(self, ids: Set[str]) -> None:
        """Drop the stored high watermarks of all other topics than these."""
        self._marks.keep_topics(ids)

    def note(self, partition: Partition) -> None:
        """Note that a partition has moved; the caller may hold its lock."""
        self._chores.move(partition)
        if partition.has_followers:
            self._ticks.move(partition)
        if partition.log.format.settings.flush is Flush.INTERVAL:
            self._forces.move(partition)

    def note_settings(self, settings: Iterable[LogSettings]) -> None:
        """Look at what has moved as often as the least ``flush.ms`` requires."""
        intervals = [each.flush_ms / 1000 for each in settings if each.flush is Flush.INTERVAL]
        self._flush_pause_s = min([_FLUSH_PAUSE_S, *intervals])

    def housekeep(self) -> None:
        """Roll and remove segments by age where due; a failing partition does not stop others."""
        now = self._clock.steady_us()
        looked_at = self._chores.take_due(now)
        for partition in looked_at:
            due: float | None = now  # after an error the next round tries again
            try:
                due = partition.housekeep()
            except IsologError as error:
                logger.error("%s/%d: housekeeping: %s", partition.topic, partition.number, error)
            if due is not None:
                self._chores.put_down(partition, due)

        self.remember(looked_at)

    def remember(self, partitions: Iterable[Partition]) -> None:
        """Store up to where the entries of these partitions are known to be committed."""
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
        except IsologError as error:  # the file lags behind, which is allowed
            logger.warning("high watermarks are not written down: %s", error)
        else:
            self._forces_marks = False

    def tick_due(self) -> None:
        """Tick the leaders whose followers may lag too far behind by now."""
        now = self._clock.steady_us()
        for partition in self._ticks.take_due(now):
            due = partition.role.tick_due()
            if due is not None and due <= now:
                partition.role.tick()
                due = partition.role.tick_due()
            if due is not None:
                self._ticks.put_down(partition, max(due, now + 1))

    def flush_due(self) -> float:
        """Force what is due by ``flush.ms``. Return in how many seconds to call again."""
        now = self._clock.monotonic()
        for partition in self._forces.take_due(now):
            due = None
            try:
                due = partition.flush_if_due(now)
            except IsologError as error:
                logger.error("%s/%d: flushing: %s", partition.topic, partition.number, error)
                due = now + self._flush_pause_s
            if due is not None:
                self._forces.put_down(partition, due)
        due = self._forces.next_moment()
        pause = self._flush_pause_s
        return pause if due is None else min(max(due - self._clock.monotonic(), 0.001), pause)


def _key(topic_id: str, number: int) -> str:
    return f"{topic_id}/{number}"
