"""Transactions of query sinks, by plain calls: an abandoned one ends without its timeout."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from isolog.errors import (
    ForeignBranch,
    InvalidTransaction,
    ProducerFenced,
    SinkInUse,
    StaleBatch,
    TransactionAborted,
    UnknownTransaction,
)
from tests.broker.stamped import Appender, bounds, refused, seen
from tests.support import NUMBERS, BrokerProcess, Channel, act, eventually

COMMITTED = "read_committed"


@pytest.fixture
def t(log, topic) -> str:
    log.create_topic(topic, 2, schema=NUMBERS)
    return topic


class Sink:
    """The sink of one run of a query, with its calls for one batch."""

    def __init__(self, channel: Channel, name: str = "", **claim: Any) -> None:
        self.channel = channel
        self.name = name or f"sink/{uuid.uuid4().hex}"
        self.claim: dict[str, Any] = {"query": f"of {self.name}", "instance": "run", "batch": 0}
        self.claim |= claim
        self._sequences: dict[tuple[int, int], int] = {}

    def ask(self, action: str, **more: Any) -> dict[str, Any]:
        body = {"transactional_id": self.name, **self.claim, **more}
        return act(self.channel, action, **body)

    def owner(self, branch: dict[str, Any]) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "instance": self.claim["instance"],
            "number": branch["number"],
        }

    def open(self, **more: Any) -> dict[str, Any]:
        return self.ask("open-branch", **more)

    def put(self, topic: str, branch: dict[str, Any], first: int, partition: int = 0) -> Any:
        """Append one record in the branch. Return the acknowledgement."""
        key = (branch["producer_id"], partition)
        sequence = self._sequences[key] = self._sequences.get(key, -1) + 1
        stream = Appender(self.channel, topic, self.name)
        number = branch["number"]
        ack = stream.put(first, 1, key[0], sequence, transaction=number, partition=partition)
        stream.close()
        return ack

    def commit(self, *branches: dict[str, Any], **more: Any) -> dict[str, Any]:
        taken = [branch["producer_id"] for branch in branches]
        body = self.owner(branches[0]) | {"branches": taken, "batch": self.claim["batch"]} | more
        return act(self.channel, "commit-transaction", **body)

    def drop(self, branch: dict[str, Any]) -> None:
        body = self.owner(branch) | {"producer_id": branch["producer_id"]}
        act(self.channel, "drop-branch", **body)

    def state(self) -> str:
        return str(self.described()["state"])

    def described(self) -> dict[str, Any]:
        return act(self.channel, "describe-transaction", transactional_id=self.name)


# -- dropped branches -----------------------------------------------------------------------------


def test_dropped_branch_is_aborted_and_the_others_commit(channel, t):
    """A bad row of one task does not block readers: they read beyond the dropped branch."""
    sink = Sink(channel)
    failed, good = sink.open(), sink.open()
    for partition in (0, 1):
        sink.put(t, failed, 1, partition)
    Appender(channel, t).put(2, 1, act(channel, "new-producer")["producer_id"], 0)
    assert bounds(channel, t) == (0, 2, 2)
    sink.drop(failed)
    sink.drop(failed)  # a repeated call
    assert bounds(channel, t) == (2, 2, 2)
    assert bounds(channel, t, 1) == (1, 1, 1)
    for level in (COMMITTED, "read_atomic"):
        assert seen(channel, t, level) == [2]
    sink.put(t, good, 3)
    assert bounds(channel, t) == (2, 3, 3)
    again = sink.open()
    sink.put(t, again, 4)
    assert isinstance(refused(lambda: sink.commit(failed, good, again)), ForeignBranch)
    sink.commit(good, again)
    for level in (COMMITTED, "read_atomic"):
        assert seen(channel, t, level) == [2, 3, 4]


def test_delayed_batch_of_a_dropped_branch_is_refused(channel, t):
    """It is refused in the partition of its earlier batch, and in another partition."""
    sink = Sink(channel)
    failed, good = sink.open(), sink.open()
    stream = Appender(channel, t, sink.name)
    producer, number = failed["producer_id"], failed["number"]
    stream.put(1, 1, producer, 0, transaction=number)
    sink.drop(failed)
    assert isinstance(stream.refused(2, 1, producer, 1, transaction=number), ForeignBranch)
    elsewhere = stream.refused(2, 1, producer, 0, transaction=number, partition=1)
    assert isinstance(elsewhere, ForeignBranch)
    assert bounds(channel, t, 1) == (0, 0, 0)
    sink.put(t, good, 3)
    sink.commit(good)
    assert seen(channel, t, COMMITTED) == [3]


def test_branch_of_a_newer_instance_cannot_be_dropped(channel, t):
    sink = Sink(channel)
    branch = sink.open()
    newer = Sink(channel, sink.name, instance="newer")
    newer.open()
    body = sink.owner(branch) | {"producer_id": branch["producer_id"]}
    act(channel, "drop-branch", **body)  # no effect on an aborted transaction
    mine = newer.open()
    foreign = newer.owner(mine) | {"instance": "run", "producer_id": mine["producer_id"]}
    assert isinstance(refused(lambda: act(channel, "drop-branch", **foreign)), ProducerFenced)
    assert newer.state() == "open"


def test_dropped_branch_stays_dropped_after_a_kill(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    with broker.channel() as channel:
        sink = Sink(channel)
        failed, good = sink.open(), sink.open()
        sink.put("t", failed, 1)
        sink.drop(failed)
        sink.put("t", good, 2)
    broker.kill()
    broker.restart()
    with broker.channel() as channel:
        sink.channel = channel
        assert bounds(channel, "t") == (1, 2, 2)
        stream = Appender(channel, "t", sink.name)
        late = stream.refused(3, 1, failed["producer_id"], 1, transaction=failed["number"])
        assert isinstance(late, ForeignBranch)
        assert isinstance(refused(lambda: sink.commit(failed, good)), ForeignBranch)
        sink.commit(good)
        assert seen(channel, "t", COMMITTED) == [2]


# -- renewal --------------------------------------------------------------------------------------


def test_batch_is_renewed_by_a_task_without_a_branch(channel, t):
    sink = Sink(channel)
    who = {"transactional_id": sink.name, "instance": "run", "batch": 0}
    act(channel, "renew-batch", **who)  # no task has a row yet
    sink.open(timeout_ms=60_000)
    before = sink.described()["deadline_ms"]

    def renewed() -> bool:
        act(channel, "renew-batch", **who)
        return bool(sink.described()["deadline_ms"] > before)

    eventually(renewed)
    Sink(channel, sink.name, instance="newer").open()
    assert isinstance(refused(lambda: act(channel, "renew-batch", **who)), ProducerFenced)


# -- stopped runs ---------------------------------------------------------------------------------


def test_stopped_run_aborts_only_its_open_batch(channel, t):
    sink = Sink(channel, run=uuid.uuid4().hex, planned=7)
    sink.put(t, sink.open(), 1)
    run = sink.claim["run"]
    for other in ({"planned": 6}, {"batch": 1}, {"run": "another"}):
        act(channel, "stop-run", **({"run": run, "planned": 7, "batch": 0} | other))
        assert sink.state() == "open"
    act(channel, "stop-run", run=run, planned=8, batch=0)
    assert sink.state() == "aborted"
    assert bounds(channel, t) == (1, 1, 1)


@pytest.mark.parametrize("seen_before", [True, False])
def test_branch_opened_after_the_stop_of_its_run_is_refused(channel, t, seen_before):
    """Otherwise its transaction would stay open until its timeout."""
    sink = Sink(channel, run=uuid.uuid4().hex, planned=7)
    if seen_before:
        sink.open()
    act(channel, "stop-run", run=sink.claim["run"], planned=8, batch=0)
    assert isinstance(refused(sink.open), TransactionAborted)
    assert sink.state() == "aborted"
    again = Sink(channel, sink.name, instance="next", run=sink.claim["run"], planned=9)
    branch = again.open()  # the same driver restarts the query
    again.put(t, branch, 5)
    again.commit(branch)
    assert seen(channel, t, COMMITTED) == [5]


def test_stopped_run_does_not_undo_a_commit(channel, t):
    sink = Sink(channel, run=uuid.uuid4().hex, planned=7)
    branch = sink.open()
    sink.put(t, branch, 1)
    sink.commit(branch)
    act(channel, "stop-run", run=sink.claim["run"], planned=8, batch=0)
    assert sink.state() == "committed"
    assert seen(channel, t, COMMITTED) == [1]


# -- replays --------------------------------------------------------------------------------------


def test_replayed_batch_gets_its_committed_content(broker: BrokerProcess):
    with broker.connect() as log:
        log.create_topic("t", schema=NUMBERS)
    content = [{"topic": "t", "rows": 1, "digest": (1 << 64) - 1, "floats": 7}]
    with broker.channel() as channel:
        sink = Sink(channel)
        assert sink.ask("settle-batch") == {"committed": False}
        branch = sink.open()
        sink.put("t", branch, 1)
        sink.commit(branch, content=content)
        assert sink.open()["committed"] is True
    broker.kill()
    broker.restart()
    with broker.channel() as channel:
        again = Sink(channel, sink.name, instance="next")
        assert again.ask("settle-batch") == {"committed": True, "content": content}
        assert again.ask("settle-batch", batch=1) == {"committed": False}
        again.claim["batch"] = 1
        again.commit(again.open())  # by a client that sends no content
        assert again.ask("settle-batch") == {"committed": True}
        assert isinstance(refused(lambda: again.ask("settle-batch", batch=0)), StaleBatch)
        other = again.claim | {"query": "another"}
        assert isinstance(refused(lambda: again.ask("settle-batch", **other)), SinkInUse)


def test_empty_batch_aborts_the_transaction_of_a_dead_run(channel, t):
    dead = Sink(channel)
    dead.put(t, dead.open(), 1)
    new = Sink(channel, dead.name, instance="new")
    assert new.ask("settle-batch") == {"committed": False}
    assert new.state() == "aborted"
    assert bounds(channel, t) == (1, 1, 1)
    assert isinstance(refused(dead.open), ProducerFenced)


def test_query_with_a_renamed_sink_continues_after_its_commits(channel, t):
    """The sink gets another id, and then its first id again. Open transactions are aborted."""
    plain = Sink(channel, renamed=True)
    branch = plain.open()
    plain.put(t, branch, 1)
    plain.commit(branch)
    plain.claim["batch"] = 1
    plain.put(t, plain.open(), 2)
    named = Sink(channel, query=plain.claim["query"], instance="second", renamed=True)
    assert named.open()["committed"] is True
    assert plain.state() == "aborted"
    assert isinstance(refused(plain.open), ProducerFenced)
    named.claim["batch"] = 1
    branch = named.open()
    named.put(t, branch, 3)
    named.commit(branch)
    back = Sink(channel, plain.name, query=plain.claim["query"], instance="third", renamed=True)
    back.claim["batch"] = 1
    assert back.open()["committed"] is True
    assert seen(channel, t, COMMITTED) == [1, 3]


@pytest.mark.rule(
    "the expiry of a sink's id, and the next batch of its query",
    "scripts/transactions/finishing.py",
    "consistency/transactions/sinks.py",
)
def test_expired_sink_is_listed_and_its_query_writes_no_duplicates(tmp_path: Path):
    conf = "sink_expiry_seconds = 0.2\nhousekeeping_seconds = 0.05\n"
    content = [{"topic": "t", "rows": 1, "digest": 5, "floats": 7}]
    with BrokerProcess(tmp_path / "log", conf=conf) as broker:
        with broker.channel() as channel, broker.connect() as log:
            log.create_topic("t", schema=NUMBERS)
            sink = Sink(channel, renamed=True)
            branch = sink.open()
            sink.put("t", branch, 1)
            sink.commit(branch, content=content)
            eventually(lambda: [each.state for each in log.sinks()] == ["expired"])
            assert log.transactions() == []
        broker.kill()
        (tmp_path / "log.toml").write_text("")  # without an early expiry
        broker.restart()
        with broker.channel() as channel, broker.connect() as log:
            again = Sink(channel, sink.name, **sink.claim | {"instance": "next"})
            assert again.open()["committed"] is True
            assert again.ask("settle-batch") == {"committed": True, "content": content}
            again.claim["batch"] = 1
            branch = again.open()
            with pytest.raises(InvalidTransaction, match="is being written"):
                log.delete_sink(sink.name)
            again.put("t", branch, 2)
            again.commit(branch)
            assert [each.committed_batch for each in log.sinks()] == [1]
            assert seen(channel, "t", COMMITTED) == [1, 2]
            log.delete_sink(sink.name)
            assert log.sinks() == []
            with pytest.raises(UnknownTransaction, match="there is no sink"):
                log.delete_sink(sink.name)
