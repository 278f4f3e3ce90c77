"""JSON Web Tokens: only those of the issuer, for this audience, that have not expired."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm

import spark_stream as isolog
from spark_stream.broker.access.jwts import JwtIssuer, JwtSettings
from spark_stream.errors import InvalidConfig, Unauthenticated
from tests.asking import asking_broker

ISSUER, AUDIENCE = "https://id.example.org", "isolog"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    found = json.loads(ECAlgorithm(ECAlgorithm.SHA256).to_jwk(KEY.public_key()))
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [found | {"kid": "k1", "use": "sig", "alg": "ES256"}]}))
    return file


def token(key: Any = KEY, algorithm: str = "ES256", kid: str = "k1", **claims: object) -> str:
    given = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    given = {name: value for name, value in (given | claims).items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={"kid": kid})


@pytest.fixture
def issuer(keys: Path) -> JwtIssuer:
    return JwtIssuer(JwtSettings(ISSUER, AUDIENCE, str(keys)))


def test_a_token_of_the_issuer_says_who_calls_and_until_when(issuer: JwtIssuer):
    caller = issuer.caller_of(token())
    assert caller.principal == "alice"
    assert caller.expires_ms is not None
    assert caller.expires_ms > time.time() * 1000


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: token(exp=int(time.time()) - 600), "expired"),
        (lambda: token(exp=None), "exp"),
        (lambda: token(iss="https://elsewhere"), "issuer"),
        (lambda: token(aud="another"), "udience"),
        (lambda: token(OTHER), "verification failed"),
        (lambda: token(kid="k2"), "no key 'k2'"),
        (lambda: token(sub=None), "no text in the claim"),
        (lambda: token(sub=7), "ubject must be"),
        (lambda: token("secret" * 8, "HS256"), "alg value is not allowed"),
        (lambda: token(None, "none"), "alg value is not allowed"),
        (lambda: token(rsa.generate_private_key(65537, 2048), "RS256"), "alg value is not allowed"),
        (lambda: "ey.ey.ey", "."),
    ],
)
def test_another_token_is_refused(issuer: JwtIssuer, made, problem: str):
    with pytest.raises(Unauthenticated, match=problem):
        issuer.caller_of(made())


def test_the_public_key_is_no_secret_to_sign_with(issuer: JwtIssuer):
    """A token that is signed with the public key's text, as if that were a shared secret."""
    public = KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _, claims, _ = token().split(".")
    forged = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').decode().rstrip("=")
    signed = hmac.new(public, f"{forged}.{claims}".encode(), hashlib.sha256).digest()
    signature = base64.urlsafe_b64encode(signed).decode().rstrip("=")
    with pytest.raises(Unauthenticated):
        issuer.caller_of(f"{forged}.{claims}.{signature}")


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', "not json"])
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, text: str):
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match="has no keys"):
        JwtIssuer(JwtSettings(ISSUER, AUDIENCE, str(file)))


def test_a_broker_takes_tokens_of_its_issuer(tmp_path: Path, keys: Path):
    conf = f'jwt = {{ issuer = "{ISSUER}", audience = "{AUDIENCE}", keys = "{keys}" }}\n'
    with asking_broker(tmp_path, conf) as broker:
        with isolog.connect(broker.address, token=token(), timeout=10) as log:
            assert log.status().principal == "alice"
            assert log.topics() == []
        with isolog.connect(broker.address, token=token(sub="root"), timeout=10) as log:
            log.create_topic("t")
        with pytest.raises(Unauthenticated, match="expired"):
            isolog.connect(broker.address, token=token(exp=int(time.time()) - 99), timeout=10)
