"""The simulator finds bugs: each that is planted is found within the runs of ``make test``."""

from __future__ import annotations

import pytest

from spark_stream.testing.simulation.runs import find
from tests.testing.planted import BUGS, IN_FILES
from tests.testing.test_simulator import RUNS


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    BUGS[name](monkeypatch)
    _, finding = find(range(RUNS), files_only=name in IN_FILES)
    assert finding is not None, f"{RUNS} runs do not notice that {name.replace('_', ' ')}"
