"""Every request, by every caller, under any rules, compared with a model of the rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isolog.errors import IsologError, PermissionDenied, Unauthenticated, UnknownTopic
from spark_stream.access.callers import Caller, Grant, KnownBy
from spark_stream.access.rules import (
    ANYBODY,
    OPERATIONS,
    THE_CLUSTER,
    Effect,
    Need,
    Operation,
    Pattern,
    Resource,
    ResourceKind,
    Rule,
    RuleSet,
)
from spark_stream.broker.access.audit import Audit
from spark_stream.broker.access.authorizer import (
    AccessSettings,
    Authorizer,
    ConnectionIdentity,
    StreamPermit,
)
from spark_stream.cluster.access import TOKENS, Token, encode, rule_key
from spark_stream.cluster.view import ClusterView
from spark_stream.wire.calls import CALLS
from spark_stream.wire.consumer_messages import JoinGroup
from spark_stream.wire.lake_messages import AlterLake, CreateLake
from spark_stream.wire.messages import Message
from spark_stream.wire.stream_messages import AppendTo, Fetch, FetchRange
from tests.clocks import FakeClock
from tests.simulation.store import MemoryRecords, MemoryStore

NAMES = ("a", "ab", "b")
SUPER = "root"
LIFE_MS = 1_000

# -- requests: one of each call, with names of resources in it ------------------------------------


def requests() -> Iterator[tuple[str, list[Need]]]:
    """(name, needs) of a request of every kind, for the resources named ``a`` or ``ab``."""
    for name, call in CALLS.items():
        for resource in ("a", "ab"):
            yield f"{name} {resource}", list(call.needs(_About(call, resource)))
    ranges = [FetchRange(topic=each, partition=0, start=0) for each in ("a", "b")]
    yield "fetch", list(Fetch(ranges=ranges).needs())
    yield "append", list(AppendTo(topic="a").needs())
    yield "append in a transaction", list(AppendTo(topic="a", transactional_id="ab").needs())


class _About:
    """A request of a kind, from which its permissions are looked up."""

    def __init__(self, kind: type[Message], name: str) -> None:
        fields = kind.__struct_fields__
        for each in ("topic", "transactional_id", "consumer", "lake"):
            if each in fields:
                setattr(self, each, name)
        topic = name if kind in (JoinGroup, AlterLake, CreateLake) else _Named(name)
        self.topics = [topic] if "topics" in fields else []
        self.positions = [_Named(name)] if "positions" in fields else []
        self.owners = {name: "instance"} if "owners" in fields else {}


class _Named:
    def __init__(self, name: str) -> None:
        self.topic = self.consumer = name


REQUESTS = dict(requests())
PERMISSIONS = {
    "create-topic": "create topic",
    "alter-topic": "alter topic",
    "delete-topic": "delete topic",
    "trim-topic": "delete topic",
    "describe-topic": "describe topic",
    "list-topics": "",
    "list-offsets": "",
    "find-leaders": "describe topic",
    "list-brokers": "",
    "locate-entries": "read topic",
    "describe-cluster": "describe cluster",
    "move-replicas": "admin cluster",
    "cancel-moves": "admin cluster",
    "elect-preferred": "admin cluster",
    "decommission": "admin cluster",
    "recommission": "admin cluster",
    "restore-metadata": "admin cluster",
    "status": "",
    "new-producer": "",
    "init-transactions": "write transaction",
    "begin-transaction": "write transaction",
    "open-branch": "write transaction",
    "renew-batch": "write transaction",
    "drop-branch": "write transaction",
    "settle-batch": "write transaction",
    "stop-run": "",
    "list-sinks": "",
    "delete-sink": "delete transaction",
    "renew-transaction": "write transaction",
    "commit-transaction": "write transaction, read consumer, read topic",
    "abort-transaction": "write transaction",
    "list-transactions": "",
    "describe-transaction": "describe transaction",
    "kill-transaction": "delete transaction",
    "take-consumer": "read consumer",
    "check-consumer": "read consumer",
    "consumer-position": "describe consumer",
    "commit-position": "read consumer, read topic",
    "join-group": "read consumer, read topic",
    "group-heartbeat": "read consumer",
    "leave-group": "read consumer",
    "take-partitions": "read consumer",
    "pin-start": "read consumer",
    "record-progress": "read consumer",
    "reader-heartbeat": "read consumer",
    "list-consumers": "",
    "delete-consumer": "delete consumer",
    "atomic-cut": "read topic",
    "put-user": "admin cluster",
    "delete-user": "admin cluster",
    "list-users": "admin cluster",
    "open-session": "",
    "create-token": "",
    "list-tokens": "",
    "revoke-token": "",
    "add-rule": "admin cluster",
    "remove-rule": "admin cluster",
    "list-rules": "admin cluster",
    "get-permissions": "",
    "check-access": "admin cluster",
    "set-quota": "admin cluster",
    "remove-quota": "admin cluster",
    "list-quotas": "admin cluster",
    "create-lake": "create lake, read topic",
    "alter-lake": "alter lake, read topic",
    "list-lakes": "",
    "describe-lake": "describe lake",
    "record-lake-progress": "write lake",
    "drop-lake": "delete lake",
    "fetch": "read topic, read topic",
    "append": "write topic",
    "append in a transaction": "write topic, write transaction",
}
"""The permissions that each request should need. Empty: a decision without rules."""


@pytest.mark.rule("the permission of each request", "access/rules.py")
def test_each_request_needs_its_permissions():
    found = {
        name.removesuffix(" a"): ", ".join(f"{operation} {on.kind}" for operation, on in needs)
        for name, needs in REQUESTS.items()
        if not name.endswith(" ab")
    }
    assert found == PERMISSIONS


def test_each_kind_of_resource_has_the_operations_that_requests_need():
    used: dict[ResourceKind, set[Operation]] = {each: set() for each in ResourceKind}
    for needs in REQUESTS.values():
        for operation, on in needs:
            used[on.kind].add(operation)
    assert {kind: set(operations) for kind, operations in OPERATIONS.items()} == used


# -- the model ------------------------------------------------------------------------------------


def says(rules: list[Rule], who: str, operation: Operation, on: Resource) -> bool:
    """The outcome of the rules for one need."""
    if operation == "describe":
        implying = ("read", "write", "alter", "delete", "admin")
        if any(says(rules, who, Operation(each), on) for each in implying):
            return True
    allowed = False
    for rule in rules:
        kind, name, is_prefix = rule.resources
        fits = on.name.startswith(name) if is_prefix else on.name == name
        if rule.principal not in (who, ANYBODY) or kind is not on.kind or not fits:
            continue
        same = rule.operation in (None, operation)
        if rule.effect is Effect.DENY and (same or rule.operation == "describe"):
            return False
        allowed = allowed or (rule.effect is Effect.ALLOW and same)
    return allowed


def expected(
    rules: list[Rule], grants: list[Rule] | None, who: str, needs: list[Need], known: bool
) -> type[IsologError] | None:
    """The caller's answer: None, or the class of the error."""

    def may(operation: Operation, on: Resource) -> bool:
        mine = who == SUPER or says(rules, who, operation, on)
        return mine and (grants is None or says(grants, ANYBODY, operation, on))

    if not known:
        return Unauthenticated
    for operation, on in needs:
        if not may(operation, on):
            hides = on.kind == "topic" and operation != "create"
            return UnknownTopic if hides and not may(Operation.DESCRIBE, on) else PermissionDenied
    return None


