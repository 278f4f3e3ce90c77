"""Scripts: generators that yield the steps which a driver carries out.

A script decides without I/O. It may end at each step, with its process. Kinds of steps are in
``scripts.steps`` for brokers, and in ``lake.steps`` for lakes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

from spark_stream.structs import Positional

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Step(Positional, Generic[T_co]):
    """A request of a script, answered with a ``T_co``."""

    def __iter__(self) -> Generator[Step[Any], Any, T_co]:
        """Yield the step. Return its answer."""
        answer: T_co = yield self
        return answer


Script = Generator[Step[Any], Any, T]


def run_script(script: Script[T], carry_out: Callable[[Step[Any]], Any]) -> T:
    """Carry out the steps of a script. Return its result, or raise its error."""
    try:
        step = next(script)
        while True:
            try:
                answer = carry_out(step)
            except Exception as error:  # foreseen or not: the script may owe an answer
                step = script.throw(error)
            else:
                step = script.send(answer)
    except StopIteration as ended:
        return cast(T, ended.value)
    finally:
        script.close()
