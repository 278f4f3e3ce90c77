"""The follower's end of replication streams (``follower_core`` has the rules).

A :class:`FollowerFetcher` follows one leader. :class:`Fetchers` has one for each of the broker's
leaders. A fetcher has no thread: the leader's messages are handled on the loop's thread, and a pool
does the work on partitions and returns its results. The followed partitions may change at any time,
from any thread.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import assert_never

from spark_stream.broker.node.identity import Endpoint
from spark_stream.broker.replication.follower_core import (
    Connect,
    FollowerStreamCore,
    HangUp,
    Job,
)
from spark_stream.broker.replication.interfaces import FollowedPartition, ReplicationContext
from spark_stream.broker.replication.lines import OpenLine, ReplicationLine
from spark_stream.broker.replication.promises import Promises
from spark_stream.broker.replication.settings import ENDING_S
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.ids import BrokerId
from spark_stream.errors import BrokerUnavailable, InternalError, IsologError
from spark_stream.loggers import logger_of
from spark_stream.protocol import Cancelled, Credited, Failed, Lost, Received, StreamOver
from spark_stream.transport.streams import StreamEvent, error_of, failure_of
from spark_stream.wire.replication_messages import AskPromise, OpenReplication, unpack

logger = logger_of(__name__)


class FollowerFetcher:
    """The follower of one leader. ``endpoint_of`` is as for :class:`Fetchers`."""

    def __init__(
        self,
        context: ReplicationContext,
        leader: BrokerId,
        endpoint_of: Callable[[BrokerId], Endpoint | None],
        open_line: OpenLine,
        window_bytes: int,
        promising: Promises,
    ) -> None:
        self._me = context.me
        self._leader = leader
        self._endpoint_of = endpoint_of
        self._settings = settings = context.settings
        self._clock = clock = context.clock
        self._background = context.background
        self._open_line = open_line
        self._promising = promising
        self._changed = threading.Condition(threading.RLock())  # guards the fields below
        self.promised_until = 0.0
        """The time before which this broker must not lead its partitions of this leader.

        It is on this broker's monotonic clock.
        """
        self._core = FollowerStreamCore(leader, window_bytes, settings, clock.monotonic())
        self._line: ReplicationLine | None = None
        self._stream_id = ""
        self._address = ""
        self._unsent: deque[bytes] = deque()
        self._wakes_at: float | None = None
        self._stopped = False

    @property
    def failures(self) -> int:
        """The number of sessions that were refused or ended by an error of one partition."""
        return self._core.failures

    @property
    def is_at_work(self) -> bool:
        """Whether a thread works on a partition."""
        return self._core.at_work > 0

    def _is_at_rest(self) -> bool:
        return not self._core.at_work

    def follow(self, partition: FollowedPartition) -> None:
        """Follow a partition, in place of an earlier one with the same key."""
        with self._changed:
            self._core.follow(partition, self._clock.monotonic())
            self._carry_out()

    def unfollow(self, key: PartitionId) -> bool:
        """Stop following a partition, though its work may still run.

        Return whether other partitions are left.
        """
        with self._changed:
            others = self._core.unfollow(key)
            self._carry_out()
            return others

    def set_window(self, window_bytes: int) -> None:
        """Set the limit of bytes in flight, or not yet appended."""
        with self._changed:
            self._core.set_window(window_bytes)
            self._carry_out()

    def begin_stop(self) -> None:
        """End the stream. Never block."""
        with self._changed:
            self._stopped = True
            self._core.stop()
            self._carry_out()

    def stop(self) -> None:
        """End the stream, and wait for running work, up to ``ENDING_S``."""
        self.begin_stop()
        with self._changed:
            self._changed.wait_for(self._is_at_rest, ENDING_S)

    # -- on the loop's thread --------------------------------------------------------------------

    def _on_event(self, line: ReplicationLine, event: StreamEvent | IsologError) -> None:
        if isinstance(event, Received) and not event.end:
            line.grant_credit(event.size)
        with self._changed:
            if line is not self._line:
                return  # of an earlier stream
            now = self._clock.monotonic()
            try:
                self._take(event, now)
            except IsologError as error:
                self._core.on_lost(error, now)
            except Exception as error:
                logger.exception("a message of leader %s could not be handled", self._leader)
                self._core.on_lost(InternalError(f"{type(error).__name__}: {error}"), now)
            self._carry_out()

    def _take(self, event: StreamEvent | IsologError, now: float) -> None:
        match event:
            case IsologError():
                raise event
            case Received(end=False):
                self._core.on_received(unpack(event.header, event.body), self._check_proof, now)
            case Credited():
                pass
            case Received():
                raise BrokerUnavailable(f"broker {self._leader} ended the stream")
            case Failed() | Cancelled() | Lost():
                if isinstance(event, Lost) and event.code == "SILENT":
                    limit = self._settings.death_s
                    logger.warning("leader %s sent no heartbeat for %g s", self._leader, limit)
                raise failure_of(error_of(event, self._address), self._address)
            case _:
                assert_never(event)

    def _check_proof(self, proof: str) -> None:
        self._me.check_answer(self._leader, self._stream_id, proof)

    def _wake(self) -> None:
        with self._changed:
            self._wakes_at = None
            self._core.tick(self._clock.monotonic())
            self._carry_out()

    # -- with the lock ---------------------------------------------------------------------------

    def _carry_out(self) -> None:
        while effects := self._core.effects():
            for effect in effects:
                match effect:
                    case bytes():
                        self._unsent.append(effect)
                    case Job():
                        self._flush()  # earlier messages are sent first
                        self._background.submit(self._do, effect)
                    case Connect():
                        self._connect(effect.window_bytes)
                    case HangUp():
                        self._flush()
                        self._hang_up()
                    case AskPromise():
                        self._background.submit(self._promise, self._stream_id, effect)
                    case _:
                        assert_never(effect)
        self._flush()
        wake_at = self._core.wake_at()
        if wake_at is not None and (self._wakes_at is None or wake_at < self._wakes_at):
            self._wakes_at = wake_at
            pause_s = max(0.0, wake_at - self._clock.monotonic())
            self._background.call_later(pause_s, self._wake)

    def _flush(self) -> None:
        line = self._line
        if line is None:
            return
        try:
            while self._unsent and line.send(self._unsent[0]):
                self._unsent.popleft()
        except StreamOver:
            self._unsent.clear()  # an event is about to report the end

    def _connect(self, window_bytes: int) -> None:
        endpoint = self._endpoint_of(self._leader)
        if endpoint is None:
            error = BrokerUnavailable(f"broker {self._leader} is not registered")
            self._core.on_lost(error, self._clock.monotonic())
            return
        self._stream_id, self._address = uuid.uuid4().hex, endpoint.address
        opened = OpenReplication(
            stream=self._stream_id,
            follower=self._me.broker_id,
            proof=self._me.call_proof(self._leader, endpoint.incarnation),
            window_bytes=window_bytes,
        )
        self._line = self._open_line(endpoint.address, opened.to_bytes(), self._on_event)

    def _hang_up(self) -> None:
        self._unsent.clear()
        if self._line is not None:
            self._line.end()
            self._line = None

    # -- on the pool's threads -------------------------------------------------------------------

    def _promise(self, stream_id: str, asked: AskPromise) -> None:
        """Make a promise that the leader has requested on a stream, if this broker may."""

        def promise(until: float) -> None:
            with self._changed:
                if stream_id != self._stream_id:
                    return  # the leader may have been restarted
                self.promised_until = max(self.promised_until, until)
                self._core.on_promised(asked)
                self._carry_out()

        self._promising.promise(asked.lasts_s, promise)

    def _do(self, job: Job) -> None:
        result, error = None, None
        try:
            result = job.run()
        except IsologError as failure:
            error = failure
        except Exception as failure:
            logger.exception(
                "work on the replica of %s that follows broker %s failed: %s",
                job.following.partition.key,
                self._leader,
                type(job.what).__name__,
            )
            error = InternalError(f"{type(failure).__name__}: {failure}")
        with self._changed:
            now = self._clock.monotonic()
            if error is None:
                self._core.on_done(job, result, now)
            else:
                self._core.on_failed(job, error, now)
            self._carry_out()
            self._changed.notify_all()


class Fetchers:
    """The fetchers of a broker. The bytes that are received and not yet appended are limited.

    ``endpoint_of`` returns a broker's current address, or None if it is not registered.
    """

    def __init__(
        self,
        context: ReplicationContext,
        endpoint_of: Callable[[BrokerId], Endpoint | None],
        open_line: OpenLine,
        promising: Promises,
    ) -> None:
        self._context = context
        self._endpoint_of = endpoint_of
        self._open_line = open_line
        self._promising = promising
        self._lock = threading.Lock()
        self._fetchers: dict[BrokerId, FollowerFetcher] = {}
        self._leaders: dict[PartitionId, BrokerId] = {}
        self._promised: dict[PartitionId, float] = {}  # of partitions that are no longer followed
        self._ending: list[FollowerFetcher] = []
        self._stopped = False

    def follow(self, leader: BrokerId, partition: FollowedPartition) -> None:
        """Follow a partition's leader, and no other. Do nothing after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                return
            if self._leaders.get(partition.key) not in (None, leader):
                self._unfollow(partition.key)
            self._leaders[partition.key] = leader
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._start(leader)
            fetcher.follow(partition)

    def unfollow(self, key: PartitionId) -> None:
        """Stop following a partition. A call of it may still run."""
        with self._lock:
            self._unfollow(key)

    def may_lead_at(self, key: PartitionId) -> float:
        """Return the time from which an unfollowed partition may lead here."""
        with self._lock:
            return max(self._promised.get(key, 0.0), self._promising.earlier_until)

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

    def _start(self, leader: BrokerId) -> FollowerFetcher:
        window = self._share(len(self._fetchers) + 1)
        fetcher = self._fetchers[leader] = FollowerFetcher(
            self._context,
            leader,
            self._endpoint_of,
            self._open_line,
            window,
            self._promising,
        )
        return fetcher

    def _unfollow(self, key: PartitionId) -> None:
        leader = self._leaders.pop(key, None)
        if leader is None:
            return
        has_others = self._fetchers[leader].unfollow(key)
        self._note_promise(key, self._fetchers[leader].promised_until)
        if has_others:
            return
        idle = self._fetchers.pop(leader)  # it has no partitions left
        idle.begin_stop()
        self._ending = [each for each in self._ending if each.is_at_work]
        self._ending.append(idle)
        self._share(len(self._fetchers))

    def _note_promise(self, key: PartitionId, until: float) -> None:
        now = self._context.clock.monotonic()
        if until > now:
            self._promised = {each: at for each, at in self._promised.items() if at > now}
            self._promised[key] = max(until, self._promised.get(key, 0.0))

    def _share(self, streams: int) -> int:
        """Set the window of each open stream for this number of streams. Return it."""
        window = self._context.settings.window(streams)
        for fetcher in self._fetchers.values():
            fetcher.set_window(window)
        return window
