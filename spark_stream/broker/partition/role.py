"""How a replica takes its role from the partition's record, and what it proposes for that record.

Roles are explained in ``partition.state``. The rules are in ``consistency.partition.progress`` and
``consistency.control.election``.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_stream.broker.partition.outcomes import WakeUp, wake_all
from spark_stream.broker.partition.state import PartitionState, Role
from spark_stream.consistency.control.election import Unchanged, lift_epoch
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.consistency.partition.effects import Effects, ProposeRecord
from spark_stream.consistency.replication.leader import Boundary
from spark_stream.loggers import logger_of

logger = logger_of(__name__)


class ReplicaRole:
    """The role of one replica, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def trim(self, before: Offset) -> None:
        """Move the log start that readers see up to ``before``. Housekeeping removes files."""
        if before > self._state.core.bounds_state.trimmed:
            self._change(lambda now: self._state.core.trim(before))

    def lead(
        self,
        me: Member,
        record: PartitionRecord,
        version: int,
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """Lead as the record says; a leader of this epoch takes over the record's changes.

        ``serves``: whether the broker's lease lasts.

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
        self._change(
            lambda now: (
                self._state.core.isr_changed(record, version, now)
                if self._state.role is Role.LEADER
                else []
            )
        )

    def refuse_isr(self, proposed_at: int, record: PartitionRecord, version: int) -> None:
        """Take over the record that is there instead of what was proposed for that version."""
        self._change(lambda now: self._state.core.isr_refused(proposed_at, record, version, now))

    def tick(self) -> None:
        """Let the core see the time, and which brokers live: who is in sync may change."""
        self._change(self._state.core.tick)

    def tick_due(self) -> int | None:
        """Return when :meth:`tick` may change something, by the steady clock, or None for never."""
        with self._state.lock:
            return None if self._state.closed is not None else self._state.core.tick_due()

    def _change(self, change: Callable[[int], Effects]) -> None:
        """Change the core at this moment of the steady clock, unless the partition is closed."""
        woken: tuple[WakeUp, ...] = ()
        with self._state.lock:
            if self._state.closed is None:
                woken = self._state.carry_out(change(self._state.clock.steady_us()))
        wake_all(woken)
