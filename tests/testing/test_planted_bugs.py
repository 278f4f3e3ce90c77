"""The simulator finds bugs: each that is planted is found within twice the runs of ``make test``.

Most are found within a few dozen, the rarest once in a thousand or so: there a change of anything
that draws may move the first finding beyond two thousand.
"""

from __future__ import annotations

import pytest

from spark_stream.testing.simulation.runs import find
from tests.testing.planted import BUGS, IN_FILES
from tests.testing.test_simulator import RUNS


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch):
    BUGS[name](monkeypatch)
    _, finding = find(range(2 * RUNS), files_only=name in IN_FILES)
    assert finding is not None, f"{2 * RUNS} runs do not notice that {name.replace('_', ' ')}"
