"""Replication of one partition, at both ends.

At the leader, :class:`Followers` opens a :class:`FollowerSession` for each follower, which reads
entries and records the follower's reports. A thread that serves a follower's stream serves all
partitions of that stream, so it never waits for a partition's lock (``waiters``).

At a follower, :class:`FollowerRole` has a :class:`FollowedReplica` for each turn. The rules are in
``consistency.replication.follower``. Before it accepts entries, a follower sends the leader the
epochs of the sound part of its log, and truncates the log where it diverges from the leader's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.partition.sessions import Notify
from spark_stream.broker.partition.state import PartitionState, Role
from spark_stream.broker.partition.waiters import WakeUp, wake_all
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.partition.effects import Effects
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import (
    Agreement,
    Continue,
    LeaderAnswer,
    Refusal,
    StartOver,
    Truncate,
    diverged,
    judge_frame,
    preparation,
)
from spark_stream.errors import DamagedSegment, EntriesGone, IsologError, UnknownSchema
from spark_stream.loggers import logger_of
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.storage.log.damage import CUT_FOLDER
from spark_stream.wire.cluster_messages import RolledBack

logger = logger_of(__name__)

_ROLLED_BACK_MAX: Final = 16


class Followers:
    """The followers of one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def start_session(
        self, member: Member, epoch: int, history: EpochHistory, notify: Notify
    ) -> FollowerSession:
        """Begin a follower's session. ``notify`` is called under the lock for each notification.

        An earlier session of the follower ends. If two requests are handled in the wrong order, the
        follower's present session ends too, and the follower sends another request.

        Raises:
            NotLeader, LeaderEpochFenced, UnknownLeaderEpoch: this replica does not lead, or not in
                that epoch.
        """
        state = self._state
        with state.lock:
            state.check_leads()
            now = state.clock.steady_us()
            answer, effects = state.core.follower_started(member, epoch, history, now)
            if isinstance(answer, Refusal):
                raise state.refused(answer, epoch)
            state.sessions.start(answer.session, notify)
            woken = state.carry_out(effects)
        wake_all(woken)
        return FollowerSession(state, answer)


class FollowerSession:
    """A leader's session with one follower, from any thread.

    Only :meth:`read_entries` blocks, on the disk. Calls to an ended session have no effect.
    """

    def __init__(self, state: PartitionState, answer: LeaderAnswer) -> None:
        self._state = state
        self._number = answer.session
        self.agreement = answer.agreement

    @property
    def end(self) -> EntryIndex:
        """The log end of the leader, as an entry index."""
        return self._state.core.bounds_state.log_end.entry

    @property
    def high_watermark(self) -> EntryIndex:
        """The high watermark of the leader, as an entry index."""
        return self._state.core.bounds_state.high_watermark.entry

    def read_entries(self, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return the entries from ``first`` on, or None if there are none yet.

        Raises:
            NotLeader: the session has ended.
            EntriesGone, DamagedSegment: as ``PartitionLog.read_entries``.
        """
        state, end = self._state, self.end  # without the entries that are not published yet
        if self._number not in state.sessions:
            raise state.not_leader()
        if first >= end:
            return None
        recent = state.sessions.recent.get(first, end, max_bytes)
        return recent or state.log.read_entries(first, max_bytes, end)

    def on_acked(self, entry: EntryIndex) -> None:
        """Record that the follower has the entries below ``entry``."""
        self._state.lock.run_soon(self._take_report, entry)

    def _take_report(self, entry: EntryIndex) -> tuple[WakeUp, ...]:
        if not self._counts:
            return ()
        state = self._state
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_acked(self._number, entry, now))

    def on_damaged(self, entry: EntryIndex) -> None:
        """Drop the entries in memory after a follower has received this one damaged.

        For the follower's next request the entry is read from the file and checked. So damage in
        the file is distinguished from damage in memory or in transit.
        """
        logger.warning(
            "%s: a follower received entry %d damaged; it will be read from the file again",
            self._state.name,
            entry,
        )
        self._state.lock.run_soon(self._clear_recent)

    def _clear_recent(self) -> tuple[WakeUp, ...]:
        if self._number in self._state.sessions:
            self._state.sessions.recent.clear()
        return ()

    def on_writes_refused(self) -> None:
        """Record that the follower's log refuses writes."""
        self._state.lock.run_soon(self._take_refusal)

    def _take_refusal(self) -> tuple[WakeUp, ...]:
        if not self._counts:
            return ()
        state = self._state
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_refuses_writes(self._number, now))

    def on_promised(self, until: float) -> None:
        """Record that the follower will not lead before ``until``."""
        self._state.lock.run_soon(self._take_promise, until)

    def _take_promise(self, until: float) -> tuple[WakeUp, ...]:
        progress = self._state.core.progress
        if self._number in self._state.sessions and progress is not None:
            progress.on_promised(self._number, until)
        return ()

    def close(self) -> None:
        """End the session, unless it has ended."""
        self._state.lock.run_soon(self._end)

    def _end(self) -> tuple[WakeUp, ...]:
        state = self._state
        if not state.sessions.end(self._number) or state.closed is not None:
            return ()
        return state.carry_out(state.core.follower_left(self._number, state.clock.steady_us()))

    @property
    def _counts(self) -> bool:
        """Whether the session and its partition are open."""
        return self._number in self._state.sessions and self._state.closed is None


