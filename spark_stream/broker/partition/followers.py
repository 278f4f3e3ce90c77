"""A leader's partition as its followers see it: sessions, entries, reports.

A thread that serves a follower's stream serves all partitions of that stream. So it waits for
nothing when it reports something to a partition (``lock``).
"""

from __future__ import annotations

from spark_stream.broker.partition.outcomes import WakeUp, wake_all
from spark_stream.broker.partition.sessions import News
from spark_stream.broker.partition.state import PartitionState
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.ids import EntryIndex
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import LeaderAnswer, Refusal
from spark_stream.loggers import logger_of
from spark_stream.storage.format.stored import StoredEntries

logger = logger_of(__name__)


class Followers:
    """The followers of one partition, from any thread."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state

    def start_session(
        self, member: Member, epoch: int, history: EpochHistory, news: News
    ) -> FollowerSession:
        """Begin a follower's session; ``news`` is called, under the lock, whenever there is any.

        The follower's earlier session ends, if there is one. If two requests are handled in the
        wrong order, the session that the follower holds ends too, and the follower asks once more.

        Raises:
            NotLeader, LeaderEpochFenced, UnknownLeaderEpoch: the follower asks the wrong broker, or
                too early or too late.
        """
        state = self._state
        with state.lock:
            state.check_leads()
            now = state.clock.steady_us()
            answer, effects = state.core.follower_started(member, epoch, history, now)
            if isinstance(answer, Refusal):
                raise state.refused(answer, epoch)
            state.sessions.start(answer.session, news)
            woken = state.carry_out(effects)
        wake_all(woken)
        return FollowerSession(state, answer)


class FollowerSession:
    """A leader's session with one follower, from any thread.

    Only :meth:`read_entries` waits: for the disk. Calls to a session that has ended have no effect.
    """

    def __init__(self, state: PartitionState, answer: LeaderAnswer) -> None:
        self._state = state
        self._number = answer.session
        self.agreement = answer.agreement

    @property
    def end(self) -> EntryIndex:
        """The end of the leader's log."""
        return self._state.core.bounds_state.log_end.entry

    @property
    def high_watermark(self) -> EntryIndex:
        """The leader's high watermark."""
        return self._state.core.bounds_state.high_watermark.entry

    def read_entries(self, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return entries for the follower, from ``first`` on, or None if there are none yet.

        Raises:
            NotLeader: the session has ended.
            EntriesGone, DamagedSegment: as ``PartitionLog.read_entries``.
        """
        state, end = self._state, self.end  # unpublished entries of the log wait
        if self._number not in state.sessions:
            raise state.not_leader()
        if first >= end:
            return None
        recent = state.sessions.recent.get(first, end, max_bytes)
        return recent or state.log.read_entries(first, max_bytes, end)

    def on_acked(self, entry: EntryIndex) -> None:
        """Record that the follower has the entries below ``entry``."""
        self._state.lock.do_soon(self._take_report, entry)

    def _take_report(self, entry: EntryIndex) -> tuple[WakeUp, ...]:
        if not self._counts:
            return ()
        state = self._state
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_acked(self._number, entry, now))

    def came_damaged(self, entry: EntryIndex) -> None:
        """Remove the entries in memory: this entry arrived damaged at the follower.

        For the follower's next request the entry is read from the file, and checked. That shows
        whether the file is damaged, or the damage happened on the way.
        """
        logger.warning(
            "%s: entry %d arrived damaged at a follower: it is read from the file again",
            self._state.name,
            entry,
        )
        self._state.lock.do_soon(self._clear_recent)

    def _clear_recent(self) -> tuple[WakeUp, ...]:
        if self._number in self._state.sessions:
            self._state.sessions.recent.clear()
        return ()

    def refuses_writes(self) -> None:
        """Record that the follower's log refuses writes."""
        self._state.lock.do_soon(self._take_refusal)

    def _take_refusal(self) -> tuple[WakeUp, ...]:
        if not self._counts:
            return ()
        state = self._state
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_refuses_writes(self._number, now))

    def on_promised(self, until: float) -> None:
        """Record that the follower will not lead before ``until``."""
        self._state.lock.do_soon(self._take_promise, until)

    def _take_promise(self, until: float) -> tuple[WakeUp, ...]:
        progress = self._state.core.progress
        if self._number in self._state.sessions and progress is not None:
            progress.on_promised(self._number, until)
        return ()

    def close(self) -> None:
        """End the session, if it has not ended yet: the connection to the follower was lost."""
        self._state.lock.do_soon(self._end)

    def _end(self) -> tuple[WakeUp, ...]:
        state = self._state
        if not state.sessions.end(self._number) or state.closed is not None:
            return ()
        return state.carry_out(state.core.follower_left(self._number, state.clock.steady_us()))

    @property
    def _counts(self) -> bool:
        """Whether the session and its partition are open."""
        return self._number in self._state.sessions and self._state.closed is None
