"""Invariants of the log of one partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from spark_stream.broker.partition.partition import Partition
from spark_stream.consistency.entries import ENTRY, ENTRY_SIZE, Entry, Kind
from spark_stream.consistency.ids import NO_PRODUCER, BrokerId
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions.transactions import COMMITS, State, Transaction
from spark_stream.scripts.steps import Marked, WriteMarkers
from spark_stream.storage.format.codec import intact_rows
from spark_stream.storage.settings import Flush
from spark_stream.wire.transaction_messages import CommitTransaction
from tests.simulation.broker import SimulatedBroker
from tests.simulation.history import Course, Line, Place, Seen
from tests.simulation.invariants.base import Invariant, View


def unexplained(line: Line, lost: Sequence[Seen], led: Line | None) -> list[Seen]:
    """Return the entries that an opened log has lost without a request.

    Its topic may have been removed. Where its process may have ended within a truncation, that may
    have removed the entries that its leader does not have: uncommitted or evicted ones.

    Args:
        line: The replica, as it was before it was opened.
        lost: The entries that it had before and does not have now.
        led: The replica that leads the partition.
    """
    if line.may_be_gone:
        return []
    if not line.may_be_cut:
        return list(lost)
    evicted = 0 if led is None else led.start
    committed = line.course.committed.entries
    return [
        each
        for each in lost
        if (at := each.entry.entry_index) >= evicted and each in committed[at : at + 1]
    ]


class WhatIsThereStays(Invariant):
    """No log that is opened lacks an entry, but after a power cut, or a cut that was under way."""

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        flush = line.course.flush
        for each in unexplained(line, lost, self.history.led(line.place)):
            what = f"{line.name}: entry {each.entry.entry_index} is gone"
            self.require(power, what)
            self.require(flush is not Flush.BATCH, f"{what}; every batch is flushed there")


class ACommitIsForcedFirst(Invariant):
    """The records of a committed transaction are on the disk of a present or earlier leader."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._asked: dict[int, dict[Place, tuple[int, int]]] = {}  # (epoch, entries)
        self._promised: dict[Line, set[Seen]] = {}

    def asked(self, commit: CommitTransaction) -> None:
        """The client counts the present batches. A batch under way is its own affair."""
        there = {}
        for course in self.history.there():
            line = self.history.led(course.place)
            if line is not None:
                there[course.place] = (course.epoch, len(line.entries))
        self._asked.setdefault(commit.number, there)

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        if before is None or after is None or before.state is not State.OPEN:
            return
        if after.number != before.number or after.state not in COMMITS:
            return
        for place, (epoch, entries) in self._asked.get(after.number, {}).items():
            course, line = self.history.courses[place], self.history.led(place)
            if course.epoch != epoch or course.flush is Flush.NONE or course.deleted:
                continue
            if line is None or self.view.partition(place) is None:
                continue
            meant = [
                each
                for each in line.entries[:entries]
                if each.part[0] == after.number and each.part[1] in after.taken
            ]
            if meant:
                self._check_forced(course, after.number, meant)

    def _check_forced(self, course: Course, number: int, meant: Sequence[Seen]) -> None:
        """The leader of the sync may have been replaced, and may not have read that yet."""
        assert course.record is not None
        last, forced = meant[-1].entry.entry_index, {}
        for broker in self.view.brokers:
            partition = self.view.replica(broker, course.place)
            led = broker.broker_id in course.leaders.values()
            if partition is not None and led and course.record.member(BrokerId(broker.broker_id)):
                forced[broker.broker_id] = broker.logs.forced_entries(partition.log)
        what = f"{course.name}: forced to {forced}; transaction {number} is up to {last}"
        self.require(last < max(forced.values(), default=0), what)
        for broker_id, upto in forced.items():
            if last < upto:
                promised = self.history.line(broker_id, course.place)
                self._promised.setdefault(promised, set()).update(meant)

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        """A copy that is fetched again after a loss that is explained need not be forced again."""
        gone = unexplained(line, lost, self.history.led(line.place))
        promised = self._promised.get(line, set())
        forced = promised.intersection(gone)
        numbers = sorted({each.part[0] for each in forced})
        self.require(not forced, f"{line.name} has lost what it forced of transactions {numbers}")
        promised.difference_update(lost)


