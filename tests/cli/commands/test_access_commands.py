"""Users, tokens, rules and quotas by the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import spark_stream as isolog
from tests.asking import PASSWORD, asking_broker, client_of
from tests.cli.conftest import Call
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
