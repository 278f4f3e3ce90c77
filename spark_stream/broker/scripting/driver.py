"""Drives scripts by threads: each step is carried out, and its answer resumes the script.

A thread that calls :meth:`Driver.run` drives its script to the end; any number may do so at once. A
step on a partition that this broker leads runs here. One that another broker leads goes there as an
internal action; there it runs or is refused, and calls nobody else: so two brokers that call each
other cannot wait for each other. If the other broker does not lead the partition any more, this one
looks up the leader once more.

``step_table`` has what a step does; those who drive scripts in another way use the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar, cast

from spark_stream.broker.scripting.step_table import Answer, StepTable
from spark_stream.errors import IsologError, NotLeader
from spark_stream.scripts.steps import (
    BrokerStep,
    PartitionStep,
    Refresh,
    RemoteStep,
    Script,
    Step,
    Together,
)

T = TypeVar("T")
_LOOKS: Final = 2  # how often a step looks for its leader


_REMOTE: Final = (PartitionStep, BrokerStep)


class Peers(Protocol):
    """The other brokers of the store."""

    def run_steps(self, broker_id: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        """Have the broker run the steps; return its answers.

        LeaderUnavailable if it does not answer.
        """


class Driver:
    """Drives the scripts of one broker."""

    def __init__(self, table: StepTable, peers: Peers) -> None:
        self._table = table
        self._peers = peers

    def run(self, script: Script[T]) -> T:
        """Run the script; return its result, or raise its error."""
        try:
            step = next(script)
            while True:
                try:
                    answer = self._answer(step)
                except Exception as error:  # foreseen or not: the script may owe somebody an answer
                    step = script.throw(error)
                else:
                    step = script.send(answer)
        except StopIteration as ended:
            return cast(T, ended.value)
        finally:
            script.close()

    def _answer(self, step: Step[Any]) -> Any:
        if isinstance(step, _REMOTE):
            (answer,) = self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        if isinstance(step, Together):
            return self._together(step.steps)
        return self._table.carry_out(step)

    def _together(self, steps: Sequence[RemoteStep]) -> list[Answer]:
        answers: list[Answer] = [None] * len(steps)
        left = list(range(len(steps)))
        for look in range(_LOOKS):
            if look:
                self._table.carry_out(Refresh())
            for number in left:
                answers[number] = self._tried_here(steps[number])
            for broker, numbers in elsewhere(answers, left).items():
                found = self._ask(broker, [steps[number] for number in numbers])
                for number, answer in zip(numbers, found, strict=True):
                    answers[number] = answer
            left = [number for number in left if isinstance(answers[number], NotLeader)]
            if not left:
                break
        return answers

    def _tried_here(self, step: RemoteStep) -> Answer:
        try:
            return self._table.run_here(step)
        except IsologError as error:
            return error

    def _ask(self, broker: str, steps: Sequence[RemoteStep]) -> list[Answer]:
        try:
            return self._peers.run_steps(broker, steps)
        except IsologError as error:
            return [error.again() for _ in steps]


def elsewhere(answers: Sequence[Answer], numbers: Iterable[int]) -> dict[str, list[int]]:
    """Return the numbers of answers that name another broker to ask, grouped by that broker."""
    found: dict[str, list[int]] = {}
    for number in numbers:
        answer = answers[number]
        if isinstance(answer, NotLeader) and answer.details.get("leader"):
            found.setdefault(str(answer.details["leader"]), []).append(number)
    return found
