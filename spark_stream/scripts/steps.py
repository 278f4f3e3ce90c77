"""The steps of scripts: each kind is a struct, which a script yields: ``yield from Get(key)``.

A step names a partition by topic, topic id and number, never by an object: the driver finds out
whether its leader is this broker or another. A step may fail with any ``IsologError``; the driver
throws the error into the script.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from msgspec import structs

from spark_stream.cluster.stores.store import Delete, Put, StoreRecord
from spark_stream.cluster.topics import Topic
from spark_stream.cluster.transactions import By
from spark_stream.consistency.control.election import LogEnd
from spark_stream.consistency.ids import BrokerId, EntryIndex, LeaderEpoch
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.partition.atomic_cuts import SpansSnapshot
from spark_stream.consistency.transactions.transactions import Joined, Transaction
from spark_stream.errors import IsologError
from spark_stream.structs import Positional

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FIRST_EPOCH: Final = LeaderEpoch(0)


class Step(Positional, Generic[T_co]):
    """A request of a script, answered with a ``T_co``.

    Kinds of steps are defined here; functions of ``broker.scripting.driver`` carry them out.
    """

    def __iter__(self) -> Generator[Step[Any], Any, T_co]:
        """Yield the step; return its answer."""
        answer: T_co = yield self
        return answer


Script = Generator[Step[Any], Any, T]


# -- the metadata store ---------------------------------------------------------------------------


class Get(Step[StoreRecord | None]):
    """The record of a key; answered with a ``StoreRecord`` or None.

    Without ``fresh``: as it was a moment ago. Only a compare-and-set may rest on that.
    """

    key: str
    fresh: bool = True


class ListRecords(Step[Sequence[StoreRecord]]):
    """All records whose keys start with the prefix, in the order of their keys.

    Without ``fresh``: as they were a moment ago, for what is looked at again and again.
    """

    prefix: str
    fresh: bool = True


class PutRecord(Step[int | None]):
    """Writes a record if its version is ``expected``; answered with the new version, or None."""

    key: str
    value: Mapping[str, Any]
    expected: int


class PutMany(Step[Sequence[int | None]]):
    """Writes records, each by itself as ``PutRecord`` does."""

    puts: Sequence[Put]


class DeleteMany(Step[Sequence[bool]]):
    """Deletes records, each by itself as ``DeleteRecord`` does; answered with whether each was."""

    deletes: Sequence[Delete]


class DeleteRecord(Step[bool]):
    """Deletes a record if its version is ``expected``; answered with whether it was."""

    key: str
    expected: int


class FindTransactions(Step[list[Transaction]]):
    """The records of transactions that match, by id; the cost grows with the number found.

    ``fresh``: as :class:`ListRecords`.
    """

    by: By
    value: str = ""
    fresh: bool = True


class Numbering(StrEnum):
    """What is numbered."""

    TRANSACTIONS = "transactions"
    PRODUCERS = "producers"


class TakeNumber(Step[int]):
    """A number above ``above`` that nobody else gets."""

    of: Numbering
    above: int = -1


# -- one partition --------------------------------------------------------------------------------


class ReadEpochs(Step[Sequence[LeaderEpoch]]):
    """The leader epoch of each partition as this broker has seen it last; 0: it saw no record."""

    places: tuple[Joined, ...]


class _OfAnEpoch(Step[T_co], kw_only=True):
    least_epoch: LeaderEpoch = FIRST_EPOCH


class PartitionStep(_OfAnEpoch[T_co], tag=True):
    """A step that the leader of a partition carries out; it may be another broker.

    A leader of an epoch before ``least_epoch`` has been replaced, and refuses.
    """

    at: Joined


class Marked(Positional):
    """The end and the epoch of a leader's log when it had the markers.

    ``replicated``: all entries up to that end are below the high watermark, and no in-sync replica
    has entries that the leader lacks.
    """

    end: EntryIndex
    leader_epoch: LeaderEpoch
    replicated: bool


class Described(Positional):
    """A partition as its leader sees it. ``followers``: up to which entry each has the log.

    ``hw_known``: the high watermark and the last stable offset are exact, and not just lower bounds
    of those that an earlier leader has given out.
    """

    bounds: Bounds
    leader_epoch: LeaderEpoch
    log_end: EntryIndex
    size: int
    open_transactions: int
    followers: Mapping[BrokerId, EntryIndex]
    hw_known: bool = True


class Seal(PartitionStep[None]):
    """Makes the partition refuse all further batches of the transaction."""

    transaction: int


class WriteMarkers(PartitionStep[Marked]):
    """Ends the transaction: commits for the producer ids ``taken``, aborts for all others.

    Parts that have ended already stay as they are. The markers of a commit are on the disk
    afterwards, if the topic forces anything. If the force were a separate step, a leader could lose
    the markers in a power cut in between, and then force the rest and report success.

    Answered with ``Marked``.
    """

    transaction: int
    taken: tuple[int, ...]


class IsReplicated(PartitionStep[bool]):
    """Whether the entries below ``entry`` are replicated, and no in-sync replica has others.

    The entries are those of the leader of ``leader_epoch``. A leader of another epoch may have cut
    them off, and refuses.
    """

    entry: EntryIndex
    leader_epoch: LeaderEpoch


class DropBranch(PartitionStep[None]):
    """Aborts what one producer id wrote in the transaction, and refuses its further batches."""

    transaction: int
    producer_id: int


class Force(PartitionStep[None]):
    """Forces what was appended to the disk, if the topic forces anything."""


class ReadBounds(PartitionStep[Bounds]):
    """The partition's bounds as one observation."""


