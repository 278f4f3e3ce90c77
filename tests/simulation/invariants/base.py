"""The base of invariants, and their view of a run.

An invariant overrides the methods for the events that it needs. Each is called in its event, after
the history has it. It raises ``Broken`` through :meth:`Invariant.require`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from spark_stream.broker.partition.partition import Partition
from spark_stream.client.writing.lanes import Settlement
from spark_stream.cluster.transactions import Join
from spark_stream.consistency.control.partition_record import Member, PartitionRecord
from spark_stream.consistency.entries import Entry
from spark_stream.consistency.groups import Assigned, Group
from spark_stream.consistency.isolation import Bounds, Isolation
from spark_stream.consistency.transactions.transactions import PositionOf, Transaction
from spark_stream.scripts.steps import Marked, WriteMarkers
from spark_stream.storage.settings import LogSettings
from spark_stream.wire.stream_messages import Ack
from spark_stream.wire.transaction_messages import CommitTransaction
from tests.simulation.broker import SimulatedBroker
from tests.simulation.clock import VirtualClock
from tests.simulation.history import Course, Fetched, Finish, History, Line, Place, Seen, Sent


class Broken(BaseException):
    """Something did not hold. No code under test catches it: it is no error of a call."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Looked(Struct, frozen=True):
    """A reader got these numbers for the offsets from ``start`` to ``end`` (exclusive)."""

    line: Line
    isolation: Isolation
    start: int
    end: int
    values: Sequence[int]


class View(Struct):
    """The view of a run for invariants."""

    history: History
    clock: VirtualClock
    brokers: Sequence[SimulatedBroker]
    notice: Callable[..., None]
    settings: dict[str, LogSettings] = field(default_factory=dict)
    """Of each topic that ever was, by its id."""

    def partition(self, place: Place) -> Partition | None:
        """The partition at its present leader, not at a deposed one."""
        epoch = self.history.courses[place].epoch
        for broker in self.brokers:
            found = self.replica(broker, place)
            if found is not None and found.leads and found.leader_epoch == epoch:
                return found
        return None

    def vouches(self, member: Member) -> bool:
        """Whether a member is in its broker's present generation, which vouches for its log."""
        broker = next(each for each in self.brokers if each.broker_id == member.broker)
        looks = broker.runs and broker.registered_in != broker.lives  # it still checks its logs
        return not looks and self.history.generations.get(member.broker) == member.generation

    def replica(self, broker: SimulatedBroker, place: Place) -> Partition | None:
        """A broker's replica of the partition, if it is open."""
        if broker.runs and broker.lives == broker.opened_in:
            for hosted in broker.host.topics():
                if hosted.topic.id == place[0]:
                    found = hosted.replicas.get(place[1])
                    return found if isinstance(found, Partition) else None
        return None


