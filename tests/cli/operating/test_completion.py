"""Shell completion: what a shell asks for, and what it gets, from the shells that are here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Served
from tests.conftest import ROOT

TIMEOUT_S = 60

ASK = {
    "bash": """
        eval "$(isolog --show-completion)"
        COMP_WORDS=({words}) COMP_CWORD={last}
        _isolog_completion isolog
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "fish": """
        isolog --show-completion | source
        complete -C '{line}'
    """,
    # Zsh completes only in a terminal. Its script is read, and what it would evaluate is shown.
    "zsh": """
        autoload -Uz compinit && compinit -u -D
        eval "$(isolog --show-completion)"
        whence -w _isolog_completion
        _TYPER_COMPLETE_ARGS='{line}' _ISOLOG_COMPLETE=complete_zsh isolog
    """,
}
SHELLS = [name for name in ASK if shutil.which(name)]


@pytest.fixture
def isolog(tmp_path: Path) -> Path:
    """A folder with the command ``isolog`` of this checkout."""
    command = tmp_path / "isolog"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    return tmp_path


def complete(shell: str, folder: Path, line: str, **variables: str) -> str:
    """What a shell completes at the end of a line."""
    words = line.split(" ")
    script = ASK[shell].format(line=line, words=" ".join(words[:-1]), last=len(words) - 1)
    if words[-1]:
        script = script.replace(f"({' '.join(words[:-1])})", f"({' '.join(words)})")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISOLOG_")}
    done = subprocess.run(
        [shell, "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=kept
        | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
        | variables,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_topics_are_completed(shell, isolog, served: Served):
    for name in ("greetings", "great", "other"):
        if name not in served.log.topics():
            served.log.create_topic(name)
    assert "describe" in complete(shell, isolog, "isolog topic desc")
    found = complete(shell, isolog, "isolog topic describe gre", ISOLOG_BOOTSTRAP=served.bootstrap)
    assert "greetings" in found
    assert "great" in found
    assert "other" not in found


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_cluster_nothing_is_completed_and_nothing_is_said(shell, isolog):
    away = complete(shell, isolog, "isolog consume gre", ISOLOG_BOOTSTRAP="127.0.0.1:1")
    nowhere = complete(shell, isolog, "isolog consume gre")
    assert "gre" not in away + nowhere


def test_options_say_where_the_log_is_and_no_broker_is_started(isolog, served: Served, tmp_path):
    if "greetings" not in served.log.topics():
        served.log.create_topic("greetings")
    line = f"isolog consume --bootstrap {served.bootstrap} gree"
    assert complete("bash", isolog, line).split() == ["greetings"]
    line = f"isolog consume --path {served.directory} gree"
    assert complete("bash", isolog, line).split() == ["greetings"]
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    assert complete("bash", isolog, f"isolog consume --path {stopped} gree").split() == []
    assert list(stopped.iterdir()) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_for_the_shell_that_asks(shell, isolog):
    installed = subprocess.run(
        [shell, "-c", "isolog --install-completion; true"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PATH": f"{isolog}:{os.environ['PATH']}", "HOME": str(isolog)}
        | {"PYTHONPATH": str(ROOT), "SHELL": shutil.which(shell) or "", "COLUMNS": "200"},
    )
    assert installed.returncode == 0, installed.stderr
    assert f"{shell} completion installed in" in installed.stdout
    written = [path for path in isolog.rglob("*") if path.is_file() and path.name != "isolog"]
    assert any("_ISOLOG_COMPLETE" in path.read_text() for path in written)
