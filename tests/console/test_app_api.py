"""The API of the console in this process, with a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

import isolog
from spark_stream.client.connecting.access import OPEN
from spark_stream.console.app import ConsoleSettings, create_app
from spark_stream.console.sessions import ConsoleSessions, LogLocation
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, eventually, log, numbers, shared, topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
__all__ = ["log", "shared", "topic"]

OWN = {"x-isolog-console": "1"}


def console_of(broker: BrokerProcess, **options: Any) -> TestClient:
    """An HTTP client of a console for a broker."""
    given = {name: options.pop(name) for name in ("idle_s", "now") if name in options}
    sessions = ConsoleSessions(
        LogLocation(broker.address, None, OPEN),
        needs_login=options.pop("needs_login", False),
        **given,
    )
    settings = ConsoleSettings(
        bootstrap=broker.address,
        hosts=["testserver"],
        **options,
    )
    return TestClient(create_app(sessions, settings), headers=OWN)


@pytest.fixture(scope="module")
def console(shared: BrokerProcess) -> Iterator[TestClient]:
    with console_of(shared) as found:
        yield found


@pytest.fixture
def mixed(log, topic) -> str:
    """A topic with records 0-9 committed, 10-11 aborted, 12-13 open, 14 without transaction."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer, log.producer(transactional_id=f"tx-{topic}") as owner:
        producer.append(topic, numbers(0, 10)).result()
        owner.begin_transaction()
        owner.append(topic, numbers(10, 2))
        owner.flush()
        owner.abort_transaction()
        owner.begin_transaction()
        owner.append(topic, numbers(12, 2))
        owner.flush()
        producer.append(topic, numbers(14, 1)).result()
        yield topic
        owner.abort_transaction()


