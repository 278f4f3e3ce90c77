"""A leader's partition as its followers see it: sessions, entries, reports.

A thread that serves a follower's stream serves all partitions of that stream. So it waits for
nothing when it reports something to a partition (``lock``).
"""

from __future__ import annotations

from functools import partial

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
    ) -> LeaderAnswer:
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
            agreed, effects = state.core.follower_started(member, epoch, history, now)
            if isinstance(agreed, Refusal):
                raise state.refused(agreed, epoch)
            state.sessions.start(agreed.session, news)
            woken = state.carry_out(effects)
        wake_all(woken)
        return agreed

    def entries_for(self, session: int, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return entries for a follower, from ``first`` on, or None if there are none yet.

        Raises:
            NotLeader: the session has ended.
            EntriesGone, DamagedSegment: as ``PartitionLog.read_entries``.
        """
        state = self._state
        if session not in state.sessions:
            raise state.not_leader()
        end = state.core.bounds_state.log_end.entry  # unpublished entries of the log wait
        if first >= end:
            return None
        recent = state.sessions.recent.get(first, end, max_bytes)
        return recent or state.log.read_entries(first, max_bytes, end)

    def take_report(self, session: int, entry: EntryIndex) -> None:
        """Note that the session's follower has the entries below ``entry``. Wait for nothing."""
        self._state.lock.do_soon(partial(self._take_report, session, entry))

    def _take_report(self, session: int, entry: EntryIndex) -> tuple[WakeUp, ...]:
        state = self._state
        if session not in state.sessions or state.closed is not None:
            return ()
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_acked(session, entry, now))

    def take_complaint(self, session: int, entry: EntryIndex) -> None:
        """Forget what is kept in memory: this entry arrived damaged at the session's follower.

        When the follower asks again, the entry is read from the file, and checked. That shows
        whether the file is damaged, or the damage happened on the way. Wait for nothing.
        """
        logger.warning(
            "%s: entry %d arrived damaged at a follower: it is read from the file again",
            self._state.name,
            entry,
        )
        self._state.lock.do_soon(partial(self._forget_recent, session))

    def _forget_recent(self, session: int) -> tuple[WakeUp, ...]:
        if session in self._state.sessions:
            self._state.sessions.recent.clear()
        return ()

    def take_refusal(self, session: int) -> None:
        """Note that the log of this session's follower refuses writes. Wait for nothing."""
        self._state.lock.do_soon(partial(self._take_refusal, session))

    def _take_refusal(self, session: int) -> tuple[WakeUp, ...]:
        state = self._state
        if session not in state.sessions or state.closed is not None:
            return ()
        now = state.clock.steady_us()
        return state.carry_out(state.core.follower_refuses_writes(session, now))

    def take_promise(self, session: int, until: float) -> None:
        """Note that this session's follower will not lead before ``until``. Wait for nothing."""
        self._state.lock.do_soon(partial(self._take_promise, session, until))

    def _take_promise(self, session: int, until: float) -> tuple[WakeUp, ...]:
        progress = self._state.core.progress
        if session in self._state.sessions and progress is not None:
            progress.on_promised(session, until)
        return ()

    def end_session(self, session: int) -> None:
        """End a session whose follower is gone, if it has not ended yet. Wait for nothing."""
        self._state.lock.do_soon(partial(self._end_session, session))

    def _end_session(self, session: int) -> tuple[WakeUp, ...]:
        state = self._state
        if not state.sessions.end(session) or state.closed is not None:
            return ()
        return state.carry_out(state.core.follower_left(session, state.clock.steady_us()))
