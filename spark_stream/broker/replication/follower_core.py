"""The rules by which a broker follows one leader: no thread, lock, clock or socket.

The shell (``fetchers``) hands in what is to be followed, what the leader says, what came of the
work, and the time. It carries out the effects in their order: :meth:`FollowerStreamCore.effects`.

============  ==========================================  =====================================
stream        what may happen                             next state
============  ==========================================  =====================================
resting       its pause is over (``tick``)                calling: ``Connect``
calling       ``Welcome`` with the leader's proof         welcome: sessions are asked for
any           the stream is lost, or the leader says      resting: ``HangUp``; all sessions are
              what makes no sense                         over; the pause is longer each time
any           ``stop``                                    stopped: ``HangUp``
============  ==========================================  =====================================

A partition on a stream that is welcome:

============  ==========================================  =========================================
partition     what may happen                             next state
============  ==========================================  =========================================
waiting       its pause is over, and no work of it or of  asking: its history is read (``Begin``)
              its predecessor is under way                and sent with a new slot number
asking        ``Agreed``: the log is cut back             following
following     ``Frame``: appended, then acknowledged      following
any           ``Refused``, work that failed, or the end   waiting, or gone if it was dropped
              of the stream
============  ==========================================  =========================================

Invariants:

* The leader is sent nothing before it has proved who it is, and nothing is taken from it.
* The work of a partition is done one piece at a time, in the order in which the leader sent it.
* Work of a slot that is over is dropped; the result of work that is under way then is ignored. A
  slot number is never used again, on any stream of this leader.
* Nothing is appended before the log was cut back to what it shares with the leader's.
* Entries are acknowledged after they were appended, on the slot and stream on which they came.
* A partition that fails ends its session and no other.
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
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.consistency.replication.leader import Boundary
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
    """Work: read the history of a log."""


class Following(Struct, eq=False):
    """A partition that is to be followed, over all streams and sessions."""

    partition: FollowedPartition
    earlier: Following | None = None  # of the same partition: its work ends first
    slot: int | None = None  # that of its present session
    has_agreed: bool = False  # whether the leader has said where the session begins
    retry_at: float = 0.0
    jobs: deque[Job] = field(default_factory=deque)  # jobs that wait for the one under way
    is_at_work: bool = False
    failure: str = ""  # the last one
    pause_s: float = _PAUSE_FIRST_S

    @property
    def is_busy(self) -> bool:
        """Whether its work, or that of the one before it, is under way."""
        if self.earlier is not None and not self.earlier.is_busy:
            self.earlier = None
        return self.is_at_work or self.earlier is not None


class Job(Struct, frozen=True):
    """Work on a partition, as the leader has sent it; an int is a high watermark."""

    following: Following
    slot: int
    what: Begin | Agreed | Frame | Refused | int

    def run(self) -> EpochHistory | EntryIndex | None:
        """Do the work; return the log's history, or where the log ends after it.

        Raises:
            IsologError: as the partition's methods.
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
    """Open a stream to the leader, wherever it is now."""

    window_bytes: int


class HangUp(Struct, frozen=True):
    """End the stream, whatever its state is."""


Effect = bytes | Job | Connect | HangUp | AskPromise
"""Send a message, do work on another thread, or connect, or end the stream, or promise."""


class FollowerState(Enum):
    """The state of the stream."""

    RESTING = "resting"
    CALLING = "calling"
    WELCOME = "welcome"
    STOPPED = "stopped"


