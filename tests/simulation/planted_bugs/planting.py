"""Planting of bugs: functions that patch the product, under their own names."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from tests.simulation.form import DISK_FAULTS, GROUPS_FROM

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}
FAULTS_OF: dict[str, Collection[str]] = {}
"""The kinds of faults one of which shows the bug. Any run may show a bug that is not here."""

IN_GROUPS: set[str] = set()
"""The bugs that only runs with a consumer group show."""


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def bug_in_files(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS_OF[plant.__name__] = DISK_FAULTS
    return bug(plant)


def bug_in_outages(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS_OF[plant.__name__] = ("store-outage",)
    return bug(plant)


def bug_in_trims(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS_OF[plant.__name__] = ("trimmer",)
    return bug(plant)


def bug_in_groups(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    IN_GROUPS.add(plant.__name__)
    return bug(plant)


def seeds_for(name: str, count: int) -> range:
    """The first seeds that may show the bug."""
    first = GROUPS_FROM if name in IN_GROUPS else 0
    return range(first, first + count)


def no_steps(*_: Any, **__: Any) -> Any:
    """A script that does nothing."""
    yield from ()
