"""Planted bugs patch names of the product: a renamed function must not leave one behind."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_patches_existing_names(name: str, monkeypatch: pytest.MonkeyPatch):
    BUGS[name](monkeypatch)
