"""A batch of a transaction on its way into a partition, as scripts.

Order of steps (``consistency.partition.joins`` says why): the partition opens a join, the join is
put on record, the partition confirms it, and then it takes the batch. Where the join is confirmed
already, only the last is left. Many partitions can join before their batches come, with one write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from spark_stream.broker.partition.outcomes import Candidate, Taken
from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.isolation import Isolation
from spark_stream.consistency.partition.joins import PendingJoin
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.consistency.transactions.transactions import Joined
from spark_stream.errors import InvalidTransaction, IsologError, ProducerFenced
from spark_stream.scripts.steps import Script, Step
from spark_stream.scripts.transactions import deciding
from spark_stream.scripts.transactions.deciding import Decisions


class TakeBatch(Step[Taken | None]):
    """Lets the partition take the batch; None if others held it for ``patience_s``."""

    partition: Partition
    candidate: Candidate
    stamp: Stamp | None
    isolation: Isolation
    patience_s: float

    def take(self) -> Taken | None:
        return self.partition.appends.take(
            self.candidate, self.stamp, self.isolation, self.patience_s
        )


class AwaitAcknowledgement(Step[None]):
    """Waits until a batch that was taken is as safe as it asked to be; fails if it cannot be."""

    partition: Partition
    taken: Taken
    timeout_s: float

    def wait(self) -> None:
        self.partition.appends.await_acknowledgement(self.taken, self.timeout_s)


WriterOf = tuple[int, int, int]
"""A transaction's number, a producer id of it, and the producer's epoch."""


def take_in_transaction(
    decisions: Decisions,
    batch: TakeBatch,
    stamp: Stamp,
    transactional_id: str,
    known: set[WriterOf],
) -> Script[Taken | None]:
    """Take a batch of a transaction, after the partition has joined it.

    ``known``: the last writer that was found to belong to the transactional id. Return None, with
    nothing taken, if others held the partition for the batch's ``patience_s``.

    Raises: as ``Partition.take``, and as ``deciding.join``.
    """
    if not (yield from _join(decisions, batch, stamp, transactional_id, known)):
        return None
    try:
        taken = yield from batch
    except (InvalidTransaction, ProducerFenced) as error:
        explained = deciding.explain_refusal(transactional_id, stamp.transaction, error)
        raise (yield from explained) from None
    return taken


def _join(
    decisions: Decisions,
    batch: TakeBatch,
    stamp: Stamp,
    transactional_id: str,
    known: set[WriterOf],
) -> Script[bool]:
    """Let the partition join the transaction. Return False if others held the partition.

    A transaction that is sealed meanwhile has not joined: its batches are refused. That another
    stream's batch made the partition join says nothing about who sends this one.
    """
    at = batch.partition
    writer = stamp.transaction, stamp.producer_id, stamp.epoch
    if at.transactions.has_joined(stamp.transaction, stamp.producer_id):
        if writer not in known:
            yield from deciding.check_joins(transactional_id, *writer)
            _note(known, writer)
        return True
    pending = at.transactions.open_join(stamp.transaction, stamp.producer_id, batch.patience_s)
    if pending is None:
        return False
    yield from _put_on_record(decisions, [(at, pending)], stamp, transactional_id, waits=True)
    _note(known, writer)
    return True


def _note(known: set[WriterOf], writer: WriterOf) -> None:
    known.clear()  # a client has one transaction after the other
    known.add(writer)


def join_together(
    decisions: Decisions,
    partitions: Iterable[Partition],
    stamp: Stamp,
    transactional_id: str,
    known: set[WriterOf],
) -> Script[None]:
    """Let different partitions join the transaction, as far as they are free and led here.

    ``known``: as in :func:`take_in_transaction`. A partition that has not joined by then joins with
    its first batch, or that batch is refused.

    Raises: as ``deciding.join``.
    """
    opened = []
    for each in partitions:
        with suppress(IsologError):
            pending = each.transactions.open_join(
                stamp.transaction, stamp.producer_id, patience_s=0
            )
            if pending is not None:
                opened.append((each, pending))
    if opened:
        yield from _put_on_record(decisions, opened, stamp, transactional_id, waits=False)
        _note(known, (stamp.transaction, stamp.producer_id, stamp.epoch))


def _put_on_record(
    decisions: Decisions,
    opened: Sequence[tuple[Partition, PendingJoin]],
    stamp: Stamp,
    transactional_id: str,
    *,
    waits: bool,
) -> Script[None]:
    """Put open joins on record, and close them; ``waits``: as in ``close_join``."""
    on_record = False
    places = [Joined(at.topic, at.topic_id, at.number) for at, _ in opened]
    try:
        yield from decisions.join(
            transactional_id, stamp.transaction, stamp.producer_id, stamp.epoch, *places
        )
        on_record = True
    finally:
        for at, pending in opened:
            at.transactions.close_join(pending, on_record=on_record, waits=waits)
