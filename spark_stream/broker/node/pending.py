"""The pending work of the controller: partitions without a live leader, and partitions that move.

A look examines only the records with a change since the last one, the partitions of brokers that
stopped or started, and those that were pending before. So its cost depends on the change, and not
on the number of partitions in the cluster.
"""

from __future__ import annotations

import threading
from collections import defaultdict

from spark_stream.cluster.partitions import PartitionId, StoredPartition
from spark_stream.cluster.view import ClusterView, News, Snapshot
from spark_stream.consistency.control.election import Alive
from spark_stream.consistency.ids import BrokerId
from spark_stream.scripts.partition_records import is_moving, needs_leader


class PendingPartitions:
    """The pending partitions in a view, for any thread, between :meth:`begin` and :meth:`end`."""

    def __init__(self, view: ClusterView) -> None:
        """Create it inactive: a broker that is not the controller keeps no list."""
        self._view = view
        self._lock = threading.Lock()
        self._noting = threading.Lock()
        self._is_active = False
        self._changed: set[PartitionId] = set()
        """Those whose records changed since the last look, under :attr:`_noting`."""
        self._leaders: dict[PartitionId, BrokerId] = {}
        self._led: defaultdict[BrokerId, set[PartitionId]] = defaultdict(set)
        self._moving: set[PartitionId] = set()
        self._leaderless: set[PartitionId] = set()
        """Those that needed a leader at the last look, and those that changed since then."""
        self._alive: Alive = {}
        view.subscribe(self._note)

    def begin(self) -> None:
        """Examine all partitions at the next look, and the changes at later ones."""
        with self._lock:
            if self._is_active:
                return
            self._is_active = True  # before the list: a change may come in between
            found = {
                PartitionId(topic_id, number)
                for topic_id, numbers in self._view.now.partitions.items()
                for number in numbers
            }
            with self._noting:
                self._changed |= found

    def end(self) -> None:
        """Drop the lists: another broker is the controller."""
        with self._lock:
            if not self._is_active:
                return
            self._is_active = False
            with self._noting:
                self._changed = set()
            for each in (self._leaders, self._led, self._moving, self._leaderless):
                each.clear()
            self._alive = {}

    def without_leader(self, alive: Alive) -> list[StoredPartition]:
        """Return the partitions that need a leader, in the order of their ids."""
        with self._lock:
            now = self._examine_changed()
            suspects = self._leaderless
            for broker in alive.keys() | self._alive.keys():
                if alive.get(broker) != self._alive.get(broker):
                    suspects |= self._led.get(broker, set())
            self._alive = dict(alive)
            found = [
                stored
                for partition in suspects
                if (stored := now.partition(partition)) is not None
                and needs_leader(stored.record, alive)
            ]
            self._leaderless = {each.id for each in found}
            return sorted(found, key=lambda each: each.id)

    def moving(self) -> list[StoredPartition]:
        """Return the partitions with a move under way, in the order of their ids."""
        with self._lock:
            now = self._examine_changed()
            found = (now.partition(each) for each in sorted(self._moving))
            return [stored for stored in found if stored is not None]

    def _examine_changed(self) -> Snapshot:
        """Sort the changed partitions into the lists. Return a snapshot with these changes."""
        with self._noting:
            changed, self._changed = self._changed, set()
        now = self._view.now
        for partition in changed:
            stored = now.partition(partition)
            before = self._leaders.pop(partition, None)
            if before is not None:
                self._led[before].discard(partition)
            if stored is None:
                self._moving.discard(partition)
                continue
            leader = stored.record.leader
            if leader is not None:
                self._leaders[partition] = leader
                self._led[leader].add(partition)
            if is_moving(stored.record):
                self._moving.add(partition)
            else:
                self._moving.discard(partition)
        self._leaderless |= changed
        return now

    def _note(self, news: News, now: Snapshot) -> None:
        del now
        if self._is_active:
            with self._noting:
                self._changed |= news.partitions
