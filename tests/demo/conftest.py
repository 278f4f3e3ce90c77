"""A user's shell: `isolog`, `python` and `spark-submit` of one environment on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.append(str(ROOT / "examples"))  # as spark-submit does for the script that it runs


class Shell:
    """Runs commands as a user would, and shows their output if they fail."""

    def __init__(self, tools: Path, python: Path = Path(sys.executable)) -> None:
        isolog = tools / "isolog"  # the checkout need not be installed
        isolog.write_text(f'#!/bin/sh\nexec "{python}" -m spark_stream.cli "$@"\n')
        isolog.chmod(0o755)
        places = (str(tools), str(python.parent), os.environ["PATH"])
        self.environment = os.environ | {
            "PATH": os.pathsep.join(places),
            "ISOLOG_IDLE_SECONDS": "120",
        }
        self.environment.pop("SPARK_CONF_DIR", None)

    def run(
        self, command: Sequence[str | Path], folder: Path, *, code: int = 0, **variables: str
    ) -> str:
        """Return the output of the command. Another exit code raises an AssertionError with it."""
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def demo(self, folder: Path, *options: str | Path, code: int = 0) -> str:
        """The demo as `make demo` runs it, in a separate folder."""
        command = ["spark-submit", ROOT / "examples" / "flights_demo.py", *options]
        return self.run(command, folder, code=code, SPARK_CONF_DIR=str(ROOT / "conf"))


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("tools"))