class MarkersOfACommitAreForced(Invariant):
    """The markers of a commit are on the leader's disk before it reports them."""

    def marked(
        self,
        course: Course,
        step: WriteMarkers,
        answer: Marked,
        broker: SimulatedBroker,
        partition: Partition,
    ) -> None:
        if course.flush is not Flush.NONE and step.taken:
            forced = broker.logs.forced_entries(partition.log)
            what = f"{course.name}: markers of transaction {step.transaction} to {answer.end}"
            self.require(forced >= answer.end, f"{what}, forced to {forced}")


class OnlyPowerCutsDamage(Invariant):
    """A log that a process has left at any moment opens without a loss to report."""

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        for cut in partition.log.cuts:
            may_be = power or line.may_be_gone
            self.require(may_be or not cut.grave, f"{line.name}: {cut}")


class BytesComeBeforeEntries(Invariant):
    """No entry is in a file whose batch is not, wherever a process ends."""

    def died(self, files: Mapping[Path, bytes]) -> None:
        for path, raw in files.items():
            if path.suffix == ".entries":
                table = np.frombuffer(raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE], ENTRY)
                whole = table[intact_rows(table)]
                named = int((whole["position"] + whole["length"]).max(initial=0))
                there = len(files.get(path.with_suffix(".arrow"), b""))
                self.require(named <= there, f"{path} names {named} bytes, and {there} are there")


class OffsetsAreDense(Invariant):
    """Entries have no gap, offsets only below the log start, and a marker takes no offset."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        place, before = len(line.entries) - 1, line.entries[-2] if len(line.entries) > 1 else None
        entry = seen.entry
        start = max(line.start_offset, 0 if before is None else before.end)
        wanted = (place, start)
        self.require(
            (entry.entry_index, entry.base_offset) == wanted,
            f"{line.name}: entry {entry.entry_index} at {entry.base_offset}, not {wanted}",
        )
        self.require(
            (entry.count == 0) == (entry.kind is not Kind.DATA),
            f"{line.name}: {entry.kind.name} has {entry.count} records",
        )


class AnOffsetIsGivenOnce(Invariant):
    """An offset given in one leader epoch is never given to another record in the same epoch."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._given: dict[tuple[Place, int, int], tuple[int, ...]] = {}

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if seen.values:
            key = (line.place, seen.entry.leader_epoch, seen.entry.base_offset)
            known = self._given.setdefault(key, seen.values)
            where = f"{line.name}: offset {key[2]} in epoch {key[1]}"
            self.require(known == seen.values, f"{where} was {known} and is {seen.values}")


class EpochsRise(Invariant):
    """No entry has a lower leader epoch than the one before it."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if len(line.entries) > 1:
            before = line.entries[-2].entry.leader_epoch
            now = seen.entry.leader_epoch
            self.require(now >= before, f"{line.name}: epoch {now} after {before}")


class OnlyTheLeaderWrites(Invariant):
    """An entry of a leader epoch was written by the leader of that epoch."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        epoch = seen.entry.leader_epoch
        leader = line.course.leaders.get(epoch)
        what = f"{line.name}: an entry of epoch {epoch}, which {leader} leads"
        self.require(broker.broker_id == leader, what)


class BatchesAreWhole(Invariant):
    """A batch is in the log as it was sent, at the partition it was sent to."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if not seen.values:
            return
        sent = self.history.sent.get(seen.values[0])
        whole = sent is not None and tuple(sent.values) == seen.values
        self.require(whole, f"{line.name}: {seen.values} is no batch that was sent")
        if sent is not None:
            self.require(sent.place == line.place, f"{line.name}: {seen.values} was not sent here")


class ABatchIsThereOnce(Invariant):
    """A batch of a producer with an id is in the log once, however often it is sent."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        if seen.entry.kind is Kind.DATA and seen.entry.producer_id != NO_PRODUCER:
            for each in line.entries[line.start : -1]:  # evicted batches may be appended again
                self.require(
                    not each.values or each.values[0] != seen.values[0],
                    f"{line.name}: {seen.values} is at {each.entry.base_offset} and at"
                    f" {seen.entry.base_offset}",
                )


