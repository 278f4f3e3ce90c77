"""The sources of a client's access, and renewed authentication."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import isolog
from isolog.errors import InvalidOption, Unauthenticated, UnknownOutcome
from spark_stream.client.connecting import access as access_module
from spark_stream.client.connecting.access import (
    OPEN,
    Access,
    access_of,
    bootstrap_of_profile,
)
from spark_stream.transport.tls import TlsFiles
from spark_stream.wire.access_messages import Authenticate
from tests.secure_brokers import PASSWORD, admin, as_, asking
from tests.support import BrokerProcess, eventually, values

__all__ = ["admin", "asking"]


@pytest.fixture
def profile(tmp_path: Path) -> str:
    file = tmp_path / "profile.toml"
    file.write_text(
        'bootstrap = "h:1"\ntls.ca = "ca.pem"\nuser = "etl"\npassword = "of the profile"\n'
    )
    return str(file)


def test_options_override_the_environment_which_overrides_the_profile(profile: str):
    variables = {"ISOLOG_TLS_CA": "env.pem", "ISOLOG_TOKEN": "t", "ISOLOG_PROFILE": profile}
    assert access_of({}, {}) == OPEN
    assert access_of({}, variables) == Access(TlsFiles(ca="env.pem"), token="t")
    given = {"tls.ca": "mine.pem", "user": "u", "password": "p"}
    assert access_of(given, variables) == Access(TlsFiles(ca="mine.pem"), "u", "p")
    of_profile = access_of({"profile": profile}, {})
    assert of_profile == Access(TlsFiles(ca="ca.pem"), profile=profile)
    assert bootstrap_of_profile({"profile": profile}, {}) == "h:1"
    assert bootstrap_of_profile({}, {}) is None


def test_a_profile_is_read_again_for_each_connection(profile: str):
    access = access_of({"profile": profile}, {})
    found = access.credential()
    assert found is not None
    assert (found.user, found.password) == ("etl", "of the profile")
    Path(profile).write_text('token = "new"\n')
    found = access.credential()
    assert found is not None
    assert found.token == "new"


def test_tls_without_a_file_trusts_the_system():
    assert access_of({"tls": True}, {}) == Access(TlsFiles())
    assert access_of({"tls": "true"}, {}) == Access(TlsFiles())
    assert access_of({"tls": "false"}, {}) == OPEN


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"user": "u"}, "password is missing"),
        ({"password": "p"}, "user is missing"),
        ({"token": "t", "user": "u", "password": "p"}, "or token, or tokenFile"),
        ({"token": ""}, "token takes a text"),
        ({"tls": "yes"}, "tls is true or false"),
        ({"tls": "false", "tls.ca": "c"}, "tls is false"),
        ({"profile": "/nowhere"}, "profile: /nowhere: No such file"),
        ({"tls.ca": ""}, r"tls\.ca takes the path"),
        ({"user": "u", "password": "secret\udcff"}, "password is not valid UTF-8"),
        ({"user": "u\udcff", "password": "p"}, "user is not valid UTF-8"),
        ({"token": "secret\udcff"}, "token is not valid UTF-8"),
    ],
)
def test_an_invalid_access_option_is_refused(given: dict[str, str], problem: str):
    with pytest.raises(InvalidOption, match=problem) as caught:
        access_of(given, {})
    assert "secret" not in str(caught.value)


def test_a_token_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("\ufeffisolog_1_2\r\n")
    found = access_of({"tokenFile": str(file)}, {}).credential()
    assert found is not None
    assert found.token == "isolog_1_2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("usr = 'u'", "no option 'usr' \\(is 'user' meant"),
        ("user = 1", "user takes a text"),
        ("password = 'secret", "is not valid TOML"),
    ],
)
def test_the_error_of_a_profile_does_not_show_secrets(tmp_path: Path, text: str, problem: str):
    file = tmp_path / "profile.toml"
    file.write_text(text)
    with pytest.raises(InvalidOption, match=problem) as caught:
        access_of({"profile": str(file)}, {})
    assert "secret" not in str(caught.value)


def test_a_secret_is_not_printed():
    for access in (Access(user="u", password="hush"), Access(token="hush")):
        assert "hush" not in repr(access)
        assert "hush" not in repr(access.credential())


# -- a credential that changes while clients write and read ----------------------------------------


@pytest.fixture
def topic(asking: BrokerProcess, admin) -> Iterator[str]:
    """A topic that ``alice`` may write and read."""
    admin.add_user("alice", PASSWORD)
    admin.add_rule("allow", "alice", "all", "topic:lasting")
    with as_(asking, "root") as log:
        log.create_topic("lasting")
        yield "lasting"
        log.delete_topic("lasting")


def refusals(broker: BrokerProcess) -> int:
    """Return the number of credentials that the broker has refused."""
    file = broker.directory / "audit.log"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines]
    return sum(each["action"] == "authenticate" for each in found)


@pytest.mark.quick("profile", "tokenFile")
@pytest.mark.parametrize("kind", ["password", "profile", "tokenFile"])
def test_clients_continue_with_a_replaced_credential(
    asking: BrokerProcess, admin, topic: str, tmp_path: Path, kind: str
):
    """With an unchanged password, a password in a profile, or a token in a file."""
    file = tmp_path / "credential"
    before, after = admin.create_token("alice"), admin.create_token("alice")
    other = PASSWORD + "!"

    def in_profile(password: str) -> str:
        return f'user = "alice"\npassword = "{password}"\n'

    given = {
        "password": {"user": "alice", "password": PASSWORD},
        "profile": {"profile": str(file)},
        "tokenFile": {"token_file": str(file)},
    }[kind]
    file.write_text(before.token if kind == "tokenFile" else in_profile(PASSWORD))
    with (
        isolog.connect(asking.address, timeout=20, **given) as log,
        log.producer() as producer,
        log.consumer(topic, start="earliest") as consumer,
    ):
        producer.append(topic, values("a")).result(20)
        assert [each.value for each in consumer.poll(20)] == [b"a"]
        file.write_text(after.token if kind == "tokenFile" else in_profile(other))
        if kind == "tokenFile":
            admin.revoke_token(before.id)
        else:
            admin.change_password("alice", other if kind == "profile" else PASSWORD)
        with as_(asking, "root") as root, root.producer() as others:
            others.append(topic, values("b")).result(20)  # brokers apply the change after this time
        assert [each.value for each in consumer.poll(20)] == [b"b"]
        producer.append(topic, values("c")).result(20)
        assert [each.value for each in consumer.poll(20)] == [b"c"]


def test_clients_of_a_revoked_token_fail_after_one_retry(asking: BrokerProcess, admin, topic: str):
    token = admin.create_token("alice")
    with (
        isolog.connect(asking.address, token=token.token, timeout=20) as log,
        log.producer() as producer,
        log.consumer(topic, start="earliest") as consumer,
    ):
        producer.append(topic, values("a")).result(20)
        assert len(consumer.poll(20)) == 1
        before = refusals(asking)
        admin.revoke_token(token.id)
        with pytest.raises(Unauthenticated, match="revoked"):
            eventually(lambda: consumer.poll(1) is None, 20)
        assert refusals(asking) == before + 1
        with pytest.raises((Unauthenticated, UnknownOutcome), match="revoked"):
            producer.append(topic, values("b")).result(20)
        assert refusals(asking) == before + 2
    with as_(asking, "root") as root:
        assert root.read(topic).num_rows == 1


def test_a_wrong_password_is_sent_to_a_broker_once(asking: BrokerProcess):
    before = refusals(asking)
    with pytest.raises(Unauthenticated):
        isolog.connect(asking.address, user="root", password="wrong password", timeout=10)
    assert refusals(asking) == before + 1


@pytest.mark.parametrize("half", ["", 'user = "al'])
@pytest.mark.parametrize("option", ["profile", "tokenFile"])
def test_a_credential_file_that_is_being_written_is_read_again(tmp_path, monkeypatch, option, half):
    file = tmp_path / "credential"
    of_profile = option == "profile"
    access = Access(profile=str(file)) if of_profile else Access(token_file=str(file))
    file.write_text(half if of_profile else "")
    whole = 'user = "alice"\npassword = "p"\n' if of_profile else "secret"
    monkeypatch.setattr(access_module.time, "sleep", lambda _: file.write_text(whole))
    found = access.credential()
    assert found == (
        Authenticate(user="alice", password="p") if of_profile else Authenticate(token="secret")
    )
    monkeypatch.setattr(access_module.time, "sleep", lambda _: None)
    file.write_text("")
    with pytest.raises(InvalidOption, match=r"is empty|has no credential"):
        access.credential()
