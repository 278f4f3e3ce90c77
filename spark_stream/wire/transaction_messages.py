"""The calls about transactions and named consumers, whose positions move with them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from spark_stream.access.needs import (
    anybody,
    commit,
    described,
    on_consumer,
    on_transaction,
    positions,
)
from spark_stream.access.rules import Operation
from spark_stream.consistency.transactions.transactions import Content, PositionOf
from spark_stream.structs import INT64_MAX, Name, OffsetField
from spark_stream.wire.messages import (
    Call,
    Description,
    Empty,
    Message,
    TimeoutField,
    TransactionalId,
)

READ, WRITE = Operation.READ, Operation.WRITE
DELETE, DESCRIBE = Operation.DELETE, Operation.DESCRIBE


class ProducerFacts(Message):
    """A producer id that nobody else has, with its first epoch."""

    producer_id: int
    epoch: int


class NewProducer(Call[ProducerFacts], name="new-producer", needs=anybody):
    """Make a producer id for writes outside transactions."""


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


class InitTransactions(
    Call[TransactionDescription], name="init-transactions", needs=on_transaction(WRITE)
):
    """Take over an id for ``instance``. Fence the one before, and abort its open transaction.

    ``instance`` is any text that no other producer has; every later call names it.
    """

    transactional_id: TransactionalId
    instance: Name
    timeout_ms: TimeoutField = 60_000


class Branch(Description, kw_only=True):
    """The identity that a producer has in transaction ``number`` of its transactional id.

    ``committed``: the batch is in the log, and nothing is to be written; there is no producer id.
    """

    transactional_id: str
    number: int
    producer_id: int = -1
    epoch: int = 0
    committed: bool = False


class BeginTransaction(Call[Branch], name="begin-transaction", needs=on_transaction(WRITE)):
    """Begin the transaction after number ``after`` (-1: the first of this instance)."""

    transactional_id: TransactionalId
    instance: Name
    after: Annotated[int, Meta(ge=-1, le=INT64_MAX)] = -1


class CommitTransaction(Call[TransactionDescription], name="commit-transaction", needs=commit):
    """Commit transaction ``number`` with the ``branches`` (producer ids) it takes.

    Other branches abort. ``batch`` is remembered as the sink's last, with its ``content``.
    ``owners`` are those of the consumers whose ``positions`` move with it, as in
    ``commit-position``. The answer comes when the transaction is visible. UNKNOWN_TOPIC if a topic
    that it wrote to was deleted: nothing is decided then.
    """

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    branches: tuple[OffsetField, ...]
    batch: OffsetField | None = None
    content: tuple[Content, ...] | None = None
    positions: tuple[PositionOf, ...] = ()
    owners: dict[Name, Name] = {}


class _Owned(Message):
    """Transaction ``number`` of the instance that owns the id."""

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField


class RenewTransaction(
    _Owned, Call[TransactionDescription], name="renew-transaction", needs=on_transaction(WRITE)
):
    """Restart the timeout of an open transaction, and return its new deadline."""


class AbortTransaction(
    _Owned, Call[TransactionDescription], name="abort-transaction", needs=on_transaction(WRITE)
):
    """Abort an open transaction."""


class DescribeTransaction(
    Call[TransactionDescription], name="describe-transaction", needs=on_transaction(DESCRIBE)
):
    """Describe the present or last transaction of an id."""

    transactional_id: TransactionalId


class KillTransaction(
    Call[TransactionDescription],
    name="kill-transaction",
    needs=on_transaction(DELETE),
    once=True,
):
    """Abort the open transaction of an id, whichever instance owns it.

    With ``number`` only the transaction of this number is aborted, and no later one.
    """

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


class TransactionList(Message):
    """All transactional ids, by name."""

    transactions: list[TransactionDescription]


class ListTransactions(Call[TransactionList], name="list-transactions", needs=described):
    """List the transactional ids that the caller may describe, with their transactions.

    Batches of sinks that finished more than an hour ago are left out.
    """


# -- consumers ------------------------------------------------------------------------------------


class Positions(Message):
    """The stored positions of named consumers."""

    positions: list[PositionOf]


class CheckConsumer(Call[Empty], name="check-consumer", needs=on_consumer(READ)):
    """Check that an instance owns a consumer's name: CONSUMER_FENCED if it does not."""

    consumer: Name
    instance: Name


class TakeConsumer(Call[Positions], name="take-consumer", needs=on_consumer(READ)):
    """Take over a consumer's name for an instance, and return the stored positions.

    The previous owner is fenced.

    ``keeps_group``: the name stays that of its group. So a reset fences the earlier owner only.
    """

    consumer: Name
    instance: Name
    keeps_group: bool = False


class GetPosition(Call[Positions], name="consumer-position", needs=on_consumer(DESCRIBE)):
    """Return where a named consumer continues."""

    consumer: Name


class CommitPosition(Call[Empty], name="commit-position", needs=positions):
    """Store positions of consumers.

    ``owners``: by name, the instance that must own the name. A member of a group gives
    ``MEMBER@EPOCH.TURN``: the latest epoch that it received, and how often it has moved back.
    UNKNOWN_TOPIC if a topic was deleted: the positions in the other topics are stored.
    """

    positions: list[PositionOf]
    owners: dict[Name, Name] = {}


class DeleteConsumer(Call[Empty], name="delete-consumer", needs=on_consumer(DELETE)):
    """Delete all that is stored under a consumer's name."""

    consumer: Name
