"""Two thousand short runs find no violation. A failed run can be repeated and shrunk."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from msgspec.structs import replace

from spark_stream.cluster.consumers import CONSUMERS, group_of
from tests.examples import examples
from tests.simulation.__main__ import main
from tests.simulation.form import (
    CLIENTS,
    DISK_FAULTS,
    FAULTS,
    GROUP,
    GROUP_CLIENTS,
    GROUP_FAULTS,
    GROUPS_FROM,
    NAMED_FAULTS,
    TRIMMER,
    draw,
)
from tests.simulation.invariants import INVARIANTS
from tests.simulation.invariants.base import Invariant
from tests.simulation.planted import BUGS
from tests.simulation.runs import ACTORS, find, run, search, shrink
from tests.simulation.world import World

RUNS = 2_000
SHARE = 100
FEW = examples(150)


def world_of(seed: int, *, tells: bool = False) -> World:
    """The world of a seed, after its run."""
    form = draw(seed)
    world = World(form, tells=tells)
    try:
        world.begin(ACTORS)
        world.run()
    except BaseException as error:
        error.add_note(form.command())
        raise
    return world


def story_of(seed: int) -> list[str]:
    story = world_of(seed, tells=True).story
    assert story is not None
    return story


@pytest.mark.rule("the effect of a script's step", "broker/scripting/driver.py")
@pytest.mark.slow
def test_runs_find_no_violation_and_cover_all_operations():
    """A run raises the violation that it finds. Most runs write and commit something."""
    written = committed = 0
    for world in map(world_of, range(FEW)):
        written += any(
            seen.values for line in world.history.lines.values() for seen in line.entries
        )
        committed += any(each.committed for each in world.history.decisions.values())
    assert written > 0.95 * FEW
    assert committed > 0.7 * FEW


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.full
def test_two_thousand_runs_find_no_violation():
    shares = [range(first, first + SHARE) for first in range(0, RUNS, SHARE)]
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        found = list(pool.map(search, shares))
    assert sum(events for events, _ in found) > 100 * RUNS
    failed = [form.command() for _, forms in found for form in forms]
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [FEW // 4, pytest.param(RUNS // 4, marks=pytest.mark.full)])
@pytest.mark.timeout(1200)
def test_runs_with_a_consumer_group_find_no_violation_and_rebalance(runs: int):
    moved = 0
    for world in map(world_of, range(GROUPS_FROM, GROUPS_FROM + runs)):
        group = group_of(json.loads(world.records.kept[CONSUMERS + GROUP][0]))
        assert group is not None
        moved += any(at.epoch > 3 for each in group.members for at in each.assigned)
    assert moved > 0.5 * runs


@pytest.mark.rule(
    "the run that a number stands for", "tests/simulation/form.py", "tests/simulation/schedule.py"
)
@pytest.mark.slow
def test_a_seed_is_one_run_with_any_hash_seed():
    program = (
        "from tests.simulation.test_simulator import story_of\n"
        "for seed in range(3): print(*story_of(seed), sep='\\n')"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for number in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) > 100


def test_seeds_draw_every_kind_of_run():
    forms = [draw(seed) for seed in range(300)]
    assert {form.brokers for form in forms} == {1, 2, 3}
    assert {form.has_fault(DISK_FAULTS) for form in forms} == {True, False}
    kinds = {name.rpartition("-")[0] for form in forms for name in form.actors}
    assert kinds == {*CLIENTS, TRIMMER, *FAULTS} == set(ACTORS) - {*NAMED_FAULTS, "member"}
    for form in map(draw, range(GROUPS_FROM, GROUPS_FROM + 100)):
        kinds = {name.rpartition("-")[0] for name in form.actors}
        assert "member" in kinds <= {"member", *GROUP_CLIENTS, *GROUP_FAULTS}


def test_each_invariant_has_a_docstring_of_one_sentence():
    assert len(INVARIANTS) >= 20
    for each in INVARIANTS:
        text = each.__doc__
        assert text is not None
        assert (text.count("."), text[-1]) == (1, "."), each
        looks = [name for name in vars(each) if name in vars(Invariant)]
        assert looks, f"{each.__name__} looks at nothing"


@pytest.mark.parametrize("kind", sorted(ACTORS))
def test_each_actor_alone_violates_no_invariant(kind: str):
    for seed in range(3):
        form = draw(seed)
        alone = form.without(form.actors)
        ran = run(replace(alone, actors=(f"{kind}-0",)))
        assert ran.finding is None, ran.finding


def test_a_finding_is_shrunk_reported_and_reproducible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    BUGS["a_transaction_is_finished_before_its_markers"](monkeypatch)
    _, found = find(range(RUNS))
    assert found is not None
    small = shrink(found)
    assert small.broken == found.broken
    assert len(small.form.actors) < len(found.form.actors)
    command = small.form.command()
    words = dict(word.partition("=")[::2] for word in shlex.split(command) if "=" in word)
    arguments = [each for name, value in words.items() for each in (f"--{name.lower()}", value)]
    assert main([*arguments, "--whole"]) == 1
    told = capsys.readouterr().out
    assert str(small.error) in told
    assert small.story[-1] in told
    assert command in told
