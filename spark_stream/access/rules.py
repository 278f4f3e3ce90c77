"""Rules, quotas, and the permissions that a request needs.

A rule allows or denies a principal an operation on a resource. Deny wins over allow, and operations
that no rule allows are denied. Read, write, alter, delete and admin imply describe, if they are
allowed and not denied. For the caller, a resource exists only if the caller may describe it: a rule
that denies describing a resource denies every other operation on it too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from spark_stream.errors import InvalidRequest
from spark_stream.structs import Struct

ANYBODY: Final = "*"
"""The principal of a rule for all authenticated callers."""
_PREFIX: Final = "*"


class Operation(StrEnum):
    """An operation on a resource."""

    READ = "read"
    WRITE = "write"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    DESCRIBE = "describe"
    ADMIN = "admin"


class Effect(StrEnum):
    """The effect of a rule."""

    ALLOW = "allow"
    DENY = "deny"


class ResourceKind(StrEnum):
    """The kinds of resources. There is only one ``cluster``, without a name."""

    TOPIC = "topic"
    CONSUMER = "consumer"
    TRANSACTION = "transaction"
    LAKE = "lake"
    CLUSTER = "cluster"


OPERATIONS: Final[Mapping[ResourceKind, tuple[Operation, ...]]] = {
    ResourceKind.TOPIC: tuple(each for each in Operation if each is not Operation.ADMIN),
    ResourceKind.CONSUMER: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
    ResourceKind.TRANSACTION: (Operation.WRITE, Operation.DELETE, Operation.DESCRIBE),
    ResourceKind.LAKE: (
        Operation.WRITE,
        Operation.CREATE,
        Operation.ALTER,
        Operation.DELETE,
        Operation.DESCRIBE,
    ),
    ResourceKind.CLUSTER: (Operation.DESCRIBE, Operation.ADMIN),
}
"""The operations that each kind of resource has."""


def check_operation(operation: Operation | None, kind: ResourceKind) -> None:
    """Check that a kind of resource has an operation. None stands for all of its operations.

    Raises:
        InvalidRequest: The kind lacks the operation, so a rule would have no effect.
    """
    known = OPERATIONS[kind]
    if operation is not None and operation not in known:
        raise InvalidRequest(
            f"there is no operation {operation.value!r} on a {kind.value}",
            hint=f"Take {', '.join(known)} or all.",
        )


class Resource(NamedTuple):
    """One resource."""

    kind: ResourceKind
    name: str = ""

    def __str__(self) -> str:
        is_cluster = self.kind is ResourceKind.CLUSTER
        return self.kind.value if is_cluster else f"{self.kind.value}:{self.name}"


THE_CLUSTER: Final = Resource(ResourceKind.CLUSTER)

Need = tuple[Operation, Resource]
"""An operation that a caller must be allowed, and its resource."""


class Pattern(NamedTuple):
    """The resources of a rule: one of them, or all whose name begins with ``name``."""

    kind: ResourceKind
    name: str = ""
    is_prefix: bool = False

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse ``topic:flights``, ``topic:logs-*`` (a prefix), ``topic:*`` or ``cluster``.

        Raises:
            InvalidRequest: The text is none of these.
        """
        kind, colon, name = text.partition(":")
        if kind == ResourceKind.CLUSTER and not colon:
            return cls(ResourceKind.CLUSTER)
        is_named = kind in set(ResourceKind) - {ResourceKind.CLUSTER}
        if not is_named or not name or _PREFIX in name[:-1]:
            raise InvalidRequest(
                f"{text!r} is not a resource",
                hint="A resource is topic:NAME, consumer:NAME, transaction:NAME, lake:NAME or"
                " cluster; a * at the end of a name stands for all names that begin so.",
            )
        if name.endswith(_PREFIX):
            return cls(ResourceKind(kind), name[:-1], is_prefix=True)
        return cls(ResourceKind(kind), name)

    def shared_with(self, other: Pattern) -> Pattern | None:
        """Return the pattern of the resources that fit both, or None if there are none."""
        if self.kind is not other.kind:
            return None
        longer, shorter = sorted((self, other), key=lambda each: len(each.name), reverse=True)
        if self.name == other.name:
            return shorter if longer.is_prefix else longer
        is_within = shorter.is_prefix and longer.name.startswith(shorter.name)
        return longer if is_within else None

    def __str__(self) -> str:
        return f"{Resource(self.kind, self.name)}{_PREFIX if self.is_prefix else ''}"


class Rule(msgspec.Struct, frozen=True):
    """One rule. ``operation`` None means all operations."""

    principal: str
    effect: Effect
    operation: Operation | None
    resources: Pattern

    def __str__(self) -> str:
        what = "all" if self.operation is None else self.operation
        return f"{self.effect} {self.principal} {what} {self.resources}"


_BIT: Final = {each: 1 << place for place, each in enumerate(Operation)}
_ALL: Final = sum(_BIT.values())
INCLUDING_DESCRIBE: Final = frozenset(Operation) - {Operation.CREATE}
"""The operations that imply *describe*."""
_DESCRIBING: Final = sum(_BIT[each] for each in INCLUDING_DESCRIBE)


class _Effects(msgspec.Struct):
    """The operations that rules on one pattern allow and deny, as bits."""

    allowed: int = 0
    denied: int = 0


