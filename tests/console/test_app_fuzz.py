"""A fuzzer of the console's HTTP API: any input gets a typed error, and no handler raises.

``TestClient`` raises the exceptions of the application, so each of them fails a test.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.test_app_api import console_of
from tests.examples import examples
from tests.support import NUMBERS, BrokerProcess, numbers, shared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
__all__ = ["shared"]

SEEDS = examples(40)
REQUESTS = 25
DIGITS = "9" * 5000
TEXTS = [
    *("", "0", "1", "-1", "kept", DIGITS, "-" + DIGITS, "1" * 19, "0x1", "1e9", "NaN", "٣", "\0"),
    *("0:1", "0:-1", "1:0,0:0", ":", "0:" + DIGITS, f"{2**63}:1", f"0:{2**64}", "1:2:3"),
    *("0001-01-01", "9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+23:59", "now"),
    *("n > 0", "n > " + DIGITS, "(" * 3000, "read_committed", "read_atomic", "../x", "ü" * 300),
]
ACTIONS = ("create-topic", "trim-topic", "reset-consumer", "abort-transaction", "delete-topic")
QUERY = ("topic", "partition", "isolation", "filter", "since", "until", "before", "after", "limit")
QUERY += ("offset", "reached", "order", "column")
BODY = ("transactional_id", "user", "password", "token", "action", "topic", "before", "to")
PATHS = ("plan", "apply", "login", "logout", "active", "records", "x", "session")


@pytest.fixture(scope="module")
def console(shared: BrokerProcess) -> Iterator[TestClient]:
    with shared.connect() as log:
        if "kept" not in log.topics():
            log.create_topic("kept", schema=NUMBERS)
            with log.producer() as producer:
                producer.append("kept", numbers(0, 100), partition=0).result()
    with console_of(shared, allows_changes=True) as found:
        yield found


def body_of(chance: random.Random) -> bytes:
    """Return a body of JSON with odd values, deep nesting, or other bytes."""
    way = chance.randrange(6)
    if way == 0:
        return chance.choice([b"[", b'{"user":']) * 8000
    if way == 1:
        return chance.randbytes(chance.randrange(20))
    value: dict[str, Any] = {"action": chance.choice(ACTIONS)} if way > 3 else {}
    value |= {name: chance.choice(TEXTS) for name in BODY if chance.random() < 0.7}
    if way == 2:
        value[chance.choice(BODY)] = chance.choice([None, 1, [], {}, 1.5, True, 10**400])
    return json.dumps(value).encode()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_request_gets_a_typed_error(console: TestClient, seed: int) -> None:
    chance = random.Random(f"console {seed}")
    for _ in range(REQUESTS):
        query = {name: chance.choice(TEXTS) for name in QUERY if chance.random() < 0.4}
        query["topic"] = chance.choice(["kept", "kept", query.get("topic", "kept")])
        if chance.random() < 0.6:
            path = chance.choice(["records", "records", "record"])
            answer = console.get(f"/api/{path}", params=query)
        else:
            path = chance.choice(PATHS)
            headers = {"cookie": chance.choice(["a=b", "isolog_console=" + DIGITS, ';;="', ""])}
            answer = console.post(f"/api/{path}", content=body_of(chance), headers=headers)
        sent = (answer.request.url, answer.request.content)
        assert answer.status_code < 500 or answer.status_code == 503, (sent, answer.text)
        if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
            assert answer.json()["error"]["code"] != "INTERNAL", (sent, answer.text)
