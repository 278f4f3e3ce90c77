"""All streams of replication on which a broker is a follower: one for each leader it follows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_stream.broker.node.identity import Endpoint, Identity
from spark_stream.broker.replication.background import Background
from spark_stream.broker.replication.fetcher import Fetcher
from spark_stream.broker.replication.lines import Call
from spark_stream.broker.replication.partitions import FollowedPartition, PartitionKey
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Clock


class Fetchers:
    """Which partition follows which leader. What is received and not appended is bounded.

    ``endpoint_of`` returns where a broker is now, or None if it is not registered.
    """

    def __init__(
        self,
        me: Identity,
        endpoint_of: Callable[[BrokerId], Endpoint | None],
        settings: ReplicationSettings,
        clock: Clock,
        background: Background,
        call: Call,
    ) -> None:
        self._me = me
        self._endpoint_of = endpoint_of
        self._settings = settings
        self._clock = clock
        self._background = background
        self._call = call
        self._lock = threading.Lock()
        self._fetchers: dict[BrokerId, Fetcher] = {}
        self._leaders: dict[PartitionKey, BrokerId] = {}
        self._ending: list[Fetcher] = []
        self._stopped = False

    def follow(self, leader: BrokerId, partition: FollowedPartition) -> None:
        """Follows a leader from now on, and no other; nothing once stopped."""
        with self._lock:
            if self._stopped:
                return
            if self._leaders.get(partition.key) not in (None, leader):
                self._unfollow(partition.key)
            self._leaders[partition.key] = leader
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._started(leader)
            fetcher.follow(partition)

    def unfollow(self, key: PartitionKey) -> None:
        """Follows nobody any more. A call of the partition may still be under way."""
        with self._lock:
            self._unfollow(key)

    def stop(self) -> None:
        """End all streams."""
        with self._lock:
            self._stopped = True
            fetchers = [*self._fetchers.values(), *self._ending]
            self._fetchers.clear()
            self._leaders.clear()
        for fetcher in fetchers:
            fetcher.begin_stop()
        for fetcher in fetchers:
            fetcher.stop()

    def _started(self, leader: BrokerId) -> Fetcher:
        window = self._share(len(self._fetchers) + 1)
        fetcher = self._fetchers[leader] = Fetcher(
            self._me,
            leader,
            lambda: self._endpoint_of(leader),
            self._settings,
            self._clock,
            self._background,
            self._call,
            window,
        )
        return fetcher

    def _unfollow(self, key: PartitionKey) -> None:
        leader = self._leaders.pop(key, None)
        if leader is None or self._fetchers[leader].unfollow(key):
            return
        idle = self._fetchers.pop(leader)  # it follows nothing any more
        idle.begin_stop()
        self._ending = [each for each in self._ending if each.is_at_work]
        self._ending.append(idle)
        self._share(len(self._fetchers))

    def _share(self, streams: int) -> int:
        """Set the window of the open streams for this many of them. Return it."""
        window = self._settings.window(streams)
        for fetcher in self._fetchers.values():
            fetcher.set_window(window)
        return window
