"""The recorded seed of each planted bug: ``python -m tests.simulation.seeds`` finds them.

It keeps a seed that still finds its bug, and searches for the others from 0 on, two bugs at a time.
That takes a second for most bugs and ten minutes for a few.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.form import draw
from tests.simulation.planted import BUGS, FAULTS_OF, seeds_for
from tests.simulation.runs import Finding, find, run

FILE: Final = Path(__file__).with_name("seeds.json")
_RUNS: Final = 30_000


def recorded() -> dict[str, int]:
    return dict(json.loads(FILE.read_text()))


def find_bug(name: str, seeds: Iterable[int]) -> Finding | None:
    """Return the finding of the first of these runs that has one, with this bug planted."""
    with pytest.MonkeyPatch.context() as patch:
        BUGS[name](patch)
        return find(seeds, FAULTS_OF.get(name, ()))[1]


def seed_of(name: str, before: int | None) -> int | None:
    """Return a seed that finds this bug, and has no finding without it."""
    seeds = chain([] if before is None else [before], seeds_for(name, _RUNS))
    finding = find_bug(name, seeds)
    if finding is None:
        return None
    alone = run(draw(finding.form.seed)).finding
    assert alone is None, f"without any planted bug: {alone}"
    return finding.form.seed


def main() -> int:
    """Writes the whole file after each bug."""
    seeds = {name: seed for name, seed in recorded().items() if name in BUGS}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        looks = {pool.submit(seed_of, name, seeds.get(name)): name for name in BUGS}
        for look in as_completed(looks):
            name, seed = looks[look], look.result()
            print(name, "not found" if seed is None else seed, flush=True)
            if seed is not None:
                seeds[name] = seed
                FILE.write_text(json.dumps(seeds, indent=1, sort_keys=True) + "\n")
    missing = BUGS.keys() - seeds.keys()
    return len(missing)


if __name__ == "__main__":
    sys.exit(main())
