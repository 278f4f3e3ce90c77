"""The counts that a broker takes while it works. Values of its state are not counted."""

from __future__ import annotations

from spark_stream.cluster.view import News, Snapshot
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId
from spark_stream.consistency.isolation import PRODUCER_LEVELS
from spark_stream.counting import Histogram, NamedCounts, TrafficBook
from spark_stream.wire.calls import CALLS

SHRINK, EXPAND = "shrink", "expand"
CLEAN, UNCLEAN = "clean", "unclean"


class BrokerCounts:
    """The counts of one broker since its start."""

    def __init__(self) -> None:
        self.traffic = TrafficBook()
        self.appends = {level: Histogram() for level in PRODUCER_LEVELS}
        """From when a batch was decoded until it is answered, by the producer's isolation."""
        self.fetches = Histogram()
        """The time of a fetch for reading the log, without its waits."""
        self.actions = {name: Histogram() for name in CALLS}
        self.forces = Histogram()
        self.store_reads = Histogram()
        self.store_writes = Histogram()
        self.store_errors = NamedCounts("read", "write")
        self.refused = NamedCounts()
        """By the code of the error that a client got."""
        self.isr_changes = NamedCounts(SHRINK, EXPAND)
        self.lost_members = NamedCounts()
        """Members that this broker removed without a leave, by the group's name."""
        self.elections = NamedCounts(CLEAN, UNCLEAN)


class ChangeCounter:
    """The counter of elections and ISR changes, in a broker's view of the cluster.

    It counts those of partitions that this broker leads. So each of them is counted by one broker,
    and the sum over brokers is right.
    """

    def __init__(self, me: BrokerId, known: Snapshot, counts: BrokerCounts) -> None:
        """Create the counter. Changes before the view ``known`` are not counted."""
        self._me = me
        self._known = known
        self._counts = counts

    def take(self, news: News, now: Snapshot) -> None:
        """Count the changes since the last snapshot."""
        before, self._known = self._known, now
        for each in news.partitions:
            old, new = before.partition(each), now.partition(each)
            if old is not None and new is not None and new.record.leader == self._me:
                self._count(old.record, new.record)

    def _count(self, old: PartitionRecord, new: PartitionRecord) -> None:
        if new.leader_epoch > old.leader_epoch:
            self._counts.elections.add(CLEAN if old.member(self._me) is not None else UNCLEAN)
        was, now = ({each.broker for each in record.isr} for record in (old, new))
        if was - now:
            self._counts.isr_changes.add(SHRINK)
        if now - was:
            self._counts.isr_changes.add(EXPAND)
