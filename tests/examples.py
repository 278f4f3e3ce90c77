"""How many examples a property is tried with: few in ``make test``, all in ``make test-all``."""

from __future__ import annotations

import os

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


def examples(number: int) -> int:
    """This number in ``make test-all``, a part of it in ``make test``."""
    return min(number, max(_LEAST, number // _PART)) if _FEW in os.environ else number
