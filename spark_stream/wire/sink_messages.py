"""The control messages that only sinks send: bodies and results of DoAction, as in ``messages``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from spark_stream.consistency.transactions.transactions import Content
from spark_stream.structs import Name, OffsetField
from spark_stream.wire.limits import QUERY_NAME_LENGTH_MAX
from spark_stream.wire.messages import Description, Message, TimeoutField, TransactionalId


class OpenBranch(Message):
    """Opens a branch of the transaction that writes a sink's batch; begins it if need be.

    ``query`` is the sink's owner for good, ``instance`` the query's present run: a new run fences
    those before it. ``run`` names the driver, ``planned`` says when it planned the batch (see
    ``StopRun``). ``renamed``: what the query committed under other ids before counts here.
    ``query_name``: the query's name for people.
    """

    HINTS: ClassVar[frozenset[str]] = frozenset({"query_name"})

    transactional_id: TransactionalId
    query: Name
    instance: Name
    batch: OffsetField
    timeout_ms: TimeoutField = 60_000
    run: Annotated[str, Meta(max_length=255)] = ""
    planned: OffsetField = 0
    renamed: bool = False
    query_name: Annotated[str, Meta(max_length=QUERY_NAME_LENGTH_MAX)] = ""


class SettledBatch(Message):
    """Whether a sink's batch is committed, and what it wrote (None if it is not known)."""

    committed: bool
    content: list[Content] | None = None


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


class RenewBatch(Message):
    """A task of a sink's batch is alive: its transaction, if it is open, gets a new deadline."""

    transactional_id: TransactionalId
    instance: Name
    batch: OffsetField


class DropBranchRequest(Message):
    """Aborts one branch (a producer id) of transaction ``number``; the others go on."""

    transactional_id: TransactionalId
    instance: Name
    number: OffsetField
    producer_id: OffsetField


class StopRun(Message):
    """Aborts what the driver ``run`` planned up to ``planned``: it has given up the batch."""

    run: Name
    planned: OffsetField
    batch: OffsetField
