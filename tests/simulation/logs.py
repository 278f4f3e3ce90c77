"""The logs of a simulated broker: files on a simulated disk.

They outlive the broker's processes. A machine that loses power keeps synced data and a random part
of the rest. So a fault of a machine affects all its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from random import Random

import numpy as np

from isolog.errors import IsologError
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE
from spark_stream.storage.disk.directory import PromiseFile, RunFile
from spark_stream.storage.log.high_watermarks import CommittedMarks
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.logs import FileLogs
from spark_stream.storage.segment.segment import Segment
from tests.simulation.disk import SimulatedDisk


class DiskLogs(FileLogs):
    """Logs in files on a simulated disk."""

    def __init__(self, folder: Path, before_change: Callable[[], None]) -> None:
        self.boot = 0
        """The number of power cuts of the machine."""
        self._folder = folder
        self.disk = SimulatedDisk()
        self._runs = RunFile(folder, self.disk)
        self.disk.make_directory(folder)
        self.disk.before_change = before_change
        super().__init__(self.disk, self._runs.forget_run)

    def marks(self) -> CommittedMarks:
        """Return the high watermarks that the directory remembers, as a process finds them."""
        return CommittedMarks(self._folder, self.disk)

    def promises(self) -> PromiseFile:
        """Return the directory's file of promises."""
        return PromiseFile(self._folder, self.disk)

    def recorded_run(self) -> str | None:
        """Return the broker's run that the directory names."""
        return self._runs.recorded_run()

    def record_run(self, run: str) -> None:
        """Write the name of this run into the directory, with an fsync."""
        self._runs.record_run(run)

    def forget_run(self) -> None:
        """Remove the name of the run from the directory, with an fsync."""
        self._runs.forget_run()

    def end_process(self) -> None:
        """End the broker. The machine goes on."""
        self.disk.kill()

    def lose_power(self, chance: Random) -> None:
        """End the machine, and start it again."""
        self.boot += 1
        self.disk.crash(chance)

    def fail_next_force(self) -> None:
        """Make the next fsync fail."""
        self.disk.fail_next_force()

    def refuse_writes(self, why: type[IsologError] | None) -> None:
        """Take nothing more, for this reason, or (None) take writes again."""
        self.disk.refusal = why

    def change_a_byte(
        self, chance: Random, topic_id: str, spared: Container[tuple[str, int]] = ()
    ) -> tuple[Path, int] | None:
        """Change a bit of a stored batch. Return its file and entry, None if there is no batch."""
        found = []
        for path, raw in self.disk.files().items():
            if path.suffix == ".entries" and path.parts[-3] == topic_id:
                table = np.frombuffer(raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE], ENTRY)
                found += [
                    (path.with_suffix(".arrow"), row)
                    for row in table
                    if row["length"] and (path.parent.name, int(row["entry_index"])) not in spared
                ]
        if not found:
            return None
        path, row = chance.choice(found)
        place = int(row["position"]) + chance.randrange(int(row["length"]))
        self.disk.flip(path, place, chance.randrange(8))
        return path, int(row["entry_index"])

    def mend(self) -> None:
        """End all failures."""
        self.disk.refusal = None
        self.disk.stop_failing()

    def folders(self) -> set[Path]:
        """Return the existing folders of partitions."""
        topics = self._folder / "topics"
        files = [path for path in self.disk.files() if path.suffix != ".begun"]
        return {path.parent for path in files if topics in path.parents}

    def files(self) -> dict[Path, bytes]:
        """Return the existing files."""
        return self.disk.files()

    def forced_entries(self, log: PartitionLog) -> int:
        """Return up to which entry one of its logs is on the disk."""
        assert isinstance(log, PartitionLog)
        upto = int(log.start.entry)
        for segment in log.segments:
            upto += self._forced_rows(segment)
            if upto < segment.end.entry:
                break
        return upto

    def _forced_rows(self, segment: Segment) -> int:
        """The number of a segment's synced entries, each with its batch."""
        entries, data = (
            self.disk.forced(each) for each in (segment.name.entries, segment.name.arrow)
        )
        seen = self.disk.map(segment.name.arrow).to_pybytes() if data else b""
        for number, row in enumerate(segment.table):
            begin, end = int(row["position"]), int(row["position"] + row["length"])
            place = number * ENTRY_SIZE
            there = entries[place : place + ENTRY_SIZE] == row.tobytes()
            if not there or not data or len(data) < end or data[begin:end] != seen[begin:end]:
                return number
        return len(segment.table)
