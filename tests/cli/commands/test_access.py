"""Users, tokens, rules and quotas by the command line, and their lists."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import isolog
from spark_stream.cluster.stores.sqlite import SqliteStore
from tests.cli.conftest import Call, Result, run
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with asking_broker(tmp_path_factory.mktemp("asking")) as broker:
        yield broker


@pytest.fixture(autouse=True)
def as_root(asking: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOLOG_BOOTSTRAP", asking.address)
    monkeypatch.setenv("ISOLOG_USER", "root")
    monkeypatch.setenv("ISOLOG_PASSWORD", PASSWORD)


def test_lists_show_control_characters_of_names_escaped(asking: BrokerProcess, call: Call):
    name = "eve\x1b[31m\x9b1m\nroot"
    with client_of(asking) as admin:
        admin.add_user(name, PASSWORD)
        admin.add_rule("allow", name, "all", "topic:*")
        admin.add_rule("allow", name, "all", "transaction:*")
        admin.add_rule("allow", name, "all", "consumer:*")
        admin.set_quota(name, connections=50)
        admin.create_token(name, grants=[("read", "consumer:\x1b]0;x\x07")])
    with isolog.connect(asking.address, user=name, password=PASSWORD, timeout=10) as log:
        log.create_topic("t")
        with log.producer(transactional_id=f"tx {name}") as producer:
            producer.begin_transaction()
            producer.abort_transaction()
        with log.consumer("t", name=f"c {name}") as consumer:
            consumer.poll(0)
            consumer.commit()
    for command in (
        ("user", "list"),
        ("acl", "list"),
        ("acl", "check", name, "read", "topic:t"),
        ("token", "list"),
        ("quota", "list"),
        ("transactions", "list"),
        ("transactions", "describe", f"tx {name}"),
        ("consumers", "list"),
        ("consumers", "describe", f"c {name}"),
    ):
        found = call(*command)
        assert found.code == 0, found.err
        shown = found.out.replace("\n", "")
        assert shown.isprintable(), command
        assert "eve\\x1b" in "".join(shown.replace("│", " ").split()), command


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("token", "create", "--for", "*"), "a token is for one principal"),
        (("token", "create", "--expires", "36501d"), "--expires is at most 36500d"),
        (("token", "create", "--expires", "9" * 30 + "d"), "--expires is at most 36500d"),
        (("token", "create", "--expires", "9" * 5000 + "d"), "--expires is at most 36500d"),
        (("token", "create", "--expires", "\u0663d"), "--expires takes a time"),
        (("token", "create", "--only", "admin topic:y"), "no operation 'admin' on a topic"),
        (("quota", "set", "alice", "--write", "\u0663MiB/s"), "--write takes a rate"),
        (("quota", "set", "alice", "--write", "10B/s"), "--write takes a rate from 1KiB/s to"),
        (("quota", "set", "alice", "--read", "0MiB/s"), "to 1048576GiB/s, not '0MiB/s'"),
        (("quota", "set", "alice", "--read", "1048577GiB"), "--read takes a rate from 1KiB/s"),
        (("acl", "allow", "x", "admin", "topic:y"), "no operation 'admin' on a topic"),
        (("acl", "deny", "x", "write", "consumer:y"), "no operation 'write' on a consumer"),
    ],
)
def test_ineffective_access_options_are_refused(
    call: Call, arguments: tuple[str, ...], problem: str
):
    refused = call(*arguments)
    assert refused.code in (1, 2)
    assert problem in refused.err
    assert "isolog_" not in refused.out


def test_each_change_prints_one_line_about_itself(asking: BrokerProcess, call: Call):
    """A new rule may have no effect, so its line is the rule."""
    with client_of(asking) as admin:
        admin.add_user("bo\x1bb", PASSWORD)
    changes = {
        ("acl", "deny", "bo\x1bb", "read", "topic:*"): "rule: deny bo\\x1bb read topic:*",
        ("acl", "allow", "bo\x1bb", "read", "topic:t"): "rule: allow bo\\x1bb read topic:t",
        ("acl", "remove", "deny", "bo\x1bb", "read", "topic:*"): "removed the rule",
        ("quota", "set", "bo\x1bb", "--connections", "5"): "set the quota of bo\\x1bb",
        ("quota", "remove", "bo\x1bb"): "removed the quota of bo\\x1bb",
        ("user", "remove", "bo\x1bb", "--yes"): "removed user bo\\x1bb",
    }
    for command, line in changes.items():
        found = call(*command)
        assert (found.code, found.out, found.err) == (0, "", f"{line}\n")
        if command[1] == "allow":
            assert call("acl", "check", *command[2:]).out.startswith("denied")
    refused = call("user", "remove", "root")
    assert (refused.code, "Give --yes" in refused.err) == (2, True)


@pytest.mark.parametrize("by", ["file", "standard input"])
def test_a_password_file_may_begin_with_a_byte_order_mark(
    asking: BrokerProcess, tmp_path: Path, by: str
):
    data = b"\xef\xbb\xbflong enough\r\nsecond line"
    (tmp_path / "password").write_bytes(data)
    file = str(tmp_path / "password") if by == "file" else "-"
    name = by.split()[0]
    added = run("user", "add", name, "--password-file", file, stdin=data)
    assert added.code == 0, added.err
    with isolog.connect(asking.address, user=name, password="long enough", timeout=10) as log:
        assert log.status().principal == name


@pytest.mark.parametrize("place", ["broker", "store"])
def test_adding_an_existing_user_may_keep_the_password(
    asking: BrokerProcess, tmp_path: Path, place: str
):
    (tmp_path / "old").write_text("long enough")
    (tmp_path / "new").write_text("another one")
    store = tmp_path / "metadata.sqlite"
    SqliteStore(store).close()
    where = [] if place == "broker" else ["--metadata", str(store)]

    def add(password: str, *more: str) -> Result:
        file = str(tmp_path / password)
        return run("user", "add", "twice", "--password-file", file, *where, *more)

    assert add("old", "--if-not-exists").code == 0
    refused = add("new")
    assert (refused.code, "user 'twice' exists already" in refused.err) == (1, True)
    kept = add("new", "--if-not-exists")
    assert (kept.code, kept.err) == (0, "user twice exists\n")
    if place == "broker":
        with isolog.connect(asking.address, user="twice", password="long enough") as log:
            assert log.status().principal == "twice"


@pytest.mark.parametrize("given", ["file", "standard input", "ISOLOG_NEW_PASSWORD", "own"])
def test_a_password_that_is_not_utf8_is_refused_without_showing_it(tmp_path: Path, given: str):
    secret = b"topsecret\xff1"
    (tmp_path / "password").write_bytes(secret)
    variables = {"LC_ALL": "C"}
    arguments = ["user", "add", "zoe"]
    if given == "file":
        arguments += ["--password-file", str(tmp_path / "password")]
    elif given == "standard input":
        arguments += ["--password-file", "-"]
    elif given == "own":
        variables["ISOLOG_PASSWORD"] = os.fsdecode(secret)
        variables["ISOLOG_NEW_PASSWORD"] = "long enough"
    else:
        variables[given] = os.fsdecode(secret)
    refused = run(*arguments, stdin=secret, **variables)
    assert refused.code == 2, refused.err
    assert "UTF-8" in refused.err
    for word in ("Traceback", "topsecret"):
        assert word not in refused.err


def test_quotas_are_set_listed_removed_and_their_delays_are_in_the_status(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISOLOG_USER", "root")
    monkeypatch.setenv("ISOLOG_PASSWORD", PASSWORD)
    with asking_broker(tmp_path, 'id = "1"\n') as broker, client_of(broker) as admin:
        monkeypatch.setenv("ISOLOG_BOOTSTRAP", broker.address)
        limits = ["--write", "8KiB/s", "--read", "10MiB", "--connections", "5"]
        assert call("quota", "set", "alice", *limits).code == 0
        assert call("quota", "set", "*", "--read", "3000B/s").code == 0
        listed = json.loads(call("quota", "list", "--output", "json").out)
        assert listed["alice"] == {
            "write_bytes_per_s": 8192,
            "read_bytes_per_s": 10 << 20,
            "connections": 5,
        }
        text = call("quota", "list").out
        for word in ("8KiB/s", "10MiB/s", "3000B/s"):
            assert word in text
        for bad in ("10", "10MB/s", "-1MiB/s", "fast"):
            refused = call("quota", "set", "alice", "--write", bad)
            assert refused.code == 2
            assert "--write takes a rate" in refused.err
        assert "delayed" not in call("cluster", "status").out

        admin.add_user("alice", PASSWORD)
        admin.add_rule("allow", "alice", "all", "topic:*")
        record = pa.record_batch({"value": pa.array([bytes(8192)], pa.binary())})
        with isolog.connect(broker.address, user="alice", password=PASSWORD) as alice:
            alice.create_topic("t")
            for _ in range(3):  # a stream starts when the debt of earlier writes is paid
                with alice.producer() as producer:
                    producer.append("t", record).result(30)
            shown = call("cluster", "status").out
            assert "delays by the quota of alice at broker 1: writes " in shown
            principals = json.loads(call("cluster", "status", "--output", "json").out)["principals"]
            assert principals["1"]["alice"]["connections"] == 1
            assert principals["1"]["alice"]["write_delayed_s"] > 0
        assert call("quota", "remove", "alice").code == 0
        assert call("quota", "remove", "alice").code == 1
