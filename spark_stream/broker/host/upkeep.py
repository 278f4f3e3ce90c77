"""Housekeeping and forces of a broker's partitions: each is looked after when something is due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Set
from typing import Final

from spark_stream.broker.host.housekeeping import Agenda
from spark_stream.broker.partition.partition import Partition
from spark_stream.environment import Clock
from spark_stream.errors import IsologError
from spark_stream.storage.log.committed import CommittedMarks, Mark
from spark_stream.storage.settings import Flush, LogSettings

logger = logging.getLogger(__name__)

# Nobody asks later than this what has moved, also while no topic has flush=interval.
_FLUSH_PAUSE_S: Final = 0.1


class Upkeep:
    """What keeps partitions in order; one thread houses, another one forces."""

    def __init__(self, clock: Clock, marks: CommittedMarks) -> None:
        self._clock = clock
        self._marks = marks
        self._chores: Agenda[Partition] = Agenda()  # housekeeping, by the steady clock
        self._forces: Agenda[Partition] = Agenda()  # by flush.ms, by the monotonic clock
        self._ticks: Agenda[Partition] = Agenda()  # who is in sync, by the steady clock
        self._flush_pause_s = _FLUSH_PAUSE_S
        self._remembering = threading.Lock()  # a broker that stops does it too
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
        """How long may pass until somebody asks what has moved: the least ``flush.ms``."""
        intervals = [each.flush_ms / 1000 for each in settings if each.flush is Flush.INTERVAL]
        self._flush_pause_s = min([_FLUSH_PAUSE_S, *intervals])

    def housekeep(self) -> None:
        """Retention and rolling by age, where due; one failing partition stops no other."""
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
        """Write down up to where the entries of these partitions are known to be committed."""
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
        except IsologError as error:  # the file lags behind then, which it may
            logger.warning("high watermarks are not written down: %s", error)
        else:
            self._forces_marks = False

    def tick_due(self) -> None:
        """Tells leaders whose followers may lag too far behind by now that time has passed."""
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
            if due is not None:
                self._forces.put_down(partition, due)
        due = self._forces.next_moment()
        pause = self._flush_pause_s
        return pause if due is None else min(max(due - self._clock.monotonic(), 0.001), pause)


def _key(topic_id: str, number: int) -> str:
    return f"{topic_id}/{number}"
