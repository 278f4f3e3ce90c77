"""What the parts of a partition share: its log, its core, its lock, its role and who waits.

``partition`` states the invariant, the lock rule and the order of effects.

**Roles.** A replica that leads does so in the epoch of the partition's record, and only while the
broker's lease lasts, or its followers have promised not to lead (``replication.promises``); one
that follows takes entries of its leader's epoch. A role begins under the lock, so nothing that was
asked under the role before goes on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from msgspec import Struct, field

from spark_stream.broker.partition.callers import Callers
from spark_stream.broker.partition.fitness import Fitness
from spark_stream.broker.partition.lock import PartitionLock
from spark_stream.broker.partition.outcomes import WakeUp
from spark_stream.broker.partition.sessions import Sessions
from spark_stream.consistency.partition.effects import (
    Effects,
    HighWatermarkMoved,
    ProposeIsr,
    ProposeRecord,
)
from spark_stream.consistency.partition.replica import Replica
from spark_stream.consistency.replication.follower import Refusal
from spark_stream.counting import Traffic
from spark_stream.environment import Clock
from spark_stream.errors import (
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    UnknownLeaderEpoch,
)
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.settings import Flush


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
    serves: Callable[[], bool] = lambda: True
    """Whether the broker's lease lasts."""
    lock: PartitionLock = field(default_factory=PartitionLock)

    @property
    def name(self) -> str:
        """The partition's name in messages."""
        return f"{self.topic}/{self.number}"

    # -- its role ----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether the replica leads, and may do so at this moment."""
        return self.role is Role.LEADER and (self.serves() or self._is_promised())

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
