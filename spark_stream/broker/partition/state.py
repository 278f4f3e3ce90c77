"""The shared state of a partition's parts: log, core, lock, role and waiters.

``partition`` states the invariant, the lock rule and the order of effects. :class:`ReplicaRole`
applies the partition's record to the role and proposes changes of that record
(``consistency.partition.progress``, ``consistency.control.election``).

**Fitness.** Every write to the log is made ``with`` the replica's :class:`Fitness`, under the
partition's lock. The rules are in ``consistency.control.handover``.
``broker.node.handover`` replaces a leader in trouble.

**Roles.** A replica leads in the epoch of the partition's record, and only while the broker's lease
is valid or its followers have promised not to lead (``consistency.replication.promises``). A
follower accepts entries of its leader's epoch only. A role begins under the lock, so requests under
the previous role have ended, or fail their next check.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Final

from msgspec import Struct, field

from spark_stream.broker.partition.sessions import Sessions
from spark_stream.broker.partition.waiters import PartitionLock, PartitionWaiters, WakeUp, wake_all
from spark_stream.consistency.control.election import Unchanged, lift_epoch
from spark_stream.consistency.control.handover import (
    Trouble,
    after_attempt,
    after_refusal,
    after_write,
)
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.consistency.partition.effects import (
    Effects,
    HighWatermarkMoved,
    ProposeIsr,
    ProposeRecord,
)
from spark_stream.consistency.partition.replica import Replica
from spark_stream.consistency.replication.bounds import Boundary
from spark_stream.consistency.replication.follower import Refusal
from spark_stream.counting import Traffic
from spark_stream.environment import Clock
from spark_stream.errors import (
    DiskFull,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    StorageFailure,
    UnknownLeaderEpoch,
)
from spark_stream.loggers import logger_of
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush

logger = logger_of(__name__)

_REFUSALS: Final = (DiskFull, StorageFailure)


class Fitness:
    """The results of a log's latest writes. Any thread may read ``trouble``."""

    __slots__ = ("_clock", "_on_trouble", "error", "trouble")

    def __init__(self, clock: Clock, on_trouble: Callable[[], None] | None) -> None:
        """``on_trouble`` is called when the log refuses a write."""
        self._clock = clock
        self._on_trouble = on_trouble
        self.trouble: Trouble | None = None
        self.error: IsologError | None = None
        """The error of the last refused write."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if self.trouble is not None:
                self.trouble = after_write(self.trouble)
        elif isinstance(error, _REFUSALS):
            self.record_refusal(error)

    def record_refusal(self, error: IsologError) -> None:
        """Record the error of a refused write."""
        full, now = isinstance(error, DiskFull), self._clock.steady_us()
        self.error = error
        self.trouble = after_refusal(self.trouble, now, full=full)
        if self._on_trouble is not None:
            self._on_trouble()

    def check(self) -> None:
        """Raise the error of the last refused write, unless the log accepts writes again."""
        if self.trouble is not None and self.error is not None:
            raise self.error.again()

    def postpone(self) -> None:
        """Postpone the next action on the trouble."""
        if self.trouble is not None:
            self.trouble = after_attempt(self.trouble, self._clock.steady_us())

    def clear(self) -> None:
        """Clear the trouble after a successful probe."""
        self.trouble = self.error = None


class Role(Enum):
    """The role of a replica."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionState(Struct, eq=False):
    """The state of one replica. All but names, log and core changes only under the lock."""

    topic: str
    number: int
    log: PartitionLog
    core: Replica
    clock: Clock
    fitness: Fitness
    sessions: Sessions
    waiters: PartitionWaiters
    moved: Callable[[], None]
    """Called under the lock whenever housekeeping or an fsync may have become due."""
    proposed: Callable[[ProposeIsr | ProposeRecord], None]
    """Called under the lock with changes of the record to propose."""
    role: Role
    traffic: Traffic = field(default_factory=Traffic.new)
    turn: int = 0
    """The number of changes of the role or its epoch. Work of an earlier turn is ignored."""
    hand_overs: int = 0
    closed: IsologError | None = None
    """The error for callers once the partition is closed."""
    serves: Callable[[], bool] | None = None
    """Returns whether the broker's lease is valid. None: the broker needs no lease."""
    lock: PartitionLock = field(default_factory=PartitionLock)

    @property
    def name(self) -> str:
        """The partition's name in errors and logs."""
        return f"{self.topic}/{self.number}"

    # -- its role ----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether the replica leads, and may do so at this moment."""
        if self.role is not Role.LEADER:
            return False
        return self.serves is None or self.serves() or self._is_promised()

    def _is_promised(self) -> bool:
        """Return whether promises currently stop every other in-sync replica from leading."""
        progress = self.core.progress
        until = None if progress is None else progress.leads_until()
        return until is not None and self.clock.monotonic() < until

    def begin_role(self, role: Role) -> None:
        """Begin a role. End the followers' sessions of the previous role."""
        self.role, self.turn = role, self.turn + 1
        self.sessions.end_all()

    def check_open(self) -> None:
        """Raise the partition's closing error if it is closed."""
        if self.closed is not None:
            raise self.closed.again()

    def check_leads(self) -> None:
        """Raise NotLeader unless the replica leads, or the closing error if it is closed."""
        self.check_open()
        if not self.leads:
            raise self.not_leader()

    def check_answers(self, *, near: bool) -> None:
        """Check as :meth:`check_leads`, but with ``near`` accept a follower too."""
        self.check_open()
        if not (self.leads or (near and self.role is Role.FOLLOWER)):
            raise self.not_leader()

    def check_takes(self) -> None:
        """Check as :meth:`check_leads`, and raise LeaderUnavailable during a hand-over."""
        self.check_leads()
        if self.hand_overs:
            raise LeaderUnavailable(
                f"{self.name}: this broker hands the partition over",
                topic=self.topic,
                partition=self.number,
            )

    def check_follows(self, turn: int) -> None:
        """Raise NotLeader unless the replica follows in this turn, or the closing error."""
        self.check_open()
        if self.role is not Role.FOLLOWER or turn != self.turn:
            raise NotLeader(
                f"{self.name}: this replica has changed its leader or its role",
                topic=self.topic,
                partition=self.number,
            )

    def not_leader(self) -> NotLeader:
        """Return the error for a request that only the leader answers."""
        return NotLeader(
            f"{self.name}: this broker no longer leads the partition",
            topic=self.topic,
            partition=self.number,
            leader="",
        )

    def refused(self, refusal: Refusal, epoch: int) -> IsologError:
        """Return the error for a refusal between a leader and a follower of this epoch."""
        kinds: dict[Refusal, type[IsologError]] = {
            Refusal.FENCED: LeaderEpochFenced,
            Refusal.UNKNOWN_EPOCH: UnknownLeaderEpoch,
        }
        present = self.core.leader_epoch
        return kinds.get(refusal, NotLeader)(
            f"{self.name}: {refusal.value} (epoch {epoch}, here {present})",
            topic=self.topic,
            partition=self.number,
        )

    # -- its log -----------------------------------------------------------------------------------

    def force(self) -> None:
        """Fsync the appended records, unless the topic has ``flush=none``.

        The caller does not hold the lock.

        Raises:
            StorageFailure: the fsync failed.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        with self.lock:
            self.check_open()
            if self.log.format.settings.flush is not Flush.NONE:
                self.log.flush()

    # -- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Carry out the core's effects. Return the callbacks to run after the lock's release."""
        self.moved()
        self.sessions.keep(self.core.sessions())
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self.proposed(effect)
            elif isinstance(effect, HighWatermarkMoved):
                self.sessions.recent.drop_below(effect.entry)
                self.sessions.notify(entries=False)
        return self.waiters.carry_out(effects)


