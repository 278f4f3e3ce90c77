"""What the parts of a partition share: its log, its core, its lock, its role and who waits.

``partition`` states the invariant, the lock rule and the order of effects. :class:`ReplicaRole`
takes the role from the partition's record, and proposes changes of that record
(``consistency.partition.progress``, ``consistency.control.election``).

**Fitness.** Every write to the log is made ``with`` the replica's :class:`Fitness`, under the
partition's lock. The rules are in ``consistency.control.handover``; ``handover`` acts on them.

**Roles.** A replica that leads does so in the epoch of the partition's record, and only while the
broker's lease lasts, or its followers have promised not to lead (``replication.promises``); one
that follows takes entries of its leader's epoch. A role begins under the lock, so nothing that was
asked under the role before goes on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Final

from msgspec import Struct, field

from spark_stream.broker.partition.sessions import Sessions
from spark_stream.broker.partition.waiters import Callers, PartitionLock, WakeUp, wake_all
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
from spark_stream.consistency.replication.follower import Refusal
from spark_stream.consistency.replication.leader import Boundary
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
    """Whether the log of a replica takes writes. Any thread may look at ``trouble``."""

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
            self.note(error)

    def note(self, error: IsologError) -> None:
        """Note that the log has refused a write."""
        full, now = isinstance(error, DiskFull), self._clock.steady_us()
        self.error = error
        self.trouble = after_refusal(self.trouble, now, full=full)
        if self._on_trouble is not None:
            self._on_trouble()

    def check(self) -> None:
        """Raise the last write's error if the log is in trouble."""
        if self.trouble is not None and self.error is not None:
            raise self.error.again()

    def put_off(self) -> None:
        """Look at the trouble again later, if there still is one."""
        if self.trouble is not None:
            self.trouble = after_attempt(self.trouble, self._clock.steady_us())

    def end(self) -> None:
        """Forget the trouble: the log has taken a probe."""
        self.trouble = self.error = None


class Role(Enum):
    """What a replica is at the moment."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionState(Struct, eq=False):
    """One replica's state: names, log and core stay, the rest changes under the lock."""

    topic: str
    number: int
    log: PartitionLog
    core: Replica
    clock: Clock
    fitness: Fitness
    sessions: Sessions
    callers: Callers
    moved: Callable[[], None]
    """Is called whenever housekeeping or a force may have become due; under the lock."""
    proposed: Callable[[ProposeIsr | ProposeRecord], None]
    """Is called with changes of the record that are to be made; under the lock."""
    role: Role
    traffic: Traffic = field(default_factory=Traffic.new)
    turn: int = 0
    """How often the role or its epoch has changed: what was begun in an earlier turn is over."""
    hand_overs: int = 0
    closed: IsologError | None = None
    """Why the partition is closed."""
    serves: Callable[[], bool] | None = None
    """Whether the broker's lease lasts; None: it needs none."""
    lock: PartitionLock = field(default_factory=PartitionLock)

    @property
    def name(self) -> str:
        """The partition's name in messages."""
        return f"{self.topic}/{self.number}"

    # -- its role ----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether the replica leads, and may do so at this moment."""
        if self.role is not Role.LEADER:
            return False
        return self.serves is None or self.serves() or self._is_promised()

    def _is_promised(self) -> bool:
        """Return whether no other in-sync replica will lead for now, whatever is on record."""
        progress = self.core.progress
        until = None if progress is None else progress.leads_until()
        return until is not None and self.clock.monotonic() < until

    def begin_role(self, role: Role) -> None:
        """Begin a role: the sessions of followers end that belong to the role before."""
        self.role, self.turn = role, self.turn + 1
        self.sessions.end_all()

    def check_open(self) -> None:
        """Raise the error that says why the partition is closed, if it is."""
        if self.closed is not None:
            raise self.closed.again()

    def check_leads(self) -> None:
        """Raise NotLeader unless the replica leads; raise why it is closed if it is."""
        self.check_open()
        if not self.leads:
            raise self.not_leader()

    def check_answers(self, *, near: bool) -> None:
        """Check as :meth:`check_leads`; with ``near``, accept a follower too."""
        self.check_open()
        if not (self.leads or (near and self.role is Role.FOLLOWER)):
            raise self.not_leader()

    def check_takes(self) -> None:
        """Check as :meth:`check_leads`; raise LeaderUnavailable while it is handed over."""
        self.check_leads()
        if self.hand_overs:
            raise LeaderUnavailable(
                f"{self.name}: this broker hands the partition over",
                topic=self.topic,
                partition=self.number,
            )

    def check_follows(self, turn: int) -> None:
        """Raise NotLeader unless the replica follows, in this turn; raise why it is closed."""
        self.check_open()
        if self.role is not Role.FOLLOWER or turn != self.turn:
            raise NotLeader(
                f"{self.name}: it follows another leader by now, or none, or has begun again",
                topic=self.topic,
                partition=self.number,
            )

    def not_leader(self) -> NotLeader:
        """Return the error for a request that only the leader answers."""
        return NotLeader(
            f"{self.name}: this broker does not lead the partition any more",
            topic=self.topic,
            partition=self.number,
            leader="",
        )

    def refused(self, refusal: Refusal, epoch: int) -> IsologError:
        """Return the error for the refusal of a leader or a follower of this epoch."""
        kinds: dict[Refusal, type[IsologError]] = {
            Refusal.FENCED: LeaderEpochFenced,
            Refusal.UNKNOWN_EPOCH: UnknownLeaderEpoch,
        }
        return kinds.get(refusal, NotLeader)(
            f"{self.name}: {refusal.value} (epoch {epoch}, here {self.core.leader_epoch})",
            topic=self.topic,
            partition=self.number,
        )

    # -- its log -----------------------------------------------------------------------------------

    def force(self) -> None:
        """Force what was appended to the disk, unless the topic says ``flush=none``.

        The caller does not hold the lock.

        Raises:
            StorageFailure: that failed.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        with self.lock:
            self.check_open()
            if self.log.format.settings.flush is not Flush.NONE:
                self.log.flush()

    # -- effects -----------------------------------------------------------------------------------

    def carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Carry out what the core decided; return the reads to wake once the lock is free."""
        self.moved()
        self.sessions.keep(self.core.sessions())
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self.proposed(effect)
            elif isinstance(effect, HighWatermarkMoved):
                self.sessions.recent.drop_below(effect.entry)
                self.sessions.give_news(entries=False)
        return self.callers.carry_out(effects)


