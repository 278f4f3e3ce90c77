"""The steps of scripts: each kind is a struct, which a script yields: ``yield from Get(key)``.

A step names a partition by topic, topic id and number, never by an object: the driver finds out
whether its leader is this broker or another. A step may fail with any ``IsologError``, which the
driver throws into the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from msgspec import structs

from spark_stream.cluster.stores.store import Delete, Put, StoreRecord
from spark_stream.cluster.topics import Topic
from spark_stream.cluster.transactions import TransactionKey
from spark_stream.consistency.control.election import LogEnd
from spark_stream.consistency.ids import BrokerId, EntryIndex, LeaderEpoch
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.partition.atomic_cuts import SpansSnapshot
from spark_stream.consistency.transactions.transactions import Joined, Transaction
from spark_stream.errors import IsologError
from spark_stream.steps import Script as Script
from spark_stream.steps import Step as Step
from spark_stream.structs import Positional

T_co = TypeVar("T_co", covariant=True)
FIRST_EPOCH: Final = LeaderEpoch(0)


# -- the metadata store ---------------------------------------------------------------------------


class Get(Step[StoreRecord | None]):
    """The record of a key. The answer is a ``StoreRecord`` or None.

    Without ``fresh``: as it was a moment ago. Only a compare-and-set may rest on that.
    """

    key: str
    fresh: bool = True


class ListRecords(Step[Sequence[StoreRecord]]):
    """All records whose keys start with the prefix, in the order of their keys.

    Without ``fresh``: as they were a moment ago, for prefixes that are read again and again.
    """

    prefix: str
    fresh: bool = True


class PutRecord(Step[int | None]):
    """A write of a record if its version is ``expected``. Answered with the new one, or None."""

    key: str
    value: Mapping[str, Any]
    expected: int


class PutMany(Step[Sequence[int | None]]):
    """Writes of records, each by itself as ``PutRecord``."""

    puts: Sequence[Put]


class DeleteMany(Step[Sequence[bool]]):
    """Deletions of records, each by itself as ``DeleteRecord``, answered with their outcomes."""

    deletes: Sequence[Delete]


class DeleteRecord(Step[bool]):
    """A deletion of a record if its version is ``expected``, answered with whether it was."""

    key: str
    expected: int


class FindTransactions(Step[list[Transaction]]):
    """The records of transactions that match, by id. The cost grows with the number found.

    ``fresh``: as :class:`ListRecords`.
    """

    by: TransactionKey
    value: str = ""
    fresh: bool = True


class Numbering(StrEnum):
    """The kinds of numbers that are given out."""

    TRANSACTIONS = "transactions"
    PRODUCERS = "producers"


class TakeNumber(Step[int]):
    """A number above ``above`` that is given out once."""

    of: Numbering
    above: int = -1


# -- one partition --------------------------------------------------------------------------------


class ReadEpochs(Step[Sequence[LeaderEpoch]]):
    """The leader epoch of each partition in this broker's view, or 0 without a record."""

    places: tuple[Joined, ...]


class _OfAnEpoch(Step[T_co], kw_only=True):
    least_epoch: LeaderEpoch = FIRST_EPOCH


class PartitionStep(_OfAnEpoch[T_co], tag=True):
    """A step that the leader of a partition carries out. It may be another broker.

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
    """A partition as its leader sees it. ``followers``: the end of each follower's log.

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
    """A seal: the partition refuses all further batches of the transaction."""

    transaction: int


class WriteMarkers(PartitionStep[Marked]):
    """The end of a transaction: commits for the producer ids ``taken``, aborts for all others.

    Parts that have ended already stay as they are. The markers of a commit are on the disk
    afterwards, if the topic forces anything. If the fsync were a separate step, a leader could lose
    the markers in a power cut in between, and then force the rest and report success.

    The answer is ``Marked``.
    """

    transaction: int
    taken: tuple[int, ...]


