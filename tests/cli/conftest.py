"""Commands in processes and in this process, and a broker for the tests of a module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import isolog
from spark_stream.cli.app import execute
from tests.forks import run_command
from tests.support import BrokerProcess

COMMAND = [sys.executable, "-m", "isolog"]
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Result:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str


def run(*arguments: str, stdin: str | bytes = b"", **variables: str) -> Result:
    """Run ``isolog`` with these arguments. ``variables`` are added to the environment."""
    done = run_command(
        arguments,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        timeout=TIMEOUT_S,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | variables,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class Call:
    """Run a command in this process, which is faster. It is for commands that end soon."""

    def __init__(self, streams: pytest.CaptureFixture[str]) -> None:
        self._streams = streams

    def __call__(self, *arguments: str) -> Result:
        self._streams.readouterr()
        code = execute(list(arguments))
        out, err = self._streams.readouterr()
        return Result(code, out, err)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return Call(capfd)


class Started(subprocess.Popen[bytes]):
    """A started command. The failure of its test kills it, because it may run for hours."""

    def __exit__(self, kind: type[BaseException] | None, *failure: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *failure)


@dataclass(frozen=True)
class Served:
    """A served log, a client of it, and commands with its address."""

    directory: Path
    bootstrap: str
    log: isolog.Log

    def run(self, *arguments: str, stdin: str | bytes = b"") -> Result:
        return run(*arguments, stdin=stdin, ISOLOG_BOOTSTRAP=self.bootstrap)

    def start(self, *arguments: str) -> Started:
        """Start a command with pipes as its standard streams. SIGINT ends it."""
        # Background jobs of a shell ignore SIGINT, and the command would inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return Started(
                [*COMMAND, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | {"ISOLOG_BOOTSTRAP": self.bootstrap},
            )
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker for the tests of a module. Each test uses separate topics."""
    with BrokerProcess(tmp_path_factory.mktemp("log")) as broker, broker.connect() as log:
        yield Served(broker.directory, broker.address, log)
