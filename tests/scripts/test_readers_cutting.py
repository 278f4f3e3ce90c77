"""A cut through partitions while transactions are written and decided."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_stream.cluster.topics import Topic
from spark_stream.consistency.ids import LeaderEpoch, Offset
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.partition.atomic_cuts import SpansSnapshot
from spark_stream.errors import UnknownPartition
from spark_stream.scripts.readers import find_cut
from spark_stream.scripts.steps import (
    FindTopic,
    PartitionStep,
    ReadBounds,
    ReadEpochs,
    ReadExtents,
    Refresh,
    Script,
    Step,
    Together,
)
from spark_stream.wire.topic_messages import CutTopic
from tests.consistency.partition.test_atomic_cuts import is_atomic, spans_of
from tests.support import NUMBERS

PARTITIONS_FIRST, PARTITIONS_LAST = 2, 4
TRANSACTIONS = range(4)


@dataclass
class Log:
    """A partition: the transaction of each record (-1: none), and those with a marker here."""

    records: list[int] = field(default_factory=list)
    marked: set[int] = field(default_factory=set)

    def bounds(self) -> Bounds:
        end = len(self.records)
        open_at = (n for n, each in enumerate(self.records) if each not in {-1, *self.marked})
        return Bounds(Offset(0), Offset(next(open_at, end)), Offset(end), Offset(end))

    def extents(self) -> SpansSnapshot:
        return spans_of(self.records).snapshot()


class World:
    """The partitions of one topic, and the committed transactions.

    ``known``: the number of partitions in the view of the broker that finds the cut.
    """

    def __init__(self) -> None:
        self.logs = [Log() for _ in range(PARTITIONS_FIRST)]
        self.known = PARTITIONS_FIRST
        self.decided: set[int] = set()

    def do(self, what: str, transaction: int, partition: int) -> None:
        """One event. Events that the rules do not allow at this moment are left out."""
        if what == "add partition" and len(self.logs) < PARTITIONS_LAST:
            self.logs.append(Log())
        log = self.logs[partition % len(self.logs)]
        if what == "plain":
            log.records.append(-1)
        elif what == "write" and transaction not in self.decided:
            log.records.append(transaction)
        elif what == "decide":
            self.decided.add(transaction)
        elif what == "mark" and transaction in self.decided:
            log.marked.add(transaction)

    def answer(self, step: Step) -> Any:
        if isinstance(step, FindTopic):
            return Topic("t", "id", NUMBERS, self.known, {})
        if isinstance(step, ReadEpochs):
            return [LeaderEpoch(0) for _ in step.places]
        if isinstance(step, Refresh):
            self.known = len(self.logs)
            return None
        assert isinstance(step, PartitionStep)
        log = self.logs[step.at.partition]
        return {ReadBounds: log.bounds, ReadExtents: log.extents}[type(step)]()

    def run(self, script: Script[Any], between: Callable[[], None]) -> Any:
        """Return the script's result. ``between`` runs before each answer of each step."""
        answer: Any = None
        try:
            while True:
                step = script.send(answer)
                asked = step.steps if isinstance(step, Together) else [step]
                answers = []
                for each in asked:
                    between()
                    answers.append(self.answer(each))
                answer = answers if isinstance(step, Together) else answers[0]
        except StopIteration as done:
            return done.value


EVENTS = (*["plain", "write", "write", "write", "decide", "mark"] * 2, "add partition")


@pytest.mark.parametrize("seed", range(8))
def test_no_cut_splits_a_transaction_under_concurrent_writes(seed):
    chance = random.Random(seed)
    for _ in range(100):
        world = World()

        def between(world: World = world) -> None:
            for _ in range(chance.randrange(12)):
                event = chance.choice(EVENTS)
                world.do(event, chance.choice(TRANSACTIONS), chance.randrange(PARTITIONS_LAST))

        lower: dict[int, int] = {}
        for _ in range(2):
            between()
            found = world.run(find_cut([CutTopic(topic="t", topic_id="id", lower=lower)]), between)[
                "t"
            ]
            cut = [found.get(number, 0) for number in range(len(world.logs))]
            records = [log.records for log in world.logs]
            assert is_atomic(cut, records), (cut, records)
            assert all(found[number] >= first for number, first in lower.items())
            lower = found


@pytest.mark.parametrize("number", [PARTITIONS_FIRST, PARTITIONS_LAST])
def test_a_partition_is_unknown_only_after_a_refresh(number: int) -> None:
    world = World()
    world.logs.append(Log([-1]))
    script = find_cut([CutTopic(topic="t", lower={number: 0})])
    if number == PARTITIONS_FIRST:
        assert world.run(script, lambda: None) == {"t": {0: 0, 1: 0, 2: 1}}
    else:
        with pytest.raises(UnknownPartition, match="partitions 0 to 2, not 4"):
            world.run(script, lambda: None)