class FollowerRole:
    """The state of a replica as a follower, for any thread."""

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.reports_forced = False
        """Whether entries are fsynced before they are acknowledged to the leader."""
        self.rolled_back: deque[RolledBack] = deque(maxlen=_ROLLED_BACK_MAX)
        """The latest truncated ranges that a leader did not have, in the order of truncation."""

    def history(self) -> EpochHistory:
        """Return the epochs of the log's sound part, for the comparison with a leader's."""
        with self.state.lock:
            history, hole = self.state.core.history(), self.state.log.hole
        return history if hole is None else history.below(hole)

    def sound_end(self) -> tuple[int, EntryIndex]:
        """Return the last epoch of the log's sound part (-1: no entry) and the end of that part."""
        history = self.history()
        return (history.epochs[-1][0] if history.epochs else -1), EntryIndex(history.end)

    def force_before_reports(self, *, is_moving: bool) -> None:
        """Fsync entries before they are acknowledged to the leader, for the time of a move.

        The replicas that are being removed may have fsynced the committed entries, so the remaining
        replicas must do so too.
        """
        self.reports_forced = is_moving


class FollowedReplica(Struct, frozen=True):
    """A replica that follows a leader in one epoch, until its next change of role.

    ``turn`` is the turn of its state. ``refresh`` reads the records of the metadata store again.
    """

    key: PartitionId
    epoch: LeaderEpoch
    generation: Generation
    turn: int
    role: FollowerRole
    refresh: Callable[[], None] | None

    def history(self) -> EpochHistory:
        """Return the epochs of the log."""
        return self.role.history()

    def cut_back(self, agreed: Agreement) -> EntryIndex:
        """Truncate the log to the part that it shares with the leader's log. Return its end.

        Raises:
            NotLeader: the turn has ended.
            DiskFull, StorageFailure: the log is unchanged, because it has refused writes and no
                probe has succeeded since.
        """
        state = self.role.state
        core, log = state.core, state.log
        with state.lock:
            epoch = agreed.leader_epoch
            state.check_follows(self.turn)
            state.fitness.check()
            hole = log.hole
            prepared = preparation(core.bounds_state, agreed, hole)
            if isinstance(prepared, Refusal):
                raise state.refused(prepared, epoch)
            before, now = log.end.entry, state.clock.steady_us()
            before_offset = log.end.offset
            effects: Effects = []
            if isinstance(prepared, Truncate | StartOver) and prepared.lost_from is not None:
                logger.error(
                    "%s: committed entries are lost: the leader of epoch %d has no entries from %d"
                    " on",
                    state.name,
                    epoch,
                    prepared.lost_from,
                )
            if isinstance(prepared, Truncate):
                end = log.truncate(prepared.entry)
                below = end.entry < core.bounds_state.high_watermark.entry
                effects = core.truncate(log.tables(), end, now, lost=below)
                logger.info("%s: truncated entries %d to %d", state.name, end.entry, before - 1)
                if hole is not None:
                    logger.warning(
                        "%s: the sound truncated entries are kept in %s until they are replicated"
                        " again",
                        state.name,
                        log.directory / CUT_FOLDER,
                    )
            elif isinstance(prepared, StartOver):
                log.reset(prepared.at)
                core.reset(prepared.at, now)
                logger.info("%s: reset the log to begin at entry %d", state.name, prepared.at.entry)
            if log.end.offset < before_offset and hole is None:  # else: replicated again
                self.role.rolled_back.append(
                    RolledBack(
                        topic=state.topic,
                        partition=state.number,
                        leader_epoch=int(epoch),
                        start=int(log.end.offset),
                        end=int(before_offset),
                        at_ms=state.clock.wall_us() // 1000,
                        were_committed=not isinstance(prepared, Continue)
                        and prepared.lost_from is not None,
                    )
                )
            woken = state.carry_out(effects)
            end_entry = log.end.entry
        wake_all(woken)
        if self.role.reports_forced:
            state.force()
        return end_entry

    def on_refused(self, error: IsologError) -> None:
        """Restore the entry that the leader cannot send because its copy is damaged."""
        if isinstance(error, DamagedSegment):
            self._take_back()

    def _take_back(self) -> None:
        """Append the entries that this log kept when it was truncated at its damage.

        The next session compares the logs again, and truncates the entries that the leader does not
        have.

        Raises:
            NotLeader: the turn has ended.
            DiskFull, StorageFailure: no entry was restored.
        """
        state = self.role.state
        with state.lock:
            state.check_follows(self.turn)
            with state.fitness:
                entries = state.log.restore_cut_entries()
            if not entries:
                return
            high = state.core.bounds_state.high_watermark.entry
            woken = state.carry_out(state.core.append_replicated(entries, high))
        wake_all(woken)
        logger.warning(
            "%s: entry %d of the leader is damaged; restored entries %d to %d, which were kept when"
            " this log was truncated",
            state.name,
            entries[0].entry_index,
            entries[0].entry_index,
            entries[-1].entry_index,
        )
        if self.role.reports_forced:
            state.force()

    def append_frame(
        self, first: EntryIndex, rows: Table, data: pa.Buffer, leader_hw: EntryIndex
    ) -> EntryIndex:
        """Append entries from the leader. Return the log's end.

        Raises:
            NotLeader: the turn has ended.
            EntriesGone: the entries do not follow the log's end.
            DamagedEntries: a checksum does not match.
            DiskFull, StorageFailure: not all of the entries are stored.
        """
        frame = StoredEntries(rows, data)
        try:
            return self._append(first, frame, leader_hw)
        except UnknownSchema:  # the leader has read a newer schema from the store than this broker
            if self.refresh is not None:
                self.refresh()
        return self._append(first, frame, leader_hw)

    def _append(self, first: EntryIndex, frame: StoredEntries, leader_hw: EntryIndex) -> EntryIndex:
        state = self.role.state
        core, log = state.core, state.log
        with state.lock:
            state.check_follows(self.turn)
            epoch = core.leader_epoch
            end, count = log.end.entry, len(frame.rows)
            judged = judge_frame(epoch, end, epoch, first, count)
            if isinstance(judged, Refusal):
                raise state.refused(judged, epoch)
            if judged.skip < count:
                rows = frame.rows[judged.skip :]
                self._check_not_estranged(int(rows[0]["base_offset"]))
                with state.fitness:
                    entries = log.append_entries(rows, _data_of(frame, judged.skip))
                effects = core.append_replicated(entries, leader_hw)
                records, nbytes = int(rows["count"].sum()), int(rows["length"].sum())
                state.traffic.replicated.add(len(rows), records, nbytes)
            else:
                effects = core.learn_high_watermark(leader_hw)
            woken = state.carry_out(effects)
            end_entry = log.end.entry
        wake_all(woken)
        if self.role.reports_forced and judged.skip < count:
            state.force()
        return end_entry

    def _check_not_estranged(self, base_offset: int) -> None:
        """Reset the log if its offsets diverge from the leader's next entry, under the lock.

        Raises:
            EntriesGone: the log was reset, so replication begins again with a new session.
        """
        state = self.role.state
        log_end = state.core.bounds_state.log_end
        estrangement = diverged(log_end, base_offset)
        if estrangement is None:
            return
        logger.error(
            "%s: the log diverges from its leader's (offset %d instead of %d); it is reset and its"
            " records are lost",
            state.name,
            log_end.offset,
            base_offset,
        )
        state.log.reset(estrangement.at)
        state.core.reset(estrangement.at, state.clock.steady_us())
        raise EntriesGone(
            f"{state.name}: the log was reset", topic=state.topic, partition=state.number
        )

    def take_high_watermark(self, leader_hw: EntryIndex) -> None:
        """Apply the leader's high watermark."""
        state = self.role.state
        woken: tuple[WakeUp, ...] = ()
        with state.lock:
            if state.closed is None and state.role is Role.FOLLOWER and self.turn == state.turn:
                woken = state.carry_out(state.core.learn_high_watermark(leader_hw))
        wake_all(woken)


def _data_of(frame: StoredEntries, skip: int) -> pa.Buffer:
    """Return the bytes of the batches after the first ``skip`` entries."""
    return frame.data.slice(int(frame.rows["length"][:skip].sum())) if skip else frame.data