class ReplicaRole:
    """The changes of a replica's role, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def trim(self, before: Offset) -> None:
        """Move the log start for readers up to ``before``. Housekeeping removes the files."""
        state = self._state
        if before <= state.core.bounds_state.trimmed:
            return
        with state.lock:
            if state.closed is not None:
                return
            woken = state.carry_out(state.core.trim(before))
        wake_all(woken)

    def lead(
        self,
        me: Member,
        record: PartitionRecord,
        version: int,
        serves: Callable[[], bool] | None = None,
    ) -> None:
        """Lead as the record requires. A leader of this epoch applies the record's changes.

        ``serves`` returns whether the broker's lease is valid. None: the broker needs no lease.

        Raises:
            DiskFull, StorageFailure: the log ends below the partition's log start, and could not be
                emptied.
        """
        state, core = self._state, self._state.core
        with state.lock:
            if state.closed is not None:
                return
            state.serves = serves
            epoch, now = record.leader_epoch, self._state.clock.steady_us()
            if state.role is Role.LEADER and epoch == core.leader_epoch and core.progress:
                effects = core.isr_changed(record, version, now)
            elif epoch < core.leader_epoch:
                return  # the view is outdated
            elif not isinstance(lifted := lift_epoch(record, me, core.epochs.last or 0), Unchanged):
                state.proposed(ProposeRecord(me, record, lifted, version))
                return  # the replica leads once the record has the lifted epoch
            else:
                self._skip_trimmed(now)
                state.begin_role(Role.LEADER)
                effects = core.lead_replicas(me, record, version, now)
            woken = state.carry_out(effects)
        wake_all(woken)

    def _skip_trimmed(self, now: int) -> None:
        """Reset the log to the trimmed start if it ends below that.

        An unclean election can elect such a replica. Without the reset, readers would not see its
        next records.
        """
        log, core = self._state.log, self._state.core
        trimmed = core.bounds_state.trimmed
        if log.end.offset < trimmed:
            at = Boundary(log.end.entry, trimmed)
            log.reset(at)
            core.reset(at, now)
            logger.warning(
                "%s: the log ended below the start that a trim has set; it was emptied and begins"
                " at offset %d",
                self._state.name,
                trimmed,
            )

    def follow(self, epoch: LeaderEpoch) -> bool:
        """Follow the leader of this epoch. Return False if nothing has changed."""
        return self._end_leading(Role.FOLLOWER, epoch)

    def rest(self, epoch: LeaderEpoch) -> None:
        """Give up the role: no broker leads, or this one does not lead yet."""
        self._end_leading(Role.NONE, epoch)

    def _end_leading(self, role: Role, epoch: LeaderEpoch) -> bool:
        state, core = self._state, self._state.core
        with state.lock:
            old = epoch < core.leader_epoch
            same = state.role is role and epoch == core.leader_epoch
            if state.closed is not None or old or same:
                return False
            state.begin_role(role)
            woken = state.carry_out(core.follow(epoch))
        wake_all(woken)
        return True

    def begin_hand_over(self) -> None:
        """Refuse appends until the next leader has all entries."""
        with self._state.lock:
            self._state.hand_overs += 1

    def end_hand_over(self) -> None:
        """Accept appends again, after the end of the last hand-over, if the replica still leads."""
        with self._state.lock:
            self._state.hand_overs -= 1

    def take_isr(self, record: PartitionRecord, version: int) -> None:
        """Apply the proposed ISR, which the record now has."""
        state = self._state
        with state.lock:
            if state.closed is not None or state.role is not Role.LEADER:
                return
            now = state.clock.steady_us()
            woken = state.carry_out(state.core.isr_changed(record, version, now))
        wake_all(woken)

    def refuse_isr(self, proposed_at: int, record: PartitionRecord, version: int) -> None:
        """Apply the stored record, which has replaced the proposal for that version."""
        state = self._state
        with state.lock:
            if state.closed is not None:
                return
            now = state.clock.steady_us()
            woken = state.carry_out(state.core.isr_refused(proposed_at, record, version, now))
        wake_all(woken)

    def tick(self) -> None:
        """Update the ISR by the time and the live brokers."""
        state = self._state
        with state.lock:
            if state.closed is not None:
                return
            woken = state.carry_out(state.core.tick(state.clock.steady_us()))
        wake_all(woken)

    def tick_due(self) -> int | None:
        """Return the time of the next useful :meth:`tick`, by the steady clock. None: never."""
        with self._state.lock:
            return None if self._state.closed is not None else self._state.core.tick_due()