class ReplicaRole:
    """The role of one replica, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def trim(self, before: Offset) -> None:
        """Move the log start that readers see up to ``before``. Housekeeping removes files."""
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
        """Lead as the record says; a leader of this epoch takes over the record's changes.

        ``serves``: whether the broker's lease lasts; None: it needs none.

        Raises:
            DiskFull, StorageFailure: The log ends below the partition's log start, and could not be
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
                return  # an old view
            elif not isinstance(lifted := lift_epoch(record, me, core.epochs.last or 0), Unchanged):
                state.proposed(ProposeRecord(me, record, lifted, version))
                return  # it leads once that is on record
            else:
                self._skip_trimmed(now)
                state.begin_role(Role.LEADER)
                effects = core.lead_replicas(me, record, version, now)
            woken = state.carry_out(effects)
        wake_all(woken)

    def _skip_trimmed(self, now: int) -> None:
        """Begin the log at the trim, if the log ends below it: an unclean election can do that.

        Else readers would not see the next records.
        """
        log, core = self._state.log, self._state.core
        trimmed = core.bounds_state.trimmed
        if log.end.offset < trimmed:
            at = Boundary(log.end.entry, trimmed)
            log.reset(at)
            core.reset(at, now)
            logger.warning("%s: begins at offset %d, its log start", self._state.name, trimmed)

    def follow(self, epoch: LeaderEpoch) -> bool:
        """Follow another broker, which leads in this epoch. Return False if that is not new."""
        return self._end_leading(Role.FOLLOWER, epoch)

    def rest(self, epoch: LeaderEpoch) -> None:
        """Have no role: no broker leads, or this one does not yet."""
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
        """Refuse appends: another broker is to lead as soon as it has all entries."""
        with self._state.lock:
            self._state.hand_overs += 1

    def end_hand_over(self) -> None:
        """Take appends again if it still leads, and each hand-over that has begun has ended."""
        with self._state.lock:
            self._state.hand_overs -= 1

    def take_isr(self, record: PartitionRecord, version: int) -> None:
        """Take over the in-sync replicas that were proposed and are on record now."""
        state = self._state
        with state.lock:
            if state.closed is not None or state.role is not Role.LEADER:
                return
            now = state.clock.steady_us()
            woken = state.carry_out(state.core.isr_changed(record, version, now))
        wake_all(woken)

    def refuse_isr(self, proposed_at: int, record: PartitionRecord, version: int) -> None:
        """Take over the record that is there instead of what was proposed for that version."""
        state = self._state
        with state.lock:
            if state.closed is not None:
                return
            now = state.clock.steady_us()
            woken = state.carry_out(state.core.isr_refused(proposed_at, record, version, now))
        wake_all(woken)

    def tick(self) -> None:
        """Let the core see the time, and which brokers live: who is in sync may change."""
        state = self._state
        with state.lock:
            if state.closed is not None:
                return
            woken = state.carry_out(state.core.tick(state.clock.steady_us()))
        wake_all(woken)

    def tick_due(self) -> int | None:
        """Return when :meth:`tick` may change something, by the steady clock, or None for never."""
        with self._state.lock:
            return None if self._state.closed is not None else self._state.core.tick_due()
