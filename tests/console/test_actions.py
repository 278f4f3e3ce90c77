"""The actions of the console over HTTP, with real brokers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import isolog
from spark_stream.client.connecting.access import OPEN
from spark_stream.console import sessions
from spark_stream.console.actions import (
    AlterTopic,
    ElectPreferred,
    RemoveTopic,
    ResetConsumer,
    TrimTopic,
    parse_action,
)
from spark_stream.console.client import ConsoleClient
from spark_stream.console.sessions import LogLocation
from tests.console.test_app_api import console_of, log_in
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, eventually, log, numbers, shared, topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
__all__ = ["log", "shared", "topic"]


@pytest.fixture(scope="module")
def console(shared: BrokerProcess) -> Iterator[TestClient]:
    with console_of(shared) as found:
        yield found


@pytest.fixture(scope="module")
def client(shared: BrokerProcess) -> Iterator[ConsoleClient]:
    with contextlib.closing(LogLocation(shared.address, None, OPEN).connect(OPEN)) as found:
        yield found


def plan(console: TestClient, action: str, **parameters: Any) -> dict[str, Any]:
    answer = console.post("/api/plan", json={"action": action} | parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def apply(console: TestClient, planned: dict[str, Any]) -> Any:
    return console.post("/api/apply", json={"token": planned["token"]})


def permissions(console: TestClient, intents: list[dict[str, Any]]) -> list[str]:
    answer = console.post("/api/permissions", json=intents)
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["refusals"]
    return found


def done(console: TestClient, action: str, **parameters: Any) -> str:
    answer = apply(console, plan(console, action, **parameters))
    assert answer.status_code == 200, answer.text
    outcome: str = answer.json()["outcome"]
    return outcome


@pytest.fixture
def ten(log, topic) -> str:
    """A topic with ten records, five of which the consumer ``c-TOPIC`` has read."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10)).result()
    store_position(log, topic, 5)
    return topic


def store_position(log, topic: str, offset: int) -> None:
    log.reset_consumer(f"c-{topic}", offset, topics=topic)


def position(log, topic: str) -> int:
    [found] = log.describe_consumer(f"c-{topic}")
    offset: int = found.partitions[0].offset
    return offset


@pytest.mark.rule("a plan of the console is applied once", "console/actions.py")
def test_topic_is_created_altered_and_deleted(console, log, topic):
    settings = {"retention.ms": "3600000"}
    planned = plan(console, "create-topic", topic=topic, columns="n bigint", config=settings)
    assert topic not in log.topics()
    assert ["retention.ms", "3600000"] in planned["rows"]
    assert apply(console, planned).json()["outcome"] == f"Created topic {topic} with 1 partition."
    outcome = done(
        console,
        "alter-topic",
        topic=topic,
        partitions=3,
        columns="remark string",
        config={"compression": "zstd"},
    )
    assert outcome == f"Altered topic {topic}."
    found = log.describe(topic)
    assert (len(found.partitions), found.schema.names) == (3, ["n", "remark"])
    assert found.config["compression"] == "zstd"
    planned = plan(console, "delete-topic", topic=topic)
    assert planned["typed"] == topic
    assert apply(console, planned).json()["outcome"] == f"Deleted topic {topic}."
    assert topic not in log.topics()


def test_deletion_spares_a_later_topic_of_the_name(console, log, ten):
    planned = plan(console, "delete-topic", topic=ten)
    log.delete_topic(ten)
    log.create_topic(ten)
    answer = apply(console, planned)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "PLAN_CHANGED")
    assert ten in log.topics()
    assert apply(console, answer.json()["plan"]).status_code == 200
    assert ten not in log.topics()


