"""Drives scripts of a simulated broker: every step is an event, and so may be its answer.

The steps do what they do in a broker (``broker.step_table``). Before each of them, and between the
steps of a ``Together``, anything may happen; sometimes between a step and its answer as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from spark_stream.broker.step_table import Answer, StepTable
from spark_stream.errors import IsologError, NotLeader
from spark_stream.scripts.steps import PartitionStep, Script, Step, Together
from spark_stream.testing.simulation.schedule import NOW, Body

_LATE: Final = 0.25  # how often something may happen between a step and its answer
_STILL: Final = 0.03  # how often a thread stands still there, and much may happen
_STILL_S: Final = 2.0

AskPeer = Callable[[str, Sequence[PartitionStep]], Body]
"""Has another broker carry out steps: a body that returns their answers."""
CarriedOut = Callable[[PartitionStep, Answer], None]


class SimulatedDriver:
    """Drives the scripts of one broker; its bodies are for a schedule."""

    def __init__(
        self, table: StepTable, ask_peer: AskPeer, chance: Random, carried_out: CarriedOut
    ) -> None:
        """``carried_out`` is told of each step on a partition, and of its answer."""
        self._carried_out = carried_out
        self._table = table
        self._ask_peer = ask_peer
        self._chance = chance

    def run(self, script: Script[Any]) -> Body:
        """A body that returns the script's result, or raises what it raises."""
        try:
            step = next(script)
            while True:
                try:
                    answer = yield from self._answer(step)
                except IsologError as error:
                    step = script.throw(error)
                else:
                    yield from self._may_stand_still()
                    step = script.send(answer)
        except StopIteration as ended:
            return ended.value
        finally:
            script.close()

    def _may_stand_still(self) -> Body:
        chosen = self._chance.random()
        if chosen < _STILL:
            yield self._chance.random() * _STILL_S
        elif chosen < _LATE:
            yield NOW

    def run_here(self, steps: Sequence[PartitionStep]) -> Body:
        """A body that returns the answers to steps that another broker sent."""
        answers: list[Answer] = []
        for step in steps:
            yield NOW
            answers.append(self._try_here(step))
        return answers

    def _try_here(self, step: PartitionStep) -> Answer:
        try:
            answer = self._table.run_here(step)
        except IsologError as error:
            answer = error
        self._carried_out(step, answer)
        return answer

    def _answer(self, step: Step) -> Body:
        if isinstance(step, Together):
            return (yield from self._together(step.steps))
        if isinstance(step, PartitionStep):
            (answer,) = yield from self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        yield NOW
        return self._table.carry_out(step)

    def _together(self, steps: Sequence[PartitionStep]) -> Body:
        answers: list[Answer] = yield from self.run_here(steps)
        elsewhere: dict[str, list[int]] = {}
        for number, answer in enumerate(answers):
            if isinstance(answer, NotLeader):
                elsewhere.setdefault(str(answer.details.get("leader")), []).append(number)
        for leader, numbers in elsewhere.items():
            try:
                found = yield from self._ask_peer(leader, [steps[number] for number in numbers])
            except IsologError as error:
                found = [error.again() for _ in numbers]
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers
