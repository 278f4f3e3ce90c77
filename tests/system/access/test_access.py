"""Authentication and permissions at a broker: actions, streams and Flight."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as fl
import pytest

import isolog
from isolog.errors import (
    BrokerUnavailable,
    InvalidRequest,
    IsologError,
    PermissionDenied,
    ProducerFenced,
    Unauthenticated,
    UnknownTopic,
    WrongCluster,
)
from spark_stream.cli.commands.consumers import show_consumers
from spark_stream.cli.commands.transactions import AgedTransaction, show_transactions
from spark_stream.cli.options import Listing
from spark_stream.client.connecting import link
from spark_stream.client.connecting.access import access_of
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.link import SharedChannel
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.wire.access_messages import Authenticate, Authenticated
from spark_stream.wire.cluster_messages import GetStatus
from spark_stream.wire.messages import ACT, APPEND, AUTHENTICATE, FETCH
from tests.secure_brokers import PASSWORD, admin, as_, asking, client_of
from tests.support import BrokerProcess, eventually, values

__all__ = ["admin", "asking"]


@pytest.fixture
def topic(asking: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic with one record."""
    name = f"topic-{abs(hash(request.node.name))}"
    with as_(asking, "root") as log:
        log.create_topic(name)
        with log.producer() as producer:
            producer.append(name, values("a"))
        yield name
        with contextlib.suppress(UnknownTopic):
            log.delete_topic(name)


# -- authentication --------------------------------------------------------------------------------


def test_connection_without_credential_is_refused(asking: BrokerProcess):
    with pytest.raises(Unauthenticated, match="requires authentication") as caught:
        isolog.connect(asking.address, timeout=10)
    assert "user" in caught.value.hint


@pytest.mark.parametrize("method", [ACT, APPEND, FETCH])
def test_unauthenticated_caller_cannot_open_a_stream(asking: BrokerProcess, method: str):
    channel = ClientChannel(asking.address, timeout_s=20)
    with pytest.raises(TRANSPORT_ERRORS) as caught:
        channel.open(method, b"list-topics", b"{}").receive(20)
    assert isinstance(failure_of(caught.value, ""), Unauthenticated)
    channel.close()


def test_unauthenticated_caller_may_send_only_small_frames(asking: BrokerProcess):
    channel = ClientChannel(asking.address, timeout_s=20)
    with pytest.raises(TRANSPORT_ERRORS, match="at most 65536"):
        channel.call(AUTHENTICATE, b"", bytes(1 << 20), 20)
    channel.close()


@pytest.mark.parametrize(
    "credential",
    [
        {"user": "root", "password": "wrong password"},
        {"user": "nobody", "password": PASSWORD},
        {"token": "isolog_0123456789abcdef_xxxxxxxxxxxxxxxxxxxx"},
        {"token": "isologs_e30.e30"},
        {"token": "what"},
    ],
)
def test_wrong_credential_is_refused(asking: BrokerProcess, credential: dict[str, str]):
    with pytest.raises(Unauthenticated):
        isolog.connect(asking.address, timeout=10, **credential)


def test_wrong_passwords_are_throttled_for_their_user_only(asking: BrokerProcess, admin):
    admin.add_user("target", PASSWORD)
    for _ in range(8):
        with pytest.raises(Unauthenticated) as caught:
            isolog.connect(asking.address, user="target", password="wrong one", timeout=10)
    assert "too many wrong passwords" in caught.value.message
    with as_(asking, "root") as log:
        assert log.status().principal == "root"


def test_connection_cannot_change_its_principal(asking: BrokerProcess, admin):
    admin.add_user("alice", PASSWORD)
    channel = ClientChannel(asking.address, timeout_s=20)
    asked = Authenticate(user="alice", password=PASSWORD).to_bytes()
    channel.call(AUTHENTICATE, b"", asked, 20)
    with pytest.raises(TRANSPORT_ERRORS) as caught:
        channel.call(AUTHENTICATE, b"", Authenticate(user="root", password=PASSWORD).to_bytes(), 20)
    assert isinstance(failure_of(caught.value, ""), InvalidRequest)
    channel.close()


def test_principals_of_one_process_have_separate_connections(asking: BrokerProcess, admin, topic):
    admin.add_user("alice", PASSWORD)
    with as_(asking, "root") as root:
        with as_(asking, "alice") as alice:
            assert (root.status().principal, alice.status().principal) == ("root", "alice")
            assert alice.topics() == []
        assert topic in root.topics()


def test_token_file_is_read_for_each_connection(asking: BrokerProcess, admin, tmp_path: Path):
    file = tmp_path / "token"
    first = admin.create_token("root")
    file.write_text(first.token + "\n")
    with isolog.connect(asking.address, token_file=file, timeout=10) as log:
        assert log.status().principal == "root"
    admin.revoke_token(first.id)
    file.write_text(admin.create_token("root").token)
    with isolog.connect(asking.address, token_file=file, timeout=10) as log:
        assert log.status().principal == "root"


def test_password_is_compared_once_for_many_connections(
    asking: BrokerProcess, admin, monkeypatch: pytest.MonkeyPatch
):
    """A comparison takes a broker 60 ms. Later connections use the session that it returns."""
    sent = []
    authenticate = SharedChannel._authenticate

    def record(self: SharedChannel, credential: Authenticate, timeout_s: float) -> Authenticated:
        sent.append(credential.password is not None)
        return authenticate(self, credential, timeout_s)

    admin.add_user("carol", PASSWORD)
    monkeypatch.setattr(SharedChannel, "_authenticate", record)
    for _ in range(3):
        with as_(asking, "carol") as log:
            assert log.status().principal == "carol"
        gc.collect()  # closes the unreferenced connection
    assert sent == [True, False, False]


def test_changed_password_ends_open_connections_of_the_user(asking, admin, topic):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "read", f"topic:{topic}")
    with as_(asking, "alice") as alice:
        assert len(alice.read(topic)) == 1
        admin.change_password("alice", PASSWORD + "!")
        with pytest.raises(Unauthenticated):
            alice.read(topic)


# -- permissions -----------------------------------------------------------------------------------


@pytest.mark.quick("None-UnknownTopic", "read", "write")
@pytest.mark.parametrize(
    ("operation", "reads", "writes", "lists"),
    [
        (None, UnknownTopic, UnknownTopic, False),
        ("describe", PermissionDenied, PermissionDenied, True),
        ("read", None, PermissionDenied, True),
        ("write", PermissionDenied, None, True),
        ("all", None, None, True),
    ],
)
def test_rules_decide_who_may_read_and_write_a_topic(
    asking: BrokerProcess, admin, topic: str, operation, reads, writes, lists
):
    admin.add_user("alice", PASSWORD)
    if operation is not None:
        admin.add_rule("allow", "alice", operation, f"topic:{topic}")
    with as_(asking, "alice") as alice:
        assert (topic in alice.topics()) is lists
        assert outcome(lambda: alice.read(topic)) is reads
        with alice.producer() as producer:
            assert outcome(lambda: producer.append(topic, values("b")).result(20)) is writes
        assert outcome(lambda: alice.delete_topic(topic)) is (
            None if operation == "all" else reads if reads is UnknownTopic else PermissionDenied
        )


def outcome(act) -> type[IsologError] | None:
    try:
        act()
    except IsologError as error:
        return type(error)
    return None


def test_hidden_topic_gets_the_error_of_a_missing_topic(asking, admin, topic):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "read", "topic:mine*")
    with as_(asking, "alice") as alice:
        messages = set()
        for name in (topic, "no-such-topic"):
            with pytest.raises(UnknownTopic) as caught:
                alice.describe(name)
            messages.add(str(caught.value).replace(name, "X"))
        assert len(messages) == 1
        with pytest.raises(UnknownTopic) as caught:
            alice.describe("mine-" + topic)
        assert "meant" not in str(caught.value), "no other name is shown"


def test_pattern_matches_only_readable_topics(asking: BrokerProcess, admin, topic: str):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "describe", f"topic:{topic}")
    with as_(asking, "alice") as alice:
        with alice.consumer(re.compile(".*"), start="earliest") as consumer:
            assert consumer.position() == {}
        admin.add_rule("allow", "alice", "read", f"topic:{topic}")
        with alice.consumer(re.compile(".*"), start="earliest") as consumer:
            assert set(consumer.position()) == {(topic, 0)}


def test_changed_rule_ends_open_streams(asking: BrokerProcess, admin, topic: str):
    admin.add_user("alice", PASSWORD)
    for operation in ("read", "write"):
        admin.add_rule("allow", "alice", operation, f"topic:{topic}")
    with as_(asking, "alice") as alice, alice.consumer(topic, start="earliest") as consumer:
        assert len(consumer.poll(20)) == 1
        producer = alice.producer()
        producer.append(topic, values("b")).result(20)
        assert len(consumer.poll(20)) == 1
        admin.add_rule("deny", "alice", "all", f"topic:{topic}")
        with pytest.raises(PermissionDenied):  # not UnknownTopic: the stream has shown the topic
            consumer.poll(60)
        with pytest.raises((UnknownTopic, PermissionDenied)):
            producer.append(topic, values("c")).result(20)
        with contextlib.suppress(IsologError):
            producer.close()
    with as_(asking, "root") as root:
        assert root.read(topic)["value"].to_pylist() == [b"a", b"b"]


def test_token_is_limited_to_its_grants(asking: BrokerProcess, admin, topic: str):
    made = admin.create_token("root", grants=[("read", f"topic:{topic}")])
    with isolog.connect(asking.address, token=made.token, timeout=10) as log:
        assert len(log.read(topic)) == 1
        assert log.topics() == [topic]
        with pytest.raises(PermissionDenied):
            log.create_topic("another")
        with log.producer() as producer, pytest.raises(PermissionDenied):
            producer.append(topic, values("b")).result(20)
    with client_of(asking, token=made.token) as client:
        with pytest.raises(PermissionDenied, match="more than the one"):
            client.create_token(grants=[("write", f"topic:{topic}")])
        smaller = client.create_token()
        assert smaller.principal == "root"
    with isolog.connect(asking.address, token=smaller.token, timeout=10) as log:
        assert log.topics() == [topic], "its grants are at most those of its parent"
        admin.revoke_token(smaller.id)
        with pytest.raises(Unauthenticated, match="revoked"):
            log.topics()


def test_transactions_and_consumers_need_separate_permissions(asking, admin, topic):
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "all", f"topic:{topic}")
    with as_(asking, "alice") as alice:
        with pytest.raises(PermissionDenied, match="may not write transaction:load"):
            alice.producer(transactional_id="load").begin_transaction()
        with pytest.raises(PermissionDenied, match="consumer:mine"):
            alice.consumer(topic, name="mine")
        admin.add_rule("allow", "alice", "write", "transaction:load*")
        admin.add_rule("allow", "alice", "read", "consumer:mine")
        with (
            alice.consumer(topic, name="mine", start="earliest") as consumer,
            alice.producer(transactional_id="load") as producer,
        ):
            with producer.transaction():
                producer.append(topic, values("b"))
            consumer.poll(20)
            consumer.commit()
        assert [each.transactional_id for each in alice.transactions()] == ["load"]
        assert [each.name for each in alice.consumers()] == ["mine"]
        admin.add_user("bob", PASSWORD)
        with as_(asking, "bob") as bob:
            assert (bob.transactions(), bob.consumers(), bob.topics()) == ([], [], [])


def test_transactional_id_belongs_to_its_first_principal(asking, admin, topic):
    """A takeover by another principal would fence the owner. Administrators may do it."""
    for name in ("alice", "bob"):
        admin.add_user(name, PASSWORD)
        admin.add_rule("allow", name, "write", f"topic:{topic}")
        admin.add_rule("allow", name, "write", "transaction:*")
    with as_(asking, "alice") as alice, as_(asking, "bob") as bob, as_(asking, "root") as root:
        mine = alice.producer(transactional_id="mine")
        with mine.transaction():
            mine.append(topic, values("b"))
        with pytest.raises(PermissionDenied, match="belongs to another principal"):
            bob.producer(transactional_id="mine").begin_transaction()
        with mine.transaction():
            mine.append(topic, values("c"))
        assert root.describe_transaction("mine").principal == "alice"
        root.producer(transactional_id="mine").begin_transaction()
        with pytest.raises(ProducerFenced), mine.transaction():
            mine.append(topic, values("d"))


