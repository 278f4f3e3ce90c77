"""The invariants after every event of every run: one class for each, its docstring is the rule."""

from tests.simulation.invariants import (
    answers,
    deciding,
    ends,
    groups,
    logs,
    marking,
    positions,
    reading,
    replicas,
    retention,
)
from tests.simulation.invariants.base import Invariant

MODULES = (logs, replicas, deciding, marking, answers, reading, positions, groups, retention, ends)

INVARIANTS: tuple[type[Invariant], ...] = tuple(
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type)
    and issubclass(each, Invariant)
    and each is not Invariant
    and each.__module__ == module.__name__
)
"""All of them. A new class in one of these modules is one of them."""