@pytest.mark.parametrize(
    "action",
    [
        AlterTopic(topic="TOPIC", partitions=3),
        RemoveTopic(topic="TOPIC"),
        TrimTopic(topic="TOPIC", before="2"),
        ElectPreferred(topic="TOPIC"),
        ResetConsumer(consumer="c-TOPIC", to="earliest"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_action_applies_to_a_topic_created_again_after_the_last_check(client, log, ten, action):
    """The topic is replaced between the second plan and the calls."""
    given = json.loads(msgspec.json.encode(action).replace(b"TOPIC", ten.encode()))
    action = parse_action(json.dumps(given).encode())
    planned = action.plan(client)
    log.delete_topic(ten)
    log.create_topic(ten, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(ten, numbers(0, 10)).result()
    later = log.describe(ten)
    if isinstance(action, ElectPreferred):
        assert action.apply(client, planned) == "Changed the leader of 0 partitions."
    else:
        with pytest.raises(isolog.errors.IsologError, match=r"created again|was deleted"):
            action.apply(client, planned)
    assert log.describe(ten) == later


def test_trim_deletes_the_planned_records(console, log, ten):
    planned = plan(console, "trim-topic", topic=ten, before="4")
    assert planned["rows"] == [[0, 0, 4, 4]]
    assert planned["effect"].startswith("This deletes 4 records of topic")
    assert log.describe(ten).partitions[0].log_start_offset == 0
    assert apply(console, planned).status_code == 200
    assert log.describe(ten).partitions[0].log_start_offset == 4


@pytest.mark.parametrize(
    ("to", "after", "effect"),
    [
        ("earliest", 0, "5 records repeated"),
        ("latest", 10, "5 records skipped"),
        ("7", 7, "2 records skipped"),
        ("2000-01-01", 0, "5 records repeated"),
        ("5", 5, "unchanged"),
    ],
)
def test_reset_moves_the_position_after_a_plan(console, log, ten, to, after, effect):
    planned = plan(console, "reset-consumer", consumer=f"c-{ten}", to=to)
    assert planned["rows"] == [[ten, 0, 5, after, effect]]
    assert position(log, ten) == 5
    assert apply(console, planned).status_code == 200
    assert position(log, ten) == after


@pytest.mark.rule("a reset needs unmoved positions", "console/actions.py", "client/consumers.py")
def test_reset_is_not_applied_after_the_position_moved(console, log, ten):
    planned = plan(console, "reset-consumer", consumer=f"c-{ten}", to="earliest")
    store_position(log, ten, 8)
    answer = apply(console, planned)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "PLAN_CHANGED")
    assert answer.json()["plan"]["rows"] == [[ten, 0, 8, 0, "8 records repeated"]]
    assert position(log, ten) == 8
    assert apply(console, answer.json()["plan"]).status_code == 200
    assert position(log, ten) == 0


def test_reset_of_a_group_with_members_gets_the_brokers_error(console, log, topic):
    log.create_topic(topic)
    with log.producer() as producer:
        producer.send(topic, "hello").result()
    with log.consumer(topic, group=f"g-{topic}") as member:
        member.poll(10)
        request = {"action": "reset-consumer", "consumer": f"g-{topic}", "to": "earliest"}
        answer = console.post("/api/plan", json=request)
    assert answer.status_code == 400
    assert "group with members" in answer.json()["error"]["message"]


def test_two_parallel_applications_have_one_effect(console, topic):
    planned = plan(console, "create-topic", topic=topic)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: apply(console, planned), range(2)))
    assert sorted(each.status_code for each in answers) == [200, 400]
    [second] = [each.json()["error"] for each in answers if each.status_code == 400]
    assert second["message"] == "this plan is applied already, or unknown"


def test_a_plan_for_an_existing_topic_is_refused(console, log, topic):
    log.create_topic(topic)
    answer = console.post("/api/plan", json={"action": "create-topic", "topic": topic})
    assert answer.json()["error"]["code"] == "TOPIC_EXISTS"


def test_abort_applies_to_the_shown_transaction(console, log, ten):
    with log.producer(transactional_id=f"t-{ten}") as producer:
        producer.begin_transaction()
        producer.append(ten, numbers(10, 2))
        producer.flush()
        number = log.describe_transaction(f"t-{ten}").number
        asked = {"action": "abort-transaction", "transactional_id": f"t-{ten}"}
        other = console.post("/api/plan", json=asked | {"number": number + 1})
        assert other.json()["error"]["code"] == "INVALID_TRANSACTION"
        planned = plan(console, **asked, number=number)
        assert planned["rows"] == [[ten, 0, 2]]
        assert apply(console, planned).status_code == 200
        assert log.describe_transaction(f"t-{ten}").state == "aborted"
        with pytest.raises(isolog.errors.IsologError):
            producer.commit_transaction()


@pytest.mark.parametrize(
    ("action", "parameters", "effect"),
    [
        ("elect-preferred", {"topic": "TOPIC"}, "No leader changes. Each partition has its"),
        ("alter-topic", {"topic": "TOPIC", "partitions": 1}, "TOPIC stays as it is"),
        ("alter-topic", {"topic": "TOPIC", "config": {"compression": "none"}}, "stays as it is"),
        ("trim-topic", {"topic": "TOPIC", "before": "earliest"}, "Nothing is deleted."),
        ("reset-consumer", {"consumer": "c-TOPIC", "to": "5"}, "stay as they are."),
    ],
)
def test_plans_without_effect_have_no_button(console, ten, action, parameters, effect):
    named = json.loads(json.dumps(parameters).replace("TOPIC", ten))
    planned = plan(console, action, **named)
    assert (planned["button"], planned["typed"]) == ("", "")
    assert effect.replace("TOPIC", ten) in planned["effect"]


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        '{"action": "format-disk"}',
        '{"action": "delete-topic"}',
        '{"action": "delete-topic", "topic": 5}',
        '{"action": "trim-topic", "topic": "a", "before": "yesterday"}',
        '{"action": "alter-topic", "topic": "TOPIC"}',
        '{"action": "alter-topic", "topic": "TOPIC", "partitions": 0}',
        '{"action": "alter-topic", "topic": "TOPIC", "columns": "a int", "schema": "a int"}',
        '{"action": "create-topic", "topic": "a", "columns": "a strong"}',
        '{"action": "reset-consumer", "consumer": "c-TOPIC", "to": "0", "isolation": "x"}',
    ],
)
def test_invalid_actions_get_typed_errors(console, ten, body):
    answer = console.post("/api/plan", content=body.replace("TOPIC", ten))
    assert answer.status_code == 400
    assert answer.json()["error"]["hint"]


