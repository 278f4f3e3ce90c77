"""Users, tokens, rules and quotas as records of the metadata store.

A password is kept as its scrypt hash, a token as its SHA-256 (``access.callers``). A rule's key has
the whole rule, so no rule exists twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from spark_stream.access.callers import Grant
from spark_stream.access.rules import Quota, Rule, RuleSet
from spark_stream.structs import learn_types

USERS: Final = "users/"
TOKENS: Final = "tokens/"
RULES: Final = "rules/"
QUOTAS: Final = "quotas/"


class User(Struct, frozen=True):
    """A user. ``version``: the id of the request that set the password.

    A new password has a new version, which ends the sessions of the old one.
    """

    name: str
    password: str
    version: str


class Token(Struct, frozen=True):
    """A token of a principal. ``grants``: its limits, or None for all that its principal may do.

    Times are in ms since 1970. ``expires_ms``: None if it never expires. ``sliding_ms``: each use
    extends the token's life by this time, but not beyond ``until_ms``. None: use does not extend
    it. ``parent``: the id of the token that created it, and whose end is its end, or "".
    """

    id: str
    principal: str
    digest: str
    created_ms: int
    expires_ms: int | None = None
    grants: tuple[Grant, ...] | None = None
    sliding_ms: int | None = None
    until_ms: int | None = None
    parent: str = ""

    def has_expired(self, now_ms: int) -> bool:
        """Return whether the token's own end has come."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class AccessRecords(Struct, frozen=True):
    """All users, tokens and rules, as a broker sees them."""

    users: Mapping[str, User] = field(default_factory=dict)
    tokens: Mapping[str, Token] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """By their texts."""
    rule_set: RuleSet = field(default_factory=RuleSet)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By principal."""


def rule_key(rule: Rule) -> str:
    """Return the key of a rule's record."""
    return RULES + msgspec.json.encode(rule).decode()


def encode(value: User | Token | Rule | Quota) -> dict[str, Any]:
    """Encode a record's value."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def decode_user(value: Mapping[str, Any]) -> User:
    """Decode a user."""
    return msgspec.convert(value, User)


def decode_token(value: Mapping[str, Any]) -> Token:
    """Decode a token."""
    return msgspec.convert(value, Token)


def decode_rule(value: Mapping[str, Any]) -> Rule:
    """Decode a rule."""
    return msgspec.convert(value, Rule)


def decode_quota(value: Mapping[str, Any]) -> Quota:
    """Decode a quota."""
    return msgspec.convert(value, Quota)


learn_types(User)
learn_types(Token)
learn_types(Rule)
learn_types(Quota)
