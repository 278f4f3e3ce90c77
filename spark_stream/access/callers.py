"""Who calls, how that is known, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct

from spark_stream.access.rules import (
    ANYBODY,
    INCLUDING_DESCRIBE,
    Effect,
    Operation,
    Pattern,
    Resource,
    Rule,
    RuleSet,
)


class KnownBy(StrEnum):
    """How a broker knows who calls."""

    SOCKET = "socket"
    """A Unix socket: only the owner of its file can connect."""
    OPEN = "open"
    """The broker does not ask who calls."""
    CERTIFICATE = "certificate"
    USER = "user"
    TOKEN = "token"
    JWT = "jwt"
    """A JSON Web Token: the issuer that the broker is configured with says who calls."""


class Grant(Struct, frozen=True):
    """What a token may be used for: an operation (None: all) on these resources."""

    operation: Operation | None
    resources: Pattern


class Caller(Struct, frozen=True):
    """A caller whose identity is known.

    ``source_id``: the version of the user's password, or the id of the token. ``is_super``: whether
    the caller may do everything. ``grants``: what the token is limited to, or None if it is good
    for all that the principal may do. ``address``: where the call comes from. ``expires_ms``: when
    the identity expires, on the wall clock; None if never. ``is_session``: it has shown a session
    that a broker has signed.
    """

    principal: str
    source: KnownBy
    source_id: str = ""
    is_super: bool = False
    grants: tuple[Grant, ...] | None = None
    expires_ms: int | None = None
    address: str = ""
    is_session: bool = False
    granted: RuleSet | None = None
    """The grants as rules, once the broker knows the caller."""

    def may(self, rules: RuleSet, operation: Operation, resource: Resource) -> bool:
        """Return whether the rules, and the caller's token, allow this."""
        if not (self.is_super or rules.allow(self.principal, operation, resource)):
            return False
        if self.grants is None:
            return True
        allowed = self.granted or rules_of(self.grants)
        return allowed.allow(ANYBODY, operation, resource)


NOBODY: Final = Caller("nobody", KnownBy.OPEN)
"""Who may do nothing: a request for which it was forgotten to say who makes it."""
ANONYMOUS: Final = Caller("anonymous", KnownBy.OPEN, is_super=True)
"""Everybody, at a broker that does not ask who calls."""
OWNER: Final = Caller("owner", KnownBy.SOCKET, is_super=True)
"""Whoever reaches the socket of an embedded broker."""


def is_covered(asked: Grant, held: Iterable[Grant]) -> bool:
    """Return whether one of the grants allows all that is asked for."""
    return any(_shared(asked, each) == asked for each in held)


def intersection(asked: Iterable[Grant], held: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return what is allowed by both: grants that are asked for, and grants of a token."""
    kept = tuple(held)
    found = (_shared(one, other) for one in asked for other in kept)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _shared(one: Grant, other: Grant) -> Grant | None:
    """Return what two grants both allow, or None."""
    operations = {one.operation, other.operation}
    if len(operations) == 1:
        operation = one.operation
    elif None in operations:
        operation = one.operation or other.operation
    elif operations <= INCLUDING_DESCRIBE:
        operation = Operation.DESCRIBE
    else:
        return None
    resources = one.resources.shared_with(other.resources)
    return None if resources is None else Grant(operation, resources)


def rules_of(grants: tuple[Grant, ...]) -> RuleSet:
    """Return what the grants allow, as rules for anybody."""
    return RuleSet(Rule(ANYBODY, Effect.ALLOW, each.operation, each.resources) for each in grants)