def test_cluster_calls_need_an_administrator(asking: BrokerProcess, admin):
    admin.add_user("alice", PASSWORD)
    with (
        as_(asking, "alice") as alice,
        client_of(asking, user="alice", password=PASSWORD) as client,
    ):
        status = alice.status()
        assert (status.directory, status.pid, status.topics) == ("", 0, 0)
        for act in (
            client.users,
            client.rules,
            lambda: client.add_user("eve", PASSWORD),
            lambda: client.add_rule("allow", "alice", "all", "topic:*"),
            lambda: client.create_token("root"),
            alice.cluster,
        ):
            with pytest.raises(PermissionDenied):
                act()
        admin.add_rule("allow", "alice", "admin", "cluster")
        assert client.users() == ["alice", "root"]


@pytest.mark.parametrize("name", ["alice", "o'neil; reboot"])
def test_hint_of_a_refusal_is_a_valid_shell_command(asking, admin, name: str):
    admin.add_user(name, PASSWORD)
    refused = pytest.raises(PermissionDenied, match="may not administer cluster")
    with client_of(asking, user=name, password=PASSWORD) as client, refused as caught:
        client.users()
    command = caught.value.hint.partition(": ")[2]
    assert shlex.split(command) == ["isolog", "acl", "allow", name, "admin", "cluster"]


def test_permission_check_returns_the_matching_rules(admin):
    admin.add_rule("allow", "*", "read", "topic:logs*")
    admin.add_rule("deny", "eve", "read", "topic:logs-secret")
    said = admin.check("eve", "read", "topic:logs-secret")
    assert not said.is_allowed
    assert {rule.effect for rule in said.rules} == {"allow", "deny"}
    assert admin.check("eve", "read", "topic:logs-open").is_allowed
    assert admin.check("root", "delete", "topic:x").is_allowed


# -- Flight ----------------------------------------------------------------------------------------


def test_flight_requires_authentication_and_permissions(asking: BrokerProcess, admin, topic: str):
    admin.add_user("alice", PASSWORD)
    token = admin.create_token("root").token
    with as_(asking, "root") as log:
        where = log.status().flight
    basic = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    ticket = fl.Ticket(
        json.dumps({"ranges": [{"topic": topic, "partition": 0, "start": 0}]}).encode()
    )
    with fl.connect(f"grpc://{where}") as client:

        def options(header: str | None) -> fl.FlightCallOptions:
            headers = [] if header is None else [(b"authorization", header.encode())]
            return fl.FlightCallOptions(headers=headers, timeout=20)

        for header in (None, "Bearer wrong", "Basic !"):
            with pytest.raises(fl.FlightError):
                list(client.list_flights(options=options(header)))
        as_root, as_alice = options(f"Bearer {token}"), options(f"Basic {basic}")
        assert topic in [
            each.descriptor.path[0].decode() for each in client.list_flights(options=as_root)
        ]
        assert list(client.list_flights(options=as_alice)) == []
        assert client.do_get(ticket, as_root).read_all().num_rows == 1
        with pytest.raises(fl.FlightError, match="there is no topic"):
            client.do_get(ticket, as_alice).read_all()
        where = fl.FlightDescriptor.for_path(topic, "0")
        writer, _ = client.do_put(where, values("b").schema, as_alice)
        with pytest.raises(fl.FlightError, match="there is no topic"):
            writer.close()
        with pytest.raises(fl.FlightError, match="PERMISSION_DENIED"):
            list(client.do_action(fl.Action("list-users", b"{}"), as_alice))


# -- the audit log ---------------------------------------------------------------------------------


def lines_of(broker: BrokerProcess) -> list[dict[str, str]]:
    text = (broker.directory / "audit.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_audit_log_records_refusals_and_administration(asking, admin, topic: str):
    before = len(lines_of(asking))
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "describe", f"topic:{topic}")
    with contextlib.suppress(Unauthenticated):
        isolog.connect(asking.address, user="alice", password="wrong one", timeout=10)
    with as_(asking, "alice") as alice, contextlib.suppress(IsologError):
        alice.read(topic)
    lines = lines_of(asking)[before:]
    found = [(each["principal"], each["action"], each["on"], each["outcome"]) for each in lines]
    rule = f"principal=alice effect=allow operation=describe resource=topic:{topic}"
    assert ("root", "put-user", "name=alice", "done") in found
    assert ("root", "add-rule", rule, "done") in found
    assert (None, "authenticate", "alice", "UNAUTHENTICATED") in found
    assert ("alice", "read", f"topic:{topic}", "PERMISSION_DENIED") in found
    assert all(each["from"].startswith("127.0.0.1:") for each in lines)


