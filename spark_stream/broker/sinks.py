"""What sinks ask of a broker: branches, signs of life, and an end for what failed.

The rules are in ``consistency/sinks``; deciding and marking is the ``TransactionDesk``'s. As there,
every call can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from spark_stream.broker.refusals import of_transaction
from spark_stream.broker.transactions import TransactionDesk, now_ms
from spark_stream.consistency import sinks as rules
from spark_stream.consistency.sinks import Claim, Stop
from spark_stream.consistency.transactions import (
    DECIDED,
    Cause,
    Denial,
    Denied,
    Fresh,
    Outcome,
    State,
    Transaction,
)
from spark_stream.errors import TransactionAborted

_ASKED: Final = "batch {0.batch} of {0.query}"


class SinkDesk:
    """The sinks of one broker's store."""

    def __init__(self, desk: TransactionDesk) -> None:
        self._desk = desk

    def open_branch(
        self, transactional_id: str, claim: Claim, *, renamed: bool = False
    ) -> tuple[Transaction, int | None]:
        """The transaction that writes the claimed batch, and a producer id to write under.

        None in its place: the batch is committed. ``renamed``: the query may have written under
        another transactional id before; what it committed there counts here.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced.
            TransactionAborted: the driver that planned the batch has given it up.
        """
        if renamed:
            self._inherit(transactional_id, claim)
        fresh = Fresh(self._desk.new_number(), self._desk.new_producer())
        while True:
            outcome = self._desk.changed(
                transactional_id, lambda found: rules.branch(found, claim, fresh, now_ms())
            )
            if isinstance(outcome, Denied):
                if outcome.why is Denial.DONE:
                    return outcome.transaction, None
                raise of_transaction(outcome, None, _ASKED.format(claim))
            if fresh.producer_id in outcome.branches:
                break
            self._desk.finished(outcome)  # what the run before left open; then begin
        self._end_if_given_up(transactional_id, claim)
        return outcome, fresh.producer_id

    def _end_if_given_up(self, transactional_id: str, claim: Claim) -> None:
        # After the branch is on record: so either this finds that the run was stopped, or who
        # stops the run finds the branch.
        if not claim.run or self._desk.stopped.planned(claim.run) < claim.planned:
            return
        self._stop(transactional_id, Stop(claim.run, claim.planned, claim.batch))
        raise TransactionAborted(
            f"{_ASKED.format(claim)} was given up by its driver before this task began to write",
            cause=Cause.ASKED.value,
        )

    def settle(
        self, transactional_id: str, claim: Claim, *, renamed: bool = False
    ) -> tuple[Transaction, bool]:
        """The sink's record, with nothing left open; and whether the claimed batch is committed.

        Raises:
            SinkInUse, StaleBatch, ProducerFenced.
        """
        if renamed:
            self._inherit(transactional_id, claim)
        outcome = self._desk.changed(transactional_id, lambda found: rules.settle(found, claim))
        if isinstance(outcome, Denied):
            if outcome.why is Denial.DONE:
                return outcome.transaction, True
            raise of_transaction(outcome, None, _ASKED.format(claim))
        return self._ended(outcome), False

    def renew(self, transactional_id: str, instance: str, batch: int) -> None:
        """A task of the batch is alive: its transaction, if it is open, goes on.

        Raises:
            ProducerFenced: a later run of the query has taken over.
        """
        self._agreed(
            transactional_id,
            lambda found: rules.renew(found, instance, batch, now_ms()),
        )

    def drop_branch(
        self, transactional_id: str, instance: str, number: int, producer_id: int
    ) -> None:
        """A task failed: what it wrote is aborted at once, the transaction goes on.

        Raises:
            ProducerFenced, ForeignBranch: it is not the caller's branch.
            DiskFull, StorageFailure: a marker is missing; the transaction's end writes it.
        """
        outcome = self._agreed(
            transactional_id, lambda found: rules.drop(found, instance, number, producer_id)
        )
        if outcome.state is State.OPEN and producer_id in outcome.dropped:
            self._desk.mark_dropped(outcome, producer_id)

    def stop_run(self, asked: Stop) -> None:
        """The driver has given its batch up: nothing of it is open, or will be, from now on."""
        self._desk.stopped.stop(asked.run, asked.planned, now_ms())
        for record in self._desk.all():
            if record.run == asked.run:
                self._stop(record.transactional_id, asked)

    def _stop(self, transactional_id: str, asked: Stop) -> None:
        self._ended(self._agreed(transactional_id, lambda found: rules.stop(found, asked)))

    def _inherit(self, transactional_id: str, claim: Claim) -> None:
        """Takes over what the query did under other ids, once for each of its runs."""
        present = self._desk.records.get(transactional_id)
        if present is not None and present.instance == claim.instance:
            return
        for record in self._desk.all():
            name = record.transactional_id
            if record.query != claim.query or name == transactional_id:
                continue
            given = self._agreed(name, lambda found: rules.hand_over(found, claim.instance))
            self._ended(given)
            if given.committed_batch >= 0:
                inherit = partial(
                    rules.inherit,
                    query=claim.query,
                    batch=given.committed_batch,
                    content=given.content,
                )
                self._agreed(transactional_id, inherit)

    def _agreed(self, transactional_id: str, rule: Callable[[Transaction], Outcome]) -> Transaction:
        outcome = self._desk.changed(transactional_id, rule)
        if isinstance(outcome, Denied):
            raise of_transaction(outcome, None, "a sink's call")
        return outcome

    def _ended(self, outcome: Transaction) -> Transaction:
        return self._desk.finished(outcome) if outcome.state in DECIDED else outcome
