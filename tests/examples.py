"""What is tried by ``make test``, which has to be quick, and what by ``make test-all`` alone."""

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
    """Few examples if the tests of ``make test`` are chosen; before any of them is imported."""
    if "not full" not in config.getoption("markexpr"):
        os.environ.pop(_FEW, None)
        return
    os.environ[_FEW] = "1"
    settings.register_profile("few", max_examples=examples(settings.default.max_examples))
    settings.load_profile("few")


def is_quick() -> bool:
    """Whether this is `make test`."""
    return _FEW in os.environ


def examples(number: int) -> int:
    """This number in ``make test-all``, a part of it in ``make test``."""
    return min(number, max(_LEAST, number // _PART)) if is_quick() else number


def the_first(cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """All of them as parameters, all but the first for ``make test-all`` alone."""
    return [cases[0], *(pytest.param(*case, marks=pytest.mark.full) for case in cases[1:])]