def test_logs_contain_no_secrets(asking: BrokerProcess, admin):
    token = admin.create_token("root").token
    said = asking.log_text() + (asking.directory / "audit.log").read_text()
    for secret in (PASSWORD, token, token[-16:]):
        assert secret not in said
    assert PASSWORD not in repr(Authenticate(user="u", password=PASSWORD))


def test_lists_show_principals_of_transactions_and_consumers(
    asking: BrokerProcess, admin, topic, capsys: pytest.CaptureFixture[str]
):
    admin.add_user("alice", PASSWORD)
    for rule in (
        ("read", f"topic:{topic}"),
        ("write", f"topic:{topic}"),
        ("write", "transaction:alices"),
        ("read", "consumer:alices"),
    ):
        admin.add_rule("allow", "alice", *rule)
    with as_(asking, "alice") as log:
        with log.producer(transactional_id="alices") as producer:
            producer.begin_transaction()
            producer.append(topic, values("b"))
            producer.commit_transaction()
        with log.consumer(topic, name="alices") as consumer:
            consumer.poll(20)
            consumer.commit()
    with as_(asking, "root") as log:
        found, consumers = log.transactions(), log.consumers()
    assert [each.principal for each in found if each.transactional_id == "alices"] == ["alice"]
    assert [each.principal for each in consumers if each.name == "alices"] == ["alice"]
    show_transactions([AgedTransaction.of(each, 0, None) for each in found], Listing.TABLE)
    show_consumers(consumers, 0, Listing.TABLE)
    assert capsys.readouterr().out.count("principal") == 2


def test_connection_renews_its_credential_and_retries_a_failure(
    asking: BrokerProcess, admin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Renewal is early here, and the former token is revoked instead of expiring."""
    file = tmp_path / "token"
    first, renewed = admin.create_token("root", lifetime_s=600.0), admin.create_token("root")
    file.write_text(first.token)
    monkeypatch.setattr(link, "_RENEWED_AT", 0.002)
    monkeypatch.setattr(link, "_RETRY_S", 0.2)
    authenticate, failures = SharedChannel._authenticate, [BrokerUnavailable("one failure")]
    sent: list[str | None] = []

    def fail_once(self: SharedChannel, credential: Authenticate, timeout_s: float) -> Authenticated:
        if failures and credential.token == renewed.token:
            raise failures.pop()
        answer = authenticate(self, credential, timeout_s)
        sent.append(credential.token)
        return answer

    monkeypatch.setattr(SharedChannel, "_authenticate", fail_once)
    with isolog.connect(asking.address, token_file=file, timeout=10) as log:
        assert log.status().principal == "root"
        assert set(sent) == {first.token}
        file.write_text(renewed.token)
        eventually(lambda: renewed.token in sent)
        assert not failures
        monkeypatch.setattr(
            SharedChannel, "_authenticate", lambda *_: pytest.fail("the credential was sent again")
        )
        admin.revoke_token(first.id)
        assert log.status().principal == "root"


def test_credential_is_not_sent_to_another_cluster(
    asking: BrokerProcess, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SharedChannel, "authenticate", lambda *_: pytest.fail("it was sent"))
    given = access_of({"user": "root", "password": PASSWORD}, {})
    connection = ClusterConnection(asking.address, access=given, cluster_id="another")
    with pytest.raises(WrongCluster):
        connection.call(GetStatus())
    connection.close()


def test_credential_has_no_effect_without_authentication(tmp_path: Path):
    with (
        BrokerProcess(tmp_path / "log") as broker,
        isolog.connect(broker.address, user="alice", password=PASSWORD, timeout=10) as log,
    ):
        assert log.status().principal == "anonymous"
