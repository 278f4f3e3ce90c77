"""One replica in this broker: the shell around its core, with the lock, the log and its part.

The core (``consistency.replica``) decides; here one lock a replica guards core and log together,
and what the core's effects say is carried out (``callers`` has who waits). Here is what a replica
does whether it leads or follows: it takes its part from the partition's record, tells its bounds,
and gives entries to followers. ``following`` is what it takes from its leader.

**Parts.** A replica that leads does so in the epoch of the record, and only while the broker's
lease lasts; one that follows takes entries of its leader's epoch. A part begins under the lock, so
nothing that was asked under the part before goes on after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from spark_stream.broker.callers import Callers
from spark_stream.broker.fitness import Fitness
from spark_stream.broker.outcomes import WakeUp, wake_all
from spark_stream.broker.partition_lock import PartitionLock
from spark_stream.broker.recent import Recent, Room
from spark_stream.broker.sessions import News, Sessions
from spark_stream.consistency.effects import (
    Effects,
    HighWatermarkMoved,
    ProposeIsr,
    ProposeRecord,
)
from spark_stream.consistency.election import Unchanged, lift_epoch
from spark_stream.consistency.epochs import EpochHistory
from spark_stream.consistency.follower import (
    Agreed,
    Refusal,
)
from spark_stream.consistency.ids import EntryIndex, LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.lineage import Lineage, lineage_of, surviving
from spark_stream.consistency.partition_record import Member, PartitionRecord
from spark_stream.consistency.progress import GenerationOf, IsrSettings
from spark_stream.consistency.replica import Replica, Surroundings
from spark_stream.environment import Clock
from spark_stream.errors import (
    DamagedSegment,
    IsologError,
    LeaderEpochFenced,
    LeaderUnavailable,
    NotLeader,
    UnknownLeaderEpoch,
)
from spark_stream.storage.chunks import Stored
from spark_stream.storage.replica_log import ReplicaLog
from spark_stream.storage.settings import LogSettings
from spark_stream.storage.stored import StoredEntries

logger = logging.getLogger(__name__)


class Part(Enum):
    """What a replica is at the moment."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class ReplicaShell:
    """A replica of a partition, from any thread."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        number: int,
        log: ReplicaLog,
        producer_age_us: int,
        clock: Clock,
        *,
        alone: bool = True,
        moved: Callable[[Any], None] = lambda _: None,
        proposed: Callable[[Any, ProposeIsr | ProposeRecord], None] = lambda _, __: None,
        generation_of: GenerationOf = lambda _: None,
        recent_room: Room | None = None,
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        """``alone``: it leads from the start and has no followers; else it has no part yet.

        ``moved`` is told of everything that may make housekeeping or a force due, ``proposed`` of
        in-sync replicas to be put on record; both under the lock, so they only note it.
        ``generation_of``: as ``consistency.progress`` says. ``recent_room``: for what followers do
        not have yet (``recent``); None: nothing of that is kept in memory. ``on_trouble`` is called
        when the log refuses a write.
        """
        self.topic = topic
        self.topic_id = topic_id
        self.number = number
        self.log = log
        self._clock = clock
        self._lock = PartitionLock()
        self.fitness = Fitness(clock, on_trouble)
        log.when_failed(self._note_failure)
        self._closed: IsologError | None = None
        self._core = Replica(
            log.tables(),
            log.start,
            log.end,
            clock.steady_us(),
            producer_age_us,
            followers=0 if alone else 1,
            surroundings=Surroundings(log.boundary_of, generation_of),
        )
        self._part = Part.LEADER if alone else Part.NONE
        self.turn = 0
        """How often it was given another part, or epoch: what was begun before that is over."""
        self._hand_overs = 0
        self._serves: Callable[[], bool] = lambda: True
        self._callers = Callers(self.name)
        self._moved = moved
        self._proposed = proposed
        self._sessions = Sessions(Recent(Room(0) if recent_room is None else recent_room))
        self._take_isr_settings(log.format.settings)

    @property
    def name(self) -> str:
        """How people name it."""
        return f"{self.topic}/{self.number}"

    # -- what it is --------------------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        """What this replica knows, to look at."""
        return self._core

    @property
    def leads(self) -> bool:
        """Whether it leads, and the broker's lease lasts."""
        return self._part is Part.LEADER and self._serves()

    @property
    def follows(self) -> bool:
        """Whether it follows a leader."""
        return self._part is Part.FOLLOWER

    @property
    def has_followers(self) -> bool:
        """Whether it leads a partition of which others have replicas too."""
        progress = self._core.progress
        return progress is not None and len(progress.record.replicas) > 1

    def check_alone(self, damage: DamagedSegment) -> None:
        """Whether nobody but this leader can give what is damaged in its log.

        Raises:
            LeaderUnavailable: another replica is in sync, and is about to lead.
        """
        progress = self._core.progress
        if progress is not None and len(progress.record.isr) > 1:
            raise LeaderUnavailable(
                f"{self.name}: {damage.message}; another in-sync replica is to lead",
                topic=self.topic,
                partition=self.number,
            ) from damage

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the leader that it knows of."""
        return self._core.leader_epoch

    def committed(self) -> tuple[EntryIndex, LeaderEpoch] | None:
        """Return the high watermark as an entry, and the epoch of the last entry below it.

        None if there is nothing to remember: no entry is known to be committed, the replica is
        closed, or it leads without followers, so that its whole log is committed.
        """
        alone = self._core.progress is not None and not self.has_followers
        with self._lock:
            return None if alone or self._closed is not None else self._core.committed()

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """The epoch of the log's last entry; None: it has none."""
        return self._core.epochs.last

    def lineage(self, offset: Offset) -> Lineage:
        """What a reader at the offset is to remember of this log."""
        state = self._core.bounds_state
        return lineage_of(self._core.epochs, offset, state.high_watermark.offset)

    def surviving(self, lineage: Lineage) -> Offset:
        """Up to which offset this log has what the (not empty) lineage tells of."""
        state = self._core.bounds_state
        return surviving(lineage, self._core.epochs, state.log_start.offset, state.log_end)

    def check_hw_known(self) -> None:
        """Whether the high watermark can be told, and the last stable offset.

        Raises:
            LeaderUnavailable: a new leader waits until all that it has is replicated: readers of an
                earlier leader may have seen that.
        """
        if not self._core.hw_known:
            raise self.hw_not_known()

    def hw_not_known(self) -> LeaderUnavailable:
        """What is told who asks before the high watermark is known."""
        return LeaderUnavailable(
            f"{self.name}: the leader of epoch {self.leader_epoch} does not know yet up to"
            f" where all in-sync replicas have its records",
            topic=self.topic,
            partition=self.number,
        )

    def known_bounds(self) -> Bounds:
        """LEO, HW, LSO and the log's start; raises as :meth:`check_hw_known`."""
        self.check_hw_known()
        return self._core.bounds_state.bounds()

    def is_replicated(self, entry: EntryIndex, epoch: int) -> bool:
        """Whether the entries below ``entry`` of the leader of this epoch are replicated.

        Raises:
            NotLeader: another leader's epoch has begun: they may be cut off.
        """
        with self._lock:
            self._check_leads()
            if epoch != self.leader_epoch:
                raise self._not_leader()
            return self._core.bounds_state.high_watermark.entry >= entry

    # -- its part ----------------------------------------------------------------------------------

    def lead(
        self,
        me: Member,
        record: PartitionRecord,
        version: int,
        serves: Callable[[], bool] = lambda: True,
    ) -> None:
        """The record says that this broker leads; or the leader's record has changed.

        ``serves``: whether the broker's lease lasts.
        """
        with self._lock:
            if self._closed is not None:
                return
            self._serves = serves
            epoch, now = record.leader_epoch, self._clock.steady_us()
            if self._part is Part.LEADER and epoch == self.leader_epoch and self._core.progress:
                effects = self._core.isr_changed(record, version, now)
            elif epoch < self.leader_epoch:
                return  # an old view
            elif not isinstance(lifted := lift_epoch(record, me, self.last_epoch or 0), Unchanged):
                self._proposed(self, ProposeRecord(me, record, lifted, version))
                return  # it leads once that is on record
            else:
                self._part, self.turn = Part.LEADER, self.turn + 1
                self._sessions.end_all()
                effects = self._core.lead_replicas(me, record, version, now)
            woken = self._carry_out(effects)
        wake_all(woken)

    def follow(self, epoch: LeaderEpoch) -> bool:
        """Another broker leads in this epoch; False: that is nothing new."""
        return self._give_up_part(Part.FOLLOWER, epoch)

    def rest(self, epoch: LeaderEpoch) -> None:
        """Nobody leads, or this broker does not yet."""
        self._give_up_part(Part.NONE, epoch)

    def _give_up_part(self, part: Part, epoch: LeaderEpoch) -> bool:
        with self._lock:
            old = epoch < self.leader_epoch
            same = self._part is part and epoch == self.leader_epoch
            if self._closed is not None or old or same:
                return False
            self._part, self.turn = part, self.turn + 1
            self._sessions.end_all()
            woken = self._carry_out(self._core.follow(epoch))
        wake_all(woken)
        return True

    def begin_hand_over(self) -> None:
        """From now on nothing is appended: another broker is to lead as soon as it has all."""
        with self._lock:
            self._hand_overs += 1

    def end_hand_over(self) -> None:
        """Take appends again if it still leads, and each hand-over that has begun has ended."""
        with self._lock:
            self._hand_overs -= 1

    def is_all_replicated(self) -> bool:
        """Whether all in-sync replicas have all that is there; or it leads no more."""
        state = self._core.bounds_state
        return not self.leads or state.high_watermark.entry >= state.log_end.entry

    def take_isr(self, record: PartitionRecord, version: int) -> None:
        """The in-sync replicas that were proposed are on record."""
        with self._lock:
            if self._closed is not None or self._part is not Part.LEADER:
                return
            now = self._clock.steady_us()
            woken = self._carry_out(self._core.isr_changed(record, version, now))
        wake_all(woken)

    def refuse_isr(self, proposed_at: int, record: PartitionRecord, version: int) -> None:
        """Those that were proposed for that version are not on record: this is instead."""
        with self._lock:
            now = self._clock.steady_us()
            woken = self._carry_out(self._core.isr_refused(proposed_at, record, version, now))
        wake_all(woken)

    def tick(self) -> None:
        """Some time has passed, or brokers have come or gone: who is in sync may change."""
        woken: tuple[WakeUp, ...] = ()
        with self._lock:
            if self._closed is None:
                woken = self._carry_out(self._core.tick(self._clock.steady_us()))
        wake_all(woken)

    def tick_due(self) -> int | None:
        """When :meth:`tick` may have something to say, by the steady clock; None: never."""
        with self._lock:
            return None if self._closed is not None else self._core.tick_due()

    def check_leads(self) -> None:
        """NotLeader unless it leads; why it is closed if it is."""
        self._check_leads()

    def _check_takes(self) -> None:
        """As :meth:`check_leads`; LeaderUnavailable while it hands over."""
        self._check_leads()
        if self._hand_overs:
            raise LeaderUnavailable(
                f"{self.name}: this broker hands the partition over",
                topic=self.topic,
                partition=self.number,
            )

    def _check_leads(self) -> None:
        if self._closed is not None:
            raise self._closed.again()
        if not self.leads:
            raise self._not_leader()

    def _not_leader(self) -> NotLeader:
        return NotLeader(
            f"{self.name}: this broker does not lead the partition any more",
            topic=self.topic,
            partition=self.number,
            leader="",
        )

    # -- its log -----------------------------------------------------------------------------------

    def _note_failure(self) -> None:
        """The log has failed, so it takes no more until it is opened again."""
        if self.log.failed is not None:
            self.fitness.note(self.log.failed)

    def probe(self) -> None:
        """Check by a write, which is taken back, that the log takes entries.

        Raises:
            DiskFull, StorageFailure: It does not.
            BrokerStopping, UnknownTopic, NotLeader: The partition is closed.
        """
        with self._lock:
            if self._closed is not None:
                raise self._closed.again()
            with self.fitness:
                self.log.probe()
            self.fitness.end()

    # -- to its followers --------------------------------------------------------------------------

    def start_session(
        self, member: Member, epoch: int, history: EpochHistory, news: News
    ) -> Agreed:
        """A follower begins; ``news`` is called, under the lock, whenever there is any for it.

        It ends the follower's session before, if there is one. Of two requests the earlier may be
        handled last: the session that the follower holds by then ends too, and it asks once more.

        Raises:
            NotLeader, LeaderEpochFenced, UnknownLeaderEpoch: it asks the wrong broker, or too early
                or too late.
        """
        with self._lock:
            self._check_leads()
            now = self._clock.steady_us()
            agreed, effects = self._core.follower_started(member, epoch, history, now)
            if isinstance(agreed, Refusal):
                raise self._refused(agreed, epoch)
            self._sessions.start(agreed.session, news)
            woken = self._carry_out(effects)
        wake_all(woken)
        return agreed

    def _refused(self, refusal: Refusal, epoch: int) -> IsologError:
        kinds: dict[Refusal, type[IsologError]] = {
            Refusal.FENCED: LeaderEpochFenced,
            Refusal.UNKNOWN_EPOCH: UnknownLeaderEpoch,
        }
        return kinds.get(refusal, NotLeader)(
            f"{self.name}: {refusal.value} (epoch {epoch}, here {self.leader_epoch})",
            topic=self.topic,
            partition=self.number,
        )

    def entries_for(self, session: int, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Entries for a follower, from ``first`` on; None: there are none yet.

        Raises:
            NotLeader: the session has ended.
            EntriesGone, DamagedSegment: as ``ReplicaLog.read_entries``.
        """
        if session not in self._sessions:
            raise self._not_leader()
        end = self._core.bounds_state.log_end.entry  # what is in the log and not published waits
        if first >= end:
            return None
        recent = self._sessions.recent.get(first, end, max_bytes)
        return recent or self.log.read_entries(first, max_bytes, end)

    def locate(self, indexes: np.ndarray, epoch: int, *, doubted: bool = False) -> Stored | None:
        """:meth:`ReplicaLog.locate`, whatever this replica's part is; None: it is closed."""
        with self._lock:
            if self._closed is not None:
                return None
            return self.log.locate(indexes, epoch, doubted=doubted)

    def take_report(self, session: int, entry: EntryIndex) -> None:
        """The follower of this session has the entries below ``entry``; waits for nobody."""
        self._lock.do_soon(partial(self._take_report, session, entry))

    def _take_report(self, session: int, entry: EntryIndex) -> tuple[WakeUp, ...]:
        if session not in self._sessions or self._closed is not None:
            return ()
        now = self._clock.steady_us()
        return self._carry_out(self._core.follower_acked(session, entry, now))

    def take_complaint(self, session: int, entry: EntryIndex) -> None:
        """Forget what is kept in memory: this entry arrived damaged at the session's follower.

        When the follower asks again, the entry is read from the file, and checked. If the file is
        damaged, the log knows it then; else the damage was on the way. Waits for nothing.
        """
        logger.warning(
            "%s: entry %d arrived damaged at a follower: it is read from the file again",
            self.name,
            entry,
        )
        self._lock.do_soon(partial(self._forget_recent, session))

    def _forget_recent(self, session: int) -> tuple[WakeUp, ...]:
        if session in self._sessions:
            self._sessions.recent.clear()
        return ()

    def take_refusal(self, session: int) -> None:
        """The log of this session's follower refuses writes; waits for nothing."""
        self._lock.do_soon(partial(self._take_refusal, session))

    def _take_refusal(self, session: int) -> tuple[WakeUp, ...]:
        if session not in self._sessions or self._closed is not None:
            return ()
        now = self._clock.steady_us()
        return self._carry_out(self._core.follower_refuses_writes(session, now))

    def end_session(self, session: int) -> None:
        """The follower is gone; more than once does nothing. Waits for nobody."""
        self._lock.do_soon(partial(self._end_session, session))

    def _end_session(self, session: int) -> tuple[WakeUp, ...]:
        if not self._sessions.end(session) or self._closed is not None:
            return ()
        return self._carry_out(self._core.follower_left(session, self._clock.steady_us()))

    # -- effects -----------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects) -> tuple[WakeUp, ...]:
        """Settles what is answered; the reads to wake, for the caller to do without the lock."""
        self._moved(self)
        self._sessions.keep(self._core.sessions())
        for effect in effects:
            if isinstance(effect, ProposeIsr):
                self._proposed(self, effect)
            elif isinstance(effect, HighWatermarkMoved):
                self._sessions.recent.drop_below(effect.entry)
                self._sessions.give_news(entries=False)
        return self._callers.carry_out(effects)

    def _take_isr_settings(self, settings: LogSettings) -> Effects:
        lag_us = settings.replica_lag_time_max_ms * 1_000
        known = IsrSettings(settings.min_insync_replicas, lag_us)
        return self._core.configure(known, self._clock.steady_us())
