"""How a bug is planted: a function that patches the product, under its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}
IN_FILES: set[str] = set()
"""Those that only runs can meet in which something happens to a disk."""


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def bug_in_files(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    IN_FILES.add(plant.__name__)
    return bug(plant)


def no_steps(*_: Any, **__: Any) -> Any:
    """A script that does nothing."""
    yield from ()
