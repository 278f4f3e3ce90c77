"""The branches that a sink's tasks write under, and how the driver decides on them.

Every attempt of a task has a branch of its own in the transaction of its micro-batch. A commit
message carries it, and the commit takes the branches of the messages that it is given, and no
others: what a failed, killed or slower attempt wrote aborts with the same decision.

A task that fails drops its branch: what it wrote is aborted at once, and the others go on.

The driver keeps nothing between calls. If the answer to a commit is lost, the same commit is sent
again and gets the same answer; and no abort undoes a decided commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field, structs
from msgspec.structs import replace

from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.consistency.transactions.transactions import Content
from spark_stream.datasource.options.values import TRANSACTION_TIMEOUT_MS
from spark_stream.datasource.values.content import Measure, Replays, summed
from spark_stream.datasource.writing.driver import NO_PLAN, Plan
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.errors import (
    DifferentReplay,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.loggers import logger_of
from spark_stream.wire.transaction_messages import (
    AbortBranch,
    AbortTransaction,
    Branch,
    CommitTransaction,
    OpenBranch,
    SettleSinkBatch,
    StopRun,
)

logger = logger_of(__name__)

_FLOATS_HINT: Final = (
    "If the query adds up floating-point numbers (sum, avg), their last digits may differ each"
    " time: set differentReplay to ignoreFloats. Otherwise: "
)


def check_replay(
    identity: BranchIdentity,
    committed: Sequence[Content],
    came: Mapping[str, Measure],
    earlier: Mapping[str, Measure],
    replays: Replays,
) -> None:
    """Raise DifferentReplay, or warn, if the rows differ from the committed ones.

    ``earlier``: their measures as the previous release recorded them. The record does not name the
    kind of its digests, so it has to agree with one of the two.
    """
    known = {each.topic: Measure(each.rows, each.digest, each.floats) for each in committed}
    if known == earlier or _of_all_values(known) == _of_all_values(came):
        return
    only_floats = _without_floats(known) in (_without_floats(came), _without_floats(earlier))
    if only_floats and replays is Replays.IGNORE_FLOATS:
        return
    # Other topics come if the query was changed, or if two queries share the sink's id.
    elsewhere = known.keys() != came.keys()
    shared = "One sinkId is for one sink: give each its own. " if elsewhere else ""
    values = ""
    if _rows(known) == _rows(came):
        values = " of other floating-point values" if only_floats else " of other values"
    floats = _FLOATS_HINT if only_floats else ""
    other = DifferentReplay(
        f"batch {identity.batch} of {identity.transactional_id!r} is committed, and comes again"
        f" with other rows: committed {_rows(known)}, now {_rows(came)}{values}",
        hint=f"{shared}{floats}{DifferentReplay.hint}",
        batch=identity.batch,
        committed={topic: found.rows for topic, found in known.items()},
        came={topic: found.rows for topic, found in came.items()},
    )
    if replays is not Replays.KEEP:
        raise other
    logger.warning("what was committed is kept: %s", other.message)


def _of_all_values(found: Mapping[str, Measure]) -> dict[str, Measure]:
    """Leave out the digest that differs if an integer became a floating-point number."""
    return {topic: replace(each, digest=0) for topic, each in found.items()}


def _without_floats(found: Mapping[str, Measure]) -> dict[str, Measure]:
    return {topic: replace(each, floats=0) for topic, each in found.items()}


def _rows(found: Mapping[str, Measure]) -> str:
    if not found:
        return "no rows"
    return ", ".join(f"{each.rows} rows to {topic!r}" for topic, each in sorted(found.items()))


class TaskBranch(Branch, kw_only=True):
    """The branch of one task attempt. ``committed``: the batch is already, so it writes nothing."""

    instance: str
    batch: int

    @property
    def transaction(self) -> tuple[str, str, int]:
        """Transactional id, owner and number: they name the transaction."""
        return self.transactional_id, self.instance, self.number


class WrittenRows(Struct, frozen=True):
    """What a task wrote: for whom, how much, and under which branch (None if it had no row).

    ``earlier``: the measures of a replay as the previous release recorded them.
    """

    identity: BranchIdentity
    content: Mapping[str, Measure] = field(default_factory=dict)
    branch: TaskBranch | None = None
    earlier: Mapping[str, Measure] = field(default_factory=dict)


def open_branch(
    connection: ClusterConnection,
    identity: BranchIdentity,
    plan: Plan = NO_PLAN,
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> TaskBranch:
    """Open a branch of the transaction that writes the identity's batch.

    Raises:
        SinkInUse: the transactional id belongs to another query.
        StaleBatch: a later batch is committed already.
        ProducerFenced: a later run of the query has taken over.
        TransactionAborted: the driver has given the batch up.
    """
    branch = connection.call(OpenBranch.of(**_claim(identity, plan, timeout_ms)))
    return TaskBranch(**structs.asdict(branch), instance=identity.instance, batch=identity.batch)


def _claim(identity: BranchIdentity, plan: Plan, timeout_ms: int) -> dict[str, Any]:
    """Return the fields of a :class:`SinkBatch`."""
    return {
        "transactional_id": identity.transactional_id,
        "query": identity.query,
        "instance": identity.instance,
        "batch": identity.batch,
        "timeout_ms": timeout_ms,
        "run": plan.run,
        "planned": plan.planned,
        "renamed": identity.streaming,
        "query_name": identity.query_name,
    }


def commit(
    connection: ClusterConnection,
    tasks: Sequence[WrittenRows],
    batch: int,
    *,
    replays: Replays = Replays.FAIL,
) -> None:
    """Commit the micro-batch that these tasks wrote; return when it is visible.

    If the batch was committed before, or no task had a row, nothing is written. Then the rows must
    be those on record, as far as ``replays`` says so, and what a dead run left open is aborted.

    Raises:
        DifferentReplay: other rows were committed as this batch.
        TransactionAborted, ProducerFenced, and others: nothing of the batch is visible.
    """
    if not tasks:
        return
    identity = tasks[0].identity
    content = summed(task.content for task in tasks)
    branches = [task.branch for task in tasks if task.branch is not None]
    if all(branch.committed for branch in branches):
        settled = connection.call(
            SettleSinkBatch.of(**_claim(identity, NO_PLAN, TRANSACTION_TIMEOUT_MS))
        )
        if settled.committed and settled.content is not None:
            earlier = summed(task.earlier for task in tasks)
            check_replay(identity, settled.content, content, earlier, replays)
        return
    name, instance, number = _one_transaction(branches, batch)
    written = (Content(topic=topic, **structs.asdict(found)) for topic, found in content.items())
    connection.call(
        CommitTransaction(
            transactional_id=name,
            instance=instance,
            number=number,
            branches=tuple(sorted(branch.producer_id for branch in branches)),
            batch=batch,
            content=tuple(written) if identity.remembered else None,
        )
    )


def _one_transaction(branches: Sequence[TaskBranch], batch: int) -> tuple[str, str, int]:
    """Return the transaction that all of them wrote in, which is the batch's."""
    wholes = {(branch.transaction, branch.batch, branch.committed) for branch in branches}
    (whole, *others) = sorted(wholes)
    transaction, written, _ = whole
    name = transaction[0]
    if others:
        numbers = sorted({branch.number for branch in branches})
        raise TransactionAborted(
            f"the tasks of batch {batch} of {name!r} wrote in different transactions"
            f" ({', '.join(map(str, numbers))}): the first ended before the last task began",
            hint="Restart the query: it writes the batch again, once.",
        )
    if written != batch:
        raise InvalidTransaction(
            f"Spark commits batch {batch} of {name!r}, but its tasks wrote batch {written}",
            hint="Restart the query; if it happens again, this Spark release is not supported.",
        )
    return transaction