class ReadExtents(PartitionStep[SpansSnapshot]):
    """Where the partition's transactions lie."""


class Describe(PartitionStep[Described]):
    """The state of the partition; answered with ``Described``."""


# -- one broker -----------------------------------------------------------------------------------


class BrokerStep(Step[T_co], tag=True):
    """A step that one certain broker carries out."""

    broker: BrokerId


RemoteStep = PartitionStep[Any] | BrokerStep[Any]
"""A step that another broker may have to carry out."""


class MakeFolder(BrokerStep[None]):
    """Makes the folder of a topic whose record may not exist yet."""

    topic: str
    topic_id: str


class ReadLogEnd(BrokerStep[LogEnd | None]):
    """Where the broker's replica of the partition ends, or None if the broker has no open one."""

    at: Joined


class ForceReplica(BrokerStep[None]):
    """Forces what the broker's replica has to its disk, if the topic forces anything.

    Afterwards the broker has seen all that is on record. If a move of the partition is on record,
    the broker also forces all further entries before it reports them to the leader.
    """

    at: Joined


class ProbeReplica(BrokerStep[None]):
    """Checks, by a write that is undone, that the log of the broker's replica takes entries.

    Fails as a write to the log would.
    """

    at: Joined


class ReadLed(BrokerStep[dict[str, list[int]]]):
    """The partitions that the broker leads at this moment: their numbers by topic id."""


# -- topics ---------------------------------------------------------------------------------------


class FindTopic(Step[Topic]):
    """A topic as it is now, whoever leads it; with ``topic_id``, only the topic of that id."""

    name: str
    topic_id: str | None = None


class RemoveFiles(Step[None]):
    """Removes this broker's folder of a deleted topic, with everything in it."""

    topic: Topic


# -- this broker ----------------------------------------------------------------------------------


class Refresh(Step[None]):
    """Waits until this broker has seen all that is in the store by now, and has acted on it.

    ``optional``: while all brokers are cut off from the store, goes on with what is known.
    """

    optional: bool = False


class CatchUp(Step[None]):
    """Waits until this broker has acted on all that it has read from the store, or written to it.

    That costs no request, and is enough for a script that goes on from a record.
    """


class Pause(Step[None]):
    """Waits for this many seconds."""

    seconds: float


# -- several at once ------------------------------------------------------------------------------


class Together(Step[list[Any | IsologError]]):
    """Steps whose order does not matter; answered with a list of answers or errors."""

    steps: tuple[RemoteStep, ...]


def together(
    steps: Iterable[RemoteStep],
) -> Script[list[Any | IsologError]]:
    """Return answers and errors, in the order of the steps."""
    asked = tuple(steps)
    return (yield from Together(asked)) if asked else []


def ask_present_leaders(steps: Iterable[PartitionStep[Any]]) -> Script[list[Any | IsologError]]:
    """Do as :func:`together`, but only at leaders of the epochs that this broker knows, or later.

    A replaced leader that does not know it yet would answer for a log that no longer counts, and it
    would not know the batches that its successor has taken. So take a :class:`Refresh` or a
    :class:`CatchUp` before.
    """
    asked = tuple(steps)
    if not asked:
        return []
    epochs = yield from ReadEpochs(tuple(each.at for each in asked))
    return (
        yield from together(
            structs.replace(step, least_epoch=epoch)
            for step, epoch in zip(asked, epochs, strict=True)
        )
    )


def read_bounds(places: Iterable[Joined]) -> Script[list[Bounds | IsologError]]:
    """Return the bounds of each partition."""
    return (yield from together(ReadBounds(at) for at in places))


def read_extents(places: Iterable[Joined]) -> Script[list[SpansSnapshot | IsologError]]:
    """Return the extents of transactions in each partition, from its current leader.

    While the store is away, a leader that serves has not been replaced: its lease is over as well.
    """
    yield Refresh(optional=True)
    return (yield from ask_present_leaders(ReadExtents(at) for at in places))
