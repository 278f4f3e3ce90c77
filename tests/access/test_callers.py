"""Passwords, tokens and sessions: the stored form reveals none, and only the right one is
accepted."""

from __future__ import annotations

from msgspec.structs import replace

from spark_stream.access.callers import (
    NO_PASSWORD,
    Caller,
    Grant,
    KnownBy,
    hash_password,
    is_password,
    is_token,
    new_token,
    session_of,
    sign_session,
    token_digest,
    token_id_of,
)
from spark_stream.access.rules import Operation, Pattern, ResourceKind

KEY = b"k" * 32
CALLER = Caller(
    "alice",
    KnownBy.USER,
    "v1",
    grants=(Grant(Operation.READ, Pattern(ResourceKind.TOPIC, "a", True)),),
    expires_ms=1_000,
)


def test_no_other_text_is_accepted_as_the_password():
    kept = hash_password("correct horse")
    assert "correct" not in kept
    assert is_password("correct horse", kept)
    assert not is_password("correct horsf", kept)
    assert not is_password("", NO_PASSWORD)
    assert hash_password("correct horse") != kept, "salted"


def test_no_other_text_is_accepted_as_the_token():
    token_id, token = new_token()
    assert token_id_of(token) == token_id
    assert is_token(token, token_digest(token))
    assert not is_token(token[:-1], token_digest(token))
    assert token_id_of("password") == ""


def test_a_session_has_exactly_the_signed_statement():
    token = sign_session(CALLER, KEY)
    assert session_of(token, KEY) == replace(CALLER, is_session=True)
    assert session_of(token, b"j" * 32) is None
    other = sign_session(replace(CALLER, principal="root"), KEY)
    stated, _, _ = other.partition(".")
    _, _, signature = token.partition(".")
    assert session_of(f"{stated}.{signature}", KEY) is None
    for broken in (token[:-2], token + "A", token.replace(".", ""), "isologs_.", "isologs_é.é", ""):
        assert session_of(broken, KEY) is None
