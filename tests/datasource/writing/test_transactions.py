"""The driver's decision on its tasks' branches: one decision, and no guess."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from isolog.errors import (
    BrokerUnavailable,
    DifferentReplay,
    InvalidRequest,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    RequestTimeout,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.consistency.transactions.transactions import Content
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.values.content import Measure, Replays
from spark_stream.datasource.writing import writer
from spark_stream.datasource.writing.identity import NO_PLAN, BranchIdentity, Plan
from spark_stream.datasource.writing.task import TaskResult
from spark_stream.datasource.writing.transactions import (
    TaskBranch,
    WrittenRows,
    abort,
    commit,
    drop,
    open_branch,
    stop,
)
from spark_stream.datasource.writing.writer import IsologStreamWriter
from spark_stream.wire.messages import Call
from spark_stream.wire.transaction_messages import (
    AbortBranch,
    AbortTransaction,
    Branch,
    CommitTransaction,
    OpenBranch,
    SettledBatch,
    SettleSinkBatch,
    StopRun,
)

FIRST = TaskBranch(
    transactional_id="query/q", instance="run", number=5, producer_id=10, epoch=0, batch=3
)
SECOND = replace(FIRST, producer_id=11)
DONE = replace(FIRST, committed=True)
IDENTITY = BranchIdentity("query/q", "q", "run", 3)
PLAN = Plan("driver", 8)
ROWS = {"t": Measure(4, 44, 440)}
EARLIER = {"t": Measure(4, 45, 6)}


def wrote(branch: TaskBranch | None, content: dict[str, Measure] | None = None) -> WrittenRows:
    earlier = EARLIER if branch is not None and branch.committed else {}
    return WrittenRows(IDENTITY, ROWS if content is None else content, branch, earlier)


class Calls:
    """A connection that records the calls, and fails them with the test's errors."""

    def __init__(self, *errors: IsologError, settled: SettledBatch | None = None) -> None:
        self.made: list[Call[Any]] = []
        self._errors = list(errors)
        self._settled = settled or SettledBatch(committed=False)

    def call(self, asked: Call[Any]) -> Any:
        self.made.append(asked)
        if self._errors:
            raise self._errors.pop(0)
        if isinstance(asked, SettleSinkBatch):
            return self._settled
        if isinstance(asked, OpenBranch):
            return Branch(transactional_id=asked.transactional_id, number=5, producer_id=10)
        return None

    @property
    def settled(self) -> list[tuple[str, str, int]]:
        """The batches that were settled. There must be no other call."""
        assert all(isinstance(each, SettleSinkBatch) for each in self.made)
        return [(each.transactional_id, each.instance, each.batch) for each in self.made]


OWN = {"transactional_id": "query/q", "instance": "run"}


def committed(rows: int = 8, digest: int = 88, floats: int = 880) -> SettledBatch:
    content = (Content(topic="t", rows=rows, digest=digest, floats=floats),)
    return SettledBatch(committed=True, content=content)


def test_a_branch_is_opened_for_the_batch_as_it_was_planned() -> None:
    calls = Calls()
    assert open_branch(calls, IDENTITY, PLAN, 9_000) == FIRST  # type: ignore[arg-type]
    asked = OpenBranch(
        transactional_id="query/q",
        query="q",
        instance="run",
        batch=3,
        timeout_ms=9_000,
        run="driver",
        planned=8,
        renamed=True,
    )
    assert calls.made == [asked]


def test_a_commit_takes_the_branches_of_the_messages_and_no_others() -> None:
    calls = Calls()
    commit(calls, [wrote(FIRST), wrote(SECOND), wrote(None, {})], 3)  # type: ignore[arg-type]
    content = (Content(topic="t", rows=8, digest=88, floats=880),)
    assert calls.made == [
        CommitTransaction(**OWN, number=5, branches=(10, 11), batch=3, content=content)
    ]


