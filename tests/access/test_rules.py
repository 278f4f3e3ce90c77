"""Rules, against a model of them in twenty lines, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolog.errors import InvalidRequest
from spark_stream.access.callers import (
    Caller,
    Grant,
    KnownBy,
    intersection,
    is_covered,
    rules_of,
)
from spark_stream.access.rules import (
    ANYBODY,
    THE_CLUSTER,
    Effect,
    Operation,
    Pattern,
    Resource,
    ResourceKind,
    Rule,
    RuleSet,
    check_operation,
)

NAMES = ["a", "ab", "abc", "b", ""]
WHO = ["alice", "bob", ANYBODY]
DESCRIBING = {
    Operation.READ,
    Operation.WRITE,
    Operation.ALTER,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.ADMIN,
}


def patterns() -> st.SearchStrategy[Pattern]:
    named = st.builds(
        Pattern,
        st.sampled_from([ResourceKind.TOPIC, ResourceKind.CONSUMER]),
        st.sampled_from(NAMES),
        st.booleans(),
    )
    return named | st.just(Pattern(ResourceKind.CLUSTER))


RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(WHO),
        st.sampled_from(Effect),
        st.none() | st.sampled_from(Operation),
        patterns(),
    ),
    max_size=12,
)


def decides(rules: Sequence[Rule], who: str, operation: Operation, resource: Resource) -> bool:
    """Whether rules allow an operation by its own name: one rule after the other."""
    allowed = False
    for rule in rules:
        kind, name, is_prefix = rule.resources
        speaks = rule.principal in (who, ANYBODY) and kind is resource.kind
        speaks = speaks and (resource.name.startswith(name) if is_prefix else resource.name == name)
        if not speaks:
            continue
        fits = rule.operation in (None, operation)
        if rule.effect is Effect.DENY and (fits or rule.operation is Operation.DESCRIBE):
            return False
        allowed = allowed or (rule.effect is Effect.ALLOW and fits)
    return allowed


def model(rules: Sequence[Rule], who: str, operation: Operation, resource: Resource) -> bool:
    """Whether rules allow an operation, or one that implies it."""
    implying = DESCRIBING if operation is Operation.DESCRIBE else {operation}
    return any(decides(rules, who, each, resource) for each in implying)


@pytest.mark.rule("authorization by rules: deny wins, and the default is deny", "access/rules.py")
@given(
    RULES,
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(Operation),
    st.builds(Resource, st.sampled_from(ResourceKind), st.sampled_from(NAMES)),
)
def test_rules_allow_what_the_model_allows(rules, who, operation, resource):
    assert RuleSet(rules).allow(who, operation, resource) == model(rules, who, operation, resource)


@given(
    RULES,
    st.sampled_from(Operation),
    st.sampled_from(["", "a", "ab", "b"]),
)
def test_a_prefix_is_allowed_if_one_of_its_names_is(rules, operation, prefix):
    """The names are those of the rules, and one beside each of them."""
    names = [name for each in NAMES for name in (each, f"{each}!") if name.startswith(prefix)]
    topics = [Resource(ResourceKind.TOPIC, each) for each in names]
    allowed = any(model(rules, "alice", operation, each) for each in topics)
    among = Pattern(ResourceKind.TOPIC, prefix, is_prefix=True)
    assert RuleSet(rules).allow_any("alice", operation, among) == allowed


@pytest.mark.rule("a denial of *describe* denies every operation on a resource", "access/rules.py")
@given(
    RULES,
    st.sampled_from(WHO),
    st.sampled_from(Operation),
    st.builds(Resource, st.sampled_from(ResourceKind), st.sampled_from(NAMES)),
)
def test_a_denial_of_describing_denies_everything(rules, who, operation, resource):
    pattern = Pattern(resource.kind, resource.name)
    denial = Rule(who, Effect.DENY, Operation.DESCRIBE, pattern)
    caller = "alice" if who == ANYBODY else who
    assert not RuleSet([*rules, denial]).allow(caller, operation, resource)


@given(
    RULES,
    st.sampled_from(sorted(DESCRIBING)),
    st.builds(Resource, st.sampled_from(ResourceKind), st.sampled_from(NAMES)),
)
def test_all_operations_except_create_imply_describe(rules, operation, resource):
    found = RuleSet(rules)
    if found.allow("alice", operation, resource):
        assert found.allow("alice", Operation.DESCRIBE, resource)


def test_an_administrator_of_the_cluster_may_describe_it():
    rules = RuleSet([Rule("alice", Effect.ALLOW, Operation.ADMIN, Pattern.parse("cluster"))])
    assert rules.allow("alice", Operation.DESCRIBE, THE_CLUSTER)


@pytest.mark.rule("the operations that imply *describe*", "access/rules.py")
@pytest.mark.parametrize("denied_by", ["the operation", "all", "a prefix", "everybody"])
@pytest.mark.parametrize("operation", sorted(DESCRIBING - {Operation.DESCRIBE}))
def test_an_operation_that_is_also_denied_does_not_imply_describe(operation, denied_by):
    """Deny wins over allow, and then no rule allows anything."""
    topic = Pattern(ResourceKind.TOPIC, "ab")
    resource = Resource(ResourceKind.TOPIC, "ab")
    allowing = Rule("alice", Effect.ALLOW, operation, topic)
    denied: Operation | None = None if denied_by == "all" else operation
    denying = Rule(
        ANYBODY if denied_by == "everybody" else "alice",
        Effect.DENY,
        denied,
        Pattern(ResourceKind.TOPIC, "a", True) if denied_by == "a prefix" else topic,
    )
    assert not RuleSet([allowing, denying]).allow("alice", Operation.DESCRIBE, resource)
    other = next(each for each in sorted(DESCRIBING) if each is not operation)
    both = RuleSet([allowing, denying, Rule("alice", Effect.ALLOW, other, topic)])
    assert both.allow("alice", Operation.DESCRIBE, resource) is (denied_by != "all")


@given(RULES, st.sampled_from(Operation), st.builds(Resource, st.sampled_from(ResourceKind)))
def test_operations_without_a_rule_are_denied(rules, operation, resource):
    denying = [rule for rule in rules if rule.effect is Effect.DENY]
    assert not RuleSet(denying).allow("alice", operation, resource)


PATTERNS = st.builds(Pattern, st.sampled_from(ResourceKind), st.sampled_from(NAMES), st.booleans())
GRANTS = st.lists(st.builds(Grant, st.none() | st.sampled_from(Operation), PATTERNS), max_size=4)


@pytest.mark.rule("the permissions of a token made with another token", "access/callers.py")
@given(
    GRANTS,
    GRANTS,
    st.sampled_from(Operation),
    st.builds(Resource, st.sampled_from(ResourceKind), st.sampled_from(NAMES)),
)
def test_the_intersection_of_two_tokens_allows_what_each_allows(one, other, operation, resource):
    def allows(grants) -> bool:
        return rules_of(tuple(grants)).allow(ANYBODY, operation, resource)

    assert allows(intersection(one, other)) == (allows(one) and allows(other))


@pytest.mark.rule("the common resources of two patterns", "access/rules.py")
@pytest.mark.parametrize("is_prefix", list(product([True, False], repeat=2)))
@pytest.mark.parametrize("names", list(product(NAMES, repeat=2)))
def test_two_patterns_share_the_names_that_fit_both(names, is_prefix):
    """For all pairs of names and prefixes, also a name and a prefix with the same text."""
    one, other = (Pattern(ResourceKind.TOPIC, *each) for each in zip(names, is_prefix, strict=True))

    def fitting(pattern: Pattern | None) -> set[str]:
        if pattern is None:
            return set()
        return {
            each
            for each in [*NAMES, "abcd", "ac", "bc", "c"]
            if each == pattern.name or (pattern.is_prefix and each.startswith(pattern.name))
        }

    shared = one.shared_with(other)
    assert fitting(shared) == fitting(one) & fitting(other)
    grant = Grant(None, one)
    made = intersection([grant], [Grant(None, other)])
    assert made == (() if shared is None else (Grant(None, shared),))
    assert is_covered(grant, [Grant(None, other)]) is (fitting(one) <= fitting(other))


def test_tokens_to_read_and_to_write_both_allow_to_describe():
    topic = Pattern(ResourceKind.TOPIC, "a")
    read, write, every = (Grant(each, topic) for each in (Operation.READ, Operation.WRITE, None))
    assert intersection([read], [write]) == (Grant(Operation.DESCRIBE, topic),)
    assert intersection([every], [write]) == (write,)
    assert intersection([Grant(Operation.CREATE, topic)], [write]) == ()
    assert not is_covered(read, [write])


@given(GRANTS, GRANTS)
def test_a_covered_grant_is_not_reduced(asked, held):
    if all(is_covered(each, held) for each in asked):
        assert set(intersection(asked, held)) >= set(asked)
    assert all(is_covered(each, asked) for each in asked)


def test_a_token_allows_the_intersection_of_its_grants_and_its_principals_rules():
    rules = RuleSet(
        [Rule("alice", Effect.ALLOW, Operation.READ, Pattern(ResourceKind.TOPIC, "a", True))]
    )
    grants = (
        Grant(None, Pattern(ResourceKind.TOPIC, "ab", True)),
        Grant(None, Pattern(ResourceKind.TOPIC, "b")),
    )
    caller = Caller("alice", KnownBy.TOKEN, "id", grants=grants)
    may = {
        name: caller.may(rules, Operation.READ, Resource(ResourceKind.TOPIC, name))
        for name in ("a", "ab", "b")
    }
    assert may == {"a": False, "ab": True, "b": False}
    admin = Caller("root", KnownBy.TOKEN, "id", is_super=True, grants=grants)
    assert admin.may(rules, Operation.DELETE, Resource(ResourceKind.TOPIC, "b"))
    assert not admin.may(rules, Operation.READ, Resource(ResourceKind.TOPIC, "c"))


@pytest.mark.parametrize(
    "text", ["topic:a", "topic:a*", "topic:*", "consumer:x.y", "transaction:load:1", "cluster"]
)
def test_a_resource_is_formatted_as_it_is_parsed(text: str):
    assert str(Pattern.parse(text)) == text


def test_an_operation_that_a_kind_of_resource_does_not_have_is_refused():
    check_operation(None, ResourceKind.CLUSTER)
    check_operation(Operation.READ, ResourceKind.TOPIC)
    with pytest.raises(InvalidRequest, match="there is no operation 'admin' on a topic") as caught:
        check_operation(Operation.ADMIN, ResourceKind.TOPIC)
    assert "read, write, create, alter, delete, describe or all" in caught.value.hint


def test_a_resource_is_formatted_as_plain_text():
    for text in ("cluster", "topic:a"):
        pattern = Pattern.parse(text)
        for made in (str(pattern), str(Resource(pattern.kind, pattern.name))):
            assert (type(made), made, repr(made)) == (str, text, f"'{text}'")


@pytest.mark.parametrize("text", ["", "topic", "topic:", "cluster:x", "queue:a", "topic:a*b", "*"])
def test_text_that_is_no_resource_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="is not a resource"):
        Pattern.parse(text)
