"""The logs of a simulated broker: in lists, or as files on a simulated disk.

Both go on over the broker's end. A machine that loses power keeps of each log what was forced and,
of the rest, what chance decides; so what happens to a machine happens to all its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from random import Random
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Entry
from spark_stream.errors import IsologError, StorageFailure
from spark_stream.storage.committed import CommittedMarks
from spark_stream.storage.directory import RunFile
from spark_stream.storage.log import PartitionLog
from spark_stream.storage.log_format import LogFormat
from spark_stream.storage.logs import FileLogs, Logs
from spark_stream.storage.replica_log import ReplicaLog
from spark_stream.storage.segment import Segment
from spark_stream.storage.settings import Flush
from spark_stream.testing.simulation.disk import SimulatedDisk
from spark_stream.testing.simulation.list_log import ListLog

_FOLDER: Final = Path("/broker")


class MachineLogs(Logs, Protocol):
    """The logs of one machine, and what happens to them."""

    boot: int
    """How often the machine has lost its power."""

    def marks(self) -> CommittedMarks:
        """The high watermarks that the directory remembers, as a process finds them."""

    def recorded_run(self) -> str | None:
        """The broker's run that the directory names."""

    def record_run(self, run: str) -> None:
        """The directory names this run from now on, for good."""

    def forget_run(self) -> None:
        """The directory names no run any more, for good."""

    def end_process(self) -> None:
        """The broker ends; the machine goes on."""

    def lose_power(self, chance: Random) -> None:
        """The machine ends, and starts again."""

    def fail_next_force(self) -> None:
        """The next force fails."""

    def refuse_writes(self, why: type[IsologError] | None) -> None:
        """The disk takes nothing more, for this reason, or (None) takes writes again."""

    def change_a_byte(
        self, chance: Random, topic_id: str, spared: Container[tuple[str, int]] = ()
    ) -> tuple[Path, int] | None:
        """Change a bit of a stored batch of a topic; return its file and its entry.

        Args:
            chance: What decides which.
            topic_id: The topic.
            spared: Partitions' folder names with entries which are not to be changed.

        Returns:
            None if there is no batch.
        """

    def mend(self) -> None:
        """Nothing fails from now on."""

    def folders(self) -> set[Path]:
        """The folders of partitions that are there."""

    def files(self) -> dict[Path, bytes]:
        """The files that are there, if logs are files."""

    def forced_entries(self, log: ReplicaLog) -> int:
        """Up to which entry one of its logs is on the disk."""


class FullListLog(ListLog):
    """A list that may be full, and whose forces may fail."""

    machine: ListLogs

    def flush(self) -> None:
        self._force()
        super().flush()

    def probe(self) -> None:
        super().probe()
        self.machine.check_room()
        if self.format.settings.flush is not Flush.NONE:
            self._force()

    def _keep(self, entry: Entry, message: pa.Buffer | None) -> None:
        self.machine.check_room()
        if self.format.settings.flush is Flush.BATCH:
            self._force()
        super()._keep(entry, message)

    def _force(self) -> None:
        if self.failed is None and self.machine.fails_now():
            self.fail(StorageFailure(f"{self.directory}: Input/output error", unforced=True))
            self._check()


