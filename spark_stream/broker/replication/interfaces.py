"""What the stream of replication needs: partitions, at leader and follower, and other threads.

The shells have no threads of their own: :class:`Background` does what takes time.

Of a partition: nothing here may wait for another broker. What a leader's session does, except
reading, must not wait for a disk either: it runs on the thread that takes the follower's messages,
and what waits there holds up all partitions of the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVarTuple

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.node.identity import BrokerIdentity
from spark_stream.broker.replication.settings import ReplicationSettings
from spark_stream.cluster.partitions import PartitionId
from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import Agreement
from spark_stream.environment import Clock
from spark_stream.errors import IsologError
from spark_stream.storage.format.stored import StoredEntries

Ts = TypeVarTuple("Ts")


class LeaderSession(Protocol):
    """A leader with one of its followers, in one leader epoch.

    A new session ends the earlier one of the same follower. Calls to an ended session have no
    effect.
    """

    @property
    def agreement(self) -> Agreement: ...

    @property
    def end(self) -> EntryIndex:
        """The end of the leader's log."""

    @property
    def high_watermark(self) -> EntryIndex: ...

    def read_entries(self, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return entries from ``first`` on: at least one, and about ``max_bytes``.

        None if there are none yet.

        Raises:
            IsologError: the broker leads the partition no longer, the entries are gone, or they
                cannot be read. The session ends, and the follower is told the error.
        """

    def on_acked(self, entry: EntryIndex) -> None:
        """Take a follower's report: it has all entries before this one."""

    def on_damaged(self, entry: EntryIndex) -> None:
        """Note that an entry arrived damaged: it is to be sent again from what is stored."""

    def refuses_writes(self) -> None:
        """Note that the follower's log refuses writes: it is to leave the ISR."""

    def on_promised(self, until: float) -> None:
        """Note that the follower will not lead before ``until``, by this broker's clock."""

    def close(self) -> None:
        """End the session: the follower is gone. May be called more than once."""


class LeadPartitions(Protocol):
    """The partitions that a broker leads."""

    def start_session(
        self,
        follower: BrokerId,
        generation: Generation,
        key: PartitionId,
        epoch: LeaderEpoch,
        history: EpochHistory,
        news: Callable[[bool], None],
    ) -> LeaderSession:
        """Begin a session.

        ``news(True)`` is to be called when entries were appended or the broker ceased to lead,
        ``news(False)`` when only the high watermark moved, which is less urgent: from any thread
        and under any lock. It waits for nothing and calls nothing of the session.

        Raises:
            IsologError: unknown topic id, not the leader, an older or a newer epoch.
        """


class FollowedPartition(Protocol):
    """A follower's copy, in one leader epoch. One thread at a time calls it."""

    @property
    def key(self) -> PartitionId: ...

    @property
    def epoch(self) -> LeaderEpoch: ...

    @property
    def generation(self) -> Generation: ...

    def history(self) -> EpochHistory:
        """Return the epochs of the log."""

    def cut_back(self, agreement: Agreement) -> EntryIndex:
        """Cut the log back to the agreement, or begin it anew; return its end after that."""

    def append_frame(
        self, first: EntryIndex, rows: Table, data: pa.Buffer, high_watermark: EntryIndex
    ) -> EntryIndex:
        """Check and append entries that follow the log's end. Return its end after that.

        Raises:
            IsologError: the entries do not follow, are damaged, or cannot be written. None of them
                are kept. The session ends, and another one begins after a pause.
        """

    def take_high_watermark(self, high_watermark: EntryIndex) -> None:
        """Take the leader's high watermark."""

    def on_refused(self, error: IsologError) -> None:
        """Take the leader's refusal, or its end of the session; it is asked again after a pause."""


class Submit(Protocol):
    """Calls a function on another thread. Returns False once the threads have stopped."""

    def __call__(self, function: Callable[[*Ts], None], /, *args: *Ts) -> bool: ...


class Background(Struct, frozen=True):
    """Other threads, and the loop's timers.

    After ``submit_after`` a thread that has appended may do short work itself. ``call_later`` calls
    a function after so many seconds, on the loop's thread. The function must not block.
    """

    submit: Submit
    submit_after: Submit
    call_later: Callable[[float, Callable[[], None]], object]


class ReplicationContext(Struct, frozen=True):
    """What all streams of one broker share, at both ends."""

    me: BrokerIdentity
    settings: ReplicationSettings
    clock: Clock
    background: Background
