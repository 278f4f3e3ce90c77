"""A single isolog broker, on a TCP port like Kafka's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import psutil
import pyarrow as pa

import spark_stream as isolog

_READY: Final = "isolog broker ready "


class IsologBroker:
    """``isolog broker start`` with its defaults, or without mapped reads.

    Without them, readers get all records over the connection, like readers on other hosts.
    """

    def __init__(self, place: Path, *, mapped_reads: bool = True) -> None:
        place.mkdir()
        self._place = place
        self._said = (place / "isolog.txt").open("w")
        # A separate process, with the interpreter of this bench.
        run = "from spark_stream.cli import main; main()"
        listen = ("--listen", "127.0.0.1:0")
        self._process = subprocess.Popen(
            [sys.executable, "-c", run, "broker", "start", "--dir", str(place / "log"), *listen],
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=os.environ | {"ISOLOG_MAPPED_READS": str(mapped_reads).lower()},
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_READY):
            self._process.wait()
            said = (place / "isolog.txt").read_text()
            raise RuntimeError(f"isolog does not serve; it said:\n{line}{said}")
        self.bootstrap = line.removeprefix(_READY).strip()
        self.process = psutil.Process(self._process.pid)
        self.log = isolog.connect(self.bootstrap)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        self._process.terminate()
        self._process.communicate()
        self._said.close()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        self.log.create_topic(name, partitions, schema=schema, config=dict(config or {}))

    def delete_topic(self, name: str) -> None:
        self.log.delete_topic(name)

    def bytes_of(self, topic: str) -> int:
        """Return the size of the topic's files of records and entries."""
        folder = self._place / "log" / "topics" / topic
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
