"""The number of examples in ``make test``, which must be quick, and in ``make test-all``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

_FEW = "ISOLOG_FEW_EXAMPLES"
_PART = 5
_LEAST = 20


def choose(config: pytest.Config) -> None:
    """Choose few examples for ``make test``, before test modules are imported."""
    if "not full" not in config.getoption("markexpr"):
        os.environ.pop(_FEW, None)
        return
    os.environ[_FEW] = "1"
    settings.register_profile("few", max_examples=examples(settings.default.max_examples))
    settings.load_profile("few")


def is_quick() -> bool:
    """Return whether this is ``make test``."""
    return _FEW in os.environ


def examples(number: int) -> int:
    """Return this number in ``make test-all``, and a part of it in ``make test``."""
    return min(number, max(_LEAST, number // _PART)) if is_quick() else number


def part(cases: Sequence[T]) -> Sequence[T]:
    """Return all cases in ``make test-all``, and each fifth one in ``make test``."""
    return cases[::_PART] if is_quick() else cases


def the_first(cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return all cases as parameters. Only the first runs in ``make test``."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.full) for case in cases[1:])]


def mark_further(items: Sequence[pytest.Item], *, whole: bool) -> None:
    """Give ``full`` to cases that ``@pytest.mark.quick("a part of an id", ...)`` does not name.

    Raises:
        pytest.UsageError: a file is collected whole, and a part is in the id of none of its cases.
    """
    missing: dict[tuple[str, str], bool] = {}
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        parts = {part: f"-{part}-" in f"-{item.callspec.id}-" for part in mark.args}
        if not any(parts.values()):
            item.add_marker("full")
        for part, is_here in parts.items():
            place = (item.nodeid.partition("[")[0], part)
            missing[place] = missing.get(place, True) and not is_here
    if whole and (wrong := [place for place, is_missing in missing.items() if is_missing]):
        raise pytest.UsageError(f"no case has this part in its id: {wrong}")
