"""How a bug is planted: a function that patches the product, under its own name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from tests.simulation.form import DISK_FAULTS

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}
FAULTS_OF: dict[str, Collection[str]] = {}
"""The kinds of faults one of which shows the bug; any run may show a bug that is not here."""


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def bug_in_files(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS_OF[plant.__name__] = DISK_FAULTS
    return bug(plant)


def bug_in_outages(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS_OF[plant.__name__] = ("store-outage",)
    return bug(plant)


def no_steps(*_: Any, **__: Any) -> Any:
    """A script that does nothing."""
    yield from ()
