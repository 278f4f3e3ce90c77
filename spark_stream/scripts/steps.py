"""The steps of scripts: each kind is a struct, which a script yields: ``yield from Get(key)``.

A step names a partition by topic, topic id and number, never by an object: whether its leader is
this broker or another is the driver's business. A step may fail with any ``IsologError``; the
driver throws it into the script.
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
from spark_stream.consistency.partition.extents import SpansSnapshot
from spark_stream.consistency.transactions.transactions import Joined, Transaction
from spark_stream.errors import IsologError
from spark_stream.structs import Positional

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FIRST_EPOCH: Final = LeaderEpoch(0)


class Step(Positional, Generic[T_co]):
    """What a script asks for, and is answered with a ``T_co``.

    A kind of step is defined here, and carried out by a function of
    ``broker.scripting.step_table``.
    """

    def __iter__(self) -> Generator[Step[Any], Any, T_co]:
        """Yield the step; return its answer."""
        answer: T_co = yield self
        return answer


Script = Generator[Step[Any], Any, T]


# -- the metadata store ---------------------------------------------------------------------------


class Get(Step[StoreRecord | None]):
    """The record of a key; answered with a ``StoreRecord`` or None."""

    key: str


class ListRecords(Step[Sequence[StoreRecord]]):
    """All records whose keys start with the prefix, in the order of their keys."""

    prefix: str


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
    """The records of transactions that are found by this, by id; costs what it finds."""

    by: By
    value: str = ""


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
    """The leader epoch of each partition on record at this moment; 0 where there is no record."""

    places: tuple[Joined, ...]


class _OfAnEpoch(Step[T_co], kw_only=True):
    least_epoch: LeaderEpoch = FIRST_EPOCH


class PartitionStep(_OfAnEpoch[T_co], tag=True):
    """A step that the leader of a partition carries out; it may be another broker.

    A leader of an epoch before ``least_epoch`` has been replaced, and refuses.
    """

    at: Joined


class Marked(Positional):
    """Where a leader's log ended, in its epoch, when the markers were in it.

    ``replicated``: all of that is below the high watermark, and no in-sync replica has more.
    """

    end: EntryIndex
    leader_epoch: LeaderEpoch
    replicated: bool


class Described(Positional):
    """A partition as its leader sees it. ``followers``: up to which entry each of them has it.

    ``hw_known``: the high watermark and the last stable offset are not just lower bounds of what
    an earlier leader has told.
    """

    bounds: Bounds
    leader_epoch: LeaderEpoch
    log_end: EntryIndex
    size: int
    open_transactions: int
    followers: Mapping[BrokerId, EntryIndex]
    hw_known: bool = True


class Seal(PartitionStep[None]):
    """From now on the partition takes nothing more of the transaction."""

    transaction: int


class WriteMarkers(PartitionStep[Marked]):
    """Ends the transaction: commits for the producer ids ``taken``, aborts for all others.

    What is ended already stays as it is. The markers of a commit are on the disk afterwards, where
    the topic wants that at all. If the force were a step of its own, a leader could lose them in
    between, with its power, and then force what is left and say yes.

    Answered with ``Marked``.
    """

    transaction: int
    taken: tuple[int, ...]


class IsReplicated(PartitionStep[bool]):
    """Whether the entries below ``entry`` are replicated, and no in-sync replica has others.

    They are those of a leader of this epoch: another one may have cut them off, and refuses.
    """

    entry: EntryIndex
    leader_epoch: LeaderEpoch


class DropBranch(PartitionStep[None]):
    """Aborts what one producer id wrote in the transaction, and takes nothing more of it."""

    transaction: int
    producer_id: int


class Force(PartitionStep[None]):
    """What was appended is on the disk afterwards, where the topic wants that at all."""


class ReadBounds(PartitionStep[Bounds]):
    """The partition's bounds as one observation."""


class ReadExtents(PartitionStep[SpansSnapshot]):
    """Where the partition's transactions lie."""


class Describe(PartitionStep[Described]):
    """How the partition is; answered with ``Described``."""


# -- one broker -----------------------------------------------------------------------------------


class BrokerStep(Step[T_co], tag=True):
    """A step that one certain broker carries out."""

    broker: BrokerId


RemoteStep = PartitionStep[Any] | BrokerStep[Any]
"""A step that another broker may have to carry out."""


class MakeFolder(BrokerStep[None]):
    """Makes the folder of a topic, whose record may not be there yet."""

    topic: str
    topic_id: str


class ReadLogEnd(BrokerStep[LogEnd | None]):
    """Where the broker's replica of the partition ends, or None if it has none that is open."""

    at: Joined


class ForceReplica(BrokerStep[None]):
    """What the broker's replica has is on its disk afterwards, where the topic wants that at all.

    The broker has then seen all that is on record. If a move of the partition is, what it tells the
    leader to have from now on is on its disk as well.
    """

    at: Joined


class ProbeReplica(BrokerStep[None]):
    """Check by a write, which is taken back, that the log of the broker's replica takes entries.

    Fails as a write to the log would.
    """

    at: Joined


# -- topics ---------------------------------------------------------------------------------------


class FindTopic(Step[Topic]):
    """A topic as it is now (with ``topic_id``: this very one), whoever leads it."""

    name: str
    topic_id: str | None = None


class RemoveFiles(Step[None]):
    """Removes this broker's folder of a topic that is gone, with all that is in it."""

    topic: Topic


# -- this broker ----------------------------------------------------------------------------------


class Refresh(Step[None]):
    """This broker sees all that is in the store by now, and has acted on it."""


class Pause(Step[None]):
    """Time passes: so many seconds."""

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
    """Do as :func:`together`, at leaders that have not been replaced by now.

    Who was replaced may not have heard of it yet. It would answer for a log that counts no more,
    and knows nothing of what its successor has taken.
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
    """Return the extents of transactions in each partition, from its current leader."""
    return (yield from ask_present_leaders(ReadExtents(at) for at in places))
