"""What the driver makes of its tasks' branches: one decision, and nothing on a guess."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from spark_stream.datasource.branches import (
    TIMEOUT_MS,
    KeptOpen,
    TaskBranch,
    abort,
    abort_job,
    commit,
    opened,
)
from spark_stream.datasource.identity import Identity
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidTransaction,
    IsologError,
    ProducerFenced,
    TransactionAborted,
    UnknownTransaction,
)
from spark_stream.wire.messages import BranchFacts

FIRST = TaskBranch("query/q", "run", number=5, producer_id=10, epoch=0, batch=3)
SECOND = replace(FIRST, producer_id=11)
DONE = replace(FIRST, committed=True)


class Calls:
    """A TransactionsClient that notes its calls, and fails them when it is told to."""

    def __init__(self, *errors: IsologError) -> None:
        self.made: list[tuple[Any, ...]] = []
        self._errors = list(errors)
        self.renewed = threading.Event()

    def _note(self, *call: Any) -> None:
        self.made.append(call)
        if self._errors:
            raise self._errors.pop(0)

    def open_branch(
        self, name: str, *, query: str, instance: str, batch: int, timeout_ms: int
    ) -> BranchFacts:
        self._note("open", name, query, instance, batch, timeout_ms)
        return BranchFacts(transactional_id=name, number=5, producer_id=10, epoch=0)

    def commit(
        self, name: str, instance: str, number: int, taken: list[int], *, batch: int
    ) -> None:
        self._note("commit", name, instance, number, taken, batch)

    def abort(self, name: str, instance: str, number: int) -> None:
        self._note("abort", name, instance, number)

    def renew(self, name: str, instance: str, number: int) -> None:
        self.renewed.set()
        self._note("renew", name, instance, number)

    def describe(self, name: str) -> Any:
        self._note("describe", name)
        return type("Facts", (), {"number": 5})


def test_a_branch_is_opened_for_the_batch() -> None:
    calls = Calls()
    found = opened(calls, Identity("query/q", "q", "run", 3))  # type: ignore[arg-type]
    assert found == FIRST
    assert calls.made == [("open", "query/q", "q", "run", 3, TIMEOUT_MS)]


def test_a_commit_takes_the_branches_of_the_messages_and_no_others() -> None:
    calls = Calls()
    commit(calls, [FIRST, SECOND], 3)  # type: ignore[arg-type]
    assert calls.made == [("commit", "query/q", "run", 5, [10, 11], 3)]


@pytest.mark.parametrize("branches", [[], [DONE], [DONE, replace(DONE, number=7)]])
def test_without_rows_or_with_a_batch_that_is_in_the_log_there_is_nothing_to_commit(
    branches: list[TaskBranch],
) -> None:
    calls = Calls()
    commit(calls, branches, 3)  # type: ignore[arg-type]
    assert calls.made == []


@pytest.mark.parametrize(
    "other", [replace(SECOND, number=6), replace(SECOND, committed=True)], ids=["two", "mixed"]
)
def test_tasks_that_wrote_in_different_transactions_are_not_committed(other: TaskBranch) -> None:
    calls = Calls()
    with pytest.raises(TransactionAborted, match="batch 3 of 'query/q'"):
        commit(calls, [FIRST, other], 3)  # type: ignore[arg-type]
    assert calls.made == []


def test_messages_of_another_batch_are_not_committed() -> None:
    calls = Calls()
    with pytest.raises(InvalidTransaction, match="commits batch 4"):
        commit(calls, [FIRST], 4)  # type: ignore[arg-type]
    assert calls.made == []


def test_an_abort_is_of_every_transaction_that_the_messages_name() -> None:
    calls = Calls()
    abort(calls, [FIRST, SECOND, replace(SECOND, number=6), DONE])  # type: ignore[arg-type]
    assert sorted(calls.made) == [("abort", "query/q", "run", 5), ("abort", "query/q", "run", 6)]


@pytest.mark.parametrize(
    "error", [InvalidTransaction, TransactionAborted, ProducerFenced, UnknownTransaction]
)
def test_an_abort_that_the_log_refuses_is_over(
    error: type[IsologError], caplog: pytest.LogCaptureFixture
) -> None:
    abort(Calls(error("no")), [FIRST])  # type: ignore[arg-type]
    abort_job(Calls(error("no")), "job/1")  # type: ignore[arg-type]
    assert not caplog.records


def test_an_abort_that_fails_is_told_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        abort(Calls(BrokerUnavailable("gone")), [FIRST])  # type: ignore[arg-type]
        abort_job(Calls(BrokerUnavailable("gone")), "job/1")  # type: ignore[arg-type]
    assert len(caplog.records) == 2


def test_a_batch_write_is_aborted_though_no_task_left_a_message() -> None:
    calls = Calls()
    abort_job(calls, "job/1")  # type: ignore[arg-type]
    assert calls.made == [("describe", "job/1"), ("abort", "job/1", "job/1", 5)]


def test_a_transaction_is_renewed_while_its_task_runs() -> None:
    calls = Calls(BrokerUnavailable("for a moment"))
    with KeptOpen(calls, FIRST, timeout_ms=8):  # type: ignore[arg-type]
        for _ in range(3):
            assert calls.renewed.wait(10)
            calls.renewed.clear()
    assert set(calls.made) == {("renew", "query/q", "run", 5)}


def test_what_cannot_be_renewed_any_more_is_let_go() -> None:
    calls = Calls(TransactionAborted("over"))
    with KeptOpen(calls, FIRST, timeout_ms=8):  # type: ignore[arg-type]
        assert calls.renewed.wait(10)
        calls.renewed.clear()
        assert not calls.renewed.wait(0.1)
