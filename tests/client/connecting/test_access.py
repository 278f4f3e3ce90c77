"""Where a client's access comes from: the caller, the environment, a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_stream.client.connecting.access import (
    OPEN,
    Access,
    access_of,
    bootstrap_of_profile,
)
from spark_stream.errors import InvalidOption
from spark_stream.transport.tls import TlsFiles


@pytest.fixture
def profile(tmp_path: Path) -> str:
    file = tmp_path / "profile.toml"
    file.write_text(
        'bootstrap = "h:1"\ntls.ca = "ca.pem"\nuser = "etl"\npassword = "of the profile"\n'
    )
    return str(file)


def test_what_the_caller_says_wins_over_the_environment_and_that_over_the_profile(profile: str):
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
    ],
)
def test_what_is_not_taken_is_refused(given: dict[str, str], problem: str):
    with pytest.raises(InvalidOption, match=problem):
        access_of(given, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("usr = 'u'", "no option 'usr' \\(is 'user' meant"),
        ("user = 1", "user takes a text"),
        ("password = 'secret", "is not valid TOML"),
    ],
)
def test_a_wrong_profile_is_refused_without_its_secrets(tmp_path: Path, text: str, problem: str):
    file = tmp_path / "profile.toml"
    file.write_text(text)
    with pytest.raises(InvalidOption, match=problem) as caught:
        access_of({"profile": str(file)}, {})
    assert "secret" not in str(caught.value)


def test_a_secret_is_not_printed():
    for access in (Access(user="u", password="hush"), Access(token="hush")):
        assert "hush" not in repr(access)
        assert "hush" not in repr(access.credential())