# -- the authorizer -------------------------------------------------------------------------------

PATTERNS = st.builds(
    Pattern,
    st.sampled_from([each for each in ResourceKind if each is not ResourceKind.CLUSTER]),
    st.sampled_from([*NAMES, ""]),
    st.booleans(),
) | st.just(Pattern(*THE_CLUSTER))
ANY_OPERATION = st.none() | st.sampled_from(Operation)
RULES_OF = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["alice", "bob", ANYBODY]),
        st.sampled_from(Effect),
        ANY_OPERATION,
        PATTERNS,
    ),
    max_size=10,
)
GRANTS = st.none() | st.lists(st.builds(Grant, ANY_OPERATION, PATTERNS), max_size=4).map(tuple)


@pytest.mark.rule("the authorization of requests", "broker/access/authorizer.py")
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    RULES_OF,
    GRANTS,
    st.sampled_from(["alice", "bob", "stranger", SUPER]),
    st.sampled_from(["valid", "expired", "revoked"]),
)
def test_the_authorizer_decides_as_the_model(rules, grants, who, state) -> None:
    store, clock = MemoryStore(MemoryRecords()), FakeClock()
    view = ClusterView(store)
    for rule in rules:
        if store.get(rule_key(rule)) is None:
            store.put(rule_key(rule), encode(rule), 0)
    now_ms = clock.wall_us() // 1000
    expires_ms = now_ms + (LIFE_MS if state != "expired" else -1)
    if state != "revoked":
        store.put(TOKENS + "id", encode(Token("id", who, "", now_ms, expires_ms, grants)), 0)
    view.refresh()
    authorizer = Authorizer(
        view, b"", clock, AccessSettings(True, frozenset([SUPER])), Audit(None, clock)
    )
    caller = authorizer._known(
        Caller(who, KnownBy.TOKEN, "id", grants=grants, expires_ms=expires_ms)
    )
    told = None
    if grants is not None:
        told = [Rule(ANYBODY, Effect.ALLOW, each.operation, each.resources) for each in grants]
    for name, needs in REQUESTS.items():
        found = None
        try:
            authorizer.check(caller, needs)
        except IsologError as error:
            found = type(error)
        assert found is expected(rules, told, who, needs, state == "valid"), name
    assert RuleSet(rules) == view.now.access.rule_set


