"""Attacks by callers with few rights or none. Each of them succeeded once."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import (
    BrokerBusy,
    InvalidConfig,
    InvalidRequest,
    IsologError,
    PermissionDenied,
    StorageFailure,
    TopicExists,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.access.callers import Caller, KnownBy
from spark_stream.broker.access.audit import Audit
from spark_stream.broker.config import BrokerConfig
from spark_stream.cli.commands.access import _add_to_store
from spark_stream.client.administration import AccessClient
from spark_stream.cluster.access import TOKENS
from spark_stream.cluster.stores.backends import SqliteBackend
from spark_stream.consistency.partition.producers import Stamp
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, CallFailed, failure_of
from spark_stream.transport.tls import client_context
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.messages import ACT, APPEND, AUTHENTICATE, FETCH, REPLICATE, RUN_STEPS
from spark_stream.wire.replication_messages import OpenReplication
from spark_stream.wire.stream_messages import AppendTo, Envelope, Fetch, FetchRange
from tests.certificates import HERE, Files, conf_of
from tests.clocks import FakeClock
from tests.secure_brokers import PASSWORD, admin, as_, asking, asking_broker, client_of
from tests.support import BrokerProcess, eventually, values

__all__ = ["admin", "asking"]

ASKS = 'authentication = true\nsuper_users = ["root"]\n'
QUERY = "batch writes of nightly"


class Raw:
    """A connection of a caller that may send any message."""

    def __init__(self, broker: BrokerProcess, **credential: str) -> None:
        self._channel = ClientChannel(broker.address, timeout_s=20)
        if credential:
            self._call(AUTHENTICATE, b"", Authenticate(**credential).to_bytes())

    def _call(self, method: str, header: bytes, body: bytes) -> dict[str, Any]:
        try:
            return json.loads(bytes(self._channel.call(method, header, body, 20).body))
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, "") from None

    def act(self, name: str, **body: Any) -> dict[str, Any]:
        return self._call(ACT, name.encode(), json.dumps(body).encode())

    def append(self, topic: str, value: str, stamp: Stamp | None, owner: str | None) -> Any:
        """Append one record. Return the answer."""
        asked, schema = AppendTo(topic=topic, transactional_id=owner), DEFAULT_SCHEMA
        batch = pa.RecordBatch.from_pylist([{"value": value.encode(), "timestamp": 1}], schema)
        envelope = Envelope(partition=0, stamp=stamp).to_bytes()
        try:
            stream = self._channel.open(APPEND, asked.to_bytes(), schema.serialize().to_pybytes())
            stream.send(envelope, batch.serialize().to_pybytes(), end=True)
            answer = stream.receive(20)
        except TRANSPORT_ERRORS as error:
            raise failure_of(error, "") from None
        assert answer is not None
        return json.loads(bytes(answer.header))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def two(asking: BrokerProcess, admin: AccessClient) -> Iterator[tuple[Raw, Raw]]:
    """Alice and Bob. Both may write to ``shared``, each with separate transactional ids."""
    with as_(asking, "root") as log:
        log.create_topic("shared")
    for name in ("alice", "bob"):
        admin.add_user(name, PASSWORD)
        admin.add_rule("allow", name, "all", "topic:shared")
        admin.add_rule("allow", name, "write", f"transaction:{name}*")
    admin.add_rule("allow", "alice", "write", "transaction:sink/nightly")
    alice, bob = (Raw(asking, user=name, password=PASSWORD) for name in ("alice", "bob"))
    yield alice, bob
    alice.close()
    bob.close()
    with as_(asking, "root") as log:
        log.delete_topic("shared")


def begin(caller: Raw, name: str) -> dict[str, Any]:
    instance = f"{name}-{time.monotonic_ns()}"
    caller.act("init-transactions", transactional_id=name, instance=instance)
    made = caller.act("begin-transaction", transactional_id=name, instance=instance)
    return {**made, "instance": instance}


# -- transactions and sinks ------------------------------------------------------------------------


def test_write_in_a_transaction_of_another_principal_is_refused(
    two: tuple[Raw, Raw], asking: BrokerProcess
):
    alice, bob = two
    made = begin(alice, "alice-tx")
    number, producer = made["number"], made["producer_id"]
    taken = alice.append("shared", "a", Stamp(producer, made["epoch"], 0, number), "alice-tx")
    refused = bob.append("shared", "BOB", Stamp(producer, made["epoch"], 1, number), "bob-tx")
    assert ("error" in taken, "error" in refused) == (False, True), (taken, refused)
    again = alice.append("shared", "b", Stamp(producer, made["epoch"], 1, number), "alice-tx")
    assert not again.get("duplicate"), again
    alice.act(
        "commit-transaction",
        transactional_id="alice-tx",
        instance=made["instance"],
        number=number,
        branches=[producer],
    )
    with as_(asking, "root") as log:
        found = log.read("shared", isolation="read_committed")["value"].to_pylist()
    assert found == [b"a", b"b"]


def test_name_of_a_query_gives_no_access_to_its_sink(two: tuple[Raw, Raw]):
    alice, bob = two
    asked = {"query": QUERY, "instance": "run-a", "batch": 7}
    mine = alice.act("open-branch", transactional_id="sink/nightly", **asked)
    stolen = {"query": QUERY, "instance": "evil", "batch": 7, "renamed": True}
    theirs = bob.act("open-branch", transactional_id="bob-x", **stolen)
    settled = bob.act("settle-batch", transactional_id="bob-y", **stolen)
    assert (theirs["committed"], settled["committed"]) == (False, False)
    done = {"instance": "run-a", "number": mine["number"], "branches": [mine["producer_id"]]}
    alice.act("commit-transaction", transactional_id="sink/nightly", batch=7, content=[], **done)


def test_commit_under_the_query_name_of_another_does_not_count(two: tuple[Raw, Raw]):
    alice, bob = two
    query = "another query of alice"
    evil = bob.act("open-branch", transactional_id="bob-z", query=query, instance="e", batch=1000)
    done = {"instance": "e", "number": evil["number"], "branches": [evil["producer_id"]]}
    bob.act("commit-transaction", transactional_id="bob-z", batch=1000, content=[], **done)
    asked = {"query": query, "instance": "run-1", "batch": 3, "renamed": True}
    assert not alice.act("open-branch", transactional_id="alice-s", **asked)["committed"]


def test_run_of_another_principal_cannot_be_stopped(
    two: tuple[Raw, Raw], asking: BrokerProcess, admin
):
    alice, bob = two
    asked = {"query": "q", "instance": "i", "batch": 1, "run": "driver", "planned": 5}
    mine = alice.act("open-branch", transactional_id="alice-run", **asked)
    bob.act("stop-run", run="driver", planned=10, batch=1)
    done = {"instance": "i", "number": mine["number"], "branches": [mine["producer_id"]]}
    alice.act("commit-transaction", transactional_id="alice-run", batch=1, content=[], **done)


@pytest.mark.rule("the owner of a transactional id", "scripts/transactions/records.py")
def test_shared_rule_does_not_share_transactional_ids(two: tuple[Raw, Raw], admin: AccessClient):
    """Bob sends the requests of Alice, but the transactional ids belong to her."""
    alice, bob = two
    for name in ("alice", "bob"):
        admin.add_rule("allow", name, "write", "transaction:query/*")
    run = {"transactional_id": "query/alices", "instance": "run"}
    sink = run | {"batch": 1}
    branch = alice.act("open-branch", query="q", **sink)
    number, producer = branch["number"], branch["producer_id"]
    done = {"number": number, "branches": [producer], "content": []}
    mine = begin(alice, "query/tx")
    producing = {"transactional_id": "query/tx", "instance": mine["instance"]}
    ended = producing | {"number": mine["number"]}
    for name, body in (
        ("open-branch", sink | {"query": "q"}),
        ("settle-batch", sink | {"query": "q"}),
        ("settle-batch", sink | {"query": "q", "instance": "evil", "renamed": True}),
        ("renew-batch", sink),
        ("drop-branch", run | {"number": number, "producer_id": producer}),
        ("commit-transaction", sink | done),
        ("init-transactions", producing),
        ("begin-transaction", producing),
        ("renew-transaction", ended),
        ("commit-transaction", ended | {"branches": []}),
        ("abort-transaction", ended),
    ):
        with pytest.raises(PermissionDenied, match="belongs to another principal"):
            bob.act(name, **body)
    stamp = Stamp(mine["producer_id"], mine["epoch"], 0, mine["number"])
    with pytest.raises(PermissionDenied, match="belongs to another principal"):
        bob.append("shared", "BOB", stamp, "query/tx")
    assert alice.append("shared", "a", stamp, "query/tx").get("duplicate") is not True
    alice.act("renew-batch", **sink)
    alice.act("commit-transaction", **sink, **done)
    alice.act("commit-transaction", **ended, branches=[mine["producer_id"]])
    assert alice.act("settle-batch", query="q", **sink)["committed"]


def test_administrator_may_settle_a_batch_of_another_principal(
    two: tuple[Raw, Raw], asking: BrokerProcess
):
    alice, _ = two
    sink = {"transactional_id": "alice-settled", "query": "q", "batch": 1}
    alice.act("open-branch", instance="run", **sink)
    root = Raw(asking, user="root", password=PASSWORD)
    assert root.act("settle-batch", instance="run", **sink) == {"committed": False}
    root.close()


def test_caller_without_rights_writes_no_metadata(asking: BrokerProcess, admin: AccessClient):
    admin.add_user("nil", PASSWORD)
    nil = Raw(asking, user="nil", password=PASSWORD)
    for name, body in (
        ("create-token", {}),
        ("stop-run", {"run": "r", "planned": 1, "batch": 1}),
    ):
        with pytest.raises(PermissionDenied, match="no rule allows"):
            nil.act(name, **body)
    nil.close()


# -- tokens and sessions ---------------------------------------------------------------------------


@pytest.fixture
def alice(admin: AccessClient) -> str:
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "read", "topic:a*")
    return "alice"


def test_token_expires_no_later_than_its_parent(asking: BrokerProcess, admin, alice):
    parent = admin.create_token(alice, lifetime_s=600)
    with client_of(asking, token=parent.token) as client:
        endless = client.create_token()
        sliding = client.create_token(lifetime_s=10_000_000, sliding=True)
        child = client.create_token()
    assert parent.expires_ms is not None
    for made in (endless, sliding):
        assert (made.expires_ms or 2**63) <= parent.expires_ms
    with client_of(asking, token=sliding.token) as client:  # use extends it only up to its parent
        grandchild = client.create_token()
        found = {each.id: each.expires_ms for each in client.tokens()}
    assert found[sliding.id] <= parent.expires_ms
    admin.revoke_token(parent.id)
    for made in (child, grandchild):
        with pytest.raises(Unauthenticated):
            isolog.connect(asking.address, token=made.token, timeout=10)


ASKED = [("write", "topic:asked"), ("create", "topic:asked"), ("write", "transaction:*")]
"""Grants requested by a query that writes ``asked`` with ``createTopic``."""


@pytest.mark.parametrize(
    "held",
    [
        [
            ("write", "topic:asked"),
            ("write", "transaction:query/*"),
            ("write", "transaction:job/*"),
        ],
        [("all", "topic:*"), ("write", "transaction:query/*")],
        [("write", "topic:asked*"), ("all", "transaction:query/*")],
    ],
)
def test_query_gets_only_grants_of_its_restricted_token(asking: BrokerProcess, admin, alice, held):
    with as_(asking, "root") as root, suppress(TopicExists):
        root.create_topic("asked")
    for operation, resource in held:
        admin.add_rule("allow", alice, operation, resource)
    token = admin.create_token(alice, grants=held)
    with client_of(asking, token=token.token) as client:
        lasting = client.create_token(None, 60.0, ASKED, sliding=True).token
        for secret in (lasting, client.open_session(ASKED, 60.0)):
            with isolog.connect(asking.address, token=secret, timeout=20) as log:
                with (
                    log.producer(transactional_id="query/x") as producer,
                    producer.transaction(),
                ):
                    producer.append("asked", values("1")).result(20)
                with pytest.raises(PermissionDenied):
                    log.producer(transactional_id="load")
                with pytest.raises(UnknownTopic), log.producer() as other:
                    other.append("b", values("1")).result(20)
        with pytest.raises(PermissionDenied, match="allows none of the query's grants"):
            client.open_session([("read", "consumer:c")], 60.0)
        with pytest.raises(PermissionDenied, match="more than the one that it is made with"):
            client.create_token(grants=[("read", "consumer:c")])


def test_tokens_of_a_revoked_parent_are_not_listed_or_counted(asking: BrokerProcess, admin, alice):
    parent = admin.create_token(alice)
    with client_of(asking, token=parent.token) as client:
        child = client.create_token()
    with client_of(asking, token=child.token) as client:
        grandchild = client.create_token()
    admin.revoke_token(parent.id)
    listed = {each.id for each in admin.tokens()}
    assert listed.isdisjoint((parent.id, child.id, grandchild.id))
    made = admin.create_token(alice)
    with closing(SqliteBackend(asking.directory / "metadata.sqlite").open_store()) as store:
        kept = {each.key for each in store.list(TOKENS)}
    assert {f"{TOKENS}{each}" for each in (child.id, grandchild.id)}.isdisjoint(kept)
    assert f"{TOKENS}{made.id}" in kept


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"principal": "*"}, "a token is for one principal"),
        ({"lifetime_ms": 36_500 * 86_400_000 + 1}, "lifetime_ms"),
        ({"grants": [{"operation": "admin", "resource": "topic:a"}]}, "no operation 'admin'"),
        ({"grants": [{"operation": "read", "resource": "cluster"}]}, "no operation 'read'"),
    ],
)
def test_unusable_token_is_refused(asking: BrokerProcess, asked: dict[str, Any], problem: str):
    raw = Raw(asking, user="root", password=PASSWORD)
    with pytest.raises(InvalidRequest, match=problem):
        raw.act("create-token", **asked)
    raw.close()


def test_session_of_a_query_cannot_create_credentials(asking: BrokerProcess, admin, alice):
    token = admin.create_token(alice)
    with client_of(asking, token=token.token) as client:
        session = client.open_session([("read", "topic:a")], 60.0)
    raw = Raw(asking, token=session)
    grants = [{"operation": "read", "resource": "topic:a"}]
    for name, body in (
        ("open-session", {"grants": grants, "lifetime_ms": 8_000_000}),
        ("create-token", {"grants": grants}),
    ):
        with pytest.raises(PermissionDenied):
            raw.act(name, **body)
    assert raw.act("list-tokens")["tokens"] == []
    with pytest.raises(IsologError, match="there is no token"):
        raw.act("revoke-token", id=token.id)
    raw.close()


def test_tokens_are_removed_with_their_user(asking: BrokerProcess, admin, alice):
    with client_of(asking, user=alice, password=PASSWORD) as client:
        token = client.create_token().token
    admin.remove_user(alice)
    admin.add_user(alice, PASSWORD)
    with pytest.raises(Unauthenticated):
        isolog.connect(asking.address, token=token, timeout=10)


def test_restricted_token_cannot_list_or_revoke_others(asking: BrokerProcess, admin, alice):
    whole = admin.create_token("root")
    small = admin.create_token("root", grants=[("read", "topic:a")])
    with client_of(asking, token=small.token) as client:
        assert [each.id for each in client.tokens()] == [small.id]
        with pytest.raises(IsologError, match="there is no token"):
            client.revoke_token(whole.id)


def test_rules_with_spaces_are_distinct(asking: BrokerProcess, admin: AccessClient):
    admin.add_rule("deny", "eve read topic:a", "read", "topic:b")
    admin.add_rule("deny", "eve", "read", "topic:a read topic:b")
    assert len(admin.rules()) == 2


# -- unauthenticated callers and the audit log -----------------------------------------------------


def test_unauthenticated_callers_cannot_flood_the_audit_log(tmp_path: Path):
    clock = FakeClock()
    audit = Audit(tmp_path / "audit.log", clock)
    for _ in range(1_000):
        audit.note(None, "10.0.0.1:1", "authenticate", "x" * 50_000, "UNAUTHENTICATED")
    clock.pass_us(1_000_000)
    audit.note(None, "10.0.0.1:1", "authenticate", "", "UNAUTHENTICATED")
    audit.close()
    lines = [json.loads(each) for each in (tmp_path / "audit.log").read_text().splitlines()]
    assert (len(lines), lines[-1]["omitted"]) == (21, 980)
    assert max(len(each["on"]) for each in lines) == 300


@pytest.mark.parametrize("outcome", ["done", "PERMISSION_DENIED"])
def test_authenticated_caller_cannot_flood_the_audit_log(tmp_path: Path, outcome: str):
    clock = FakeClock()
    audit = Audit(tmp_path / "audit.log", clock)
    alice = Caller("alice", KnownBy.USER)
    for _ in range(1_000):
        audit.note(alice, "10.0.0.1:1", "open-session", "", outcome)
    audit.note(alice, "10.0.0.1:1", "create-topic", "topic=t", "done")
    audit.close()
    lines = [json.loads(each) for each in (tmp_path / "audit.log").read_text().splitlines()]
    assert (len(lines), lines[-1]["action"], lines[-1]["omitted"]) == (21, "create-topic", 980)


def test_full_disk_of_the_audit_log_is_logged_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "audit.log").symlink_to("/dev/full")
    audit = Audit(tmp_path / "audit.log", FakeClock())
    reason: list[str] = []

    def fail(*_: object) -> bool:
        if reason:
            raise OSError(reason[0])
        return False

    def write() -> list[str]:
        caplog.clear()
        for _ in range(5):
            audit.note(None, "10.0.0.1:1", "authenticate", "", "UNAUTHENTICATED")
        return [each.getMessage() for each in caplog.records]

    [line] = write()
    assert line == f"cannot write the audit log {tmp_path}/audit.log: No space left on device"
    assert write() == []
    audit.close()
    (tmp_path / "audit.log").unlink()
    audit = Audit(tmp_path / "audit.log", FakeClock())
    monkeypatch.setattr(RotatingFileHandler, "shouldRollover", fail)
    for reason[:] in (["one"], [], ["one"], ["another"]):
        assert len(write()) == len(reason)
    audit.close()
    assert capsys.readouterr().err == ""


def test_broker_with_unusable_audit_log_does_not_start(tmp_path: Path):
    folder = tmp_path / "log"
    with asking_broker(tmp_path):
        pass
    (folder / "audit.log").unlink(missing_ok=True)
    (folder / "audit.log").mkdir()
    broker = BrokerProcess(folder, conf=ASKS)
    with pytest.raises(StorageFailure, match=r"audit.log: Is a directory"), broker:
        pass
    assert "Traceback" not in broker.log_text()


@pytest.mark.parametrize("method", [RUN_STEPS, REPLICATE])
def test_certificate_refused_by_the_peer_listener_is_audited(tmp_path: Path, method: str):
    files = Files(tmp_path)
    conf = 'id = "b1"\n' + conf_of(files.issue("b1", *HERE, "b1"), "peer_tls", ca=files.ca)
    with asking_broker(tmp_path, conf) as broker:
        tls = client_context(files.issue("client", "etl-job"))
        channel = ClientChannel(broker.peer_address, timeout_s=20, tls=tls)
        opened = OpenReplication(stream="s", follower="b1", proof="0" * 64, window_bytes=1 << 20)
        body = opened.to_bytes()
        if method == RUN_STEPS:
            body = msgspec.msgpack.encode(
                {"caller": "b1", "proof": "0" * 64, "nonce": "n", "steps": []}
            )
        with pytest.raises(CallFailed):
            channel.open(method, b"", body).receive(20)
        channel.close()
        lines = (broker.directory / "audit.log").read_text().splitlines()
    noted = json.loads(lines[-1])
    assert noted.pop("from").startswith("127.0.0.1:")
    del noted["at"]
    assert noted == {
        "principal": "etl-job",
        "action": method,
        "on": "",
        "outcome": "UNAUTHENTICATED",
    }


def test_audit_log_contains_no_part_of_a_token(asking: BrokerProcess, admin: AccessClient):
    secret = admin.create_token("root").token.replace("_", "", 2)
    with pytest.raises(Unauthenticated):
        isolog.connect(asking.address, token=f"isolog_{secret}", timeout=10)
    assert secret[:26] not in (asking.directory / "audit.log").read_text()


def test_flood_of_passwords_is_bounded(asking: BrokerProcess):
    def attempt(number: int) -> type[IsologError]:
        try:
            Raw(asking, user=f"nobody-{number}", password="wrong password").close()
        except IsologError as error:
            return type(error)
        raise AssertionError("a wrong password was taken")

    with ThreadPoolExecutor(40) as threads:
        outcomes = list(threads.map(attempt, range(80)))
    assert set(outcomes) == {BrokerBusy, Unauthenticated}
    with as_(asking, "root") as log:
        assert log.status().principal == "root"


def test_peer_listener_needs_certificates_with_authentication(tmp_path: Path):
    asks = {"authentication": True, "dir": tmp_path, "listen": "127.0.0.1:0"}
    assert BrokerConfig.load(None, **asks).peer_place == ""
    with pytest.raises(InvalidConfig, match="peer_tls"):
        BrokerConfig.load(None, **asks, peer_listen="127.0.0.1:0")


# -- hidden topics ---------------------------------------------------------------------------------


@pytest.fixture
def hidden(asking: BrokerProcess, admin: AccessClient, alice: str) -> Iterator[str]:
    """A topic hidden from Alice, with a name similar to her topics."""
    with as_(asking, "root") as log:
        log.create_topic("b-payroll-2026")
    yield "b-payroll-2026"
    with as_(asking, "root") as log:
        log.delete_topic("b-payroll-2026")


def test_errors_do_not_name_hidden_topics(asking: BrokerProcess, admin, alice, hidden):
    admin.add_rule("allow", alice, "write", "topic:a*")
    raw = Raw(asking, user=alice, password=PASSWORD)
    for call in (
        lambda: raw.act("describe-topic", topic="a-payroll-2026"),
        lambda: raw.append("a-payroll-2026", "x", None, None),
        lambda: raw._call(
            FETCH,
            b"",
            Fetch(ranges=[FetchRange(topic="a-payroll-2026", partition=0, start=0)]).to_bytes(),
        ),
    ):
        with pytest.raises(UnknownTopic) as caught:
            call()
        assert hidden not in str(caught.value)
    raw.close()


def test_transaction_description_omits_hidden_topics(asking: BrokerProcess, admin, alice, hidden):
    with as_(asking, "root") as log:
        transaction = log.producer(transactional_id="root-tx")
        transaction.begin_transaction()
        transaction.append(hidden, values("x"))
        transaction.flush()
        admin.add_rule("allow", alice, "describe", "transaction:root-tx")
        raw = Raw(asking, user=alice, password=PASSWORD)
        found = raw.act("describe-transaction", transactional_id="root-tx")
        assert (found["state"], found["partitions"]) == ("open", [])
        raw.close()
        transaction.abort_transaction()
        transaction.close()


@pytest.fixture
def mine(asking: BrokerProcess) -> Iterator[str]:
    """A topic that Alice may read."""
    with as_(asking, "root") as log:
        log.create_topic("a-flights")
    yield "a-flights"
    with as_(asking, "root") as log:
        log.delete_topic("a-flights")


def test_consumer_takeover_returns_no_position_in_a_hidden_topic(
    asking: BrokerProcess, admin, alice, hidden, mine
):
    admin.add_rule("allow", alice, "read", "consumer:shared")
    root, raw = (
        Raw(asking, user="root", password=PASSWORD),
        Raw(asking, user=alice, password=PASSWORD),
    )
    root.act("take-consumer", consumer="shared", instance="r")
    positions = [
        {
            "consumer": "shared",
            "topic": topic,
            "topic_id": root.act("describe-topic", topic=topic)["id"],
            "partition": 0,
            "offset": 0,
        }
        for topic in (hidden, mine)
    ]
    root.act("commit-position", positions=positions, owners={"shared": "r"})
    taken = raw.act("take-consumer", consumer="shared", instance="a")["positions"]
    assert [each["topic"] for each in taken] == [mine]
    root.act("delete-consumer", consumer="shared")
    root.close()
    raw.close()


@pytest.mark.quick(
    "subscribe a-flights,b-payroll-2026-False",
    "subscribePattern a-.*-True",
    'assign {"a-flights": [0], "b-payroll-2026": [0]}-False',
)
@pytest.mark.parametrize(
    ("selection", "is_shown"),
    [
        ("subscribe a-flights", True),
        ("subscribe a-flights,b-payroll-2026", False),
        ("subscribe b-gone", False),
        ("subscribePattern a-.*", True),
        ("subscribePattern b-payroll.*", False),
        ("subscribePattern .*", False),
        ('assign {"a-flights": [0, 1]}', True),
        ('assign {"a-flights": [0], "b-payroll-2026": [0]}', False),
        ('{"subscribe":"b-payroll-2026"}', False),
    ],
)
def test_selection_of_another_query_is_shown_if_its_topics_are_visible(
    asking: BrokerProcess, admin, alice, hidden, mine, selection: str, is_shown: bool
):
    admin.add_rule("allow", alice, "read", "consumer:shared")
    root, raw = (
        Raw(asking, user="root", password=PASSWORD),
        Raw(asking, user=alice, password=PASSWORD),
    )
    asked = {"consumer": "shared", "isolation": "read_committed"}
    start = json.dumps({hidden: {"id": "1"}, mine: {"id": "2"}})
    starting = 'startingOffsets={"b-payroll-2026": {"0": 7}}'
    root.act(
        "pin-start", **asked, instance="r", selection=selection, starting=starting, start=start
    )
    [listed] = raw.act("list-consumers")["consumers"]
    other = raw.act("pin-start", **asked, instance="a", selection="subscribe a-x")
    same = raw.act("pin-start", **asked, instance="a", selection=selection)
    root.act("delete-consumer", consumer="shared")
    assert listed["selection"] == (selection if is_shown else None)
    assert other["selection"] == (selection if is_shown else "")
    assert json.loads(same["start"]) == {mine: {"id": "2"}}
    for each in (listed, other, {**same, "selection": ""}):
        assert hidden not in str(each)
    root.close()
    raw.close()


def test_caller_sees_the_selection_of_its_query(asking: BrokerProcess, admin, alice):
    admin.add_rule("allow", alice, "read", "consumer:mine")
    raw = Raw(asking, user=alice, password=PASSWORD)
    asked = {"consumer": "mine", "isolation": "read_committed", "instance": "a"}
    raw.act("pin-start", **asked, selection="subscribePattern .*", start="{}")
    [listed] = raw.act("list-consumers")["consumers"]
    assert listed["selection"] == "subscribePattern .*"
    with as_(asking, "root") as log:
        log.delete_consumer("mine")
    raw.close()


def test_problems_of_a_cluster_do_not_name_hidden_topics(tmp_path: Path):
    files = Files(tmp_path)

    def conf(name: str) -> str:
        store, pair = tmp_path / "metadata.sqlite", files.issue(name, name, *HERE)
        peers = conf_of(pair, "peer_tls", ca=files.ca)
        return f'id = "{name}"\nmetadata = "{store}"\nlease_seconds = 1\n{ASKS}{peers}'

    first, second = (BrokerProcess(tmp_path / name, conf=conf(name)) for name in "ab")
    with first, second:
        _add_to_store(SqliteBackend(tmp_path / "metadata.sqlite"), "root", PASSWORD)
        with as_(first, "root") as log, client_of(first) as admin:
            for topic in ("payroll", "flights"):
                log.create_topic(topic, assignment=[["b"]])
            admin.add_user("mon", PASSWORD)
            admin.add_rule("allow", "mon", "describe", "cluster")
            admin.add_rule("allow", "mon", "describe", "topic:flights")
        second.kill()
        raw = Raw(first, user="mon", password=PASSWORD)

        def no_leader() -> dict[str, Any] | None:
            found = raw.act("describe-cluster")["problems"]
            return next((each for each in found if each["kind"] == "no_leader"), None)

        eventually(lambda: (no_leader() or {}).get("count") == 2)
        found = no_leader()
        raw.close()
    assert found is not None
    assert found["names"] == ["flights/0"]


def test_topic_hidden_by_a_rule_is_not_listed_or_read(asking: BrokerProcess, admin, alice, hidden):
    with as_(asking, "root") as log, log.producer() as producer:
        producer.append(hidden, values("secret")).result(20)
    admin.add_rule("allow", alice, "read", "topic:*")
    admin.add_rule("deny", alice, "describe", "topic:b-*")
    raw = Raw(asking, user=alice, password=PASSWORD)
    assert hidden not in raw.act("list-topics", readable=True)["topics"]
    assert hidden not in raw.act("list-offsets", topics=[], names=True)["names"]
    asked = Fetch(ranges=[FetchRange(topic=hidden, partition=0, start=0)])
    with pytest.raises(UnknownTopic):
        raw._call(FETCH, b"", asked.to_bytes())
    raw.close()
    checked = admin.check(alice, "read", f"topic:{hidden}")
    assert not checked.is_allowed
    assert ("deny", "describe") in {(each.effect, each.operation) for each in checked.rules}


def test_denied_read_hides_the_topic_and_is_audited(asking: BrokerProcess, admin, alice, hidden):
    admin.add_rule("allow", alice, "read", "topic:*")
    admin.add_rule("deny", alice, "read", "topic:b-*")
    raw = Raw(asking, user=alice, password=PASSWORD)
    assert hidden not in raw.act("list-topics")["topics"]
    asked = Fetch(ranges=[FetchRange(topic=hidden, partition=0, start=0)])
    for call in (
        lambda: raw.act("describe-topic", topic=hidden),
        lambda: raw._call(FETCH, b"", asked.to_bytes()),
    ):
        with pytest.raises(UnknownTopic):
            call()
    lines = [json.loads(each) for each in (asking.directory / "audit.log").read_text().splitlines()]
    noted = [(each["action"], each["on"], each["outcome"]) for each in lines[-2:]]
    denied = f"topic:{hidden}", "PERMISSION_DENIED"
    assert noted == [("describe", *denied), ("read", *denied)]
    admin.add_rule("allow", alice, "write", f"topic:{hidden}")
    assert raw.act("describe-topic", topic=hidden)["name"] == hidden
    raw.close()


def test_refused_calls_are_audited(asking: BrokerProcess, admin, alice, hidden):
    raw, stranger = Raw(asking, user=alice, password=PASSWORD), Raw(asking)
    with pytest.raises(PermissionDenied):
        raw.act("create-token", principal="root")
    raw.act("list-offsets", topics=[{"topic": hidden}])
    made = raw.act("create-token")
    with pytest.raises(Unauthenticated):
        stranger.act("list-topics")
    raw.close()
    stranger.close()
    lines = [json.loads(each) for each in (asking.directory / "audit.log").read_text().splitlines()]
    noted = {(each["principal"], each["action"], each["on"], each["outcome"]) for each in lines}
    assert noted >= {
        (alice, "create-token", "principal=root", "PERMISSION_DENIED"),
        (alice, "describe", f"topic:{hidden}", "PERMISSION_DENIED"),
        (alice, "create-token", f"id={made['id']} principal=alice", "done"),
        (None, "act", "", "UNAUTHENTICATED"),
    }


# -- Flight ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    conf = 'flight_listen = "127.0.0.1:0"\n'
    with asking_broker(tmp_path_factory.mktemp("flying"), conf) as broker:
        with as_(broker, "root") as log:
            log.create_topic("t")
        yield broker


def flight_of(broker: BrokerProcess) -> str:
    with as_(broker, "root") as log:
        return f"grpc://{log.status().flight}"


def basic(user: str, password: str) -> fl.FlightCallOptions:
    encoded = base64.b64encode(f"{user}:{password}".encode())
    return fl.FlightCallOptions(headers=[(b"authorization", b"Basic " + encoded)])


def test_wrong_flight_passwords_are_audited_with_their_host(flying: BrokerProcess):
    client = fl.connect(flight_of(flying))
    with pytest.raises(fl.FlightUnauthenticatedError):
        list(client.do_action(fl.Action("list-topics", b"{}"), basic("root", "wrong password")))
    last = json.loads((flying.directory / "audit.log").read_text().splitlines()[-1])
    assert last["from"].startswith("127.0.0.1:")


def test_waiting_flight_fetch_ends_with_its_token(flying: BrokerProcess):
    with client_of(flying) as client:
        made = client.create_token("root")
        follow = FetchRange(topic="t", partition=0, start=0, follow=True)
        bearer = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {made.token}".encode())])
        reader = fl.connect(flight_of(flying)).do_get(
            fl.Ticket(Fetch(ranges=[follow]).to_bytes()), bearer
        )
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(lambda: list(reader))
            client.revoke_token(made.id)
            with pytest.raises((fl.FlightError, pa.ArrowException)):
                waiting.result(timeout=30)


# -- hidden lakes ----------------------------------------------------------------------------------


def test_hidden_lakes_and_topics_of_lakes_do_not_exist(
    asking: BrokerProcess, admin, alice, hidden, mine
):
    with as_(asking, "root") as log:
        ids = {each: log.describe(each).id for each in (hidden, mine)}
        of_both = log.create_lake("a-both", [hidden, mine], "/a-both", check=False)
        secret = log.create_lake("b-secret", mine, "/b-secret", check=False)
        offsets = {ids[hidden]: {0: 3}, ids[mine]: {0: 4}}
        log._lakes.record_progress("a-both", of_both.id, offsets)
        log._lakes.record_progress("a-both", of_both.id, {}, f"the topic {hidden} was deleted")
    admin.add_rule("allow", alice, "describe", "lake:a-both")
    raw = Raw(asking, user=alice, password=PASSWORD)
    [listed] = raw.act("list-lakes")["lakes"]
    for shown in (listed, raw.act("describe-lake", lake="a-both")):
        assert hidden not in str(shown)
        assert ids[hidden] not in str(shown)
        assert "hidden" in str(shown)  # the reason of the stop
    as_reader = raw.act("describe-topic", topic=mine)  # it may need the files of both
    assert [each["name"] for each in as_reader["lakes"]] == ["a-both", "b-secret"]
    admin.add_rule("deny", alice, "read", f"topic:{mine}")
    admin.add_rule("allow", alice, "write", f"topic:{mine}")
    as_writer = raw.act("describe-topic", topic=mine)
    assert [each["name"] for each in as_writer["lakes"]] == ["a-both"]
    assert "b-secret" not in str(as_writer)
    errors = []
    for name in ("b-secret", "b-none"):
        for call, more in (
            ("describe-lake", {}),
            ("drop-lake", {"lake_id": secret.id}),
            ("alter-lake", {"lake_id": secret.id, "freshness_ms": 1_000}),
            ("record-lake-progress", {"lake_id": secret.id, "tiered": {}}),
        ):
            with pytest.raises(IsologError) as caught:
                raw.act(call, lake=name, **more)
            errors.append((name, call, str(caught.value).replace(name, "NAME")))
    assert [each[1:] for each in errors[:4]] == [each[1:] for each in errors[4:]]
    for call, more in (
        ("drop-lake", {"lake_id": of_both.id}),
        ("alter-lake", {"lake_id": of_both.id, "topics": [mine]}),
        ("record-lake-progress", {"lake_id": of_both.id, "tiered": {ids[mine]: {0: 9}}}),
    ):
        with pytest.raises(PermissionDenied):
            raw.act(call, lake="a-both", **more)
    with pytest.raises(IsologError) as caught:
        raw.act(
            "create-lake",
            lake="a-mine",
            lake_id="x",
            topics=[hidden],
            location="/x",
            freshness_ms=1_000,
            file_bytes=1 << 20,
        )
    assert hidden not in str(caught.value).replace(f"topic:{hidden}", "")
    raw.close()
    with as_(asking, "root") as log:
        assert [each.tiered for each in log.describe_lake("a-both").topics] == [{0: 4}, {0: 3}]
        for name in ("a-both", "b-secret"):
            log.drop_lake(name)
