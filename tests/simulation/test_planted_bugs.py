"""The simulator finds planted bugs, each in the first run of its recorded seed.

Most are found within a few dozen runs, the rarest once in a thousand or so: there a change of
anything that draws may move the first finding beyond two thousand.
"""

from __future__ import annotations

import warnings

import pytest

from tests.simulation.planted import BUGS, seeds_for
from tests.simulation.runs import Finding
from tests.simulation.seeds import find_bug, recorded
from tests.simulation.test_simulator import RUNS

# Whoever changes what a run draws moves them: `python -m tests.simulation.seeds` looks again.
SEEDS = recorded()
RARE = {
    name for name, seed in SEEDS.items() if seed not in seeds_for(name, 2 * RUNS)
}  # none, at the last check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # for one of the rarest
    pytest.mark.filterwarnings("default:python -m tests.simulation.seeds"),
]


def check(name: str, finding: Finding | None) -> None:
    assert finding is not None, f"{2 * RUNS} runs do not notice that {name.replace('_', ' ')}"
    assert not isinstance(finding.error, TypeError), "the plant itself is broken: its signature"


@pytest.mark.rule(
    "the way of a transaction's batch into a partition",
    "broker/scripting/coordinator.py",
    "broker/serving/append_batch.py",
)
@pytest.mark.rule("the invariants of simulated runs", "tests/simulation/invariants/__init__.py")
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str):
    """Its recorded seed finds it.

    If the seed is outdated, all runs look for it, which takes long.
    """
    finding = find_bug(name, [SEEDS[name]]) if name in SEEDS else None
    if finding is None:
        warnings.warn(f"python -m tests.simulation.seeds: no true seed of {name}", stacklevel=1)
        finding = find_bug(name, seeds_for(name, 2 * RUNS))
    check(name, finding)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in BUGS if name not in RARE])
def test_a_planted_bug_is_found_without_its_seed(name: str):
    check(name, find_bug(name, seeds_for(name, 2 * RUNS)))


def test_each_seed_belongs_to_a_planted_bug():
    assert SEEDS.keys() <= BUGS.keys()
