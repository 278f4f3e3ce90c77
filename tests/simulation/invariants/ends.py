"""Invariants at the end of a run, after all faults and with time for all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.partition.replica import Replica
from spark_stream.consistency.transactions.transactions import State
from tests.simulation.history import Line
from tests.simulation.invariants.base import Invariant


class NothingHangs(Invariant):
    """In the end every transaction is finished, and the last stable offset is the high
    watermark."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for record in self.history.records.values():
            over = record.state in (State.EMPTY, State.COMMITTED, State.ABORTED)
            self.require(over, f"transaction {record.number} is {record.state}")
        for course in self.history.there():
            partition, led = self.view.partition(course.place), self.history.led(course.place)
            self.require(partition is not None, f"{course.name} is not led")
            open_for_ever = {} if led is None else led.open
            self.require(not open_for_ever, f"{course.name}: open for ever: {open_for_ever}")
            if partition is not None:
                bounds = partition.bounds()
                stable, high = bounds.last_stable_offset, bounds.high_watermark
                self.require(stable == high, f"{course.name}: stable to {stable} of {high}")


class ReplicasAreEqual(Invariant):
    """In the end every replica of a partition has the same entries, all of them committed."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for course in self.history.there():
            assert course.record is not None
            for broker in course.record.replicas:
                line = self.history.line(broker, course.place)
                same = line.entries == course.committed.entries
                what = f"{line.name} has {len(line.entries)} entries"
                self.require(same, f"{what}; committed are {len(course.committed.entries)}")


class DeletedTopicsLeaveNoFiles(Invariant):
    """A broker's machine has the files of its replicas, and no others."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for broker, found in folders.items():
            mine = {
                course.place
                for course in self.history.there()
                if course.record is not None and broker in course.record.replicas
            }
            for folder in found:
                place = (folder.parts[4], int(folder.parts[5]))  # /broker/topics/name/id/number
                line = self.history.lines.get((broker, place))
                left = line is not None and line.may_be_left
                what = f"{broker} has {folder}, of no replica that it has"
                self.require(place in mine or left, what)


class DeletedTopicsLeaveNoRecords(Invariant):
    """In the end no partition is on record whose topic is not there."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        topics = {course.place[0] for course in self.history.there()}
        for course in self.history.courses.values():
            left = course.record is not None and course.place[0] not in topics
            self.require(not left, f"{course.name} {course.place} is still on record")


class WhatIsKnownIsWhatIsThere(Invariant):
    """The state that a replica derived entry by entry equals the state from its whole log."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        for course in self.history.there():
            for broker in self.view.brokers:
                partition = self.view.replica(broker, course.place)
                if partition is not None:
                    line = self.history.line(broker.broker_id, course.place)
                    self._compare(line, partition)

    def _compare(self, line: Line, partition: Partition) -> None:
        core, log = partition.core, partition.log
        if line.start:
            return  # the state of earlier entries is kept until the log is opened again
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
