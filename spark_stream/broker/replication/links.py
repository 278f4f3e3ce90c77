"""This broker's partitions, as the streams of replication see them (``broker.replication``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pyarrow as pa
from msgspec import Struct

from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.partition import Partition
from spark_stream.broker.replication.fetchers import Fetchers
from spark_stream.broker.replication.partitions import Agreement, PartitionKey
from spark_stream.consistency.control.partition_record import Member
from spark_stream.consistency.entries import Table
from spark_stream.consistency.ids import BrokerId, EntryIndex, Generation, LeaderEpoch
from spark_stream.consistency.replication.epochs import EpochHistory
from spark_stream.consistency.replication.follower import LeaderAnswer
from spark_stream.errors import DamagedSegment, IsologError, UnknownSchema
from spark_stream.storage.format.stored import StoredEntries


class LedPartitions:
    """The partitions that this broker leads, for its followers' streams."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def start_session(
        self,
        follower: BrokerId,
        generation: Generation,
        key: PartitionKey,
        epoch: LeaderEpoch,
        history: EpochHistory,
        news: Callable[[bool], None],
    ) -> FollowerSession:
        """Begin a session.

        Raises:
            UnknownTopic, NotLeader, LeaderUnavailable, LeaderEpochFenced, UnknownLeaderEpoch: not
                with this broker, or not yet.
        """
        partition = self._host.led(key.topic_id, key.partition)
        agreed = partition.followers.start_session(
            Member(follower, generation), epoch, history, news
        )
        return FollowerSession(partition, agreed)


class FollowerSession:
    """One follower of a partition that this broker leads."""

    def __init__(self, partition: Partition, agreed: LeaderAnswer) -> None:
        self._partition = partition
        self._number = agreed.session
        self.agreement = Agreement(agreed.entry, agreed.begin, agreed.high_watermark)

    @property
    def end(self) -> EntryIndex:
        """The end of the leader's log."""
        return self._partition.core.bounds_state.log_end.entry

    @property
    def high_watermark(self) -> EntryIndex:
        """Take the leader's high watermark."""
        return self._partition.core.bounds_state.high_watermark.entry

    def read_entries(self, first: EntryIndex, max_bytes: int) -> StoredEntries | None:
        """Return entries for the follower; raise as ``Followers.entries_for``."""
        return self._partition.followers.entries_for(self._number, first, max_bytes)

    def on_acked(self, entry: EntryIndex) -> None:
        """Take a follower's report: it has all entries before this one."""
        self._partition.followers.take_report(self._number, entry)

    def came_damaged(self, entry: EntryIndex) -> None:
        """Note that an entry arrived damaged at the follower."""
        self._partition.followers.take_complaint(self._number, entry)

    def refuses_writes(self) -> None:
        """Note that the follower's log refuses writes."""
        self._partition.followers.take_refusal(self._number)

    def on_promised(self, until: float) -> None:
        """Note that the follower will not lead before ``until``."""
        self._partition.followers.take_promise(self._number, until)

    def close(self) -> None:
        """End the session: the follower is gone."""
        self._partition.followers.end_session(self._number)


class Followed(Struct, frozen=True):
    """A replica that follows a leader in one epoch, until it changes its role or begins again."""

    partition: Partition
    epoch: LeaderEpoch
    generation: Generation
    turn: int
    refresh: Callable[[], None]

    @classmethod
    def now(
        cls,
        partition: Partition,
        generation: Generation,
        refresh: Callable[[], None] = lambda: None,
    ) -> Self:
        """Return the partition as it follows now; the result does not change.

        ``refresh`` lets this broker see what is on record.
        """
        return cls(partition, partition.leader_epoch, generation, partition.turn, refresh)

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.partition.topic_id, self.partition.number)

    def history(self) -> EpochHistory:
        """Return the epochs of the log."""
        return self.partition.following.history()

    def cut_back(self, agreement: Agreement) -> EntryIndex:
        """Cut the log back to the agreement; return its end after that."""
        agreed = LeaderAnswer(
            self.epoch, -1, agreement.entry, agreement.high_watermark, agreement.reset
        )
        return self.partition.following.agree(self.turn, agreed)

    def append_frame(
        self, first: EntryIndex, rows: Table, data: pa.Buffer, high_watermark: EntryIndex
    ) -> EntryIndex:
        """Append what the leader has sent. Return the log's end after that."""
        frame = StoredEntries(rows, data)
        try:
            return self.partition.following.append_frame(self.turn, first, frame, high_watermark)
        except UnknownSchema:  # the leader has seen an alteration of the topic before this broker
            self.refresh()
        return self.partition.following.append_frame(self.turn, first, frame, high_watermark)

    def take_high_watermark(self, high_watermark: EntryIndex) -> None:
        """Take the leader's high watermark."""
        self.partition.following.take_high_watermark(self.turn, high_watermark)

    def on_refused(self, error: IsologError) -> None:
        """Take back what the leader cannot give; the stream asks again."""
        if isinstance(error, DamagedSegment):
            self.partition.following.take_back(self.turn)


class StreamLinks:
    """This broker's replicas follow their leaders by streams."""

    def __init__(self, fetchers: Fetchers, refresh: Callable[[], None]) -> None:
        self._fetchers = fetchers
        self._refresh = refresh

    def follow(self, partition: Partition, leader: BrokerId, generation: Generation) -> None:
        """Let the partition follow that broker, in the epoch that it knows."""
        self._fetchers.follow(leader, Followed.now(partition, generation, self._refresh))

    def unfollow(self, partition: Partition) -> None:
        """Stop following."""
        self._fetchers.unfollow(PartitionKey(partition.topic_id, partition.number))

    def may_lead_at(self, partition: Partition) -> float:
        """Return when the partition may lead: it may have promised its leaders to wait."""
        return self._fetchers.may_lead_at(PartitionKey(partition.topic_id, partition.number))
