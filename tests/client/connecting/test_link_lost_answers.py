"""Calls whose first answer is lost. The client retries them, and the caller sees one success."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import isolog
from isolog.errors import (
    BrokerUnavailable,
    InvalidRequest,
    InvalidTopic,
    IsologError,
    MetadataUnavailable,
    RequestTimeout,
    UnknownConsumer,
    UnknownTransaction,
    UserExists,
)
from spark_stream.client.administration import AccessClient
from spark_stream.client.connecting.link import BrokerLink
from spark_stream.consistency.isolation import Isolation
from spark_stream.wire.access_messages import PutUser
from spark_stream.wire.calls import CALLS
from spark_stream.wire.consumer_messages import PinStart, RecordProgress
from spark_stream.wire.messages import Call, Message
from spark_stream.wire.topic_messages import AlterTopic
from spark_stream.wire.transaction_messages import (
    AbortBranch,
    BeginTransaction,
    InitTransactions,
    NewProducer,
    OpenBranch,
    RenewBatch,
    RenewTransaction,
    SettleSinkBatch,
    StopRun,
)
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import NUMBERS, BrokerProcess, eventually, numbers

__all__ = ["admin", "asking"]

OTHER = "another good password"


class Losses:
    """A switch that drops the first answer to each request of a process."""

    def __init__(self) -> None:
        self.is_on = False
        self.error: type[IsologError] = RequestTimeout
        self.lost: list[str] = []
        self._seen: list[Call[Any]] = []  # by identity: a retry sends the same message

    def lose(self, call: Call[Any]) -> bool:
        if not self.is_on or any(call is each for each in self._seen):
            return False
        self._seen.append(call)
        self.lost.append(call.wire_name)
        return True

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> Losses:
    found = Losses()
    answered = BrokerLink.call

    def passed(link: BrokerLink, call: Call[Any], timeout_s: float) -> Message:
        answer = answered(link, call, timeout_s)
        if found.lose(call):
            raise found.error("the answer was lost")
        return answer

    monkeypatch.setattr(BrokerLink, "call", passed)
    return found


@pytest.mark.quick("MetadataUnavailable")
@pytest.mark.rule(
    "retried changes of users, tokens, rules and quotas are idempotent",
    "broker/actions/access.py",
)
@pytest.mark.parametrize("error", [RequestTimeout, BrokerUnavailable, MetadataUnavailable])
def test_a_change_of_access_succeeds_if_its_answer_is_lost(
    asking: BrokerProcess, admin: AccessClient, losses: Losses, error: type[IsologError]
):
    losses.error = error
    with losses.during():
        admin.add_user("mon", PASSWORD)
    as_(asking, "mon").close()
    with losses.during():
        admin.change_password("mon", OTHER)
    isolog.connect(asking.address, user="mon", password=OTHER, timeout=10).close()
    with losses.during():
        admin.set_quota("mon", connections=5)
        assert set(admin.quotas()) == {"mon"}
        admin.remove_quota("mon")
        admin.add_rule("allow", "mon", "read", "topic:a")
        assert len(admin.rules()) == 1
        admin.remove_rule("allow", "mon", "read", "topic:a")
        made = admin.create_token("mon")
    with isolog.connect(asking.address, token=made.token, timeout=10) as log:
        assert log.status().principal == "mon"
    with losses.during():
        admin.revoke_token(made.id)
        admin.remove_user("mon")
    assert (admin.users(), admin.quotas(), admin.rules(), admin.tokens()) == (["root"], {}, [], [])


def test_each_attempt_has_a_line_in_the_audit_log(
    asking: BrokerProcess, admin: AccessClient, losses: Losses
):
    before = len((asking.directory / "audit.log").read_text().splitlines())
    with losses.during():
        admin.add_user("audited", PASSWORD)
        admin.remove_user("audited")
    lines = (asking.directory / "audit.log").read_text().splitlines()[before:]
    noted = [(each["action"], each["on"], each["outcome"]) for each in map(json.loads, lines)]
    assert noted == [
        ("put-user", "name=audited", "done"),
        ("put-user", "name=audited", "done"),
        ("delete-user", "name=audited", "done"),
        ("delete-user", "name=audited", "INVALID_REQUEST"),
    ]


def test_a_change_of_access_that_is_wrong_is_refused_after_a_lost_answer(
    admin: AccessClient, losses: Losses
):
    """A retry differs from a second request with the same name."""
    admin.add_user("mon", PASSWORD)
    with pytest.raises(UserExists, match="user 'mon' exists already"), losses.during():
        admin.add_user("mon", PASSWORD)
    with pytest.raises(InvalidRequest, match="there is no user 'eve'"), losses.during():
        admin.change_password("eve", PASSWORD)
    with pytest.raises(InvalidRequest, match="there is no user 'eve'"):
        admin.remove_user("eve")
    with pytest.raises(InvalidRequest, match="there is no token"):
        admin.revoke_token("0000")
    with pytest.raises(InvalidRequest, match="there is no rule"):
        admin.remove_rule("allow", "mon", "read", "topic:a")
    with pytest.raises(InvalidRequest, match="has no quota"):
        admin.remove_quota("mon")


def test_a_removal_that_reached_no_broker_reports_a_missing_user(
    admin: AccessClient, monkeypatch: pytest.MonkeyPatch
):
    connected, failures = BrokerLink.connect, [BrokerUnavailable("not reached")]

    def connect(link: BrokerLink, timeout_s: float) -> Any:
        if failures:
            raise failures.pop()
        return connected(link, timeout_s)

    monkeypatch.setattr(BrokerLink, "connect", connect)
    with pytest.raises(InvalidRequest, match="there is no user 'eve'"):
        admin.remove_user("eve")
    assert not failures


def test_a_broker_without_request_ids_adds_the_user(
    asking: BrokerProcess, admin: AccessClient, monkeypatch: pytest.MonkeyPatch
):
    """The previous release refuses an unknown field."""
    answered, sent = BrokerLink.call, []

    def passed(link: BrokerLink, call: Call[Any], *rest: Any) -> Message:
        if isinstance(call, PutUser):
            fields = json.loads(call.to_bytes())
            sent.append("request_id" in fields)
            if "request_id" in fields:
                raise InvalidRequest("PutUser: request_id: unknown field", field="request_id")
        return answered(link, call, *rest)

    monkeypatch.setattr(BrokerLink, "call", passed)
    admin.add_user("mon", PASSWORD)
    as_(asking, "mon").close()
    assert sent == [True, False]


def test_alter_topic_is_retried_while_its_first_attempt_runs(
    asking: BrokerProcess, monkeypatch: pytest.MonkeyPatch
):
    answered = BrokerLink.call
    errors = [
        InvalidTopic("changed concurrently", changed_meanwhile=True),
        RequestTimeout("the answer was lost"),
    ]

    def passed(link: BrokerLink, call: Call[Any], *rest: Any) -> Message:
        if isinstance(call, AlterTopic) and errors:
            raise errors.pop()
        return answered(link, call, *rest)

    with as_(asking, "root") as log:
        log.create_topic("altered")
        monkeypatch.setattr(BrokerLink, "call", passed)
        log.alter_topic("altered", partitions=2)
        assert not errors
        errors.append(InvalidTopic("another client's change", changed_meanwhile=True))
        with pytest.raises(InvalidTopic):
            log.alter_topic("altered", partitions=3)
        log.delete_topic("altered")


READS = {
    "atomic-cut",
    "check-access",
    "check-consumer",
    "consumer-position",
    "describe-cluster",
    "describe-lake",
    "describe-topic",
    "describe-transaction",
    "find-leaders",
    "get-permissions",
    "list-brokers",
    "list-consumers",
    "list-lakes",
    "list-offsets",
    "list-quotas",
    "list-rules",
    "list-sinks",
    "list-tokens",
    "list-topics",
    "list-transactions",
    "list-users",
    "locate-entries",
    "open-session",
    "status",
}
OF_ACCESS = {
    "add-rule",
    "create-token",
    "delete-user",
    "put-user",
    "remove-quota",
    "remove-rule",
    "revoke-token",
    "set-quota",
}
OF_DATA = {
    "abort-transaction",
    "alter-lake",
    "alter-topic",
    "begin-transaction",
    "cancel-moves",
    "commit-position",
    "commit-transaction",
    "create-lake",
    "create-topic",
    "delete-consumer",
    "delete-sink",
    "delete-topic",
    "drop-branch",
    "drop-lake",
    "elect-preferred",
    "group-heartbeat",
    "init-transactions",
    "join-group",
    "kill-transaction",
    "leave-group",
    "move-replicas",
    "new-producer",
    "open-branch",
    "pin-start",
    "recommission",
    "reader-heartbeat",
    "record-lake-progress",
    "record-progress",
    "renew-batch",
    "renew-transaction",
    "settle-batch",
    "stop-run",
    "take-consumer",
    "take-partitions",
    "trim-topic",
}
ELSEWHERE = {"decommission", "restore-metadata"}
"""They need a second broker, or a lost store: ``tests/system/replication/``."""


def test_each_changing_call_has_a_test_of_its_retry():
    assert set(CALLS) == READS | OF_ACCESS | OF_DATA | ELSEWHERE


def test_a_change_of_data_succeeds_if_its_answer_is_lost(asking: BrokerProcess, losses: Losses):
    with as_(asking, "root") as log:
        with losses.during():
            log.create_topic("t", schema=NUMBERS)
            log.alter_topic("t", partitions=3, config={"retention.ms": 10**9})
            log.alter_topic("t", schema=NUMBERS.append(pa.field("more", pa.int64())))
            broker = log.describe("t").partitions[0].leader
            log.alter_topic("t", partitions=4, assignment=[[broker]])
            log.move_replicas("t", {0: [broker]})
            log.cancel_moves("t")
            log.elect_preferred_leaders()
            log.recommission(broker)
        found = log.describe("t")
        assert (len(found.partitions), found.schema.names) == (4, ["n", "more"])
        _use_transactions(log, losses)
        _use_consumers(log, losses)
        with losses.during():
            lake = log.create_lake("lost", "t", "/nowhere", check=False)
            log._lakes.record_progress("lost", lake.id, {lake.topics[0].id: {0: 3}})
            assert log.describe_lake("lost").topics[0].tiered == {0: 3}
            assert log.alter_lake("lost", freshness=7).freshness_ms == 7_000
            log.drop_lake("lost")
            assert log.lakes() == []
            assert log.trim("t", "latest", partitions=[0])[0] > 0
            log.delete_topic("t")
        assert log.topics() == []
        with pytest.raises(UnknownConsumer):
            log.delete_consumer("named")
        with pytest.raises(UnknownTransaction):
            log.delete_sink("sink/lost")
    assert set(losses.lost) - READS == OF_DATA


def _use_transactions(log: isolog.Log, losses: Losses) -> None:
    call = log._connection.call
    with losses.during():
        call(NewProducer())
        producer = log.producer(transactional_id="tx")
        producer.begin_transaction()
        producer.append("t", numbers(0, 1), partition=0).result(60)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.append("t", numbers(1, 1), partition=0).result(60)
        producer.abort_transaction()
        own = {"transactional_id": "other", "instance": "i"}
        call(InitTransactions(**own))
        branch = call(BeginTransaction(**own))
        call(RenewTransaction(**own, number=branch.number))
        log.abort_transaction("other")
        producer.close()
    assert log.read("t", isolation="read_committed")["n"].to_pylist() == [0]
    claim = {"transactional_id": "sink/lost", "query": "q", "instance": "i", "batch": 0}
    with losses.during():
        branch = call(OpenBranch(**claim))
        own = {"transactional_id": "sink/lost", "instance": "i"}
        call(RenewBatch(**own, batch=0))
        call(AbortBranch(**own, number=branch.number, producer_id=branch.producer_id))
        call(SettleSinkBatch(**claim))
        call(StopRun(run="run", planned=1, batch=0))
        log.delete_sink("sink/lost")
    assert log.sinks() == []


def _use_consumers(log: isolog.Log, losses: Losses) -> None:
    isolation = Isolation.READ_COMMITTED
    with losses.during():
        with log.consumer("t", name="named", isolation="read_committed") as consumer:
            next(consumer.batches(timeout=60))
            consumer.commit()
        with log.consumer("t", group="members", session_timeout=10.0) as member:
            next(member.batches(timeout=60))
            member.commit()
            eventually(lambda: "group-heartbeat" in losses.lost)
        log._connection.call(
            PinStart(consumer="query", instance="i", isolation=isolation, selection="subscribe t")
        )
        log._connection.call(
            RecordProgress(
                consumer="query",
                instance="i",
                selection="subscribe t",
                isolation=isolation,
                positions=[],
            )
        )
        for name in ("named", "members", "query"):
            log.delete_consumer(name)
    assert log.consumers() == []
