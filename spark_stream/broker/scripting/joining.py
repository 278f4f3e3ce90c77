"""The joins of a stream of appends: partitions join a transaction before its batches, as scripts.

Order of steps (``consistency.partition.open_transactions`` says why): the partition opens a join,
the join is put on record, the partition confirms it, and then it takes the batch. Many
partitions can join before their batches come, with one write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.partition.open_transactions import PendingJoin
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import InvalidRequest, IsologError
from spark_stream.scripts.steps import Script
from spark_stream.scripts.transactions import deciding
from spark_stream.scripts.transactions.deciding import Decisions


class StreamJoins:
    """The joins of one stream. ``transactional_id``: None if it has batches without transactions.

    A client has one transaction after the other. So only the last writer is remembered that belongs
    to the transactional id.
    """

    def __init__(self, decisions: Decisions, transactional_id: str | None) -> None:
        self._decisions = decisions
        self._transactional_id = transactional_id
        self._writer: tuple[int, int, int] | None = None

    def has_joined(self, at: Partition, stamp: Stamp) -> bool:
        """Return whether the partition has joined, and the writer belongs to the transactional id.

        A join by another stream's batch does not prove the second condition.
        """
        return self._writer == _writer_of(stamp) and at.transactions.has_joined(
            stamp.transaction, stamp.producer_id
        )

    def join(self, at: Partition, stamp: Stamp, patience_s: float) -> Script[bool]:
        """Join the partition to the transaction. Return False if others held the partition.

        If the transaction is sealed before the confirmation, the partition refuses its batches.

        Raises:
            InvalidRequest: the stream has no transactional id.
            IsologError: as ``Decisions.join``.
        """
        name = self._transactional_id
        if name is None:
            raise InvalidRequest("a batch in a transaction needs the stream's transactional_id")
        if at.transactions.has_joined(stamp.transaction, stamp.producer_id):
            yield from deciding.check_joins(name, *_writer_of(stamp))
            self._writer = _writer_of(stamp)
            return True
        pending = at.transactions.open_join(stamp.transaction, stamp.producer_id, patience_s)
        if pending is None:
            return False
        yield from self._put_on_record(name, [(at, pending)], stamp, waits=True)
        return True

    def join_together(self, partitions: Iterable[Partition], stamp: Stamp) -> Script[None]:
        """Join different partitions to the transaction, as far as they are free and led here.

        Any other partition joins with its first batch, or refuses that batch.

        Raises: as ``Decisions.join``.
        """
        if self._transactional_id is None:
            return
        opened = []
        for each in partitions:
            with suppress(IsologError):
                pending = each.transactions.open_join(
                    stamp.transaction, stamp.producer_id, patience_s=0
                )
                if pending is not None:
                    opened.append((each, pending))
        if opened:
            yield from self._put_on_record(self._transactional_id, opened, stamp, waits=False)

    def explain(self, stamp: Stamp, refusal: IsologError) -> Script[IsologError]:
        """Return the error for a batch that its partition refused because of its transaction."""
        assert self._transactional_id is not None
        return (
            yield from deciding.explain_refusal(self._transactional_id, stamp.transaction, refusal)
        )

    def _put_on_record(
        self,
        name: str,
        opened: Sequence[tuple[Partition, PendingJoin]],
        stamp: Stamp,
        *,
        waits: bool,
    ) -> Script[None]:
        """Put open joins on record, and close them. ``waits``: as in ``close_join``."""
        on_record = False
        places = [Joined(at.topic, at.topic_id, at.number) for at, _ in opened]
        try:
            yield from self._decisions.join(name, *_writer_of(stamp), *places)
            on_record = True
        finally:
            for at, pending in opened:
                at.transactions.close_join(pending, on_record=on_record, waits=waits)
        self._writer = _writer_of(stamp)


def _writer_of(stamp: Stamp) -> tuple[int, int, int]:
    """Return the transaction's number, a producer id of it, and the producer's epoch."""
    return stamp.transaction, stamp.producer_id, stamp.epoch
