"""Follows the partitions that one broker leads, over one stream after the other.

One thread connects, asks for sessions, and connects anew after a pause when a stream has ended.
What is to be followed may change at any time, from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from spark_stream.broker.identity import Endpoint, Identity
from spark_stream.broker.replication.follower_stream import FollowerStream
from spark_stream.broker.replication.following import Following, Workers
from spark_stream.broker.replication.partitions import FollowedPartition, PartitionKey
from spark_stream.broker.replication.settings import ENDING_S, ReplicationSettings
from spark_stream.consistency.ids import BrokerId
from spark_stream.environment import Clock
from spark_stream.errors import BrokerUnavailable, IsologError

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0

logger = logging.getLogger(__name__)


class Fetcher:
    """The follower of one leader. ``endpoint`` returns where that is, or None if not registered."""

    def __init__(
        self,
        me: Identity,
        leader: BrokerId,
        endpoint: Callable[[], Endpoint | None],
        settings: ReplicationSettings,
        clock: Clock,
        window_bytes: int,
    ) -> None:
        self._me = me
        self._leader = leader
        self._endpoint = endpoint
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()  # guards what follows
        self._workers = Workers(self._changed, clock)
        self._window_bytes = window_bytes
        self._followings: dict[PartitionKey, Following] = {}
        self._waiting: dict[PartitionKey, Following] = {}  # those without a session
        self._dropped: list[Following] = []
        self.failures = 0  # sessions that were refused, or ended by an error of one partition
        self._stream: FollowerStream | None = None
        self._stopping = False
        self._said = ""
        self._thread = threading.Thread(
            target=self._run, name=f"isolog-fetcher-{leader}", daemon=True
        )
        self._thread.start()

    def follow(self, partition: FollowedPartition) -> None:
        """Follows a partition from now on; what was followed of that key ends."""
        with self._changed:
            earlier = self._drop(partition.key)
            following = Following(partition, earlier)
            self._followings[partition.key] = following
            self._waiting[partition.key] = following
            self._changed.notify_all()

    def unfollow(self, key: PartitionKey) -> bool:
        """Follows it no more; whether others are left. A call of it may still be under way."""
        with self._changed:
            self._drop(key)
            self._changed.notify_all()
            return bool(self._followings)

    def set_window(self, window_bytes: int) -> None:
        """How much may be on its way, or not yet appended."""
        with self._changed:
            self._window_bytes = window_bytes
            self._changed.notify_all()

    def begin_stop(self) -> None:
        """Lets it end; waits for nothing."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the stream and the threads."""
        self.begin_stop()
        self._thread.join(ENDING_S)
        with self._changed:
            stream = self._stream
        if stream is not None:
            stream.close()
            # It may still be connecting: that ends by itself, and touches nothing of others.
            self._thread.join(ENDING_S)

    @property
    def is_alive(self) -> bool:
        """Whether its thread is there."""
        return self._thread.is_alive()

    def _drop(self, key: PartitionKey) -> Following | None:
        found = self._followings.pop(key, None)
        self._waiting.pop(key, None)
        if found is not None:
            self._dropped.append(found)
        return found

    def _run(self) -> None:
        pause = _PAUSE_FIRST_S
        while True:
            was_welcome = False
            try:
                was_welcome = self._serve()
            except IsologError as error:
                self._tell(str(error))
            except Exception:
                logger.exception("following broker %s", self._leader)
            pause = _PAUSE_FIRST_S if was_welcome else min(_PAUSE_MAX_S, 2 * pause)
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, pause):
                    break
        self._workers.stop()

    def _serve(self) -> bool:
        """One stream, from its connection to its end; whether the leader had welcomed it.

        Raises:
            IsologError: there was none.
        """
        endpoint = self._endpoint()
        if endpoint is None:
            raise BrokerUnavailable(f"broker {self._leader} is not registered")
        window = self._window_bytes
        stream = FollowerStream(
            self._me,
            self._leader,
            endpoint,
            window,
            self._settings,
            self._clock,
            self._changed,
            self._workers,
            self._wait_for_session,
        )
        with self._changed:
            self._stream = stream
        try:
            stream.connect()
            self._keep(stream, window)
        finally:
            stream.close()
            with self._changed:
                self._stream = None
                self._waiting = dict(self._followings)
                self._dropped.clear()
        if stream.ended is not None:
            self._tell(str(stream.ended))
        return stream.is_welcome

    def _keep(self, stream: FollowerStream, window: int) -> None:
        """Says what is to be followed, until the stream ends."""
        while True:
            with self._changed:
                while True:
                    if stream.ended is not None or self._stopping:
                        return
                    now = self._clock.monotonic()
                    dropped, self._dropped = self._dropped, []
                    ready, next_at = self._ready(now) if stream.is_welcome else ([], None)
                    if dropped or ready or window != self._window_bytes:
                        break
                    look_s = self._settings.beat_s / 2
                    wait_s = look_s if next_at is None else min(look_s, max(0.0, next_at - now))
                    self._changed.wait(wait_s)
                    stream.look(self._clock.monotonic())
                given = self._window_bytes
            if given != window:
                window = given
                stream.set_window(window)
            for following in dropped:
                stream.unfollow(following)
            for following in ready:
                stream.follow(following)

    def _wait_for_session(self, following: Following) -> None:
        """Its session has ended; it gets another, unless it is dropped. Under the lock."""
        self.failures += 1
        if self._followings.get(following.partition.key) is following:
            self._waiting[following.partition.key] = following
        self._changed.notify_all()

    def _ready(self, now: float) -> tuple[list[Following], float | None]:
        """Those that are to get a session now; and when to look again, if time alone decides."""
        ready: list[Following] = []
        next_at: float | None = None
        for key, following in list(self._waiting.items()):
            if following.is_busy:
                continue  # there is word when it is not
            if following.retry_at <= now:
                ready.append(following)
                del self._waiting[key]
            elif next_at is None or following.retry_at < next_at:
                next_at = following.retry_at
        return ready, next_at

    def _tell(self, what: str) -> None:
        """Logs why a stream ended; once, while it goes on for the same reason.

        That it ended because there is nothing to follow any more is no news.
        """
        if what != self._said and not self._stopping:
            self._said = what
            logger.info("following broker %s: %s", self._leader, what)
