"""Recording does not change a run. Its history is valid, and an independent checker accepts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulation.form import draw
from tests.simulation.invariants.base import Invariant
from tests.simulation.planted import BUGS
from tests.simulation.runs import run, search
from tests.simulation.seeds import recorded

HERE = Path(__file__).parent
RUNS = 100
FEW = 20
VISIBLE = (
    "a_batch_is_answered_before_it_is_appended",
    "a_commit_takes_all_branches",
    "a_cut_is_where_each_partition_is_stable",
    "a_duplicate_is_appended",
    "a_frame_of_a_stream_is_lost",
    "a_reader_passes_over_a_record",
    "aborted_records_travel",
    "nobody_waits_for_followers",
    "readers_of_what_is_replicated_see_the_rest",
    "the_last_stable_offset_ignores_what_is_open",
)
"""Planted bugs that change the results of clients within few runs."""
SHOWN = {"readers_of_what_is_replicated_see_the_rest": 423}
"""Seeds of bugs whose recorded seed breaks an invariant and changes no client's result."""
GO = shutil.which("go")


def test_recording_does_not_change_a_run(tmp_path: Path) -> None:
    alone, with_history = (run(draw(3), histories=each) for each in (None, tmp_path))
    assert alone == with_history


def test_each_line_is_an_event_and_read_records_were_appended(tmp_path: Path) -> None:
    search(range(5), tmp_path)
    records = 0
    for path in tmp_path.iterdir():
        first, *events = map(json.loads, path.read_text().splitlines())
        assert first == {"op": "history", "name": f"simulator {path.stem.replace('-', ' ')}"}
        appended = {value for each in events for value in each.get("values", ())}
        read = {value for each in events for _, value in each.get("records", ())}
        assert read <= appended
        records += len(read)
        for each in events:
            assert each["call"] <= each.get("return", each["call"])
    assert records > 0


def go(*arguments: str, **settings: str) -> str:
    """Return the output of the tool. If the tool fails, fail the test."""
    assert GO is not None
    done = subprocess.run(
        [GO, *arguments], cwd=HERE, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program. Without Go and its modules, the test is skipped."""
    if GO is None:
        pytest.skip("there is no Go")
    program = tmp_path_factory.mktemp("checker") / "histories"
    asked = [GO, "build", "-o", program, "."]
    built = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, timeout=300)
    if built.returncode:
        pytest.skip(f"it cannot be built here: {built.stderr}")
    return program


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", VISIBLE)
def test_checker_finds_planted_bugs_without_the_invariants(
    name: str, checker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Invariant, "require", lambda *_: None)
    BUGS[name](monkeypatch)
    for seed in [SHOWN.get(name, recorded()[name]), *range(FEW)]:
        run(draw(seed), histories=tmp_path)
    found = subprocess.run([checker, tmp_path], capture_output=True, text=True)
    assert found.returncode == 1, found.stdout
    assert "REFUSED" in found.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_checker_accepts_simulated_runs_and_refuses_faults_and_mutants(
    checker: Path, tmp_path: Path
) -> None:
    gofmt = Path(go("env", "GOROOT").strip()) / "bin" / "gofmt"
    unformatted = subprocess.run([gofmt, "-l", HERE], capture_output=True, text=True, check=True)
    assert unformatted.stdout == "", "gofmt -w tests/histories"
    go("vet", ".")
    _, failed = search(range(RUNS), tmp_path)
    assert failed == []
    found = subprocess.run([checker, tmp_path], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    go("test", "-count=1", ".", HISTORIES=str(tmp_path))
