"""JSON Web Tokens: only those of the issuer, for this audience, that have not expired."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm

import isolog
from isolog.errors import BrokerBusy, InvalidConfig, IsologError, Unauthenticated
from spark_stream.broker.access.jwts import JwtIssuer, JwtSettings
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import CallFailed, failure_of
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.messages import AUTHENTICATE
from tests.clocks import FakeClock
from tests.secure_brokers import PASSWORD, asking_broker
from tests.support import eventually

ISSUER, AUDIENCE = "https://id.example.org", "isolog"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return jwks(tmp_path)


def jwks(folder: Path) -> Path:
    """Write the issuer's keys to a file."""
    found = json.loads(ECAlgorithm(ECAlgorithm.SHA256).to_jwk(KEY.public_key()))
    file = folder / "jwks.json"
    file.write_text(json.dumps({"keys": [found | {"kid": "k1", "use": "sig", "alg": "ES256"}]}))
    return file


def token(key: Any = KEY, algorithm: str = "ES256", kid: str = "k1", **claims: object) -> str:
    given = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600}
    given = {name: value for name, value in (given | claims).items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={"kid": kid})


def deep_header() -> str:
    """A token whose header is deeply nested, and cannot be decoded."""
    header = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 100_000).decode().rstrip("=")
    _, claims, signature = token().split(".")
    return f"{header}.{claims}.{signature}"


@pytest.fixture
def issuer(keys: Path) -> JwtIssuer:
    return JwtIssuer(JwtSettings(issuer=ISSUER, audience=AUDIENCE, keys=str(keys)))


def test_a_token_of_the_issuer_names_the_caller_and_its_expiry(issuer: JwtIssuer):
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
        (lambda: token(exp=str(int(time.time()) + 600)), "exp is not a number"),
        (lambda: token(exp=True), "xp"),
        (lambda: token(exp=float("inf")), "."),
        (lambda: token(exp=float("nan")), "."),
        (lambda: token(exp=10**400), "."),
        (lambda: token(exp=[[]]), "."),
        (lambda: token(iat="soon"), "iat"),
        (lambda: token(nbf=float("inf")), "."),
        (lambda: deep_header(), "."),
    ],
)
def test_another_token_is_refused(issuer: JwtIssuer, made, problem: str):
    with pytest.raises(Unauthenticated, match=problem):
        issuer.caller_of(made())


def test_a_token_signed_with_the_public_key_as_secret_is_refused(issuer: JwtIssuer):
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


# -- keys that are fetched -------------------------------------------------------------------------


class Fetches:
    """An issuer's address, with its answer, and the number of requests to it."""

    def __init__(self, issuer: JwtIssuer, keys: Path) -> None:
        self.count = 0
        self.answers = threading.Event()
        self.answers.set()
        self.is_up = True
        self._keys = json.loads(keys.read_text())
        issuer._client.fetch_data = self._fetch

    def _fetch(self) -> Any:
        self.count += 1
        assert self.answers.wait(30)
        if not self.is_up:
            raise jwt.PyJWKClientConnectionError("no answer")
        return self._keys


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def remote(clock: FakeClock) -> JwtIssuer:
    return JwtIssuer(
        JwtSettings(issuer=ISSUER, audience=AUDIENCE, keys="https://id.example.org/jwks"), clock
    )


@pytest.mark.rule("requests for the keys of an issuer of JWTs", "broker/access/jwts.py")
def test_after_a_failed_fetch_requests_to_the_issuer_pause(remote, keys, clock):
    fetches = Fetches(remote, keys)
    fetches.is_up = False
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="cannot fetch the issuer's keys"):
            remote.caller_of(token())
    assert fetches.count == 1
    assert not remote.needs_keys(token())
    fetches.is_up = True
    clock.pass_us(6_000_000)
    assert remote.needs_keys(token())
    assert remote.caller_of(token()).principal == "alice"


def test_unknown_keys_do_not_cause_a_fetch_each(remote, keys, clock):
    fetches = Fetches(remote, keys)
    for _ in range(3):
        with pytest.raises(Unauthenticated, match="no key 'k2'"):
            remote.caller_of(token(kid="k2"))
    for malformed in ("ey.ey.ey", "ey.e30.AA"):
        assert not remote.needs_keys(malformed)
    assert fetches.count == 1
    clock.pass_us(6_000_000)
    fetches._keys["keys"][0]["kid"] = "k2"  # the issuer has a new key
    assert remote.caller_of(token(kid="k2")).principal == "alice"
    clock.pass_us(301_000_000)
    fetches.is_up = False
    with pytest.raises(Unauthenticated, match="cannot fetch the issuer's keys"):
        remote.caller_of(token(kid="k2"))  # after the failure, the present keys are uncertain


def test_a_token_of_a_known_key_does_not_wait_for_a_fetch(remote, keys, clock):
    fetches = Fetches(remote, keys)
    remote.caller_of(token())
    clock.pass_us(6_000_000)
    fetches.answers.clear()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(remote.caller_of, token(kid="k2")) for _ in range(4)]
        eventually(lambda: fetches.count == 2)
        assert remote.caller_of(token()).principal == "alice"
        assert not any(each.done() for each in waiting)
        fetches.answers.set()
        for each in waiting:
            with pytest.raises(Unauthenticated, match="no key 'k2'"):
                each.result(30)
    assert fetches.count == 2


def test_callers_that_wait_for_an_issuer_delay_no_others(tmp_path: Path):
    """More JWTs wait than may. Passwords and tokens from the same host still succeed."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and answers none
        place = f"https://127.0.0.1:{silent.getsockname()[1]}/jwks"
        conf = f'jwt = {{ issuer = "{ISSUER}", audience = "{AUDIENCE}", keys = "{place}" }}\n'
        with asking_broker(tmp_path, conf) as broker, ThreadPoolExecutor(6) as threads:

            def ask(**credential: str) -> type[IsologError] | None:
                channel = ClientChannel(broker.address, timeout_s=20)
                try:
                    channel.call(AUTHENTICATE, b"", Authenticate(**credential).to_bytes(), 30)
                except CallFailed as error:
                    return type(failure_of(error, ""))
                finally:
                    channel.close()
                return None

            waiting = [threads.submit(ask, token=token(kid=f"k{each}")) for each in range(6)]
            eventually(lambda: sum(each.done() for each in waiting) == 2)
            assert ask(user="root", password=PASSWORD) is None
            assert ask(token="isolog_of_nobody") is Unauthenticated
            found = Counter(each.result(60) for each in waiting)
            assert found == {Unauthenticated: 4, BrokerBusy: 2}


@pytest.mark.parametrize("text", ["", "{}", '{"keys": []}', "not json"])
def test_a_file_without_keys_is_refused_at_the_start(tmp_path: Path, text: str):
    file = tmp_path / "jwks.json"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match="has no keys"):
        JwtIssuer(JwtSettings(issuer=ISSUER, audience=AUDIENCE, keys=str(file)))


def test_a_broker_accepts_tokens_of_its_issuer(tmp_path: Path, keys: Path):
    conf = f'jwt = {{ issuer = "{ISSUER}", audience = "{AUDIENCE}", keys = "{keys}" }}\n'
    with asking_broker(tmp_path, conf) as broker:
        with isolog.connect(broker.address, token=token(), timeout=10) as log:
            assert log.status().principal == "alice"
            assert log.topics() == []
        with isolog.connect(broker.address, token=token(sub="root"), timeout=10) as log:
            log.create_topic("t")
        with pytest.raises(Unauthenticated, match="expired"):
            isolog.connect(broker.address, token=token(exp=int(time.time()) - 99), timeout=10)
