"""The rules by which a broker follows one leader: no thread, lock, clock or socket.

The shell (``fetchers``) passes in the partitions to follow, the leader's messages, the results of
the work, and the time. It carries out the effects in order: :meth:`FollowerStreamCore.effects`.

============  ==========================================  =====================================
stream        event                                       next state
============  ==========================================  =====================================
resting       its pause has passed (``tick``)             calling: ``Connect``
calling       ``Welcome`` with the leader's proof         welcome: sessions are requested
any           the stream is lost, or the leader sends     resting: ``HangUp``, all sessions end,
              an invalid message                          the pause doubles until a ``Welcome``
any           ``stop``                                    stopped: ``HangUp``
============  ==========================================  =====================================

A partition on a stream that is welcome:

============  ==========================================  =========================================
partition     event                                       next state
============  ==========================================  =========================================
waiting       its pause has passed, and no work of it or  asking: its history is read (``Begin``)
              of its predecessor is running               and sent with a new slot number
asking        ``Agreed``: the log is truncated            following
following     ``Frame``: appended, then acknowledged      following
any           ``Refused``, failed work, or the end of     waiting, or removed if it was dropped
              the stream
============  ==========================================  =========================================

Invariants:

* Before the leader has proved its identity, no message but the opening of the stream is sent to
  it, and only its ``Welcome`` is accepted.
* The jobs of a partition run one at a time, in the order of the leader's messages.
* When a slot ends, its queued jobs are dropped, and the result of a running job is ignored. A slot
  number is never used again on any stream of this leader.
* The log is truncated to the part that it shares with the leader's before the first append.
* Entries are acknowledged after their append, on the slot and stream on which they arrived.
* The failure of a partition ends its session and no other.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final, assert_never

from msgspec import Struct, field

from spark_stream.broker.replication.interfaces import FollowedPartition
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.ids import BrokerId, EntryIndex, Offset
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.errors import (
    BrokerStopping,
    DamagedEntries,
    DiskFull,
    InvalidRequest,
    IsologError,
    StorageFailure,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.replication_messages import (
    Acked,
    Agreed,
    AskPromise,
    Beat,
    Bye,
    Follow,
    Frame,
    HighWatermarks,
    Packed,
    Promised,
    Refused,
    Room,
    Said,
    Unfollow,
    Welcome,
)

_PAUSE_FIRST_S: Final = 0.05
_PARTITION_PAUSE_MAX_S: Final = 2.0
_STREAM_PAUSE_MAX_S: Final = 1.0

logger = logger_of(__name__)


class Begin(Struct, frozen=True):
    """The first job of a session: read the history of the log."""


class Following(Struct, eq=False):
    """A followed partition, across all streams and sessions."""

    partition: FollowedPartition
    earlier: Following | None = None  # of the same partition, whose work must end first
    slot: int | None = None  # of its present session
    has_agreed: bool = False  # whether the leader has sent the start of the session
    retry_at: float = 0.0
    jobs: deque[Job] = field(default_factory=deque)  # jobs behind the running one
    is_at_work: bool = False
    failure: str = ""  # the latest one
    pause_s: float = _PAUSE_FIRST_S

    @property
    def is_busy(self) -> bool:
        """Whether a job of it, or of its predecessor, is running."""
        if self.earlier is not None and not self.earlier.is_busy:
            self.earlier = None
        return self.is_at_work or self.earlier is not None


class Job(Struct, frozen=True):
    """A job on a partition for a message of the leader. An int is a high watermark."""

    following: Following
    slot: int
    what: Begin | Agreed | Frame | Refused | int

    def run(self) -> EpochHistory | EntryIndex | None:
        """Run the job. Return the log's history or its new end.

        Raises:
            IsologError: the partition's method has failed.
        """
        partition = self.following.partition
        match self.what:
            case Begin():
                return partition.history()
            case Agreed(entry=entry, reset_offset=offset, high_watermark=high):
                at = EntryIndex(entry)
                begin = None if offset is None else Boundary(at, Offset(offset))
                return partition.cut_back(Agreement(partition.epoch, at, EntryIndex(high), begin))
            case Frame(first=first, rows=rows, data=data, high_watermark=high):
                return partition.append_frame(EntryIndex(first), rows, data, EntryIndex(high))
            case Refused(error=error):
                partition.on_refused(error)  # before the next session begins
            case int():
                partition.take_high_watermark(EntryIndex(self.what))
            case _:
                assert_never(self.what)
        return None


class Connect(Struct, frozen=True):
    """An effect: open a stream to the leader's current address."""

    window_bytes: int


class HangUp(Struct, frozen=True):
    """An effect: end the stream in any state."""