class RuleSet:
    """Rules by principal and pattern: a decision looks only at those that fit."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._effects: dict[tuple[str, Pattern], _Effects] = defaultdict(_Effects)
        self._lengths: dict[tuple[str, ResourceKind], set[int]] = defaultdict(set)
        self._allowed: set[str] = set()
        for rule in rules:
            effects = self._effects[rule.principal, rule.resources]
            bits = _ALL if rule.operation is None else _BIT[rule.operation]
            if rule.effect is Effect.ALLOW:
                effects.allowed |= bits
                self._allowed.add(rule.principal)
            else:
                effects.denied |= bits
            if rule.resources.is_prefix:
                self._lengths[rule.principal, rule.resources.kind].add(len(rule.resources.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleSet) and self._effects == other._effects

    __hash__ = None  # type: ignore[assignment]

    def allows_anything(self, principal: str) -> bool:
        """Return whether a rule allows the principal anything."""
        return not self._allowed.isdisjoint((principal, ANYBODY))

    def allow(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Return whether the principal may do the operation on the resource."""
        kind, name = resource
        allowed = denied = 0
        for who in (principal, ANYBODY):
            lengths = self._lengths.get((who, kind), ())
            prefixes = [Pattern(kind, name[:each], True) for each in lengths if each <= len(name)]
            for pattern in (Pattern(kind, name), *prefixes):
                effects = self._effects.get((who, pattern))
                if effects is not None:
                    allowed |= effects.allowed
                    denied |= effects.denied
        bit = _BIT[operation]
        enough = _DESCRIBING if operation is Operation.DESCRIBE else bit
        return bool(allowed & ~denied & enough) and not denied & _BIT[Operation.DESCRIBE]

    def allow_any(self, principal: str, operation: Operation, among: Pattern) -> bool:
        """Return whether the principal may do the operation on at least one name of the pattern.

        It tries one name of each rule. If the rule has a prefix, no rule has exactly this name.
        """
        for who, pattern in self._effects:
            shared = pattern.shared_with(among) if who in (principal, ANYBODY) else None
            if shared is None:
                continue
            name = f"{shared.name}\0" if shared.is_prefix else shared.name
            if self.allow(principal, operation, Resource(shared.kind, name)):
                return True
        return False


RATE_MIN: Final = 1 << 10
RATE_MAX: Final = 1 << 50
Rate = Annotated[int, Meta(ge=RATE_MIN, le=RATE_MAX)]
"""Bytes per second."""


class Quota(Struct, omit_defaults=False):
    """The limits of a principal at each broker. None: no limit."""

    write_bytes_per_s: Rate | None = None
    read_bytes_per_s: Rate | None = None
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


Needs = Callable[[Any], Sequence[Need]]
"""A function of a request. It returns the permissions that the caller needs."""


class OnField(msgspec.Struct, frozen=True):
    """The need of an operation on the resource that a field of the request names."""

    operation: Operation
    kind: ResourceKind
    field: str

    def __call__(self, request: Any) -> Sequence[Need]:
        return [(self.operation, Resource(self.kind, getattr(request, self.field)))]


class OnCluster(msgspec.Struct, frozen=True):
    """The need of an operation on the cluster."""

    operation: Operation

    def __call__(self, request: Any) -> Sequence[Need]:
        return [(self.operation, THE_CLUSTER)]


def on_topic(operation: Operation) -> Needs:
    """Require the operation on the topic in the request's field ``topic``."""
    return OnField(operation, ResourceKind.TOPIC, "topic")


def on_transaction(operation: Operation) -> Needs:
    """Require the operation on the transactional id in the request's field ``transactional_id``."""
    return OnField(operation, ResourceKind.TRANSACTION, "transactional_id")


def on_consumer(operation: Operation) -> Needs:
    """Require the operation on the consumer in the request's field ``consumer``."""
    return OnField(operation, ResourceKind.CONSUMER, "consumer")


def on_lake(operation: Operation) -> Needs:
    """Require the operation on the lake in the request's field ``lake``."""
    return OnField(operation, ResourceKind.LAKE, "lake")


def on_cluster(operation: Operation) -> Needs:
    """Require the operation on the cluster."""
    return OnCluster(operation)


def to_read_topics(request: Any) -> Sequence[Need]:
    """Require *read* on the topic of each item of the request's ``topics``."""
    return [(Operation.READ, Resource(ResourceKind.TOPIC, each.topic)) for each in request.topics]


def to_store_positions(request: Any) -> Sequence[Need]:
    """Require *read* on each consumer whose position is stored, and on the topics."""
    names = {each.consumer for each in request.positions} | request.owners.keys()
    topics = {each.topic for each in request.positions}
    return [
        *((Operation.READ, Resource(ResourceKind.CONSUMER, name)) for name in sorted(names)),
        *_to_read(topics),
    ]


def to_join_group(request: Any) -> Sequence[Need]:
    """Require *read* on the group, and on the topics."""
    return [*on_consumer(Operation.READ)(request), *_to_read(request.topics)]


def to_create_lake(request: Any) -> Sequence[Need]:
    """Require *create* on the lake, and *read* on the topics."""
    return [*on_lake(Operation.CREATE)(request), *_to_read(request.topics)]


def to_alter_lake(request: Any) -> Sequence[Need]:
    """Require *alter* on the lake, and *read* on the topics that it is to have."""
    return [*on_lake(Operation.ALTER)(request), *_to_read(request.topics or ())]


def _to_read(topics: Iterable[str]) -> list[Need]:
    return [(Operation.READ, Resource(ResourceKind.TOPIC, name)) for name in sorted(set(topics))]


def to_commit(request: Any) -> Sequence[Need]:
    """Require *write* on the transactional id, and *read* on its consumers and their topics."""
    return [*on_transaction(Operation.WRITE)(request), *to_store_positions(request)]


def anybody(request: Any) -> Sequence[Need]:
    """Require only an authenticated caller. No rule protects the answer."""
    return ()


def described(request: Any) -> Sequence[Need]:
    """Require no permission. The handler omits resources that the caller may not describe."""
    return ()
