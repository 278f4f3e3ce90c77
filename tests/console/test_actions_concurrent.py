"""Each action of the console in parallel, with exactly its permissions, and during a crash."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient

import isolog
from spark_stream.console import sessions
from tests.console.test_actions import apply, done, plan
from tests.console.test_app_api import console_of, log_in
from tests.secure_brokers import PASSWORD, asking_broker, client_of
from tests.support import NUMBERS, BrokerProcess, numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Case(NamedTuple):
    """An action on topic ``t``, its permissions, and a state with its value after the action."""

    parameters: dict[str, Any]
    rules: list[tuple[str, str]]
    state: Callable[[isolog.Log, str], Any]
    after: Any


def start(log: isolog.Log, topic: str) -> Any:
    return log.describe(topic).partitions[0].log_start_offset


def position(log: isolog.Log, topic: str) -> Any:
    return log.describe_consumer(f"c-{topic}")[0].partitions[0].offset


CASES = {
    "create-topic": Case(
        {"topic": "TOPIC-new"},
        [("create", "topic:TOPIC-new")],
        lambda log, topic: f"{topic}-new" in log.topics(),
        True,
    ),
    "alter-topic": Case(
        {"topic": "TOPIC", "partitions": 3, "columns": "remark string"},
        [("alter", "topic:TOPIC")],
        lambda log, topic: (len((found := log.describe(topic)).partitions), found.schema.names),
        (3, ["n", "remark"]),
    ),
    "trim-topic": Case({"topic": "TOPIC", "before": "4"}, [("delete", "topic:TOPIC")], start, 4),
    "delete-topic": Case(
        {"topic": "TOPIC"},
        [("delete", "topic:TOPIC")],
        lambda log, topic: topic in log.topics(),
        False,
    ),
    "reset-consumer": Case(
        {"consumer": "c-TOPIC", "to": "earliest"},
        [("read", "consumer:c-TOPIC"), ("read", "topic:TOPIC")],
        position,
        0,
    ),
    "abort-transaction": Case(
        {"transactional_id": "t-TOPIC"},
        [("delete", "transaction:t-TOPIC")],
        lambda log, topic: log.describe_transaction(f"t-{topic}").state,
        "aborted",
    ),
    "elect-preferred": Case(
        {"topic": "TOPIC"},
        [("admin", "cluster"), ("describe", "topic:TOPIC")],
        lambda log, topic: (found := log.describe(topic).partitions[0]).leader == found.replicas[0],
        True,
    ),
}


@contextlib.contextmanager
def prepared(log: isolog.Log, topic: str) -> Iterator[int]:
    """A topic with ten records, a consumer at 5, and an open transaction, whose number it is."""
    log.create_topic(topic, schema=NUMBERS)
    with log.producer() as producer:
        producer.append(topic, numbers(0, 10)).result()
    log.reset_consumer(f"c-{topic}", 5, topics=topic)
    owner = log.producer(transactional_id=f"t-{topic}", transaction_timeout_ms=900_000)
    owner.begin_transaction()
    owner.append(topic, numbers(10, 2))
    owner.flush()
    try:
        yield log.describe_transaction(f"t-{topic}").number
    finally:
        with contextlib.suppress(isolog.errors.IsologError):
            owner.close()


def parameters_of(case: Case, action: str, topic: str, number: int) -> dict[str, Any]:
    named = {
        name: value.replace("TOPIC", topic) if isinstance(value, str) else value
        for name, value in case.parameters.items()
    }
    return named | ({"number": number} if action == "abort-transaction" else {})


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with asking_broker(tmp_path_factory.mktemp("asking")) as broker:
        yield broker


@pytest.fixture(scope="module")
def root(asking: BrokerProcess) -> Iterator[isolog.Log]:
    with isolog.connect(asking.address, user="root", password=PASSWORD) as log:
        yield log


@pytest.fixture
def console(asking: BrokerProcess) -> Iterator[TestClient]:
    with console_of(asking, needs_login=True) as found:
        assert log_in(found, "root").status_code == 200
        yield found


@pytest.mark.quick("create-topic", "trim-topic", "abort-transaction")
@pytest.mark.parametrize("action", CASES)
def test_action_needs_no_other_permissions(asking, root, action):
    case, topic, user = CASES[action], f"may-{action}", f"user-{action}"
    with client_of(asking) as admin, prepared(root, topic) as number:
        admin.add_user(user, PASSWORD)
        for operation, resource in case.rules:
            admin.add_rule("allow", user, operation, resource.replace("TOPIC", topic))
        with console_of(asking, needs_login=True) as console:
            assert log_in(console, user).status_code == 200
            done(console, action, **parameters_of(case, action, topic, number))
        assert case.state(root, topic) == case.after


@pytest.mark.parametrize("action", CASES)
def test_one_plan_applied_twice_in_parallel_has_one_effect(console, root, action):
    case, topic = CASES[action], f"one-{action}"
    with prepared(root, topic) as number:
        planned = plan(console, action, **parameters_of(case, action, topic, number))
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: apply(console, planned), range(2)))
        assert sorted(each.status_code for each in answers) == [200, 400]
        assert case.state(root, topic) == case.after


@pytest.mark.parametrize("action", CASES)
def test_two_plans_applied_in_parallel_have_the_effect_of_one(console, root, action):
    """The other one has no effect, and gets an answer or a typed error."""
    case, topic = CASES[action], f"two-{action}"
    with prepared(root, topic) as number:
        parameters = parameters_of(case, action, topic, number)
        planned = [plan(console, action, **parameters) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda each: apply(console, each), planned))
        assert 200 in [each.status_code for each in answers]
        for each in answers:
            assert each.status_code == 200 or each.json()["error"]["code"] != "INTERNAL_ERROR"
        assert case.state(root, topic) == case.after


@pytest.mark.quick(
    "create-topic-0.008",
    "alter-topic-0.0",
    "trim-topic-0.0",
    "delete-topic-0.008",
    "reset-consumer-0.008",
    "abort-transaction-0.0",
    "elect-preferred-0.008",
)
@pytest.mark.parametrize("delay_s", [0.0, 0.008])
@pytest.mark.parametrize("action", CASES)
def test_broker_that_dies_during_an_action_leaves_all_of_it_or_none(crashing, action, delay_s):
    """The answer is true: applied, not applied, or unknown. Afterwards the action can be done."""
    broker, console, log = crashing
    case, topic = CASES[action], f"crash-{action}-{round(1000 * delay_s)}"
    with prepared(log, topic) as number:
        before = case.state(log, topic)
        parameters = parameters_of(case, action, topic, number)
        planned = plan(console, action, **parameters)
        with ThreadPoolExecutor(1) as pool:
            applying = pool.submit(apply, console, planned)
            time.sleep(delay_s)
            broker.kill()
            answer = applying.result()
        broker.restart()
        now = case.state(log, topic)
        assert now in (before, case.after)
        if answer.status_code == 200:
            assert now == case.after
        elif answer.json()["error"]["details"]["applied"] == "no":
            assert now == before
        if now != case.after:
            done(console, action, **parameters)
            assert case.state(log, topic) == case.after


@pytest.fixture(scope="module")
def crashing(tmp_path_factory) -> Iterator[tuple[BrokerProcess, TestClient, isolog.Log]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "_TIMEOUT_S", 1.5)
        with (
            BrokerProcess(tmp_path_factory.mktemp("crashing") / "log") as broker,
            console_of(broker) as console,
            broker.connect(timeout=60) as log,
        ):
            yield broker, console, log