class ProducersKeepTheirOrder(Invariant):
    """The batches of a producer are in a partition in the order in which it took them."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        sent = self.history.sent.get(seen.values[0]) if seen.values else None
        if sent is None or sent.producer is None:
            return
        for each in line.entries[line.start : -1]:
            before = self.history.sent.get(each.values[0]) if each.values else None
            if before is not None and before.producer == sent.producer:
                what = f"{line.name}: {seen.values} after {each.values}"
                self.require(each.values[0] < seen.values[0], what)


def earlier_batches(line: Line, last: Entry) -> list[Entry]:
    """The batches that are left of the producer of the last entry, before it, if it has an id."""
    if last.kind is not Kind.DATA or last.producer_id == NO_PRODUCER:
        return []
    before = (each.entry for each in line.entries[line.start : -1])
    return [
        each for each in before if each.kind is Kind.DATA and each.producer_id == last.producer_id
    ]


class ProducersStayFenced(Invariant):
    """No batch of a producer follows one of a higher epoch of it."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        entry = seen.entry
        epochs = [each.producer_epoch for each in earlier_batches(line, entry)]
        what = f"{line.name}: producer {entry.producer_id} wrote in epoch {entry.producer_epoch}"
        self.require(not epochs or entry.producer_epoch >= max(epochs), f"{what} after {epochs}")


class SequencesHaveNoGap(Invariant):
    """The batches of a producer's epoch are in a log in the order in which they were sent."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        entry = seen.entry
        known = [
            each.base_sequence
            for each in earlier_batches(line, entry)
            if each.producer_epoch == entry.producer_epoch
        ]
        if known:
            what = f"{line.name}: producer {entry.producer_id}: {entry.base_sequence} after {known}"
            self.require(entry.base_sequence == known[-1] + 1, what)


class BoundsNeverGoBack(Invariant):
    """Log start, LSO, high watermark and log end are in order, and a leader's never go back."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._seen: dict[Partition, tuple[int, Bounds]] = {}

    def observed(self, line: Line, partition: Partition) -> None:
        bounds = partition.bounds()  # raises if they are out of order
        epoch = int(partition.leader_epoch)
        known = self._seen.get(partition)
        self._seen[partition] = (epoch, bounds)
        if known is None or known[0] != epoch or not partition.leads or known[1] == bounds:
            return
        before = known[1]
        risen = (
            bounds.log_start_offset >= before.log_start_offset
            and bounds.last_stable_offset >= before.last_stable_offset
            and bounds.high_watermark >= before.high_watermark
            and bounds.log_end_offset >= before.log_end_offset
        )
        self.require(risen, f"{line.name}: {bounds} after {before}")


class UndecidedHoldsBack(Invariant):
    """The last stable offset is where the first undecided part begins, or the high watermark."""

    def observed(self, line: Line, partition: Partition) -> None:
        state = partition.core.bounds_state
        bounds = partition.bounds()
        first = line.undecided(int(state.high_watermark.entry))
        if first is not None and first < bounds.log_start_offset and not partition.leads:
            return  # a follower started again after the part's begin, and gets its marker next
        high = int(bounds.high_watermark)
        wanted = max(high if first is None else min(first, high), int(bounds.log_start_offset))
        found = int(bounds.last_stable_offset)
        self.require(found == wanted, f"{line.name}: it is {found}, not {wanted}")


class LogsAreWhatBrokersKnow(Invariant):
    """The end that a partition reports is the end of its log."""

    def observed(self, line: Line, partition: Partition) -> None:
        end = int(partition.bounds().log_end_offset)
        self.require(end == line.end, f"{line.name}: the end is {line.end}, and it says {end}")
