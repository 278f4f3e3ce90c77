"""The steps of scripts: each kind is a frozen dataclass, and a function that yields it.

A step names a partition by topic, topic id and number, never by an object: whether its leader is
this broker or another is the driver's business. A step may fail with any ``IsologError``; the
driver throws it into the script.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from spark_stream.cluster.store import Delete as StoreDelete
from spark_stream.cluster.store import Put as StorePut
from spark_stream.cluster.store import Record
from spark_stream.cluster.topics import Topic
from spark_stream.cluster.transactions import By
from spark_stream.consistency.extents import SpansSnapshot
from spark_stream.consistency.ids import BrokerId, EntryIndex, LeaderEpoch
from spark_stream.consistency.isolation import Bounds
from spark_stream.consistency.transactions import Joined, Transaction
from spark_stream.errors import IsologError

T = TypeVar("T")
FIRST_EPOCH: Final = LeaderEpoch(0)


class Step:
    """What a script asks for."""

    __slots__ = ()


Script = Generator[Step, Any, T]


# -- the metadata store ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Get(Step):
    """The record of a key; answered with a ``Record`` or None."""

    key: str


@dataclass(frozen=True, slots=True)
class ListRecords(Step):
    """All records whose keys start with the prefix, in the order of their keys."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Put(Step):
    """Writes a record if its version is ``expected``; answered with the new version, or None."""

    key: str
    value: Mapping[str, Any]
    expected: int


@dataclass(frozen=True, slots=True)
class PutMany(Step):
    """Writes records, each by itself as ``Put`` does; answered with their new versions or None."""

    puts: tuple[StorePut, ...]


@dataclass(frozen=True, slots=True)
class DeleteMany(Step):
    """Deletes records, each by itself as ``Delete`` does; answered with whether each was."""

    deletes: tuple[StoreDelete, ...]


@dataclass(frozen=True, slots=True)
class Delete(Step):
    """Deletes a record if its version is ``expected``; answered with whether it was."""

    key: str
    expected: int


@dataclass(frozen=True, slots=True)
class FindTransactions(Step):
    """The records of transactions that are found by this, by id; costs what it finds."""

    by: By
    value: str = ""


class Numbering(StrEnum):
    """What is numbered."""

    TRANSACTIONS = "transactions"
    PRODUCERS = "producers"


@dataclass(frozen=True, slots=True)
class TakeNumber(Step):
    """A number above ``above`` that nobody else gets."""

    of: Numbering
    above: int = -1


# -- one partition --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadEpochs(Step):
    """The leader epoch of each partition on record at this moment; 0 where there is no record."""

    places: tuple[Joined, ...]


@dataclass(frozen=True, slots=True)
class PartitionStep(Step):
    """A step that the leader of a partition carries out.

    A leader of an epoch before ``least_epoch`` has been replaced, and refuses.
    """

    at: Joined
    least_epoch: LeaderEpoch = field(default=FIRST_EPOCH, kw_only=True)


@dataclass(frozen=True, slots=True)
class Seal(PartitionStep):
    """From now on the partition takes nothing more of the transaction."""

    transaction: int


@dataclass(frozen=True, slots=True)
class WriteMarkers(PartitionStep):
    """Ends the transaction: commits for the producer ids ``taken``, aborts for all others.

    What is ended already stays as it is. The markers of a commit are on the disk afterwards, where
    the topic wants that at all. If the force were a step of its own, a leader could lose them in
    between, with its power, and then force what is left and say yes.

    Answered with ``Marked``.
    """

    transaction: int
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """Where a leader's log ended, in its epoch, when the markers were in it.

    ``replicated``: all of that is below the high watermark.
    """

    end: EntryIndex
    leader_epoch: LeaderEpoch
    replicated: bool


@dataclass(frozen=True, slots=True)
class IsReplicated(PartitionStep):
    """Whether the entries below ``entry`` are below the high watermark.

    They are those of a leader of this epoch: another one may have cut them off, and refuses.
    """

    entry: EntryIndex
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class DropBranch(PartitionStep):
    """Aborts what one producer id wrote in the transaction, and takes nothing more of it."""

    transaction: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class Force(PartitionStep):
    """What was appended is on the disk afterwards, where the topic wants that at all."""


@dataclass(frozen=True, slots=True)
class ReadBounds(PartitionStep):
    """The partition's bounds as one observation."""


@dataclass(frozen=True, slots=True)
class ReadExtents(PartitionStep):
    """Where the partition's transactions lie."""


@dataclass(frozen=True, slots=True)
class Described:
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


@dataclass(frozen=True, slots=True)
class Describe(PartitionStep):
    """How the partition is; answered with ``Described``."""