class FollowerStreamCore:
    """The follower of one leader, over one stream after the other."""

    def __init__(
        self, leader: BrokerId, window_bytes: int, settings: ReplicationSettings, now: float
    ) -> None:
        self._leader = leader
        self._settings = settings
        self._window_bytes = window_bytes
        self._state = FollowerState.RESTING
        self._retry_at = now
        self._pause_s = _PAUSE_FIRST_S
        self._said = ""
        self._followings: dict[PartitionId, Following] = {}
        self._waiting: dict[PartitionId, Following] = {}  # those without a session
        self._slots: dict[int, Following] = {}
        self._numbers = itertools.count()
        self._effects: list[Effect] = []
        self.at_work = 0
        """How many jobs are under way."""
        self.failures = 0
        """Sessions that were refused, or ended by an error of one partition."""

    def effects(self) -> list[Effect]:
        """Return what is to be done, in order, and forget it."""
        effects, self._effects = self._effects, []
        return effects

    def wake_at(self) -> float | None:
        """Return when to call :meth:`tick` even if nothing else happens; None: not at all."""
        if self._state is FollowerState.RESTING:
            return self._retry_at
        if self._state is not FollowerState.WELCOME:
            return None
        return min(
            (each.retry_at for each in self._waiting.values() if not each.is_busy), default=None
        )

    # -- what is to be followed ------------------------------------------------------------------

    def follow(self, partition: FollowedPartition, now: float) -> None:
        """Follow a partition from now on, in place of any earlier one with the same key."""
        following = Following(partition, self._drop(partition.key))
        self._followings[partition.key] = self._waiting[partition.key] = following
        self.tick(now)

    def unfollow(self, key: PartitionId) -> bool:
        """Stop following; return whether other partitions are left. Work may still be under way."""
        self._drop(key)
        return bool(self._followings)

    def set_window(self, window_bytes: int) -> None:
        """Set how many bytes the leader may have under way from now on."""
        if window_bytes != self._window_bytes:
            self._window_bytes = window_bytes
            if self._state is FollowerState.WELCOME:
                self._say(Room(window_bytes))

    def stop(self) -> None:
        """Follow nothing more."""
        self._end_sessions()
        self._waiting.clear()
        self._followings.clear()
        self._state = FollowerState.STOPPED
        self._effects.append(HangUp())

    # -- the stream ------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a stream, or one is being opened."""
        return self._state in (FollowerState.CALLING, FollowerState.WELCOME)

    def tick(self, now: float) -> None:
        """Do what is due."""
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
        """Note that the stream is over, or could not be opened."""
        if not self.is_connected:
            return
        if str(error) != self._said:
            self._said = str(error)
            logger.info("following broker %s: %s", self._leader, error)
        was_welcome = self._state is FollowerState.WELCOME
        self._pause_s = (
            _PAUSE_FIRST_S if was_welcome else min(_STREAM_PAUSE_MAX_S, 2 * self._pause_s)
        )
        self._state, self._retry_at = FollowerState.RESTING, now + self._pause_s
        self._end_sessions()
        self._waiting = dict(self._followings)
        self._effects.append(HangUp())

    def on_received(self, message: Said, check: Callable[[str], None], now: float) -> None:
        """Take what the leader says. ``check`` raises if a proof is not the leader's.

        Raises:
            IsologError: the message makes no sense, or the leader stops; the stream is to end.
        """
        if isinstance(message, Welcome):
            check(message.proof)
            self._state = FollowerState.WELCOME
            self.tick(now)
            return
        if self._state is not FollowerState.WELCOME:
            raise InvalidRequest("a leader must first say who it is")
        match message:
            case Frame() | Agreed() | Refused():
                self._take(message.slot, message, now)
            case HighWatermarks():
                for number, entry in message.entries:
                    self._take(number, entry, now)
            case Beat():
                self._say(Beat())
            case AskPromise():
                self._effects.append(message)
            case Bye():
                raise BrokerStopping(f"broker {self._leader} is about to stop")
            case Acked() | Follow() | Unfollow() | Room() | Promised():
                raise InvalidRequest(f"a leader does not say {type(message).__name__}")
            case _:
                assert_never(message)

    def on_promised(self, asked: AskPromise) -> None:
        """Tell the leader that this broker will not lead what it follows here, for a while."""
        if self._state is FollowerState.WELCOME:
            self._say(Promised(asked.asked_at, asked.lasts_s))

    # -- the work --------------------------------------------------------------------------------

    def on_done(self, job: Job, result: EpochHistory | EntryIndex | None, now: float) -> None:
        """Note what came of a job."""
        following = job.following
        if self._slots.get(job.slot) is following:
            match job.what:
                case Begin():
                    assert isinstance(result, EpochHistory)
                    self._ask(job.slot, following.partition, result)
                case Frame() | Agreed():
                    assert isinstance(result, int)
                    if isinstance(job.what, Frame):
                        following.pause_s = _PAUSE_FIRST_S
                    self._say(Acked(((job.slot, int(result)),)))
                case Refused():
                    self._end_session(following)
                    self._pause(following, now)
        self._go_on(following, now)

    def on_failed(self, job: Job, error: IsologError, now: float) -> None:
        """Note that a job has failed: its session ends, and another one begins after a pause."""
        if self._slots.get(job.slot) is job.following:
            self._fail(job.following, error, now)
        self._go_on(job.following, now)

    # -- inside ----------------------------------------------------------------------------------

    def _say(self, message: Packed) -> None:
        self._effects.append(message.pack())

    def _take(self, number: int, what: Agreed | Frame | Refused | int, now: float) -> None:
        following = self._slots.get(number)
        if following is None:
            return  # the session has ended, and this was on its way
        epoch = following.partition.epoch
        if isinstance(what, Agreed):
            following.has_agreed = True
        elif not following.has_agreed and not isinstance(what, Refused):
            self._fail(following, InvalidRequest("entries before the logs were compared"), now)
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

    def _go_on(self, following: Following, now: float) -> None:
        following.is_at_work = False
        self.at_work -= 1
        if following.jobs:
            self._do(following.jobs.popleft())
        elif self._waiting:
            self.tick(now)  # a waiting partition may need this work to end

    def _ask(self, number: int, partition: FollowedPartition, history: EpochHistory) -> None:
        key, epoch = partition.key, int(partition.epoch)
        generation = partition.generation
        self._say(Follow(number, key.topic_id, key.number, epoch, generation, history))

    def _drop(self, key: PartitionId) -> Following | None:
        found = self._followings.pop(key, None)
        self._waiting.pop(key, None)
        if found is not None and found.slot is not None:
            self._say(Unfollow(found.slot))
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
        """End a session with which the follower cannot go on; the other sessions go on."""
        if following.failure != str(error):
            following.failure = str(error)
            logger.warning("the copy of %s: %s", following.partition.key, error)
        damaged = error.details.get("entry") if isinstance(error, DamagedEntries) else None
        assert following.slot is not None
        self._say(Unfollow(following.slot, damaged, isinstance(error, DiskFull | StorageFailure)))
        self._end_session(following)
        self._pause(following, now)

    def _pause(self, following: Following, now: float) -> None:
        """Let the partition wait for another session; longer each time."""
        self.failures += 1
        following.retry_at = now + following.pause_s
        following.pause_s = min(_PARTITION_PAUSE_MAX_S, 2 * following.pause_s)
        self._waiting[following.partition.key] = following
