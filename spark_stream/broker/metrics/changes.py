"""Counts elections and changes of in-sync replicas: those of partitions that this broker leads.

So each of them is counted by one broker, and the sum over brokers is right.
"""

from __future__ import annotations

from spark_stream.broker.counts import CLEAN, EXPAND, SHRINK, UNCLEAN, BrokerCounts
from spark_stream.cluster.view import News, Snapshot
from spark_stream.consistency.control.partition_record import PartitionRecord
from spark_stream.consistency.ids import BrokerId


class ChangeCounter:
    """Listens to a broker's view of the cluster."""

    def __init__(self, me: BrokerId, known: Snapshot, counts: BrokerCounts) -> None:
        """``known``: the view as it is; what was changed before is not counted."""
        self._me = me
        self._known = known
        self._counts = counts

    def take(self, news: News, now: Snapshot) -> None:
        """Count what has changed since the snapshot before."""
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
