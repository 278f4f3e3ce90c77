"""What holds of the answers that producers get."""

from __future__ import annotations

from spark_stream.broker.partition import Partition
from spark_stream.consistency.transactions import COMMITS, Transaction
from spark_stream.errors import DamagedSegment, InternalError
from spark_stream.scripts.deciding import Commit
from spark_stream.testing.simulation.history import Line, Sent
from spark_stream.testing.simulation.invariants.base import Invariant, View
from spark_stream.wire.messages import Ack


class AnswersComeAfterTheAppend(Invariant):
    """An acknowledged batch is in the log, where the acknowledgement says."""

    def acknowledged(self, sent: Sent, ack: Ack, partition: Partition | None) -> None:
        if ack.error is not None or ack.offset is None or partition is None:
            return
        line = self.history.lines.get(sent.place)
        if line is None:
            return
        end = ack.offset + ack.count
        what = f"{line.name}: {sent.values} is acknowledged at {ack.offset}"
        ends = int(partition.log.end.offset)
        self.require(end <= ends, f"{what}, and the log ends at {ends}")
        there = [n for _, numbers in line.between(ack.offset, end) for n in numbers]
        self.require(there == list(sent.values), f"{what}, where {there} is")


class NoAppendFailsUnforeseen(Invariant):
    """No append is answered by an error that nobody has foreseen."""

    def acknowledged(self, sent: Sent, ack: Ack, partition: Partition | None) -> None:
        code = None if ack.error is None else ack.error.get("code")
        self.require(code != InternalError.code, f"{sent.values}: {ack.error}")


class NothingIsSaidToBeDamaged(Invariant):
    """No batch is refused for a damaged log, as no disk of a run changes what was written."""

    def acknowledged(self, sent: Sent, ack: Ack, partition: Partition | None) -> None:
        code = None if ack.error is None else ack.error.get("code")
        self.require(code != DamagedSegment.code, f"{sent.values}: {ack.error}")


class ADuplicateGetsItsFirstAnswer(Invariant):
    """A batch that is sent again is answered as it was the first time."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._first: dict[int, int] = {}

    def acknowledged(self, sent: Sent, ack: Ack, partition: Partition | None) -> None:
        if ack.error is not None or sent.stamp is None or ack.offset is None:
            return
        if not ack.duplicate:
            self._first[sent.values[0]] = ack.offset  # anew: a power cut may have taken the first
            return
        first = self._first.setdefault(sent.values[0], ack.offset)
        what = f"{sent.values} was acknowledged at {first} and then at {ack.offset}"
        self.require(ack.offset == first, what)


class ACommitIsAnsweredWhenItIsVisible(Invariant):
    """Who is told that a transaction is committed finds it marked in every partition."""

    def committed(self, commit: Commit, answer: Transaction) -> None:
        number = commit.number
        what = f"transaction {number} of {commit.transactional_id!r}"
        self.require(answer.state in COMMITS, f"{what} is {answer.state}")
        decision = self.history.decisions.get(number)
        decided = decision is not None and decision.committed
        self.require(decided, f"{what} is told to be committed, and is not")
        for each in answer.partitions:
            line: Line | None = self.history.lines.get((each.topic_id, each.partition))
            if line is not None and not line.deleted and number not in line.unmarked:
                left = [part for part in line.open if part[0] == number]
                self.require(not left, f"{what} is told to be visible; open in {line.name}: {left}")
