"""The requirements of replication streams: partitions at both ends, and other threads.

The shells have no threads. :class:`Background` runs their slow work.

No method of a partition may wait for another broker. The methods of a leader's session, except
reading, must not wait for a disk either: they run on the thread that receives the follower's
messages, so a wait would delay all partitions of the stream.
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
    """A leader's session with one of its followers, in one leader epoch.

    A new session ends the earlier one of the same follower. Calls to an ended session have no
    effect.
    """

    @property
    def agreement(self) -> Agreement: ...

    @property
    def end(self) -> EntryIndex:
        """The log end of the leader, as an entry index."""

    @property
    def high_watermark(self) -> EntryIndex: ...

    def read_entries(self, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return one or more entries from ``first`` on, about ``max_bytes``. None: none yet.

        Raises:
            IsologError: the broker no longer leads the partition, or the entries were removed or
                cannot be read. The session ends with this error at the follower.
        """

    def on_acked(self, entry: EntryIndex) -> None:
        """Record that the follower has all entries below this one."""

    def on_damaged(self, entry: EntryIndex) -> None:
        """Drop the copies in memory, because the follower has received this entry damaged."""

    def on_writes_refused(self) -> None:
        """Remove the follower from the ISR, because its log refuses writes."""

    def on_promised(self, until: float) -> None:
        """Record that the follower will not lead before ``until``, by this broker's clock."""

    def close(self) -> None:
        """End the session. Further calls have no effect."""


class LeadPartitions(Protocol):
    """The partitions that a broker leads."""

    def start_session(
        self,
        follower: BrokerId,
        generation: Generation,
        key: PartitionId,
        epoch: LeaderEpoch,
        history: EpochHistory,
        notify: Callable[[bool], None],
    ) -> LeaderSession:
        """Begin a session.

        The partition calls ``notify(True)`` after an append or a change of leadership. It calls
        ``notify(False)``, which is less urgent, if only the high watermark has moved. It may call
        from any thread and under any lock, because ``notify`` never blocks and never calls the
        session.

        Raises:
            IsologError: the topic id is unknown, this broker does not lead, or the epoch differs.
        """


class FollowedPartition(Protocol):
    """A follower's replica, in one leader epoch. One thread at a time calls it."""

    @property
    def key(self) -> PartitionId: ...

    @property
    def epoch(self) -> LeaderEpoch: ...

    @property
    def generation(self) -> Generation: ...

    def history(self) -> EpochHistory:
        """Return the epochs of the log."""

    def cut_back(self, agreement: Agreement) -> EntryIndex:
        """Truncate the log to the agreement, or reset it. Return its new end."""

    def append_frame(
        self, first: EntryIndex, rows: Table, data: pa.Buffer, high_watermark: EntryIndex
    ) -> EntryIndex:
        """Check and append entries that follow the log's end. Return the new end.

        Raises:
            IsologError: the entries do not follow the log's end, are damaged, or cannot be written.
                The session ends, and another one begins after a pause.
        """

    def take_high_watermark(self, high_watermark: EntryIndex) -> None:
        """Apply the leader's high watermark."""

    def on_refused(self, error: IsologError) -> None:
        """Handle the leader's error, before another session begins after a pause."""


class Submit(Protocol):
    """A function that runs another one on a different thread.

    It returns False after the threads have stopped.
    """

    def __call__(self, function: Callable[[*Ts], None], /, *args: *Ts) -> bool: ...


class Background(Struct, frozen=True):
    """Other threads, and the loop's timers.

    With ``submit_after``, a thread that has appended may run the work itself afterwards.
    ``call_later`` calls a function after a number of seconds, on the loop's thread. That function
    must not block.
    """

    submit: Submit
    submit_after: Submit
    call_later: Callable[[float, Callable[[], None]], object]


class ReplicationContext(Struct, frozen=True):
    """The shared context of a broker's replication streams, at both ends."""

    me: BrokerIdentity
    settings: ReplicationSettings
    clock: Clock
    background: Background
