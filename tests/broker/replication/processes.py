"""Replicating processes (``node``) under the control of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psutil

from spark_stream.testing.local_cluster import pause_process


class NodeProcess:
    """A replicating process, which can be restarted. The ``with`` block kills it at its end."""

    def __init__(
        self,
        name: str,
        directory: Path,
        partitions: int,
        *,
        beat_s: float = 0.1,
        death_s: float = 1.0,
    ) -> None:
        self.name = name
        self.partitions = partitions
        self._arguments = [name, str(directory), str(partitions), str(beat_s), str(death_s)]
        self._errors = directory / f"{name}.stderr"
        directory.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        with self._errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.broker.replication.node", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONFAULTHANDLER": "1"},
            )
        self.address = self._line()

    def ask(self, *words: object) -> str:
        """Send a command and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self._line()

    def follow(self, peer: NodeProcess, address: str | None = None) -> None:
        self.ask("peer", peer.name, address or peer.address, peer.partitions)

    def digests(self) -> Any:
        """Return the digests of the partitions that it leads, and of its replicas."""
        found = json.loads(self.ask("digests"))
        return found[: self.partitions], found[self.partitions :]

    def log_text(self) -> str:
        """Return its standard error."""
        return self._errors.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def pause(self) -> None:
        pause_process(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def cpu(self) -> float:
        """Return its processor time in seconds."""
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.kill()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"node {self.name} has ended: {self.log_text()}")
        return line.rstrip("\n")
