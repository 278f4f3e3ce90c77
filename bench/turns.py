"""Two benches that take turns: one figure of this, then the same figure of the other.

The bench in its process writes each figure to its standard output, and waits for a line on its
standard input before it continues. So two benches never measure concurrently, and a slow phase of
the machine that is longer than a figure affects both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, Self, TextIO

from bench.results import Figure, Measure

OPTION: Final = "--in-turns"


class MeasuredBench:
    """The measured side: it writes figures, and waits for its turns."""

    def __init__(self) -> None:
        # Spark's JVM inherits standard output. Its output must not be read as figures.
        self._out: TextIO = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def begin(self) -> None:
        """Report that all is ready, and wait for the first turn."""
        self._say(None)

    def tell(self, measure: Measure) -> None:
        """Write a figure, and wait for the next turn."""
        self._say(asdict(measure))

    def _say(self, what: Figure | None) -> None:
        self._out.write(json.dumps(what) + "\n")
        self._out.flush()
        if not sys.stdin.readline():
            raise SystemExit("nobody listens any more")


class Bench:
    """The measuring side: a bench in a separate process, with the modules of a tree."""

    def __init__(self, tree: Path, home: Path, part: str, options: Sequence[str]) -> None:
        """``tree`` has the package to measure, ``home`` the bench that measures it."""
        # Python searches the working directory first, then the path, whose order brokers
        # and Spark's workers inherit.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench", part, OPTION, *options],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(tree), str(home)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._turns = self._process.stdin
        self._told = self._process.stdout
        self.works = bool(self._told.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def next_figure(self) -> Figure | None:
        """Start its next measurement. Return the figure, or None at the end or after a failure."""
        self._turns.write("\n")
        self._turns.flush()
        line = self._told.readline()
        if line:
            figure: Figure = json.loads(line)
            return figure
        self.works = self._process.wait() == 0
        return None
