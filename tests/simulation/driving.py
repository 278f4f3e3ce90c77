"""Drives scripts of a simulated broker: every step is an event, and so may be its answer.

The steps do what they do in a broker (``broker.scripting.driver``), but those that wait: time
is the schedule's here. Before each step, and between the steps of a ``Together``, anything may
happen. Sometimes between a step and its answer as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from isolog.errors import IsologError, NotLeader
from spark_stream.broker.scripting.driver import Answer, StepTable, elsewhere
from spark_stream.scripts.steps import (
    BrokerStep,
    PartitionStep,
    Pause,
    Refresh,
    RemoteStep,
    Script,
    Step,
)
from spark_stream.scripts.steps import Together as TogetherStep
from tests.simulation.schedule import NOW, Body

_LATE: Final = 0.25  # how often something may happen between a step and its answer
_STILL: Final = 0.03  # how often a thread stands still there, and much may happen
_STILL_S: Final = 2.0
_UNHURRIED: Final = 10  # scripts that look again and again do it so much more seldom here
_LOOKS: Final = 2  # how often a step looks for its leader, as in a broker

AskPeer = Callable[[str, Sequence[RemoteStep]], Body]
"""Has another broker carry out steps: a body that returns their answers."""
CarriedOut = Callable[[RemoteStep, Answer], None]


class SimulatedDriver:
    """Drives the scripts of one broker. Its bodies are for a schedule."""

    def __init__(
        self,
        table: StepTable,
        ask_peer: AskPeer,
        chance: Random,
        carried_out: CarriedOut,
    ) -> None:
        """``carried_out`` gets each step that was carried out here, and its answer."""
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
                    yield from self.may_stand_still()
                    step = script.send(answer)
        except StopIteration as ended:
            return ended.value
        finally:
            script.close()

    def may_stand_still(self) -> Body:
        """A body in which a thread stands still, now and then."""
        chosen = self._chance.random()
        if chosen < _STILL:
            yield self._chance.random() * _STILL_S
        elif chosen < _LATE:
            yield NOW

    def run_here(self, steps: Sequence[RemoteStep]) -> Body:
        """A body that returns the answers to steps that another broker sent."""
        answers: list[Answer] = []
        for step in steps:
            yield NOW
            answers.append(self._try_here(step))
        return answers

    def _try_here(self, step: RemoteStep) -> Answer:
        try:
            answer = self._table.run_here(step)
        except NotLeader as error:
            return error
        except IsologError as error:
            answer = error
        self._carried_out(step, answer)
        return answer

    def _answer(self, step: Step[Any]) -> Body:
        if isinstance(step, TogetherStep):
            return (yield from self._together(step.steps))
        if isinstance(step, PartitionStep | BrokerStep):
            (answer,) = yield from self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        if isinstance(step, Pause):
            yield step.seconds * _UNHURRIED
            return None
        yield NOW
        return self._table.carry_out(step)

    def _together(self, steps: Sequence[RemoteStep]) -> Body:
        answers: list[Answer] = [None] * len(steps)
        left = list(range(len(steps)))
        for look in range(_LOOKS):
            if look:
                self._table.carry_out(Refresh())
            yield NOW
            for number in left:
                answers[number] = self._try_here(steps[number])
                if not isinstance(answers[number], NotLeader):
                    yield NOW
            for broker, numbers in elsewhere(answers, left).items():
                try:
                    found = yield from self._ask_peer(broker, [steps[each] for each in numbers])
                except IsologError as error:
                    found = [error.again() for _ in numbers]
                for number, answer in zip(numbers, found, strict=True):
                    answers[number] = answer
            left = [number for number in left if isinstance(answers[number], NotLeader)]
            if not left:
                break
        return answers