Effect = bytes | Job | Connect | HangUp | AskPromise
"""Send a message, run a job on another thread, connect, end the stream, or make a promise."""


class FollowerState(Enum):
    """The state of the stream to the leader."""

    RESTING = "resting"
    CALLING = "calling"
    WELCOME = "welcome"
    STOPPED = "stopped"


class FollowerStreamCore:
    """The follower of one leader, across successive streams."""

    def __init__(
        self, leader: BrokerId, window_bytes: int, settings: ReplicationSettings, now: float
    ) -> None:
        self._leader = leader
        self._settings = settings
        self._window_bytes = window_bytes
        self._state = FollowerState.RESTING
        self._retry_at = now
        self._pause_s = _PAUSE_FIRST_S
        self._last_error = ""
        self._followings: dict[PartitionId, Following] = {}
        self._waiting: dict[PartitionId, Following] = {}  # those without a session
        self._slots: dict[int, Following] = {}
        self._numbers = itertools.count()
        self._effects: list[Effect] = []
        self.at_work = 0
        """The number of running jobs."""
        self.failures = 0
        """The number of sessions that were refused or ended by an error of one partition."""

    def effects(self) -> list[Effect]:
        """Remove and return the pending effects, in order."""
        effects, self._effects = self._effects, []
        return effects

    def wake_at(self) -> float | None:
        """Return the time of the next :meth:`tick` without other events. None: never."""
        if self._state is FollowerState.RESTING:
            return self._retry_at
        if self._state is not FollowerState.WELCOME:
            return None
        return min(
            (each.retry_at for each in self._waiting.values() if not each.is_busy), default=None
        )

    # -- partitions ------------------------------------------------------------------------------

    def follow(self, partition: FollowedPartition, now: float) -> None:
        """Follow a partition, in place of an earlier one with the same key."""
        following = Following(partition, self._drop(partition.key))
        self._followings[partition.key] = self._waiting[partition.key] = following
        self.tick(now)

    def unfollow(self, key: PartitionId) -> bool:
        """Stop following a partition, though its job may still run.

        Return whether other partitions are left.
        """
        self._drop(key)
        return bool(self._followings)

    def set_window(self, window_bytes: int) -> None:
        """Set the limit of the leader's bytes in flight."""
        if window_bytes != self._window_bytes:
            self._window_bytes = window_bytes
            if self._state is FollowerState.WELCOME:
                self._send(Room(window_bytes))

    def stop(self) -> None:
        """Drop all partitions and end the stream."""
        self._end_sessions()
        self._waiting.clear()
        self._followings.clear()
        self._state = FollowerState.STOPPED
        self._effects.append(HangUp())

    # -- the stream ------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the stream is open or being opened."""
        return self._state in (FollowerState.CALLING, FollowerState.WELCOME)

    def tick(self, now: float) -> None:
        """Connect, or begin the sessions that are due."""
        if self._state is FollowerState.RESTING and now >= self._retry_at:
            self._state = FollowerState.CALLING
            self._effects.append(Connect(self._window_bytes))
        elif self._state is FollowerState.WELCOME:
            for key, following in list(self._waiting.items()):
                if not following.is_busy and following.retry_at <= now:
                    del self._waiting[key]
                    number = following.slot = next(self._numbers)
                    self._slots[number] = following
                    self._do(Job(following, number, Begin()))

    def on_lost(self, error: IsologError, now: float) -> None:
        """Handle the end of the stream, or a failed connection."""
        if not self.is_connected:
            return
        if str(error) != self._last_error:
            self._last_error = str(error)
            logger.info("following broker %s failed: %s", self._leader, error)
        was_welcome = self._state is FollowerState.WELCOME
        self._pause_s = (
            _PAUSE_FIRST_S if was_welcome else min(_STREAM_PAUSE_MAX_S, 2 * self._pause_s)
        )
        self._state, self._retry_at = FollowerState.RESTING, now + self._pause_s
        self._end_sessions()
        self._waiting = dict(self._followings)
        self._effects.append(HangUp())

    def on_received(self, message: Said, check: Callable[[str], None], now: float) -> None:
        """Handle a message of the leader. ``check(proof)`` raises unless the leader made the proof.

        Raises:
            IsologError: the message is invalid, or the leader is stopping. The stream must end.
        """
        if isinstance(message, Welcome):
            check(message.proof)
            self._state = FollowerState.WELCOME
            self.tick(now)
            return
        if self._state is not FollowerState.WELCOME:
            raise InvalidRequest("the first message of a leader must be Welcome")
        match message:
            case Frame() | Agreed() | Refused():
                self._take(message.slot, message, now)
            case HighWatermarks():
                for number, entry in message.entries:
                    self._take(number, entry, now)
            case Beat():
                self._send(Beat())
            case AskPromise():
                self._effects.append(message)
            case Bye():
                raise BrokerStopping(f"broker {self._leader} is stopping")
            case Acked() | Follow() | Unfollow() | Room() | Promised():
                raise InvalidRequest(f"a leader must not send {type(message).__name__}")
            case _:
                assert_never(message)

    def on_promised(self, asked: AskPromise) -> None:
        """Send the leader a promise of this broker not to lead its partitions for a time."""
        if self._state is FollowerState.WELCOME:
            self._send(Promised(asked.asked_at, asked.lasts_s))

    # -- jobs ------------------------------------------------------------------------------------

    def on_done(self, job: Job, result: EpochHistory | EntryIndex | None, now: float) -> None:
        """Handle the result of a job."""
        following = job.following
        if self._slots.get(job.slot) is following:
            match job.what:
                case Begin():
                    assert isinstance(result, EpochHistory)
                    self._request(job.slot, following.partition, result)
                case Frame() | Agreed():
                    assert isinstance(result, int)
                    if isinstance(job.what, Frame):
                        following.pause_s = _PAUSE_FIRST_S
                    self._send(Acked(((job.slot, int(result)),)))
                case Refused():
                    self._end_session(following)
                    self._pause(following, now)
        self._finish_job(following, now)

    def on_failed(self, job: Job, error: IsologError, now: float) -> None:
        """Handle a failed job: its session ends, and another one begins after a pause."""
        if self._slots.get(job.slot) is job.following:
            self._fail(job.following, error, now)
        self._finish_job(job.following, now)

    # -- internals -------------------------------------------------------------------------------

    def _send(self, message: Packed) -> None:
        self._effects.append(message.pack())

    def _take(self, number: int, what: Agreed | Frame | Refused | int, now: float) -> None:
        following = self._slots.get(number)
        if following is None:
            return  # the message was in flight when the session ended
        epoch = following.partition.epoch
        if isinstance(what, Agreed):
            following.has_agreed = True
        elif not following.has_agreed and not isinstance(what, Refused):
            self._fail(following, InvalidRequest("the leader sent entries before Agreed"), now)
            return
        if isinstance(what, Frame) and what.leader_epoch != epoch:
            text = f"entries of leader epoch {what.leader_epoch} in a session of {epoch}"
            self._fail(following, InvalidRequest(text), now)
            return
        self._do(Job(following, number, what))

    def _do(self, job: Job) -> None:
        if job.following.is_at_work:
            job.following.jobs.append(job)
        else:
            job.following.is_at_work = True
            self.at_work += 1
            self._effects.append(job)

    def _finish_job(self, following: Following, now: float) -> None:
        following.is_at_work = False
        self.at_work -= 1
        if following.jobs:
            self._do(following.jobs.popleft())
        elif self._waiting:
            self.tick(now)  # a waiting partition may have waited for this job

    def _request(self, number: int, partition: FollowedPartition, history: EpochHistory) -> None:
        key, epoch = partition.key, int(partition.epoch)
        generation = partition.generation
        self._send(Follow(number, key.topic_id, key.number, epoch, generation, history))

    def _drop(self, key: PartitionId) -> Following | None:
        found = self._followings.pop(key, None)
        self._waiting.pop(key, None)
        if found is not None and found.slot is not None:
            self._send(Unfollow(found.slot))
            self._end_session(found)
        return found

    def _end_session(self, following: Following) -> None:
        if following.slot is not None:
            self._slots.pop(following.slot, None)
        following.slot, following.has_agreed = None, False
        following.jobs.clear()

    def _end_sessions(self) -> None:
        for following in list(self._slots.values()):
            self._end_session(following)

    def _fail(self, following: Following, error: IsologError, now: float) -> None:
        """End one session after a failure. The other sessions continue."""
        if following.failure != str(error):
            following.failure = str(error)
            logger.warning("replication of %s failed: %s", following.partition.key, error)
        damaged = error.details.get("entry") if isinstance(error, DamagedEntries) else None
        assert following.slot is not None
        self._send(Unfollow(following.slot, damaged, isinstance(error, DiskFull | StorageFailure)))
        self._end_session(following)
        self._pause(following, now)

    def _pause(self, following: Following, now: float) -> None:
        """Schedule another session after a pause, which doubles with each failure."""
        self.failures += 1
        following.retry_at = now + following.pause_s
        following.pause_s = min(_PARTITION_PAUSE_MAX_S, 2 * following.pause_s)
        self._waiting[following.partition.key] = following
