"""What a replica takes from its leader: where the two logs part, then entries, then news.

The rules are in ``consistency.replication.follower``. Before a follower takes anything it tells the
leader the epochs of its log, as far as that is sound, and cuts off what the leader does not have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.partition.outcomes import WakeUp, wake_all
from spark_stream.broker.partition.state import PartitionState, Role
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.partition.effects import Effects
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import (
    Agreement,
    BeginAnew,
    CutBack,
    GoOn,
    Refusal,
    estranged,
    judge_frame,
    preparation,
)
from spark_stream.errors import DamagedSegment, EntriesGone, IsologError, UnknownSchema
from spark_stream.loggers import logger_of
from spark_stream.storage.disk.aside import FOLDER
from spark_stream.storage.format.stored import StoredEntries
from spark_stream.wire.cluster_messages import RolledBack

logger = logger_of(__name__)

_ROLLED_BACK_MAX: Final = 16


class FollowerRole:
    """A replica as a follower, for any thread."""

    def __init__(self, state: PartitionState) -> None:
        self.state = state
        self.reports_forced = False
        """Whether appended entries are forced before they are reported to the leader."""
        self.rolled_back: deque[RolledBack] = deque(maxlen=_ROLLED_BACK_MAX)
        """What was cut off because a leader did not have it, the latest last."""

    def history(self) -> EpochHistory:
        """Return the epochs of the log as far as it is sound, to be compared with a leader's."""
        with self.state.lock:
            history, hole = self.state.core.history(), self.state.log.hole
        return history if hole is None else history.below(hole)

    def sound_end(self) -> tuple[int, EntryIndex]:
        """Return the last epoch of the log's sound part (-1: no entry), and where that ends."""
        history = self.history()
        return (history.epochs[-1][0] if history.epochs else -1), EntryIndex(history.end)

    def report_what_is_forced(self, *, moves: bool) -> None:
        """Force what is appended before the leader hears of it, as long as a move goes on.

        The replicas that go may have forced what was committed, so it has to be on the disks of
        those that stay.
        """
        self.reports_forced = moves


class Followed(Struct, frozen=True):
    """A replica that follows a leader in one epoch, until it changes its role or begins again.

    ``turn``: the state's turn. ``refresh`` reads the records of the store again.
    """

    key: PartitionId
    epoch: LeaderEpoch
    generation: Generation
    turn: int
    role: FollowerRole
    refresh: Callable[[], None]

    def history(self) -> EpochHistory:
        """Return the epochs of the log."""
        return self.role.history()

    def cut_back(self, agreed: Agreement) -> EntryIndex:
        """Cut the log back to the part that it shares with its leader's. Return its end.

        Raises:
            NotLeader: that turn is over.
            DiskFull, StorageFailure: the log is as it was; it has refused writes, and no probe has
                succeeded since.
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
            if isinstance(prepared, CutBack | BeginAnew) and prepared.lost_from is not None:
                logger.error(
                    "%s: the leader of epoch %d has no entry from %d on, which were committed:"
                    " they are lost",
                    state.name,
                    epoch,
                    prepared.lost_from,
                )
            if isinstance(prepared, CutBack):
                end = log.truncate(prepared.entry)
                below = end.entry < core.bounds_state.high_watermark.entry
                effects = core.truncate(log.tables(), end, now, lost=below)
                logger.info("%s: cut entries %d to %d", state.name, end.entry, before - 1)
                if hole is not None:
                    logger.warning(
                        "%s: their sound part is kept in %s until it has been fetched again",
                        state.name,
                        log.directory / FOLDER,
                    )
            elif isinstance(prepared, BeginAnew):
                log.reset(prepared.at)
                core.reset(prepared.at, now)
                logger.info("%s: begins anew at entry %d", state.name, prepared.at.entry)
            if log.end.offset < before_offset and hole is None:  # else it is fetched again
                self.role.rolled_back.append(
                    RolledBack(
                        topic=state.topic,
                        partition=state.number,
                        leader_epoch=int(epoch),
                        start=int(log.end.offset),
                        end=int(before_offset),
                        at_ms=state.clock.wall_us() // 1000,
                        were_committed=not isinstance(prepared, GoOn)
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
        """Take back the entry that the leader cannot send because its copy is damaged."""
        if isinstance(error, DamagedSegment):
            self._take_back()

    def _take_back(self) -> None:
        """Append what this log cut off at its damage, if the leader's next entry is damaged.

        The next session begins after that: the leader learns of these entries, and those that it
        does not have are cut off again.

        Raises:
            NotLeader: that turn is over.
            DiskFull, StorageFailure: nothing is taken back.
        """
        state = self.role.state
        with state.lock:
            state.check_follows(self.turn)
            with state.fitness:
                entries = state.log.take_back()
            if not entries:
                return
            high = state.core.bounds_state.high_watermark.entry
            woken = state.carry_out(state.core.append_replicated(entries, high))
        wake_all(woken)
        logger.warning(
            "%s: the leader's entry %d is damaged: entries %d to %d are taken from what was kept"
            " here when this log was cut",
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
            NotLeader: that turn is over.
            EntriesGone, DamagedEntries: the entries do not follow the log's end; a checksum fails.
            DiskFull, StorageFailure: none of the entries are kept, or not all.
        """
        frame = StoredEntries(rows, data)
        try:
            return self._append(first, frame, leader_hw)
        except UnknownSchema:  # the leader has read an alteration of the topic before this broker
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
        """Compare the log with the offset of the leader's next entry; the caller holds the lock.

        Raises:
            EntriesGone: the log has another past than the leader's: it begins anew, and the leader
                is asked again.
        """
        state = self.role.state
        log_end = state.core.bounds_state.log_end
        estrangement = estranged(log_end, base_offset)
        if estrangement is None:
            return
        logger.error(
            "%s: the log has another past than its leader's (offset %d instead of %d): it begins"
            " anew, and the records that it had are lost",
            state.name,
            log_end.offset,
            base_offset,
        )
        state.log.reset(estrangement.at)
        state.core.reset(estrangement.at, state.clock.steady_us())
        raise EntriesGone(f"{state.name}: begins anew", topic=state.topic, partition=state.number)

    def take_high_watermark(self, leader_hw: EntryIndex) -> None:
        """Take over the leader's high watermark."""
        state = self.role.state
        woken: tuple[WakeUp, ...] = ()
        with state.lock:
            if state.closed is None and state.role is Role.FOLLOWER and self.turn == state.turn:
                woken = state.carry_out(state.core.learn_high_watermark(leader_hw))
        wake_all(woken)


def _data_of(frame: StoredEntries, skip: int) -> pa.Buffer:
    """Return the bytes of the batches after the first ``skip`` entries."""
    return frame.data.slice(int(frame.rows["length"][:skip].sum())) if skip else frame.data