def records(console: TestClient, topic: str, **query: Any) -> dict[str, Any]:
    answer = console.get("/api/records", params={"topic": topic} | query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def states(found: dict[str, Any]) -> dict[int, str]:
    return {
        row["offset"]: "held back" if row["held_back"] else row["state"] for row in found["rows"]
    }


def values(found: dict[str, Any]) -> list[int]:
    return [int(row["values"]["n"]) for row in found["rows"]]


@pytest.mark.rule("the state of a record in the console", "console/records.py")
def test_each_record_is_shown_with_its_state(console, mixed):
    found = records(console, mixed)
    assert states(found) == {
        **dict.fromkeys(range(10), "committed"),
        **dict.fromkeys((10, 11), "aborted"),
        **dict.fromkeys((12, 13), "open"),
        14: "held back",
    }
    assert values(found) == list(range(14, -1, -1))
    for level in ("read_committed", "read_atomic"):
        assert values(records(console, mixed, isolation=level)) == list(range(9, -1, -1))


def test_snippets_read_the_rows_of_the_page(console, shared, mixed):
    for query in (
        {"filter": "n in (0, 2, 4, 8)"},
        {"isolation": "read_atomic", "limit": 3},
        {"limit": 4},
    ):
        found = records(console, mixed, **query)
        known: dict[str, Any] = {}
        exec(found["python"], known)
        rows = known["rows"]
        assert rows["n"].to_pylist() == sorted(values(found))
        assert set(rows["_offset"].to_pylist()) == set(states(found))


def test_pages_cover_all_records_in_both_directions(console, mixed):
    seen, before = [], {}
    while True:
        found = records(console, mixed, limit=4, filter="n <> 5", **before)
        seen += values(found)
        place = found["ranges"]["0"]
        if place["start"] == place["least"]:
            break
        before = {"before": f"0:{place['start']}"}
    assert seen == [n for n in range(14, -1, -1) if n != 5]
    back, after = [], {"after": "0:0"}
    while True:
        found = records(console, mixed, limit=4, filter="n <> 5", **after)
        back = values(found) + back
        place = found["ranges"]["0"]
        if place["end"] == place["greatest"]:
            break
        after = {"after": f"0:{place['end']}"}
    assert back == seen


def test_a_page_of_several_partitions_has_no_more_records_than_its_limit(console, log, topic):
    log.create_topic(topic, schema=NUMBERS, partitions=3)
    with log.producer() as producer:
        for number in range(3):
            producer.append(topic, numbers(4 * number, 4), partition=number).result()
    for name, side, last in (("before", "start", "least"), ("after", "end", "greatest")):
        pages: list[list[int]] = []
        places = {"after": "0:0,1:0,2:0"} if name == "after" else {}
        ends: list[bool] = []
        while not all(ends) or not ends:
            found = records(console, topic, limit=4, **places)
            pages.append(values(found))
            ranges = found["ranges"].items()
            places = {name: ",".join(f"{number}:{each[side]}" for number, each in ranges)}
            ends = [each[side] == each[last] for _, each in ranges]
        assert len(pages[0]) == 4
        assert max(map(len, pages)) == 4
        assert sorted(each for shown in pages for each in shown) == list(range(12))


def test_a_page_has_the_records_of_a_time_range(console, log, topic):
    log.create_topic(topic)
    start = datetime(2024, 5, 1, tzinfo=UTC)
    with log.producer() as producer:
        for hour in range(6):
            at = start + timedelta(hours=hour)
            producer.send(topic, f"at {hour}", timestamp=at)
            producer.flush()
    found = records(console, topic, since="2024-05-01T01:00:00", until="2024-05-01T04:00:00")
    assert [row["values"]["value"] for row in found["rows"]] == ["at 3", "at 2", "at 1"]
    assert found["rows"][0]["timestamp"] == "2024-05-01T03:00:00Z"
    assert [each["name"] for each in found["columns"]] == ["key", "value", "headers"]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"topic": "nowhere"}, 404, "UNKNOWN_TOPIC"),
        ({"topic": ""}, 400, "INVALID_TOPIC"),
        ({"partition": "7"}, 404, "UNKNOWN_PARTITION"),
        ({"partition": "x"}, 400, "INVALID_OPTION"),
        ({"isolation": "serializable"}, 400, "INVALID_OPTION"),
        ({"filter": "n >"}, 400, "INVALID_FILTER"),
        ({"filter": "m > 1"}, 400, "INVALID_FILTER"),
        ({"since": "yesterday"}, 400, "INVALID_OPTION"),
        ({"before": "0-7"}, 400, "INVALID_OPTION"),
        ({"limit": "501"}, 400, "INVALID_OPTION"),
    ],
)
def test_invalid_page_requests_get_typed_errors(console, mixed, query, status, code):
    answer = console.get("/api/records", params={"topic": mixed} | query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["hint"]


def test_all_views_serve_the_page_with_security_headers(console):
    for path in ("/", "/topics", "/topics/a/0", "/static/main.js", "/api/session", "/api/nothing"):
        answer = console.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert '<script type="module"' in console.get("/topics/a/0").text
    assert console.get("/static/main.js").headers["content-type"].startswith("text/javascript")
    assert console.get("/static/../app.py").status_code in (200, 404)
    assert "create_app" not in console.get("/static/%2e%2e/app.py").text
    assert console.get("/api/nothing").status_code == 404
    assert console.get("/", headers={"host": "evil.example"}).status_code == 421


# -- logins ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A cluster with authentication, in which alice may read only ``seen``."""
    with asking_broker(tmp_path_factory.mktemp("asking")) as broker:
        with isolog.connect(broker.address, user="root", password=PASSWORD) as root:
            root.create_topic("seen", schema=NUMBERS)
            root.create_topic("hidden", schema=NUMBERS)
        with client_of(broker) as admin:
            admin.add_user("alice", PASSWORD)
            admin.add_rule("allow", "alice", "read", "topic:seen")
            admin.add_rule("allow", "alice", "describe", "topic:seen")
        yield broker


def log_in(console: TestClient, user: str = "alice", password: str = PASSWORD) -> Any:
    return console.post("/api/login", json={"user": user, "password": password})


@pytest.mark.rule("permissions of users in the console", "console/sessions.py", "console/app.py")
def test_user_sees_permitted_data_after_login(asking):
    with console_of(asking, needs_login=True, allows_changes=True) as console:
        for path in ("/api/records?topic=seen", "/api/stream?parts=topics"):
            assert console.get(path).status_code == 401
        for path in ("plan", "apply"):
            assert console.post(f"/api/{path}", json={}).status_code == 401
        assert console.get("/api/session").json()["is_open"] is False
        assert log_in(console, password="wrong").status_code == 401
        assert not console.cookies
        answer = log_in(console)
        assert answer.json() == {"principal": "alice"}
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert PASSWORD not in answer.headers["set-cookie"]
        assert console.get("/api/session").json()["principal"] == "alice"
        assert console.get("/api/records?topic=seen").status_code == 200
        assert console.get("/api/records?topic=hidden").status_code == 404
        token = console.cookies["isolog_console"]
        assert console.post("/api/logout").status_code == 200
        console.cookies.set("isolog_console", token)  # a stolen cookie
        assert console.get("/api/records?topic=seen").status_code == 401


@pytest.mark.parametrize("name", ["user", "password", "token"])
def test_a_login_with_half_a_character_is_an_error_of_the_request(asking, name):
    body = {"user": "alice", "password": PASSWORD} | {name: "\ud800"}
    with console_of(asking, needs_login=True) as console:
        answer = console.post("/api/login", content=json.dumps(body))
        assert answer.status_code == 400
        assert "Unicode" in answer.json()["error"]["message"]


def test_two_users_have_separate_sessions(asking):
    with console_of(asking, needs_login=True) as console:
        assert log_in(console).status_code == 200
        alice = console.cookies["isolog_console"]
        console.cookies.clear()
        assert log_in(console, "root").status_code == 200
        assert console.get("/api/records?topic=hidden").status_code == 200
        assert console.cookies["isolog_console"] != alice
        console.cookies.clear()
        console.cookies.set("isolog_console", alice)
        assert console.get("/api/records?topic=hidden").status_code == 404


def test_a_session_opened_with_a_token_ends_when_it_is_idle(asking):
    with client_of(asking) as admin:
        token = admin.create_token("root").token
    clock = [0.0]
    with console_of(asking, needs_login=True, idle_s=60.0, now=lambda: clock[0]) as console:
        assert console.post("/api/login", json={"token": token}).json() == {"principal": "root"}
        for _ in range(5):  # activity extends it
            clock[0] += 50.0
            assert console.post("/api/active").status_code == 200
        clock[0] += 50.0
        assert console.post("/api/permissions", json=[]).status_code == 200  # by an idle page
        clock[0] += 11.0
        assert console.post("/api/active").status_code == 401
        assert console.get("/api/session").json()["is_open"] is False


def test_deleted_user_is_logged_out(asking):
    with client_of(asking) as admin, console_of(asking, needs_login=True) as console:
        admin.add_user("bob", PASSWORD)
        admin.add_rule("allow", "bob", "all", "topic:seen")
        assert log_in(console, "bob").status_code == 200
        assert console.get("/api/records?topic=seen").status_code == 200
        admin.remove_user("bob")

        def is_out() -> bool:
            return console.get("/api/records?topic=seen").status_code == 401

        eventually(is_out)
        assert console.get("/api/session").json()["is_open"] is False
