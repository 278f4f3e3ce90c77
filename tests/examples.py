"""The number of examples in ``make test``, which must be quick, and in ``make test-all``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

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


def the_first(cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return all cases as parameters. Only the first runs in ``make test``."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.full) for case in cases[1:])]
