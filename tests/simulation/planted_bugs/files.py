"""Topics, moves and files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from isolog.errors import StorageFailure
from spark_stream.broker.host.host import Host
from spark_stream.broker.partition.replication import FollowerRole
from spark_stream.scripts import partition_records, topics
from spark_stream.storage.disk.fsyncs import Fsyncs
from spark_stream.storage.log.log import PartitionLog
from spark_stream.storage.segment.active_segment import ActiveSegment
from tests.simulation.planted_bugs.planting import Patch, bug, bug_in_files, no_steps

# -- topics ----------------------------------------------------------------------------------------


@bug
def files_of_a_deleted_topic_stay(patch: Patch) -> None:
    patch.setattr(Host, "remove_files", lambda self, topic: None)


@bug
def a_deletion_is_not_announced(patch: Patch) -> None:
    patch.setattr(topics, "announce_removal", no_steps)


# -- moves -----------------------------------------------------------------------------------------


@bug
def what_moves_is_not_forced(patch: Patch) -> None:
    def pass_on(moved: Any) -> Any:
        yield from ()
        return list(moved)

    patch.setattr(partition_records, "_forced_where_it_stays", pass_on)
    patch.setattr(FollowerRole, "force_before_reports", lambda self, *, is_moving: None)


# -- files -----------------------------------------------------------------------------------------


@bug_in_files
def an_entry_is_written_before_its_batch(patch: Patch) -> None:
    original = ActiveSegment.append

    def append_entry_first(self: ActiveSegment, entry: Any, message: Any, **how: Any) -> None:
        later: list[Callable[[], None]] = []
        arrow, entries = self._arrow, self._entries
        if self._data_end:
            self._arrow = Waiting(arrow, later)  # type: ignore[assignment]
            self._entries = WritesOthersAfterwards(entries, later)  # type: ignore[assignment]
        try:
            original(self, entry, message, **how)
        finally:
            if isinstance(self._arrow, Waiting):
                self._arrow, self._entries = arrow, entries

    patch.setattr(ActiveSegment, "append", append_entry_first)


class Wrapped:
    """A file behind something."""

    def __init__(self, file: Any, later: list[Callable[[], None]]) -> None:
        self.file = file
        self.later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class Waiting(Wrapped):
    """Its writes wait."""

    def write(self, position: int, *parts: Any) -> None:
        self.later.append(lambda: self.file.write(position, *parts))


class WritesOthersAfterwards(Wrapped):
    """Its writes are followed by those that wait."""

    def write(self, position: int, *parts: Any) -> None:
        self.file.write(position, *parts)
        for each in self.later:
            each()


@bug_in_files
def a_force_that_failed_is_believed(patch: Patch) -> None:
    def believe(self: Fsyncs, act: Callable[[], None]) -> None:
        with suppress(StorageFailure):
            act()

    patch.setattr(Fsyncs, "_do", believe)


@bug_in_files
def a_flush_does_not_force(patch: Patch) -> None:
    patch.setattr(PartitionLog, "flush", lambda self: None)


@bug_in_files
def a_roll_does_not_force(patch: Patch) -> None:
    original = PartitionLog.roll

    def roll(self: PartitionLog, *codec: Any) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(ActiveSegment, "flush", lambda _: None)
            original(self, *codec)

    patch.setattr(PartitionLog, "roll", roll)
