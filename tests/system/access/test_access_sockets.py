"""Each message of each kind of caller, over real sockets with TLS, against the model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from isolog.errors import (
    InvalidRequest,
    IsologError,
    PermissionDenied,
    Unauthenticated,
    UnknownTopic,
)
from spark_stream.access.rules import Effect, Need, Operation, Pattern, Rule
from spark_stream.client.administration import AccessClient
from spark_stream.schema.schemas import DEFAULT_SCHEMA
from spark_stream.transport.client import ClientChannel
from spark_stream.transport.streams import TRANSPORT_ERRORS, failure_of
from spark_stream.transport.tls import TlsFiles, client_context
from spark_stream.wire.access_messages import Authenticate
from spark_stream.wire.calls import CALLS
from spark_stream.wire.messages import (
    ACT,
    APPEND,
    AUTHENTICATE,
    FETCH,
    PEER_METHODS,
)
from spark_stream.wire.stream_messages import AppendTo, Fetch, FetchRange
from tests.broker.access.test_authorizer_model import expected
from tests.secure_brokers import PASSWORD, as_, asking_broker, client_of
from tests.support import BrokerProcess
from tests.system.access.test_tls import HERE, Files, conf_of, files

__all__ = ["files"]

SAMPLES: dict[str, Any] = {
    "after": -1,
    "assigned": [],
    "batch": 0,
    "before": {},
    "broker": "9",
    "branches": [],
    "brokers": [],
    "content": None,
    "effect": "allow",
    "entries": [],
    "epoch": 0,
    "file_bytes": 1 << 20,
    "freshness_ms": 1_000,
    "grants": [],
    "id": "0000",
    "instance": "instance",
    "isolation": "read_committed",
    "kind": "query",
    "lifetime_ms": 60_000,
    "member": "member",
    "moves": [],
    "name": "somebody",
    "number": 0,
    "offset": 0,
    "operation": "read",
    "owners": {},
    "partition": 0,
    "partitions": [0],
    "password": "long enough",
    "planned": 1,
    "positions": [],
    "principal": "somebody",
    "producer_id": 0,
    "query": "query",
    "quota": {},
    "resource": "topic:nothing",
    "resources": ["topic:nothing"],
    "run": "run",
    "runs": [{"indexes": [0, 1], "epoch": 0}],
    "selection": "topics",
    "session_ms": 1_000,
    "start": None,
    "starting": "",
    "timeout_ms": 1_000,
    "tiered": {},
    "token": "x",
    "topic_id": "x",
}
RULES = [
    ("reader", "read", "topic:a"),
    ("reader", "read", "consumer:a"),
    ("writer", "write", "topic:a"),
    ("writer", "write", "transaction:a"),
    ("other", "read", "topic:b"),
    ("other", "write", "topic:b"),
    ("other", "alter", "topic:b"),
]
MODEL = [
    Rule(who, Effect.ALLOW, Operation(what), Pattern.parse(where)) for who, what, where in RULES
]


class Request(NamedTuple):
    """A request about ``a`` or ``b``, and the permissions that it needs."""

    name: str
    method: str
    header: bytes
    body: bytes
    needs: Sequence[Need]


def requests() -> Iterator[Request]:
    for on in ("a", "b"):
        for name, call in CALLS.items():
            fields = msgspec.structs.fields(call)
            named = dict.fromkeys(("topic", "transactional_id", "consumer"), on)
            given = {
                each.encode_name: named.get(each.name, SAMPLES.get(each.name, "x"))
                for each in fields
                if each.required
            }
            if name == "atomic-cut" or name == "list-offsets":
                given["topics"] = [{"topic": on}]
            elif name in ("join-group", "create-lake"):
                given["topics"] = [on]
            elif name == "commit-position":
                given["owners"] = {on: "instance"}
            body = json.dumps(given).encode()
            needs = call.needs(call.from_bytes(body))
            yield Request(f"{name} {on}", ACT, name.encode(), body, needs)
        asked = Fetch(ranges=[FetchRange(topic=on, partition=0, start=0)])
        yield Request(f"fetch {on}", FETCH, b"", asked.to_bytes(), asked.needs())
        for owner in (None, on):
            to, schema = AppendTo(topic=on, transactional_id=owner), DEFAULT_SCHEMA.serialize()
            yield Request(f"append {on} {owner}", APPEND, to.to_bytes(), bytes(schema), to.needs())


REQUESTS = list(requests())


class Caller:
    """A connection to one of a broker's listeners.

    A caller without a credential connects again after ten requests: it may send few frames.
    """

    def __init__(self, address: str, tls: TlsFiles) -> None:
        self._address, self._tls = address, client_context(tls)
        self._is_known, self._requests = False, 0
        self._connect()

    def _connect(self) -> None:
        self._channel = ClientChannel(self._address, timeout_s=20, tls=self._tls)

    def outcome(
        self, method: str, header: bytes = b"", body: bytes = b""
    ) -> type[IsologError] | None:
        """Return the class of the error that ends the stream, or None."""
        self._requests += 1
        if not self._is_known and self._requests % 10 == 0:
            self.close()
            self._connect()
        try:
            stream = self._channel.open(method, header, body)
            if method == APPEND:
                stream.send(b"", end=True)
            stream.receive(20)
        except TRANSPORT_ERRORS as error:
            return type(failure_of(error, ""))
        return None

    def authenticate(self, **credential: str) -> type[IsologError] | None:
        found = self.outcome(AUTHENTICATE, b"", Authenticate(**credential).to_bytes())
        self._is_known = self._is_known or found is None
        return found

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def guarded(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with TLS and authentication at both listeners, topics ``a`` and ``b``, and rules."""
    pair = files.issue("guarded", *HERE, "1")
    conf = 'id = "1"\npeer_listen = "127.0.0.1:0"\n' + conf_of(pair, ca=str(pair.ca))
    conf += conf_of(pair, "peer_tls", ca=str(pair.ca))
    with asking_broker(tmp_path_factory.mktemp("guarded"), conf) as broker:
        trusting = {"user": "root", "password": PASSWORD, "tls.ca": files.ca}
        with client_of(broker, **trusting) as admin:
            for name in ("reader", "writer", "other"):
                admin.add_user(name, PASSWORD)
            for rule in RULES:
                admin.add_rule("allow", *rule)
        with as_(broker, "root", tls_ca=files.ca) as log:
            log.create_topic("a")
            log.create_topic("b")
        yield broker