class ListLogs:
    """Logs in lists."""

    def __init__(self) -> None:
        self.boot = 0
        self._run: str | None = None
        self._logs: dict[Path, FullListLog] = {}
        self._made: set[Path] = set()
        self._failing = False
        self._refusal: type[IsologError] | None = None
        self._disk = SimulatedDisk()  # for the one file that lies beside the logs
        self._disk.make_directory(_FOLDER)

    def marks(self) -> CommittedMarks:
        return CommittedMarks(_FOLDER, self._disk)

    def open(self, folder: Path, log_format: LogFormat) -> ReplicaLog:
        known = self._logs.get(folder)
        if known is None:
            known = self._logs[folder] = FullListLog(log_format, folder)
            known.machine = self
        else:
            known.format = log_format
            known.reopen()
        return known

    def recorded_run(self) -> str | None:
        return self._run

    def record_run(self, run: str) -> None:
        self._run = run

    def forget_run(self) -> None:
        self._run = None

    def set_aside(self, folder: Path) -> str:
        self._logs.pop(folder, None)
        return "nowhere"

    def make_folder(self, folder: Path) -> None:
        self.check_room()
        self._made.add(folder)

    def has_folder(self, folder: Path) -> bool:
        return folder in self._made

    def remove(self, folder: Path) -> None:
        self._made.discard(folder)
        for each in [each for each in self._logs if folder in (each, *each.parents)]:
            del self._logs[each]

    def remove_empty(self, folder: Path) -> None:
        pass

    def end_process(self) -> None:
        self._disk.kill()

    def lose_power(self, chance: Random) -> None:
        self.boot += 1
        self._failing = False
        self._disk.crash(chance)
        for log in self._logs.values():
            log.crash(chance.randint(log.forced, int(log.end.entry)))

    def fail_next_force(self) -> None:
        self._failing = True

    def refuse_writes(self, why: type[IsologError] | None) -> None:
        self._refusal = why

    def change_a_byte(
        self, chance: Random, topic_id: str, spared: Container[tuple[str, int]] = ()
    ) -> tuple[Path, int] | None:
        return None

    def mend(self) -> None:
        self._failing, self._refusal = False, None

    def folders(self) -> set[Path]:
        return set(self._logs)

    def files(self) -> dict[Path, bytes]:
        return {}

    def forced_entries(self, log: ReplicaLog) -> int:
        assert isinstance(log, ListLog)
        return log.forced

    def fails_now(self) -> bool:
        """Whether this force fails."""
        failing, self._failing = self._failing, False
        return failing

    def check_room(self) -> None:
        """Raise an error where writes are refused."""
        if self._refusal is not None:
            raise self._refusal("the disk takes not one more entry")


class DiskLogs(FileLogs):
    """Logs in files on a simulated disk."""

    def __init__(self, folder: Path, before_change: Callable[[], None]) -> None:
        self.boot = 0
        self._folder = folder
        self.disk = SimulatedDisk()
        self._runs = RunFile(folder, self.disk)
        self.disk.make_directory(folder)
        self.disk.before_change = before_change
        super().__init__(self.disk, self._runs.forget_run)

    def marks(self) -> CommittedMarks:
        return CommittedMarks(self._folder, self.disk)

    def recorded_run(self) -> str | None:
        return self._runs.recorded_run()

    def record_run(self, run: str) -> None:
        self._runs.record_run(run)

    def forget_run(self) -> None:
        self._runs.forget_run()

    def end_process(self) -> None:
        self.disk.kill()

    def lose_power(self, chance: Random) -> None:
        self.boot += 1
        self.disk.crash(chance)

    def fail_next_force(self) -> None:
        self.disk.fail_next_force()

    def refuse_writes(self, why: type[IsologError] | None) -> None:
        self.disk.refusal = why

    def change_a_byte(
        self, chance: Random, topic_id: str, spared: Container[tuple[str, int]] = ()
    ) -> tuple[Path, int] | None:
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
        self.disk.refusal = None
        self.disk.stop_failing()

    def folders(self) -> set[Path]:
        files = [path for path in self.disk.files() if path.suffix != ".begun"]
        return {path.parent for path in files if path.parent != self._folder}

    def files(self) -> dict[Path, bytes]:
        return self.disk.files()

    def forced_entries(self, log: ReplicaLog) -> int:
        assert isinstance(log, PartitionLog)
        upto = int(log.start.entry)
        for segment in log.segments:
            upto += self._forced_rows(segment)
            if upto < segment.end.entry:
                break
        return upto

    def _forced_rows(self, segment: Segment) -> int:
        """How many of a segment's entries are on the disk, each with its batch."""
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
