"""What holds at the end of a run, when all trouble is over and everybody had time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_stream.broker.partition import Partition
from spark_stream.consistency.replica import Replica
from spark_stream.consistency.transactions import State
from spark_stream.testing.simulation.history import Line
from spark_stream.testing.simulation.invariants.base import Invariant


class NothingHangs(Invariant):
    """In the end every transaction is over, and the last stable offset is the high watermark."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for record in self.history.records.values():
            over = record.state in (State.EMPTY, State.COMMITTED, State.ABORTED)
            self.require(over, f"transaction {record.number} is {record.state}")
        for line in self.history.lines.values():
            if line.deleted:
                continue
            partition = self.view.partition(line.place)
            self.require(partition is not None, f"{line.name} is not open")
            self.require(not line.open, f"{line.name}: open for ever: {line.open}")
            if partition is not None:
                bounds = partition.bounds()
                stable, high = bounds.last_stable_offset, bounds.high_watermark
                self.require(stable == high, f"{line.name}: stable to {stable} of {high}")


class DeletedTopicsLeaveNoFiles(Invariant):
    """A broker's machine has the files of the topics that it leads, and no others."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for broker, found in folders.items():
            led = {
                line.place[0]
                for line in self.history.lines.values()
                if line.leader == broker and not line.deleted
            }
            for folder in found:
                what = f"{broker} has {folder}, of no topic that it leads"
                self.require(not led.isdisjoint(folder.parts), what)


class WhatIsKnownIsWhatIsThere(Invariant):
    """What a replica derived entry by entry is what its log gives at once."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for line in self.history.lines.values():
            partition = self.view.partition(line.place)
            if partition is not None and not line.deleted:
                self._compare(line, partition)

    def _compare(self, line: Line, partition: Partition) -> None:
        core, log = partition.replica, partition.log
        now = self.view.clock.steady_us()
        anew = Replica(log.tables(), log.start, log.end, now, 24 * 3_600 * 1_000_000)
        known = dict(core.producers)
        for producer, state in anew.producers.items():
            what = f"{line.name}: producer {producer} is {known.get(producer)}, not {state}"
            self.require(known.get(producer) == state, what)
        open_now, open_anew = list(core.undecided.open()), list(anew.undecided.open())
        self.require(open_now == open_anew, f"{line.name}: open {open_now}, not {open_anew}")
        ends = [
            (core.epochs.end_of(epoch, log.end), anew.epochs.end_of(epoch, log.end))
            for epoch in {each.entry.leader_epoch for each in line.entries}
        ]
        self.require(all(a == b for a, b in ends), f"{line.name}: epochs end {ends}")