def drop(connection: ClusterConnection, branch: TaskBranch) -> None:
    """Abort what a failed task has written: no reader waits for it. Raise nothing."""
    name, instance, number = branch.transaction
    asked = AbortBranch(
        transactional_id=name, instance=instance, number=number, producer_id=branch.producer_id
    )
    try:
        connection.call(asked)
    except IsologError as error:
        logger.warning("a failed task's branch of %r was not aborted: %s", name, error)


def abort(connection: ClusterConnection, branches: Iterable[TaskBranch]) -> None:
    """Abort the open transactions of the branches. Raise nothing.

    The query's next run, or the timeout, aborts the rest. If the log does not answer, the first
    call is the last: a query that stops waits for one call.
    """
    written = {branch.transaction for branch in branches if not branch.committed}
    for name, instance, number in written:
        asked = AbortTransaction(transactional_id=name, instance=instance, number=number)
        try:
            connection.call(asked)
        except (InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction):
            pass  # it is decided, or has another owner: there is nothing to abort
        except IsologError as error:
            logger.warning("transaction %d of %r was not aborted: %s", number, name, error)
            if error.retriable:
                return


def stop(connection: ClusterConnection, plan: Plan, batch: int) -> bool:
    """Abort everything that the driver has planned until now. Raise nothing.

    Return False if the log does not answer.
    """
    if not plan.run:
        return True
    try:
        connection.call(StopRun(run=plan.run, planned=plan.planned, batch=batch))
    except IsologError as error:
        logger.warning("batch %d was not aborted: %s", batch, error)
        return not error.retriable
    return True