class IsReplicated(PartitionStep[bool]):
    """Whether the entries below ``entry`` are replicated, and no in-sync replica has others.

    The entries are those of the leader of ``leader_epoch``. A leader of another epoch may have
    truncated them, and refuses.
    """

    entry: EntryIndex
    leader_epoch: LeaderEpoch


class DropBranch(PartitionStep[None]):
    """An abort of one producer id's batches in the transaction. Further batches are refused."""

    transaction: int
    producer_id: int


class Force(PartitionStep[None]):
    """An fsync of the log, if the topic forces anything."""


class ReadBounds(PartitionStep[Bounds]):
    """The partition's bounds as one observation."""


class ReadExtents(PartitionStep[SpansSnapshot]):
    """The extents of transactions in the partition."""


class Describe(PartitionStep[Described]):
    """The state of the partition. The answer is ``Described``."""


# -- one broker -----------------------------------------------------------------------------------


class BrokerStep(Step[T_co], tag=True):
    """A step that one certain broker carries out."""

    broker: BrokerId


RemoteStep = PartitionStep[Any] | BrokerStep[Any]
"""A step that another broker may have to carry out."""


class MakeFolder(BrokerStep[None]):
    """The creation of a topic's folder. The topic's record may not exist yet."""

    topic: str
    topic_id: str


class ReadLogEnd(BrokerStep[LogEnd | None]):
    """The end of the broker's replica of the partition, or None if it has no open one."""

    at: Joined


class ForceReplica(BrokerStep[None]):
    """An fsync of the broker's replica, if the topic forces anything.

    Afterwards the broker has seen all that is on record. If a move of the partition is on record,
    the broker also forces all further entries before it reports them to the leader.
    """

    at: Joined


class ProbeReplica(BrokerStep[None]):
    """A check that the log of the broker's replica takes entries, by a write that is undone.

    It fails as a write to the log would.
    """

    at: Joined


class ReadLed(BrokerStep[dict[str, list[int]]]):
    """The partitions that the broker leads at this moment: their numbers by topic id."""


# -- topics ---------------------------------------------------------------------------------------


class FindTopic(Step[Topic]):
    """A topic as it is at this moment, whoever leads it. With ``topic_id``: only of that id."""

    name: str
    topic_id: str | None = None


class RemoveFiles(Step[None]):
    """The removal of this broker's folder of a deleted topic, with everything in it."""

    topic: Topic


# -- this broker ----------------------------------------------------------------------------------


class Refresh(Step[None]):
    """A wait until this broker has seen all earlier changes in the store, and acted on them.

    ``optional``: while all brokers are cut off from the store, continue with the last view.
    """

    optional: bool = False


class CatchUp(Step[None]):
    """A wait until this broker has acted on all that it has read from the store, or written to it.

    That costs no request, and is enough for a script that continues from a record.
    """


class Pause(Step[None]):
    """A wait of this many seconds."""

    seconds: float


# -- several steps together ------------------------------------------------------------------------


class Together(Step[list[Any | IsologError]]):
    """Steps whose order does not matter. The answer is a list of answers or errors."""

    steps: tuple[RemoteStep, ...]


def together(
    steps: Iterable[RemoteStep],
) -> Script[list[Any | IsologError]]:
    """Return answers and errors, in the order of the steps."""
    asked = tuple(steps)
    return (yield from Together(asked)) if asked else []


def ask_present_leaders(steps: Iterable[PartitionStep[Any]]) -> Script[list[Any | IsologError]]:
    """Do as :func:`together`, but only at leaders of epochs in this broker's view, or later ones.

    A leader that has not seen its replacement would answer for a log that no longer counts, without
    the batches that its successor has taken. So take a :class:`Refresh` or a :class:`CatchUp`
    before.
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

    While the store does not answer, a leader that serves has not been replaced: its lease expired
    too.
    """
    yield Refresh(optional=True)
    return (yield from ask_present_leaders(ReadExtents(at) for at in places))
