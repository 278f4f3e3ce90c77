"""A transaction is renewed while its tasks run, even before any of them has a row."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from isolog.errors import (
    BrokerUnavailable,
    InvalidTransaction,
    TransactionAborted,
)
from spark_stream.datasource.options import sink_options
from spark_stream.datasource.spark.types import to_spark
from spark_stream.datasource.writing import task, transactions
from spark_stream.datasource.writing.identity import BranchIdentity
from spark_stream.datasource.writing.task import TaskWriter
from spark_stream.datasource.writing.transactions import TransactionRenewal, UndecidedTransactions
from spark_stream.wire.transaction_messages import RenewBatch, RenewTransaction
from tests.support import eventually

SOON_MS = 8
NEVER_MS = 3_600_000


class Calls:
    """A connection that records renewals, and fails them with the errors of the test."""

    def __init__(self, *errors: Exception) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.waits: list[float] = []
        self._errors = list(errors)
        self.renewed = threading.Event()

    def call(self, asked: RenewBatch | RenewTransaction, timeout_s: float) -> None:
        number = asked.batch if isinstance(asked, RenewBatch) else asked.number
        self.made.append((asked.transactional_id, asked.instance, number))
        self.waits.append(timeout_s)
        self.renewed.set()
        if self._errors:
            raise self._errors.pop(0)

    def fail(self, *errors: Exception) -> None:
        self._errors += errors


@pytest.fixture
def identity() -> BranchIdentity:
    """Of a query that no other test has."""
    query = uuid.uuid4().hex
    return BranchIdentity(f"query/{query}", query, "run", 3)


def test_a_transaction_is_renewed_while_its_task_runs(identity: BranchIdentity) -> None:
    calls = Calls(BrokerUnavailable("for a moment"))
    with TransactionRenewal(calls, identity, SOON_MS):  # type: ignore[arg-type]
        for _ in range(3):
            assert calls.renewed.wait(10)
            calls.renewed.clear()
    assert set(calls.made) == {(identity.transactional_id, "run", 3)}


def test_renewal_ends_after_a_final_error(identity: BranchIdentity) -> None:
    calls = Calls(TransactionAborted("over"))
    with TransactionRenewal(calls, identity, SOON_MS):  # type: ignore[arg-type]
        assert calls.renewed.wait(10)
        calls.renewed.clear()
        assert not calls.renewed.wait(0.1)


def test_a_transaction_is_renewed_after_its_task_until_it_is_decided() -> None:
    calls = Calls(BrokerUnavailable("for a moment"), InvalidTransaction("it is committed"))
    undecided = UndecidedTransactions()
    undecided.add(calls, ("query/q", "run", 5), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: not undecided.pending)
    assert calls.made == [("query/q", "run", 5)] * 2


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    first, second = BrokerUnavailable("away"), BrokerUnavailable("away again")
    calls = Calls(*[first] * 4)
    undecided = UndecidedTransactions()
    undecided.add(calls, ("query/q", "run", 5), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: len(calls.made) >= 6)
    calls.fail(*[second] * 3, InvalidTransaction("it is committed"))
    eventually(lambda: not undecided.pending)
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warned) == 2
    assert ["again" in each for each in warned] == [False, True]


def test_a_log_that_does_not_answer_delays_no_renewal_of_another_log() -> None:
    hangs, answered = threading.Event(), threading.Event()

    class Hanging(Calls):
        def call(self, *asked: Any) -> None:
            hangs.set()
            assert answered.wait(60)
            raise InvalidTransaction("it is aborted")

    undecided = UndecidedTransactions()
    undecided.add(Hanging(), ("query/q", "run", 5), SOON_MS / 1000)  # type: ignore[arg-type]
    assert hangs.wait(10)
    calls = Calls(BrokerUnavailable("for a moment"), InvalidTransaction("it is committed"))
    undecided.add(calls, ("query/q", "run", 9), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: len(calls.made) == 2, 10)
    answered.set()
    eventually(lambda: not undecided.pending)


def test_a_renewal_waits_for_a_part_of_the_shortest_timeout(identity: BranchIdentity) -> None:
    calls = Calls(InvalidTransaction("it is committed"), InvalidTransaction("this one, too"))
    undecided = UndecidedTransactions()
    timeout_s = SOON_MS / 1000
    pause_s = timeout_s / transactions._RENEWALS
    undecided.add(calls, ("query/q", "run", 5), pause_s)  # type: ignore[arg-type]
    undecided.add(calls, ("query/slow", "run", 5), pause_s * 2)  # type: ignore[arg-type]
    eventually(lambda: not undecided.pending)
    assert calls.waits[0] == timeout_s / 4
    assert calls.waits[1] <= timeout_s / 2
    during = Calls()
    with TransactionRenewal(during, identity, SOON_MS):  # type: ignore[arg-type]
        assert during.renewed.wait(10)
    assert during.waits[0] == timeout_s / 4


def test_an_unexpected_error_ends_no_renewals(identity: BranchIdentity) -> None:
    calls = Calls(RuntimeError("a defect"), InvalidTransaction("it is committed"))
    undecided = UndecidedTransactions()
    undecided.add(calls, ("query/q", "run", 5), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: not undecided.pending)
    assert len(calls.made) == 2
    during = Calls(RuntimeError("a defect"))
    with TransactionRenewal(during, identity, SOON_MS):  # type: ignore[arg-type]
        eventually(lambda: len(during.made) > 1, 10)


def test_a_later_transaction_of_an_id_replaces_the_earlier_one() -> None:
    calls = Calls(InvalidTransaction("it is committed"))
    undecided = UndecidedTransactions()
    undecided.add(calls, ("query/q", "run", 5), NEVER_MS)  # type: ignore[arg-type]
    undecided.add(calls, ("query/q", "run", 6), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: not undecided.pending)
    assert calls.made == [("query/q", "run", 6)]


def test_a_worker_of_a_driver_that_hangs_renews_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(
        transactions, "time", SimpleNamespace(monotonic=lambda: next(seconds) / 100)
    )
    monkeypatch.setattr(transactions, "_AFTER_TASK_S", 1.0)
    calls = Calls()
    undecided = UndecidedTransactions()
    undecided.add(calls, ("query/q", "run", 5), SOON_MS / 1000)  # type: ignore[arg-type]
    eventually(lambda: not undecided.pending)
    assert set(calls.made) == {("query/q", "run", 5)}


def test_a_failed_task_leaves_no_renewal(identity: BranchIdentity) -> None:
    calls = Calls()
    name = identity.transactional_id
    for failure in (RuntimeError("the task failed"), None):
        with suppress(RuntimeError), TransactionRenewal(calls, identity, NEVER_MS) as kept:  # type: ignore[arg-type]
            kept.wrote((name, "run", 5))
            if failure is not None:
                raise failure
        assert (name in transactions.undecided.pending) is (failure is None)


def test_a_transaction_is_renewed_before_the_first_row_of_a_task(
    identity: BranchIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may compute for hours before its first row, long after others have ended."""
    calls = Calls()
    session = type("Session", (), {"connection": calls, "cluster_id": "a log"})
    monkeypatch.setattr(task, "session", lambda place: session)
    options = sink_options({"path": "x", "topic": "t"})
    schema = to_spark(pa.schema([("n", pa.int64())]))
    options = replace(options, values={**options.values, "transactionTimeout": SOON_MS})
    writer = TaskWriter(options, schema, identity)

    def rows() -> Iterator[pa.RecordBatch]:
        assert calls.renewed.wait(10)
        yield from ()

    wrote = writer.write(rows())
    assert wrote.written is not None
    assert wrote.written.branch is None


def test_quick_tasks_renew_no_transaction_before_it_is_due(
    identity: BranchIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small micro-batches make no call. Very many quick tasks of one batch make some."""
    calls = Calls()
    for _ in range(3):
        with TransactionRenewal(calls, identity, NEVER_MS):  # type: ignore[arg-type]
            pass
    assert calls.made == []
    monkeypatch.setattr("spark_stream.datasource.writing.transactions._FIRST_S", 0.0)
    late = replace(identity, batch=4)
    with TransactionRenewal(calls, late, NEVER_MS):  # type: ignore[arg-type]
        assert calls.renewed.wait(10)
    with TransactionRenewal(calls, late, NEVER_MS):  # type: ignore[arg-type]
        pass
    assert calls.made == [(identity.transactional_id, "run", 4)]


def test_process_removes_ended_batch_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: dict[str, Any] = {}
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(transactions, "_due", known)
    monkeypatch.setattr(
        transactions, "time", SimpleNamespace(monotonic=lambda: float(next(seconds)))
    )
    for number in range(10_000):
        written = BranchIdentity(f"job/{number}", "q", "run", 0)
        TransactionRenewal(Calls(), written, 40_000)._due()  # type: ignore[arg-type]
    assert len(known) < 20
    assert "job/9999" in known
