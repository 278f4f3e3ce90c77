"""Writes of proposed in-sync replicas and epochs to the partitions' records.

A leader's core proposes (``consistency.partition.progress``). Here the proposal becomes a
compare-and-set, and its outcome goes back to the core. If the store does not report the outcome,
the record is read until the outcome is certain. Until then the leader counts every replica that may
be in sync.
"""

from __future__ import annotations

import threading

from msgspec import Struct

from spark_stream.broker.partition.partition import Partition
from spark_stream.cluster.partitions import PartitionId, decode, key_of, put_of
from spark_stream.consistency.control import election
from spark_stream.consistency.control.election import Unchanged
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.partition.effects import ProposeIsr, ProposeRecord
from spark_stream.errors import IsologError
from spark_stream.scripts.steps import Get, PutMany, Script


class _Proposed(Struct, frozen=True):
    """A leader's proposal, for the record that it is based on."""

    partition: Partition
    me: Member
    before: PartitionRecord
    after: PartitionRecord
    version: int

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.partition.topic_id, self.partition.number)


class Proposals:
    """The proposals of one broker. Any thread notes one, and one thread puts them on record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: list[_Proposed] = []
        self.noted = threading.Event()

    def note(self, partition: Partition, proposal: ProposeIsr | ProposeRecord) -> None:
        """Note a leader's proposal. The caller holds the partition's lock."""
        noted = _proposed(partition, proposal)
        if noted is not None:
            with self._lock:
                self._noted.append(noted)
            self.noted.set()

    def putting(self) -> Script[None]:
        """Write the noted proposals to the records, and pass the outcomes to the leaders."""
        self.noted.clear()
        with self._lock:
            noted, self._noted = self._noted, []
        latest = {each.id: each for each in noted}  # the last one of each partition counts
        if not latest:
            return
        proposed = list(latest.values())
        try:
            versions = yield from PutMany(
                [put_of(each.id, each.after, each.version) for each in proposed]
            )
        except IsologError:
            self._put_back(proposed)
            raise
        for number, (each, version) in enumerate(zip(proposed, versions, strict=True)):
            try:
                yield from _settle(each, version)
            except IsologError:
                self._put_back(proposed[number:])
                raise

    def _put_back(self, proposed: list[_Proposed]) -> None:
        """Note proposals with an unknown outcome again. The next round finds the outcome."""
        with self._lock:
            self._noted = [*proposed, *self._noted]
        self.noted.set()


def _proposed(partition: Partition, proposal: ProposeIsr | ProposeRecord) -> _Proposed | None:
    if isinstance(proposal, ProposeRecord):
        return _Proposed(partition, proposal.me, proposal.before, proposal.after, proposal.version)
    progress = partition.core.progress
    if progress is None:
        return None
    record = progress.record
    outcome = election.propose_isr(record, progress.me, record.leader_epoch, proposal.members)
    after = record if isinstance(outcome, Unchanged) else outcome
    return _Proposed(partition, progress.me, record, after, proposal.version)


def _settle(proposed: _Proposed, version: int | None) -> Script[None]:
    if version is not None:
        proposed.partition.role.take_isr(proposed.after, version)
        return
    record = yield from Get(key_of(proposed.id))
    if record is None:
        return  # the topic was deleted
    found = decode(record)
    if found.record == proposed.after:  # the store took it, and the answer was lost
        proposed.partition.role.take_isr(found.record, found.version)
    else:
        proposed.partition.role.refuse_isr(proposed.version, found.record, found.version)
