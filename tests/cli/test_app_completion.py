"""Shell completion: the calls of a shell, and the answers.

``make test`` calls the command like zsh's script, in this process. ``make test-all`` runs the
installed shells.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Call, Served
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
    # Zsh completes only in a terminal, so the text that its script would evaluate is printed.
    "zsh": """
        autoload -Uz compinit && compinit -u -D
        eval "$(isolog --show-completion)"
        whence -w _isolog_completion
        _TYPER_COMPLETE_ARGS='{line}' _ISOLOG_COMPLETE=complete_zsh isolog
    """,
}
SHELLS = [name for name in ASK if shutil.which(name)]


@pytest.fixture
def answer(call: Call, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return the command's answer to a shell for the end of a line."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("_ISOLOG_COMPLETE", "complete_zsh")
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        found = call()
        assert found.err == ""
        return re.findall(r'"([^"]+)"', found.out)

    return ask


@pytest.fixture(scope="module")
def topics(served: Served) -> Served:
    for name in ("greetings", "great", "other"):
        served.log.create_topic(name)
    return served


def test_names_are_completed(answer, topics):
    here = f"--bootstrap {topics.bootstrap}"
    assert answer(f"isolog topic describe {here} gre") == ["great", "greetings"]
    assert answer(f"isolog consume --path {topics.directory} greet") == ["greetings"]
    with topics.log.producer(transactional_id="loader-1"):
        assert answer(f"isolog transactions describe {here} load") == ["loader-1"]
    with topics.log.consumer("great", name="watcher") as consumer:
        list(consumer.records(until="latest"))
        consumer.commit()
    assert answer(f"isolog consumers describe {here} w") == ["watcher"]
    for lake, topic in (("shop", "great"), ("shelf", "other")):
        topics.log.create_lake(lake, topic, topics.directory.parent / lake)
    for command in ("status", "run", "versions", "clean", "drop"):
        assert answer(f"isolog lake {command} {here} sh") == ["shelf", "shop"]
        assert answer(f"isolog lake {command} {here} sho") == ["shop"]
    assert answer(f"isolog lake create {here} sh") == []
    assert answer("isolog config example three-brokers/broker-2") == ["three-brokers/broker-2.toml"]


def test_completion_is_empty_without_a_reachable_broker_or_a_password(
    answer, topics, tmp_path, monkeypatch
):
    assert answer("isolog consume gre") == []
    assert answer("isolog consume --bootstrap 127.0.0.1:1 gre") == []
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", topics.bootstrap)
    assert answer("isolog consume gre") == ["great", "greetings"]
    assert answer("isolog --user anna consume gre") == []  # it would prompt for a password


def test_completion_starts_no_broker(answer, tmp_path):
    assert answer(f"isolog consume --path {tmp_path} gre") == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def isolog(tmp_path: Path) -> Path:
    """Return a folder with the command ``isolog`` of this checkout."""
    command = tmp_path / "isolog"
    command.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    return tmp_path


def complete(shell: str, folder: Path, line: str, **variables: str) -> str:
    """Return the completions of a shell at the end of a line."""
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


@pytest.mark.full
@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_topics_are_completed(shell, isolog, topics):
    assert "describe" in complete(shell, isolog, "isolog topic desc")
    found = complete(shell, isolog, "isolog topic describe gre", ISOLOG_BOOTSTRAP=topics.bootstrap)
    assert "greetings" in found
    assert "great" in found
    assert "other" not in found


@pytest.mark.full
@pytest.mark.parametrize("shell", SHELLS)
def test_completion_without_a_cluster_is_empty_and_silent(shell, isolog):
    away = complete(shell, isolog, "isolog consume gre", ISOLOG_BOOTSTRAP="127.0.0.1:1")
    nowhere = complete(shell, isolog, "isolog consume gre")
    assert "gre" not in away + nowhere


@pytest.mark.full
@pytest.mark.parametrize("shell", SHELLS)
def test_install_completion_writes_the_script_of_the_current_shell(shell, isolog):
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
