"""The calls about transactions and sinks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from spark_stream.access.rules import (
    Operation,
    anybody,
    described,
    on_transaction,
    to_commit,
)
from spark_stream.consistency.transactions.sinks import Claim, Stop
from spark_stream.consistency.transactions.transactions import Content, PositionOf
from spark_stream.structs import INT64_MAX, Name, OffsetField
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX
from spark_stream.wire.messages import (
    Call,
    Description,
    Message,
    TimeoutField,
    TransactionalId,
)

WRITE, DELETE, DESCRIBE = Operation.WRITE, Operation.DELETE, Operation.DESCRIBE


class ProducerFacts(Message):
    """A unique producer id, with its first epoch."""

    producer_id: int
    epoch: int


class NewProducer(Call[ProducerFacts], name="new-producer", needs=anybody):
    """Create a producer id for writes outside transactions."""


class TransactionDescription(Description, kw_only=False):
    """A transactional id with its present or last transaction. Times in ms since the epoch.

    ``state``: empty, open, committing, aborting, committed or aborted. ``number`` is -1 before the
    first transaction, and ``committed_batch`` is -1 if no batch of a sink was committed.
    ``principal``: the owner of the id, empty without authentication. ``query_name``: the name of
    the sink's query.
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

    ``instance`` is a text unique to this producer. Every later call names it.
    """

    transactional_id: TransactionalId
    instance: Name
    timeout_ms: TimeoutField = 60_000


class Branch(Description, kw_only=True):
    """The identity of a producer in transaction ``number`` of its transactional id.

    ``committed``: the batch is already in the log, so the task writes no records and has no
    producer id.
    """

    transactional_id: str
    number: int
    producer_id: int = -1
    epoch: int = 0
    committed: bool = False


class BeginTransaction(Call[Branch], name="begin-transaction", needs=on_transaction(WRITE)):
    """Begin the transaction after number ``after`` (-1: the first of this instance).

    ``retriable``: a repeated call has the same answer. Otherwise it fails, so that only one of
    several callers with the same instance has the transaction.
    """

    transactional_id: TransactionalId
    instance: Name
    after: Annotated[int, Meta(ge=-1, le=INT64_MAX)] = -1
    retriable: bool = True


class EndedTransaction(TransactionDescription, kw_only=False):
    """A transactional id whose transaction has ended.

    ``next_number``: the number of the owner's next transaction, or -1. Its first write begins it,
    under the same producer id with the following epoch. No call to begin it is necessary.
    """

    next_number: int = -1


class CommitTransaction(Call[EndedTransaction], name="commit-transaction", needs=to_commit):
    """Commit transaction ``number`` with the ``branches`` (producer ids) it takes.

    Other branches abort. ``batch`` is remembered as the sink's last, with its ``content``.
    ``owners`` are those of the consumers whose ``positions`` move with it, as in
    ``commit-position``. The answer comes when the transaction is visible. The call fails with
    UNKNOWN_TOPIC, and decides nothing, if a topic of the transaction was deleted.
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
    _Owned, Call[EndedTransaction], name="abort-transaction", needs=on_transaction(WRITE)
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
    """A partition to which a transaction wrote. ``first_offset``: while it is open there.

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


# -- sinks -----------------------------------------------------------------------------------------


class SinkBatch(Claim, Message):
    """A batch of a sink.

    ``query`` owns the sink permanently. ``instance`` is the query's present run: a new run fences
    those before it. ``run`` names the driver, and ``planned`` is the time of its plan (see
    ``StopRun``). ``renamed``: batches that the query committed under other ids count too.
    ``query_name``: the query's name for people.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"query_name"})

    transactional_id: TransactionalId
    timeout_ms: TimeoutField = 60_000
    renamed: bool = False
    query_name: Annotated[str, Meta(max_length=QUERY_NAME_LENGTH_MAX)] = ""


class OpenBranch(SinkBatch, Call[Branch], name="open-branch", needs=on_transaction(WRITE)):
    """Open a branch of the transaction that writes a sink's batch. The first branch begins it."""


class SettledBatch(Message):
    """The outcome of a sink's batch, and its content if it is on record."""

    committed: bool
    content: tuple[Content, ...] | None = None


class SettleSinkBatch(
    SinkBatch, Call[SettledBatch], name="settle-batch", needs=on_transaction(WRITE)
):
    """Return whether a batch without rows is committed. If not, abort the sink's transaction."""


class SinkDescription(Description, kw_only=False):
    """A sink: its id, and the query that writes under it. Times in ms since the epoch.

    ``state`` is that of its last transaction, or ``expired``: its id was not used for long, and
    only its last committed batch is recorded. ``committed_batch`` is -1 without a committed batch.
    """

    transactional_id: str
    query: str
    state: str
    committed_batch: int
    last_used_ms: int
    query_name: str = ""


class SinkList(Message):
    """All sinks, by id."""

    sinks: list[SinkDescription]


class ListSinks(Call[SinkList], name="list-sinks", needs=described):
    """List the sinks that the caller may describe."""


class DeleteSink(Call[None], name="delete-sink", needs=on_transaction(DELETE)):
    """Delete a sink with its record of the last committed batch.

    INVALID_TRANSACTION while a batch is being written.
    """

    transactional_id: TransactionalId


class RenewBatch(Call[None], name="renew-batch", needs=on_transaction(WRITE)):
    """Extend the deadline of the transaction that writes a sink's batch, if it is open."""

    transactional_id: TransactionalId
    instance: Name
    batch: OffsetField


class AbortBranch(Call[None], name="drop-branch", needs=on_transaction(WRITE)):
    """Abort one branch (a producer id) of transaction ``number``. The others continue."""

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    producer_id: OffsetField


class StopRun(Stop, Call[None], name="stop-run", needs=anybody):
    """Abort what the driver ``run`` planned up to ``planned``: it has abandoned the batch.

    Late tasks of the driver leave nothing open.
    """
