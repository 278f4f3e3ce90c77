"""The command line as users run it: processes, and a broker in a directory of the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import isolog
from spark_stream.cli.app import execute
from tests.support import BrokerProcess

COMMAND = [sys.executable, "-m", "isolog"]
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Result:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


def run(*arguments: str, stdin: str | bytes = b"", **variables: str) -> Result:
    """Runs ``isolog`` with these arguments; ``variables`` are added to the environment."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | variables,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class Call:
    """Runs a command within this process, which is quicker; for what ends before it does much."""

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


@dataclass(frozen=True)
class Served:
    """A log that a broker serves, its client, and the command line pointed at it."""

    directory: Path
    bootstrap: str
    log: isolog.Log

    def run(self, *arguments: str, stdin: str | bytes = b"") -> Result:
        return run(*arguments, stdin=stdin, ISOLOG_BOOTSTRAP=self.bootstrap)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that goes on; its standard streams are pipes, and SIGINT ends it."""
        # A shell lets its background jobs ignore SIGINT, and so would the command.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
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
    """A broker for the tests of a module; each takes topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("log")) as broker, broker.connect() as log:
        yield Served(broker.directory, broker.address, log)
