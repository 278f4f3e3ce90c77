"""The calls that only sinks send."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from spark_stream.access.needs import anybody, described, on_transaction
from spark_stream.access.rules import Operation
from spark_stream.consistency.transactions.sinks import Claim, Stop
from spark_stream.consistency.transactions.transactions import Content
from spark_stream.structs import Name, OffsetField
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX
from spark_stream.wire.messages import (
    Call,
    Description,
    Empty,
    Message,
    TimeoutField,
    TransactionalId,
)
from spark_stream.wire.transaction_messages import Branch

WRITE = Operation.WRITE


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
    """Open a branch of the transaction that writes a sink's batch; begin it if need be."""


class SettledBatch(Message):
    """Whether a sink's batch is committed, and what it wrote (None if it is not known)."""

    committed: bool
    content: tuple[Content, ...] | None = None


class SettleSinkBatch(
    SinkBatch, Call[SettledBatch], name="settle-batch", needs=on_transaction(WRITE)
):
    """Return whether a batch without rows is committed. If not, abort the sink's transaction."""


class SinkDescription(Description, kw_only=False):
    """A sink: its id, and the query that writes under it. Times in ms since the epoch.

    ``state`` is that of its last transaction, or ``expired``: its id was not used for long, and
    only its last committed batch is remembered. ``committed_batch`` is -1 where none was committed.
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


class DeleteSink(Call[Empty], name="delete-sink", needs=on_transaction(Operation.DELETE)):
    """Delete a sink and the number of its last committed batch.

    INVALID_TRANSACTION while a batch is being written.
    """

    transactional_id: TransactionalId


class RenewBatch(Call[Empty], name="renew-batch", needs=on_transaction(WRITE)):
    """Extend the deadline of the transaction that writes a sink's batch, if it is open."""

    transactional_id: TransactionalId
    instance: Name
    batch: OffsetField


class AbortBranch(Call[Empty], name="drop-branch", needs=on_transaction(WRITE)):
    """Abort one branch (a producer id) of transaction ``number``; the others continue."""

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    producer_id: OffsetField


class StopRun(Stop, Call[Empty], name="stop-run", needs=anybody):
    """Abort what the driver ``run`` planned up to ``planned``: it has abandoned the batch.

    Late tasks of the driver leave nothing open.
    """