class Invariant:
    """A property of every run."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.history = view.history

    def require(self, holds: bool, what: str) -> None:
        """Raise Broken with this text, unless the condition holds."""
        if not holds:
            raise Broken(type(self).__name__, what)

    # -- events ------------------------------------------------------------------------------------

    def opened(self, line: Line, lost: Sequence[Seen], partition: Partition, power: bool) -> None:
        """A partition was opened. It has lost these entries. ``power``: its machine was off."""

    def died(self, files: Mapping[Path, bytes]) -> None:
        """A broker's process has ended within a step, and has left these files of open logs."""

    def appended(self, line: Line, seen: Seen, broker: SimulatedBroker) -> None:
        """An entry is in a log that was in none before."""

    def copied(self, line: Line, seen: Seen, entry: Entry, partition: Partition) -> None:
        """An entry is in one more log, as ``entry``."""

    def evicted(self, line: Line, gone: Sequence[Seen]) -> None:
        """A log starts later than it did: these entries are in front of it."""

    def committed_upto(self, line: Line, first: int, upto: int) -> None:
        """The high watermark of a leader has passed the entries ``first`` to ``upto - 1``."""

    def observed(self, line: Line, partition: Partition) -> None:
        """A broker has done something. This is one of its partitions."""

    def recorded(self, before: Transaction | None, after: Transaction | None, by: str) -> None:
        """A broker has changed the record of a transactional id."""

    def joined(self, join: Join) -> None:
        """A broker has put on record that a partition joins a transaction."""

    def unjoined(self, join: Join) -> None:
        """That is not on record any more."""

    def refuses_writes(self, broker: SimulatedBroker) -> None:
        """A broker's disk still refuses writes, and there is no other trouble."""

    def found_over(self, holder: SimulatedBroker) -> None:
        """A broker has seen this one's lease expire."""

    def moved(self, consumer: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """The record of a consumer's name has changed."""

    def placed(
        self, course: Course, before: PartitionRecord | None, after: PartitionRecord, by: str
    ) -> None:
        """The record of a partition is another one now."""

    def registered(self, broker: str, generation: str) -> None:
        """A broker has registered, in this generation of its logs."""

    def lost(self, course: Course, gone: Sequence[Seen]) -> None:
        """Committed entries are lost: no electable replica had them."""

    def trimmed(self, course: Course, log_start: int) -> None:
        """A client got the answer that the partition's log start is at least this offset."""

    def told(self, course: Course, bounds: Bounds, epoch: int) -> None:
        """The leader of this epoch has returned the partition's bounds."""

    def sealed(self, course: Course, transaction: int, epoch: int) -> None:
        """The leader of this epoch was called to seal the transaction."""

    def marked(
        self,
        course: Course,
        step: WriteMarkers,
        answer: Marked,
        broker: SimulatedBroker,
        partition: Partition,
    ) -> None:
        """A leader has reported that it wrote the markers of a transaction."""

    def acknowledged(self, sent: Sent, ack: Ack, broker: SimulatedBroker) -> None:
        """A batch is acknowledged, or refused."""

    def settled(self, sent: Sent, settlement: Settlement) -> None:
        """A producer has the outcome of a batch."""

    def asked(self, commit: CommitTransaction) -> None:
        """A client requests a commit."""

    def stored(self, positions: Sequence[PositionOf]) -> None:
        """A client requests to store positions outside any transaction."""

    def committed(self, commit: CommitTransaction, answer: Transaction) -> None:
        """A client's commit is acknowledged."""

    def owned(self, consumer: str, instance: str, found: Sequence[PositionOf]) -> None:
        """A client owns a consumer's name, and goes on from here."""

    def grouped(self, before: Group, after: Group) -> None:
        """The record of a group has changed."""

    def heard(self, member: str, beats: bool) -> None:
        """The session record of a member was written, or removed."""

    def leaving(self, member: str) -> None:
        """A member requests to leave its group."""

    def releasing(self, member: str, released: Sequence[Assigned]) -> None:
        """A member releases these partitions."""

    def taken(self, member: str, assigned: Assigned, offset: int) -> None:
        """A member begins to read a partition of its group at this offset."""

    def processed(self, member: str, assigned: Assigned, start: int, end: int) -> None:
        """A member has processed the records at these offsets. End is exclusive."""

    def group_asked(self, member: str, transaction: int, starts: Mapping[Place, int]) -> None:
        """A member requests a commit of the transaction that moves its positions from these
        offsets."""

    def looked(self, read: Looked) -> None:
        """A reader got records."""

    def went_on(self, line: Line, got: Sequence[int], position: int) -> None:
        """A reader of everything, which got these records up to here, is answered by this one."""

    def ended_short(self, course: Course, position: int, end: int) -> None:
        """A reader of a range from a cut got the end of the range at this offset."""

    def told_of_loss(self, topic_id: str, partition: int, isolation: Isolation) -> None:
        """A reader of this level got the loss of records that it had read."""

    def fetched(self, read: Fetched) -> None:
        """A client's fetch has ended."""

    def over(self, finish: Finish) -> None:
        """A client has the outcome of its request to end a transaction, or gives up."""

    def waited(self, where: str, woken: bool) -> None:
        """A reader waited, its bound has passed for a while, and it was woken or not."""

    def cut(self, offsets: Mapping[Place, int]) -> None:
        """A reader got a cut through partitions."""

    def ended(self, folders: Mapping[str, set[Path]]) -> None:
        """All faults have ended, and all tasks had time. ``folders``: on each broker's machine."""