# -- one broker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerStep(Step):
    """A step that one certain broker carries out."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class MakeFolder(BrokerStep):
    """Makes the folder of a topic, whose record may not be there yet."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class ReadLogEnd(BrokerStep):
    """Where the broker's replica of the partition ends; None: it has none that is open."""

    at: Joined


@dataclass(frozen=True, slots=True)
class ForceReplica(BrokerStep):
    """What the broker's replica has is on its disk afterwards, where the topic wants that at all.

    The broker has then seen all that is on record. If a move of the partition is, what it tells the
    leader to have from now on is on its disk as well.
    """

    at: Joined


@dataclass(frozen=True, slots=True)
class ProbeReplica(BrokerStep):
    """Check by a write, which is taken back, that the log of the broker's replica takes entries.

    Fails as a write to the log would.
    """

    at: Joined


# -- topics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindTopic(Step):
    """A topic as it is now (with ``topic_id``: this very one), whoever leads it."""

    name: str
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveFiles(Step):
    """Removes this broker's folder of a topic that is gone, with all that is in it."""

    topic: Topic


# -- this broker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refresh(Step):
    """This broker sees all that is in the store by now, and has acted on it."""


@dataclass(frozen=True, slots=True)
class Pause(Step):
    """Time passes: so many seconds."""

    seconds: float


# -- several at once ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Together(Step):
    """Steps whose order does not matter; answered with a list of answers or errors."""

    steps: tuple[PartitionStep | BrokerStep, ...]


# -- a typed answer for each ----------------------------------------------------------------------


def get(key: str) -> Script[Record | None]:
    """The record of a key, or None."""
    found: Record | None = yield Get(key)
    return found


def list_records(prefix: str) -> Script[Sequence[Record]]:
    """The records whose keys start with the prefix."""
    found: Sequence[Record] = yield ListRecords(prefix)
    return found


def find_transactions(by: By, value: str = "") -> Script[list[Transaction]]:
    """The records of transactions that are found by this."""
    found: list[Transaction] = yield FindTransactions(by, value)
    return found


def put(key: str, value: Mapping[str, Any], expected: int) -> Script[bool]:
    """Whether the record was written: its version was ``expected``."""
    version: int | None = yield Put(key, value, expected)
    return version is not None


def put_many(puts: Iterable[StorePut]) -> Script[Sequence[int | None]]:
    """The new version of each record; None for one whose version was not the expected one."""
    versions: Sequence[int | None] = yield PutMany(tuple(puts))
    return versions


def delete_many(deletes: Iterable[tuple[str, int]]) -> Script[Sequence[bool]]:
    """Whether each record was deleted: its version was the expected one."""
    done: Sequence[bool] = yield DeleteMany(tuple(StoreDelete(*each) for each in deletes))
    return done


def delete(key: str, expected: int) -> Script[bool]:
    """Whether the record was deleted: its version was ``expected``."""
    done: bool = yield Delete(key, expected)
    return done


def take_number(of: Numbering, above: int = -1) -> Script[int]:
    """A number above ``above`` that nobody else gets."""
    number: int = yield TakeNumber(of, above)
    return number


def find_topic(name: str, topic_id: str | None = None) -> Script[Topic]:
    """The topic; UnknownTopic if there is none, or it is another one by now."""
    found: Topic = yield FindTopic(name, topic_id)
    return found


def together(
    steps: Iterable[PartitionStep | BrokerStep],
) -> Script[list[Any | IsologError]]:
    """Answers and errors, in the order of the steps."""
    asked = tuple(steps)
    if not asked:
        return []
    answers: list[Any | IsologError] = yield Together(asked)
    return answers


def ask_present_leaders(steps: Iterable[PartitionStep]) -> Script[list[Any | IsologError]]:
    """As :func:`together`, of leaders that have not been replaced by now.

    Who was replaced may not have heard of it yet. It would answer for a log that counts no more,
    and knows nothing of what its successor has taken.
    """
    asked = tuple(steps)
    if not asked:
        return []
    epochs: Sequence[LeaderEpoch] = yield ReadEpochs(tuple(each.at for each in asked))
    return (
        yield from together(
            replace(step, least_epoch=epoch) for step, epoch in zip(asked, epochs, strict=True)
        )
    )


def read_bounds(places: Iterable[Joined]) -> Script[list[Bounds | IsologError]]:
    """The bounds of each partition."""
    return (yield from together(ReadBounds(at) for at in places))


def read_extents(places: Iterable[Joined]) -> Script[list[SpansSnapshot | IsologError]]:
    """The extents of the transactions in each partition, as its present leader knows them."""
    return (yield from ask_present_leaders(ReadExtents(at) for at in places))
