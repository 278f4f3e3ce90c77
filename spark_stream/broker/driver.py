"""Drives scripts by threads: each step is carried out, and its answer resumes the script.

A thread that calls :meth:`Driver.run` drives its script to the end; any number may do so at once. A
step on a partition that this broker leads runs here. One that another broker leads goes there as an
internal action; there it runs or is refused, and calls nobody else: so two brokers that call each
other cannot wait for each other.

What a step does is in ``step_table``; who drives scripts in another way uses the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, cast

from spark_stream.broker.step_table import Answer, StepTable
from spark_stream.errors import IsologError, NotLeader
from spark_stream.scripts.steps import PartitionStep, Script, Step, Together

T = TypeVar("T")


class Peers(Protocol):
    """The other brokers of the store."""

    def run_steps(self, broker_id: str, steps: Sequence[PartitionStep]) -> list[Answer]:
        """What the broker answers to each step; LeaderUnavailable if it does not."""


class Driver:
    """Drives the scripts of one broker."""

    def __init__(self, table: StepTable, peers: Peers) -> None:
        self._table = table
        self._peers = peers

    def run(self, script: Script[T]) -> T:
        """The script's result; raises what it raises."""
        try:
            step = next(script)
            while True:
                try:
                    answer = self._answer(step)
                except IsologError as error:
                    step = script.throw(error)
                else:
                    step = script.send(answer)
        except StopIteration as ended:
            return cast(T, ended.value)
        finally:
            script.close()

    def _answer(self, step: Step) -> Any:
        if isinstance(step, Together):
            return self._together(step.steps)
        if isinstance(step, PartitionStep):
            (answer,) = self._together((step,))
            if isinstance(answer, IsologError):
                raise answer
            return answer
        return self._table.carry_out(step)

    def _together(self, steps: Sequence[PartitionStep]) -> list[Answer]:
        answers: list[Answer] = []
        elsewhere: dict[str, list[int]] = {}
        for number, step in enumerate(steps):
            try:
                answers.append(self._table.run_here(step))
            except NotLeader as error:
                elsewhere.setdefault(str(error.details.get("leader")), []).append(number)
                answers.append(error)
            except IsologError as error:
                answers.append(error)
        for leader, numbers in elsewhere.items():
            try:
                found = self._peers.run_steps(leader, [steps[number] for number in numbers])
            except IsologError as error:
                found = [error.again() for _ in numbers]
            for number, answer in zip(numbers, found, strict=True):
                answers[number] = answer
        return answers