ACCESS = (Unauthenticated, PermissionDenied, UnknownTopic)


@pytest.mark.parametrize("who", ["reader", "writer", "other", None])
def test_each_message_of_each_caller_gets_the_outcome_of_the_model(
    guarded: BrokerProcess, files: Files, who: str | None
):
    caller = Caller(guarded.address, TlsFiles(ca=files.ca))
    if who is not None:
        assert caller.authenticate(user=who, password=PASSWORD) is None
    for name, method, header, body, needs in REQUESTS:
        found = caller.outcome(method, header, body)
        told = expected(MODEL, None, who or "", list(needs), known=who is not None)
        assert (found if found in ACCESS else None) is told, (name, found, told)
    for method in PEER_METHODS:
        assert caller.outcome(method) in (InvalidRequest, Unauthenticated)
    caller.close()


def expiring(broker: BrokerProcess, tls: TlsFiles, admin: AccessClient) -> tuple[Caller, int]:
    """A caller that has authenticated with a token, and the time when the token expires.

    On a slow machine the token expires before it is used. The next one lasts twice as long.
    """
    lifetime_s = 1.0
    while True:
        caller, made = Caller(broker.address, tls), admin.create_token("root", lifetime_s)
        found = caller.authenticate(token=made.token)
        assert made.expires_ms is not None
        if found is None:
            return caller, made.expires_ms
        assert found is Unauthenticated
        assert time.time() * 1000 >= made.expires_ms, "a valid token was refused"
        caller.close()
        lifetime_s *= 2


def test_wrong_expired_or_revoked_credential_is_refused(guarded: BrokerProcess, files: Files):
    trusting = TlsFiles(ca=files.ca)
    wrong, revoked = (Caller(guarded.address, trusting) for _ in range(2))
    with client_of(guarded, user="root", password=PASSWORD, **{"tls.ca": files.ca}) as admin:
        expired, expires_ms = expiring(guarded, trusting, admin)
        long = admin.create_token("root")
        assert wrong.authenticate(user="root", password="wrong password") is Unauthenticated
        assert revoked.authenticate(token=long.token) is None
        assert revoked.outcome(ACT, b"list-topics", b"{}") is None
        admin.revoke_token(long.id)
        while time.time() * 1000 <= expires_ms:
            time.sleep(0.1)
    for caller in (wrong, expired, revoked):
        for name, method, header, body, _ in REQUESTS:
            assert caller.outcome(method, header, body) is Unauthenticated, name
        caller.close()
