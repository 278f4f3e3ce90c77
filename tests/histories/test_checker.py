"""Recording changes no run; what is recorded is a history, and a stranger's checker accepts it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulation.form import draw
from tests.simulation.runs import run, search

HERE = Path(__file__).parent
RUNS = 100
GO = shutil.which("go")


def test_a_run_that_is_recorded_is_the_same_run(tmp_path: Path) -> None:
    alone, recorded = (run(draw(3), histories=each) for each in (None, tmp_path))
    assert alone == recorded


def test_each_line_is_an_event_and_what_was_read_was_appended(tmp_path: Path) -> None:
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
    """What the tool says; the test fails if it does."""
    assert GO is not None
    done = subprocess.run(
        [GO, *arguments], cwd=HERE, env=os.environ | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def can_check() -> bool:
    """Whether there is a Go that has, or gets, the modules of the checker."""
    if GO is None:
        return False
    asked = [GO, "build", "-o", os.devnull, "."]
    return subprocess.run(asked, cwd=HERE, capture_output=True, timeout=300).returncode == 0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_checker_accepts_simulated_runs_and_refuses_faults_and_mutants(tmp_path: Path) -> None:
    if not can_check():
        pytest.skip("no Go 1.24 with the modules of tests/histories")
    found = subprocess.run(
        [Path(go("env", "GOROOT").strip()) / "bin" / "gofmt", "-l", HERE],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "", "make format does not format Go: gofmt -w tests/histories"
    go("vet", ".")
    _, failed = search(range(RUNS), tmp_path)
    assert failed == []
    assert f"{RUNS} histories" in go("run", ".", str(tmp_path))
    go("test", "-count=1", ".", HISTORIES=str(tmp_path))
