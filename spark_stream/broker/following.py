"""What a replica takes from its leader: where the two logs part, then entries, then news.

The rules are in ``consistency.follower``. Before a follower takes anything it tells the leader the
epochs of its log, as far as that is sound, and cuts off what the leader does not have.
"""

from __future__ import annotations

import logging

import pyarrow as pa

from spark_stream.broker.outcomes import WakeUp, wake_all
from spark_stream.broker.replica_shell import Part, ReplicaShell
from spark_stream.consistency.effects import Effects
from spark_stream.consistency.epochs import EpochHistory
from spark_stream.consistency.follower import (
    Agreed,
    BeginAnew,
    Cut,
    Refusal,
    estranged,
    judge_frame,
    preparation,
)
from spark_stream.consistency.ids import EntryIndex
from spark_stream.errors import EntriesGone, NotLeader
from spark_stream.storage.checking import Suspect
from spark_stream.storage.settings import Flush
from spark_stream.storage.stored import StoredEntries

logger = logging.getLogger(__name__)


class FollowingReplica(ReplicaShell):
    """A replica as it follows; from any thread, like the rest of it."""

    _reports_forced = False

    def history(self) -> EpochHistory:
        """The epochs of the log as far as it is sound, to be compared with a leader's."""
        with self._lock:
            return self._sound_history()

    def _sound_history(self) -> EpochHistory:
        history, hole = self._core.history(), self.log.hole
        return history if hole is None else history.below(hole)

    def sound_end(self) -> tuple[int, EntryIndex]:
        """The last epoch of what is sound of the log (-1: no entry is), and where that ends."""
        with self._lock:
            history = self._sound_history()
        return (history.epochs[-1][0] if history.epochs else -1), EntryIndex(history.end)

    def confirm(self, suspect: Suspect) -> bool:
        """:meth:`ReplicaLog.confirm`, while nobody writes."""
        with self._lock:
            return self._closed is None and self.log.confirm(suspect)

    def report_what_is_forced(self, *, moves: bool) -> None:
        """Whether to force what is appended before the leader hears of it: while a move is on.

        Those that go have perhaps forced what was committed, and that is to be on a disk of those
        that stay.
        """
        self._reports_forced = moves

    def force(self) -> None:
        """Puts what was appended on the disk, where the topic wants that at all.

        Raises:
            StorageFailure: that failed.
            BrokerStopping, UnknownTopic, NotLeader: the partition is closed.
        """
        with self._lock:
            if self._closed is not None:
                raise self._closed.again()
            if self.log.format.settings.flush is not Flush.NONE:
                self.log.flush()

    def agree(self, turn: int, agreed: Agreed) -> EntryIndex:
        """Cuts the log back to what it shares with its leader's; where it ends now.

        ``turn``: in which it followed when it asked (:attr:`turn`).

        Raises:
            NotLeader: that turn is over.
            DiskFull, StorageFailure: it is as it was; the log has refused writes, and no probe has
                succeeded since.
        """
        with self._lock:
            epoch = agreed.leader_epoch
            self._check_follows(turn)
            self.fitness.check()
            prepared = preparation(self._core.bounds_state, agreed, self.log.hole)
            if isinstance(prepared, Refusal):
                raise self._refused(prepared, epoch)
            before, now = self.log.end.entry, self._clock.steady_us()
            effects: Effects = []
            if isinstance(prepared, Cut | BeginAnew) and prepared.lost_from is not None:
                logger.error(
                    "%s: the leader of epoch %d has no entry from %d on, which were committed:"
                    " they are lost",
                    self.name,
                    epoch,
                    prepared.lost_from,
                )
            if isinstance(prepared, Cut):
                end = self.log.truncate(prepared.entry)
                below = end.entry < self._core.bounds_state.high_watermark.entry
                effects = self._core.truncate(self.log.tables(), end, now, lost=below)
                logger.info("%s: cut entries %d to %d", self.name, end.entry, before - 1)
            elif isinstance(prepared, BeginAnew):
                self.log.reset(prepared.at)
                self._core.reset(prepared.at, now)
                logger.info("%s: begins anew at entry %d", self.name, prepared.at.entry)
            woken = self._carry_out(effects)
            end_entry = self.log.end.entry
        wake_all(woken)
        if self._reports_forced:
            self.force()
        return end_entry

    def append_frame(
        self, turn: int, first: EntryIndex, frame: StoredEntries, leader_hw: EntryIndex
    ) -> EntryIndex:
        """Appends what the leader of this turn has sent; where the log ends now.

        Raises:
            NotLeader: that turn is over.
            EntriesGone, DamagedEntries: the entries do not follow the log's end; a checksum fails.
            DiskFull, StorageFailure: nothing of them is kept, or not all.
        """
        with self._lock:
            self._check_follows(turn)
            epoch = self.leader_epoch
            end, count = self.log.end.entry, len(frame.rows)
            judged = judge_frame(epoch, end, epoch, first, count)
            if isinstance(judged, Refusal):
                raise self._refused(judged, epoch)
            if judged.skip < count:
                rows = frame.rows[judged.skip :]
                self._check_not_estranged(int(rows[0]["base_offset"]))
                with self.fitness:
                    entries = self.log.append_entries(rows, _data_of(frame, judged.skip))
                effects = self._core.append_replicated(entries, leader_hw)
            else:
                effects = self._core.learn_high_watermark(leader_hw)
            woken = self._carry_out(effects)
            end_entry = self.log.end.entry
        wake_all(woken)
        if self._reports_forced and judged.skip < count:
            self.force()
        return end_entry

    def _check_not_estranged(self, base_offset: int) -> None:
        """The leader's next entry has this offset; the caller holds the lock.

        Raises:
            EntriesGone: the log is of another past, and begins anew; the leader is asked again.
        """
        estrangement = estranged(self._core.bounds_state.log_end, base_offset)
        if estrangement is None:
            return
        logger.error(
            "%s: the log is of another past than its leader's (offset %d instead of %d): it begins"
            " anew, and what it had is lost",
            self.name,
            self._core.bounds_state.log_end.offset,
            base_offset,
        )
        self.log.reset(estrangement.at)
        self._core.reset(estrangement.at, self._clock.steady_us())
        raise EntriesGone(f"{self.name}: begins anew", topic=self.topic, partition=self.number)

    def take_high_watermark(self, turn: int, leader_hw: EntryIndex) -> None:
        """The leader of this turn says how far its high watermark is."""
        woken: tuple[WakeUp, ...] = ()
        with self._lock:
            if self._closed is None and self._part is Part.FOLLOWER and turn == self.turn:
                woken = self._carry_out(self._core.learn_high_watermark(leader_hw))
        wake_all(woken)

    def _check_follows(self, turn: int) -> None:
        if self._closed is not None:
            raise self._closed.again()
        if self._part is not Part.FOLLOWER or turn != self.turn:
            raise NotLeader(
                f"{self.name}: it follows another leader by now, or none, or has begun again",
                topic=self.topic,
                partition=self.number,
            )


def _data_of(frame: StoredEntries, skip: int) -> pa.Buffer:
    """The bytes of the batches behind the first ``skip`` entries."""
    return frame.data.slice(int(frame.rows["length"][:skip].sum())) if skip else frame.data