def test_commit_without_tasks_does_nothing() -> None:
    calls = Calls()
    commit(calls, [], 3)  # type: ignore[arg-type]
    assert calls.made == []


def test_commit_without_rows_aborts_the_transaction_of_a_dead_run() -> None:
    calls = Calls()
    commit(calls, [wrote(None, {}), wrote(None, {})], 3)  # type: ignore[arg-type]
    assert calls.settled == [("query/q", "run", 3)]


@pytest.mark.parametrize("branches", [[DONE, DONE], [DONE, replace(DONE, number=7)]])
def test_a_replay_of_the_same_rows_is_silent(
    branches: list[TaskBranch], caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(settled=committed())
    commit(calls, [wrote(branch) for branch in branches], 3)  # type: ignore[arg-type]
    assert calls.settled == [("query/q", "run", 3)]
    assert not caplog.records


def test_a_replay_of_widened_values_is_the_same() -> None:
    """An integer that became a floating-point number is in the digest of all values only."""
    commit(Calls(settled=committed(digest=7)), [wrote(DONE), wrote(DONE)], 3)  # type: ignore[arg-type]


def test_replay_of_a_batch_of_the_previous_release_is_recognised() -> None:
    tasks = [wrote(DONE), wrote(DONE)]
    commit(Calls(settled=committed(8, 90, 12)), tasks, 3)  # type: ignore[arg-type]
    other_floats = Calls(settled=committed(8, 90, 13))
    with pytest.raises(DifferentReplay, match="of other floating-point values"):
        commit(other_floats, tasks, 3)  # type: ignore[arg-type]
    commit(other_floats, tasks, 3, replays=Replays.IGNORE_FLOATS)  # type: ignore[arg-type]
    with pytest.raises(DifferentReplay, match="of other values"):
        commit(Calls(settled=committed(8, 91, 12)), tasks, 3)  # type: ignore[arg-type]


def test_replay_without_a_recorded_digest_is_accepted() -> None:
    """The record has the commit of the batch, and not its content."""
    calls = Calls(settled=SettledBatch(committed=True))
    commit(calls, [wrote(DONE)], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (committed(7, 88), "committed 7 rows to 't', now 8 rows to 't'"),
        (committed(8, 89, 881), "now 8 rows to 't' of other values"),
        (SettledBatch(committed=True, content=()), "committed no rows, now 8 rows"),
    ],
    ids=["rows", "values", "none"],
)
def test_different_replay_is_refused_or_ignored_with_a_warning(
    known: SettledBatch, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [wrote(DONE), wrote(DONE)]
    with pytest.raises(DifferentReplay, match=says) as caught:
        commit(Calls(settled=known), tasks, 3)  # type: ignore[arg-type]
    assert "batch 3 of 'query/q'" in str(caught.value)
    assert re.match(
        r"(Use a separate sinkId .*sink\. )?If a topic or the query was altered", caught.value.hint
    )
    with caplog.at_level(logging.WARNING):
        commit(Calls(settled=known), tasks, 3, replays=Replays.KEEP)  # type: ignore[arg-type]
    assert says in caplog.text


def test_replay_that_differs_only_in_floats_may_be_accepted() -> None:
    tasks = [wrote(DONE), wrote(DONE)]
    content = (Content(topic="t", rows=8, digest=88, floats=1),)
    known = Calls(settled=SettledBatch(committed=True, content=content))
    with pytest.raises(DifferentReplay, match="of other floating-point values") as caught:
        commit(known, tasks, 3)  # type: ignore[arg-type]
    assert "set differentReplay to ignoreFloats" in caught.value.hint
    commit(known, tasks, 3, replays=Replays.IGNORE_FLOATS)  # type: ignore[arg-type]
    other = Calls(settled=committed(8, 89, 1))
    with pytest.raises(DifferentReplay, match="of other values"):
        commit(other, tasks, 3, replays=Replays.IGNORE_FLOATS)  # type: ignore[arg-type]


def test_replay_without_rows_is_a_different_replay() -> None:
    with pytest.raises(DifferentReplay, match="committed 8 rows to 't', now no rows"):
        commit(Calls(settled=committed()), [wrote(None, {})], 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other", [replace(SECOND, number=6), replace(SECOND, committed=True)], ids=["two", "mixed"]
)
def test_tasks_that_wrote_in_different_transactions_are_not_committed(other: TaskBranch) -> None:
    calls = Calls()
    with pytest.raises(TransactionAborted, match="batch 3 of 'query/q'"):
        commit(calls, [wrote(FIRST), wrote(other)], 3)  # type: ignore[arg-type]
    assert calls.made == []


def test_messages_of_another_batch_are_not_committed() -> None:
    calls = Calls()
    with pytest.raises(InvalidTransaction, match="commits batch 4"):
        commit(calls, [wrote(FIRST)], 4)  # type: ignore[arg-type]
    assert calls.made == []


def test_abort_covers_every_transaction_of_the_messages() -> None:
    calls = Calls()
    abort(calls, [FIRST, SECOND, replace(SECOND, number=6), DONE])  # type: ignore[arg-type]
    assert sorted(calls.made, key=lambda each: each.number) == [
        AbortTransaction(**OWN, number=number) for number in (5, 6)
    ]


@pytest.mark.parametrize(
    "error", [InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction]
)
def test_refused_abort_is_not_retried(
    error: type[IsologError], caplog: pytest.LogCaptureFixture
) -> None:
    abort(Calls(error("no")), [FIRST])  # type: ignore[arg-type]
    assert not caplog.records


def test_failed_abort_is_logged_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        abort(Calls(BrokerUnavailable("gone")), [FIRST])  # type: ignore[arg-type]
        drop(Calls(BrokerUnavailable("gone")), FIRST)  # type: ignore[arg-type]
        stop(Calls(BrokerUnavailable("gone")), PLAN, 3)  # type: ignore[arg-type]
    assert len(caplog.records) == 3


def test_an_abort_ends_after_the_first_call_without_an_answer() -> None:
    calls = Calls(RequestTimeout("no answer"))
    abort(calls, [FIRST, replace(FIRST, number=6)])  # type: ignore[arg-type]
    assert len(calls.made) == 1
    refused = Calls(InvalidRequest("no"))
    abort(refused, [FIRST, replace(FIRST, number=6)])  # type: ignore[arg-type]
    assert len(refused.made) == 2


def test_a_sink_aborts_no_branch_after_a_call_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = sink_options({"bootstrap": "127.0.0.1:1", "topic": "t"})
    monkeypatch.setattr(writer, "is_worker", lambda module: True)
    sink = IsologStreamWriter(options, to_spark(pa.schema([("n", pa.int64())])))
    sink._task = replace(sink._task, plan=PLAN)
    messages = [TaskResult("log", wrote(FIRST)), TaskResult("log", wrote(replace(FIRST, number=6)))]
    for error, made in ((RequestTimeout, 1), (InvalidRequest, 3)):
        calls = Calls(error("no"))
        session = SimpleNamespace(connection=calls)
        monkeypatch.setattr(writer, "session_for_aborts", lambda place, found=session: found)
        sink.abort(messages, 3)
        assert len(calls.made) == made


def test_a_failed_task_drops_its_branch_and_no_other() -> None:
    calls = Calls()
    drop(calls, SECOND)  # type: ignore[arg-type]
    assert calls.made == [AbortBranch(**OWN, number=5, producer_id=11)]


def test_driver_abandons_its_batch_without_any_commit_message() -> None:
    calls = Calls()
    stop(calls, PLAN, 3)  # type: ignore[arg-type]
    assert calls.made == [StopRun(run="driver", planned=8, batch=3)]


def test_unknown_driver_abandons_no_batch() -> None:
    calls = Calls()
    stop(calls, NO_PLAN, 3)  # type: ignore[arg-type]
    assert calls.made == []
