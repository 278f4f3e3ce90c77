"""Invariants of the answers to producers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from isolog.errors import (
    DamagedSegment,
    InternalError,
    InvalidTransaction,
    IsologError,
    UnknownOutcome,
)
from spark_stream.client.writing.lanes import Settlement, Unacknowledged
from spark_stream.consistency.ids import NO_TRANSACTION
from spark_stream.consistency.transactions.transactions import COMMITS, Transaction
from spark_stream.wire.stream_messages import Ack, BatchRefused
from spark_stream.wire.transaction_messages import CommitTransaction
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Course, Line, Seen, Sent
from tests.simulation.invariants.base import Invariant, View


class AnswersComeAfterTheAppend(Invariant):
    """An acknowledged batch was appended at the offset of its acknowledgement."""

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        if isinstance(ack, BatchRefused):
            return
        course = self.history.courses[sent.place]
        there = [
            each
            for each in course.written.values()
            if each.entry.base_offset == ack.offset and each.values == tuple(sent.values)
        ]
        what = f"{course.name}: {sent.values} is acknowledged at {ack.offset}"
        self.require(bool(there), f"{what}, where it never was")


class AnAcknowledgedBatchIsReplicated(Invariant):
    """A batch that requires replication is acknowledged below the high watermark."""

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        if isinstance(ack, BatchRefused) or not sent.committed:
            return
        course = self.history.courses[sent.place]
        end = ack.offset + ack.count
        there = [n for _, part in course.committed.between(ack.offset, end) for n in part]
        if there == list(sent.values):
            return
        lost = any(set(sent.values) & gone for gone in self._lost.values())
        # An unclean election may have replaced its leader, which has not read that yet.
        epochs = [
            each.entry.leader_epoch
            for each in course.written.values()
            if each.values == tuple(sent.values)
        ]
        counts = not epochs or any(map(course.counts, epochs))
        what = f"{course.name}: {sent.values} is acknowledged at {ack.offset}"
        self.require(lost or not counts, f"{what}, where {there} is committed")

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._lost: dict[int, set[int]] = {}

    def lost(self, course: Course, gone: Sequence[Seen]) -> None:
        self._lost[len(self._lost)] = {number for each in gone for number in each.values}


class NoAppendFailsUnforeseen(Invariant):
    """No append is answered by an unexpected error."""

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        error = ack.error if isinstance(ack, BatchRefused) else None
        self.require(not isinstance(error, InternalError), f"{sent.values}: {error}")


class NothingIsSaidToBeDamaged(Invariant):
    """No batch is refused for a damaged log, as no disk of a run changes written bytes."""

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        error = ack.error if isinstance(ack, BatchRefused) else None
        self.require(not isinstance(error, DamagedSegment), f"{sent.values}: {error}")


class ADuplicateGetsItsFirstAnswer(Invariant):
    """A batch that is sent again is answered as it was the first time."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._first: dict[int, int] = {}

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        if isinstance(ack, BatchRefused) or sent.producer is None:
            return
        if not ack.duplicate:
            self._first[sent.values[0]] = ack.offset  # again: a new leader may lack the first
            return
        first = self._first.setdefault(sent.values[0], ack.offset)
        course = self.history.courses[sent.place]
        places = {
            each.entry.base_offset
            for each in course.written.values()
            if each.values == tuple(sent.values)
        }
        if len(places) > 1:  # it was truncated, and appended again
            self.require(ack.offset in places, f"{sent.values} never was at {ack.offset}")
            return
        what = f"{sent.values} was acknowledged at {first} and then at {ack.offset}"
        self.require(ack.offset == first, what)


class AProducerIsToldTheTruth(Invariant):
    """A batch is at the offset of its acknowledgement, or is not committed after an error."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._refused: dict[int, IsologError] = {}

    def settled(self, sent: Sent, settlement: Settlement) -> None:
        course = self.history.courses[sent.place]
        if isinstance(settlement, Unacknowledged):
            if not isinstance(settlement.error, UnknownOutcome):  # without an outcome
                self._refused[sent.values[0]] = settlement.error
                self._look(course, course.committed.entries)
            return
        places = {
            each.entry.base_offset
            for each in course.written.values()
            if each.values == tuple(sent.values)
        }
        what = f"{course.name}: {sent.values} was at {places}, and not at {settlement.offset}"
        self.require(settlement.offset in places and settlement.count == len(sent.values), what)

    def committed_upto(self, line: Line, first: int, upto: int) -> None:
        if self._refused:
            self._look(line.course, line.entries[first:upto])

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for course in self.history.there():
            self._look(course, course.committed.entries)

    def _look(self, course: Course, entries: Sequence[Seen]) -> None:
        for each in entries:
            told = self._refused.get(each.values[0]) if each.values else None
            if told is None or not self.history.is_committed(each.part):
                continue
            # A producer aborts a transaction in which a write failed, so the error is true. The
            # clients here may still commit it.
            is_held_to = each.part[0] == NO_TRANSACTION or isinstance(told, InvalidTransaction)
            what = f"{course.name}: {each.values} is there; told: {told}"
            self.require(not is_held_to, what)


class ACommitIsAnsweredWhenItIsVisible(Invariant):
    """A transaction whose commit was acknowledged has its marker in every partition."""

    def committed(self, commit: CommitTransaction, answer: Transaction) -> None:
        number = commit.number
        what = f"transaction {number} of {commit.transactional_id!r}"
        self.require(answer.state in COMMITS, f"{what} is {answer.state}")
        decision = self.history.decisions.get(number)
        decided = decision is not None and decision.committed
        self.require(decided, f"{what} is told to be committed, and is not")
        taken = frozenset() if decision is None else decision.taken
        for each in self.history.places[number]:
            course = self.history.courses.get((each.topic_id, each.partition))
            if course is not None and not course.deleted and number not in course.unmarked:
                left = [part for part in course.committed.open if part[0] == number]
                if number in course.lost:  # those of branches that it did not take, nobody forces
                    left = [part for part in left if part[1] in taken]
                self.require(
                    not left, f"{what} is told to be visible; open in {course.name}: {left}"
                )
