"""The control messages about transactions and named consumers, whose positions move with them.

They are bodies and results of DoAction, by the action's name (``wire.actions``).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from spark_stream.structs import INT64_MAX, Name, OffsetField, PartitionField
from spark_stream.wire.messages import LineageField, Message, TimeoutField, TransactionalId

DIGEST_MAX: Final = (1 << 64) - 1
DigestField = Annotated[int, Meta(ge=0)]


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


class BranchFacts(Message):
    """The identity to write under. ``committed``: the batch is in the log, write nothing."""

    transactional_id: str
    number: int
    producer_id: int
    epoch: int
    committed: bool


class TopicContent(Message):
    """What a batch put into a topic: it tells a replay with the same rows from one with others.

    ``floats``: a digest of its floating-point values; ``digest``: of all others.
    """

    topic: Name
    rows: OffsetField
    digest: DigestField
    floats: DigestField = 0

    def __post_init__(self) -> None:
        if max(self.digest, self.floats) > DIGEST_MAX:
            raise ValueError(f"Expected digests <= {DIGEST_MAX}")


class ConsumerPosition(Message):
    """Where a named consumer goes on in one partition.

    ``lineage``: that of the offset, where it is known: if records below the offset are cut off
    later, the consumer finds out.
    """

    consumer: Name
    topic: Name
    topic_id: str
    partition: PartitionField
    offset: OffsetField
    lineage: LineageField = ()


class CommitTransaction(Message):
    """Commits transaction ``number`` with the ``branches`` (producer ids) it takes.

    Other branches abort. ``batch`` is remembered as the sink's last, with its ``content``.
    ``owners`` are those of the consumers whose ``positions`` move with it. Answered when it is
    visible.
    """

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    branches: list[OffsetField]
    batch: OffsetField | None = None
    content: list[TopicContent] | None = None
    positions: list[ConsumerPosition] = []
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
    """Aborts the open transaction of an id; with ``number`` that one and no later."""

    transactional_id: TransactionalId
    number: OffsetField | None = None


class TransactionPartition(Message):
    """A partition that a transaction has written to."""

    topic: str
    partition: int
    first_offset: int | None = None


class TransactionFacts(Message):
    """A transactional id and its present or last transaction. Times in ms since the epoch.

    ``state``: empty | open | committing | aborting | committed | aborted. ``number`` is -1 before
    the first transaction, ``committed_batch`` -1 where no sink's batch was committed.
    """

    transactional_id: str
    state: str
    number: int
    producer_id: int
    epoch: int
    query: str
    branches: list[int]
    partitions: list[TransactionPartition]
    timeout_ms: int
    began_ms: int
    deadline_ms: int
    committed_batch: int


class TransactionList(Message):
    """All transactional ids, by name."""

    transactions: list[TransactionFacts]


# -- consumers ------------------------------------------------------------------------------------


class NamedConsumer(Message):
    """A consumer's name."""

    consumer: Name


class OwnedConsumer(Message):
    """A consumer's name, and the instance that owns it, or takes it over with this call."""

    consumer: Name
    instance: Name


class Positions(Message):
    """Where named consumers go on. ``owners``: by name, the instance that must own it."""

    positions: list[ConsumerPosition]
    owners: dict[Name, Name] = {}