@pytest.mark.rule("changes that the console permits", "console/app.py")
def test_plans_need_the_consoles_page_and_a_console_with_changes(shared, console, ten):
    asked = {"action": "delete-topic", "topic": ten}
    planned = plan(console, **asked)
    foreign = {"origin": "http://evil.example"}
    for path, body in (("plan", asked), ("apply", {"token": planned["token"]})):
        answer = console.post(f"/api/{path}", json=body, headers=foreign)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "CROSS_SITE")
        sent = {name: value for name, value in console.headers.items() if "isolog" not in name}
        with TestClient(console.app, headers=sent) as bare:
            assert bare.post(f"/api/{path}", json=body).status_code == 403
    with console_of(shared, allows_changes=False) as other:
        for path in ("plan", "apply"):
            answer = other.post(f"/api/{path}", json=asked)
            assert answer.json()["error"]["code"] == "PERMISSION_DENIED"
        assert other.get("/api/session").json()["allows_changes"] is False


def test_broker_that_dies_after_the_plan_leaves_nothing_half_done(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_TIMEOUT_S", 1.5)
    with BrokerProcess(tmp_path / "log") as broker, console_of(broker) as console:
        with broker.connect() as log:
            log.create_topic("kept", schema=NUMBERS)
            with log.producer() as producer:
                producer.append("kept", numbers(0, 10)).result()
            store_position(log, "kept", 5)
        reset = plan(console, "reset-consumer", consumer="c-kept", to="earliest")
        removal = plan(console, "delete-topic", topic="kept")
        broker.kill()
        for each in (reset, removal):
            answer = apply(console, each)
            assert answer.status_code == 503
            assert answer.json()["error"]["details"]["applied"] == "no"
        broker.restart()
        with broker.connect() as log:
            assert position(log, "kept") == 5
            assert log.read("kept").num_rows == 10
        assert apply(console, reset).status_code == 400  # it was taken by the first attempt
        done(console, "reset-consumer", consumer="c-kept", to="earliest")


@pytest.mark.rule("permissions of users in the console", "console/sessions.py", "console/app.py")
def test_brokers_refuse_actions_without_permission_and_audit_others(tmp_path):
    with asking_broker(tmp_path) as broker, console_of(broker, needs_login=True) as console:
        with isolog.connect(broker.address, user="root", password=PASSWORD) as root:
            root.create_topic("seen", schema=NUMBERS)
        with client_of(broker) as admin:
            admin.add_user("alice", PASSWORD)
            for operation in ("describe", "read"):
                admin.add_rule("allow", "alice", operation, "topic:seen")
        assert log_in(console).status_code == 200
        intents = [
            {"action": "create-topic"},
            {"action": "alter-topic", "topic": "seen"},
            {"action": "trim-topic", "topic": "seen"},
            {"action": "reset-consumer", "consumer": "c"},
            {"action": "abort-transaction", "transactional_id": "t", "number": 3},
            {"action": "elect-preferred"},
        ]
        assert permissions(console, intents) == [
            "no permission to create any topic",
            "no permission to alter topic:seen",
            "no permission to delete topic:seen",
            "no permission to read consumer:c",
            "no permission to delete transaction:t",
            "no permission to administer the cluster",
        ]
        for action, parameters in (
            ("create-topic", {"topic": "new"}),
            ("alter-topic", {"topic": "seen", "partitions": 2}),
            ("delete-topic", {"topic": "seen"}),
            ("trim-topic", {"topic": "seen", "before": "latest"}),
            ("elect-preferred", {"topic": "seen"}),
            ("abort-transaction", {"transactional_id": "t", "number": 0}),
            ("reset-consumer", {"consumer": "c", "to": "earliest", "topics": ["seen"]}),
        ):
            answer = console.post("/api/plan", json={"action": action} | parameters)
            if answer.status_code == 200:
                answer = apply(console, answer.json())
            assert answer.status_code == 403, (action, answer.text)
            assert answer.json()["error"]["message"].startswith("no permission to")
        with client_of(broker) as admin:
            admin.add_rule("allow", "alice", "delete", "topic:seen")
            admin.add_rule("allow", "alice", "create", "topic:alice-*")
        eventually(lambda: permissions(console, intents)[0] == "")
        assert permissions(console, intents)[1:3] == ["no permission to alter topic:seen", ""]
        done(console, "delete-topic", topic="seen")
        lines = (broker.directory / "audit.log").read_text().splitlines()
        acts = [json.loads(each) for each in lines if '"delete-topic"' in each]
        assert ("alice", "done") in [(each["principal"], each["outcome"]) for each in acts]