class NeedsThatChange(list[Need]):
    """Needs of a stream. The first check of them is followed by a change of the rules."""

    change: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Need]:
        yield from super().__iter__()
        change, self.change = self.change, None
        if change is not None:
            change()


@pytest.mark.rule(
    "the end of a stream whose access rule was removed while it opened",
    "broker/access/authorizer.py",
)
@pytest.mark.parametrize("changes", ["rule", "token"])
def test_a_change_between_the_check_and_the_permit_ends_the_stream(changes: str):
    store, clock = MemoryStore(MemoryRecords()), FakeClock()
    view = ClusterView(store)
    rule = Rule("alice", Effect.ALLOW, Operation.READ, Pattern(ResourceKind.TOPIC, "a"))
    records = {rule_key(rule): encode(rule), TOKENS + "id": encode(Token("id", "alice", "", 0))}
    for key, value in records.items():
        store.put(key, value, 0)
    view.refresh()
    authorizer = Authorizer(view, b"", clock, AccessSettings(True), Audit(None, clock))
    identity = ConnectionIdentity("", Caller("alice", KnownBy.TOKEN, "id"))
    needs = NeedsThatChange([(Operation.READ, Resource(ResourceKind.TOPIC, "a"))])

    def change() -> None:
        key = rule_key(rule) if changes == "rule" else TOKENS + "id"
        found = store.get(key)
        assert found is not None
        store.delete(key, found.version)
        view.refresh()

    needs.change = change
    refusals: list[IsologError] = []
    permit = authorizer.admit(identity, needs, refusals.append)
    expected = PermissionDenied if changes == "rule" else Unauthenticated
    assert [type(each) for each in refusals] == [expected]
    authorizer.recheck()
    assert len(refusals) == 1
    assert permit.needs is needs


class PassingClock(FakeClock):
    """A clock that advances by 1 ms at each look."""

    def wall_us(self) -> int:
        self.pass_us(1_000)
        return super().wall_us()


def test_a_parent_token_without_an_end_is_valid_while_time_passes():
    store, clock = MemoryStore(MemoryRecords()), PassingClock()
    for each in (Token("id", "alice", "", 0), Token("child", "alice", "", 0, parent="id")):
        store.put(TOKENS + each.id, encode(each), 0)
    view = ClusterView(store)
    view.refresh()
    authorizer = Authorizer(view, b"", clock, AccessSettings(True), Audit(None, clock))
    assert authorizer.is_token_left("child")


def test_streams_open_and_end_while_rules_change():
    view = ClusterView(MemoryStore(MemoryRecords()))
    authorizer = Authorizer(view, b"", FakeClock(), AccessSettings(True), Audit(None, FakeClock()))
    identity = ConnectionIdentity("", Caller("alice", KnownBy.CERTIFICATE))
    kept: list[StreamPermit] = []
    stop = threading.Event()
    wrong: list[BaseException] = []

    def look() -> None:
        while not stop.is_set():
            try:
                authorizer.recheck()
            except RuntimeError as error:
                wrong.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(20_000):
        kept.append(authorizer.admit(identity, (), lambda _: None))
        if number % 100 == 0:
            del kept[:50]
    stop.set()
    thread.join()
    assert wrong == []
