"""The control messages about transactions and named consumers, whose positions move with them.

They are bodies and results of DoAction, by the action's name (``wire.actions``).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from spark_stream.consistency.transactions.transactions import Content, PositionOf
from spark_stream.structs import INT64_MAX, Name, OffsetField
from spark_stream.wire.messages import Description, Message, TimeoutField, TransactionalId


class ProducerFacts(Message):
    """A producer id that nobody else has, with its first epoch."""

    producer_id: int
    epoch: int


class InitTransactions(Message):
    """``instance`` takes over an id: the one before is fenced, its open transaction aborted.

    ``instance`` is any text that no other producer has; every later call names it.
    """

    transactional_id: TransactionalId
    instance: Name
    timeout_ms: TimeoutField = 60_000


class BeginTransaction(Message):
    """Begins the transaction after number ``after`` (-1: the first of this instance)."""

    transactional_id: TransactionalId
    instance: Name
    after: Annotated[int, Meta(ge=-1, le=INT64_MAX)] = -1


class Branch(Description, kw_only=True):
    """The identity that a producer has in transaction ``number`` of its transactional id.

    ``committed``: the batch is in the log, and nothing is to be written; there is no producer id.
    """

    transactional_id: str
    number: int
    producer_id: int = -1
    epoch: int = 0
    committed: bool = False


class CommitTransaction(Message):
    """Commits transaction ``number`` with the ``branches`` (producer ids) it takes.

    Other branches abort. ``batch`` is remembered as the sink's last, with its ``content``.
    ``owners`` are those of the consumers whose ``positions`` move with it. The
    answer comes when the transaction is visible.
    """

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    branches: list[OffsetField]
    batch: OffsetField | None = None
    content: list[Content] | None = None
    positions: list[PositionOf] = []
    owners: dict[Name, Name] = {}


class EndTransaction(Message):
    """Aborts (or renews the deadline of) transaction ``number``."""

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField


class NamedTransaction(Message):
    """The transactional id that an operator's action is about."""

    transactional_id: TransactionalId


class KillTransaction(Message):
    """Aborts the open transaction of an id; with ``number`` only the one of this number."""

    transactional_id: TransactionalId
    number: OffsetField | None = None


UNFINISHED: Final = ("open", "committing", "aborting")
"""The states of a transaction that may hold records back."""


class TransactionPartition(Description, kw_only=False):
    """A partition a transaction wrote to; ``first_offset`` while it is open there.

    ``held_back``: the replicated records that read_committed does not return because of it. The
    client adds it from the answer of the partition's leader, None if the leader did not answer.
    """

    topic: str
    partition: int
    first_offset: int | None = None
    held_back: int | None = None


class TransactionDescription(Description, kw_only=False):
    """A transactional id with its present or last transaction. Times in ms since the epoch.

    ``state``: empty, open, committing, aborting, committed or aborted. ``number`` is -1 before the
    first transaction, ``committed_batch`` -1 where no sink's batch was committed. ``principal``:
    the owner of the id, empty without authentication. ``query_name``: the name of the sink's query.
    """

    transactional_id: str
    state: str
    number: int
    producer_id: int
    epoch: int
    query: str
    branches: tuple[int, ...]
    partitions: tuple[TransactionPartition, ...]
    timeout_ms: int
    began_ms: int
    deadline_ms: int
    committed_batch: int
    principal: str = ""
    query_name: str = ""


class TransactionList(Message):
    """All transactional ids, by name."""

    transactions: list[TransactionDescription]


# -- consumers ------------------------------------------------------------------------------------


class NamedConsumer(Message):
    """A consumer's name."""

    consumer: Name


class OwnedConsumer(Message):
    """A consumer's name, and the instance that owns it."""

    consumer: Name
    instance: Name


class TakeConsumer(Message):
    """A consumer's name, and the instance that takes it over.

    ``keeps_group``: the name stays that of its group. So a reset fences the earlier owner only.
    """

    consumer: Name
    instance: Name
    keeps_group: bool = False


class Positions(Message):
    """Where named consumers go on. ``owners``: by name, the instance that must own the name."""

    positions: list[PositionOf]
    owners: dict[Name, Name] = {}
