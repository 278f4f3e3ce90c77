"""Authenticated callers, and their passwords, tokens and sessions.

A password is kept as its scrypt hash, a token as its SHA-256 (it has 32 random bytes): the store
reveals neither of them. A session is a signed statement that is not kept: the principal, the method
of authentication, the session's grants, and its expiry.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec
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
from spark_stream.errors import InvalidRequest


class KnownBy(StrEnum):
    """The method by which a caller was authenticated."""

    SOCKET = "socket"
    """A Unix socket: only the owner of its file can connect."""
    OPEN = "open"
    """The broker does not authenticate callers."""
    CERTIFICATE = "certificate"
    USER = "user"
    TOKEN = "token"
    JWT = "jwt"
    """A JSON Web Token, signed by the issuer in the broker's configuration."""


class Grant(Struct, frozen=True):
    """A grant of a token: an operation (None: all) on these resources."""

    operation: Operation | None
    resources: Pattern


class Caller(Struct, frozen=True):
    """An authenticated caller.

    ``source_id``: the version of the user's password, or the id of the token. ``is_super``: whether
    the caller may do everything. ``grants``: the limits of the token, or None if it allows all that
    the principal may do. ``address``: the client's address. ``expires_ms``: when the identity
    expires, on the wall clock, or None if never. ``is_session``: it has presented a session that a
    broker signed.
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
    """The grants as rules, after the authentication."""

    def may(self, rules: RuleSet, operation: Operation, resource: Resource) -> bool:
        """Return whether the rules, and the caller's token, allow this."""
        if not (self.is_super or rules.allow(self.principal, operation, resource)):
            return False
        if self.grants is None:
            return True
        allowed = self.granted or rules_of(self.grants)
        return allowed.allow(ANYBODY, operation, resource)

    def may_any(self, rules: RuleSet, operation: Operation, among: Pattern) -> bool:
        """Return whether the rules, and the caller's token, allow this on one of the names."""
        if not among.is_prefix:
            return self.may(rules, operation, Resource(among.kind, among.name))
        if not (self.is_super or rules.allow_any(self.principal, operation, among)):
            return False
        if self.grants is None:
            return True
        return (self.granted or rules_of(self.grants)).allow_any(ANYBODY, operation, among)


NOBODY: Final = Caller("nobody", KnownBy.OPEN)
"""A caller without permissions, for a request without a caller by a fault of the code."""
ANONYMOUS: Final = Caller("anonymous", KnownBy.OPEN, is_super=True)
"""Every caller of a broker that does not authenticate callers."""
OWNER: Final = Caller("owner", KnownBy.SOCKET, is_super=True)
"""Every caller at the socket of an embedded broker."""


def is_covered(asked: Grant, held: Iterable[Grant]) -> bool:
    """Return whether one of the grants allows the whole requested grant."""
    return any(_shared(asked, each) == asked for each in held)


def intersection(asked: Iterable[Grant], held: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return the grants that are in both the requested ones and those of a token."""
    kept = tuple(held)
    found = (_shared(one, other) for one in asked for other in kept)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _shared(one: Grant, other: Grant) -> Grant | None:
    """Return the grant that two grants share, or None."""
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
    """Return the grants as rules for anybody."""
    return RuleSet(Rule(ANYBODY, Effect.ALLOW, each.operation, each.resources) for each in grants)


PASSWORD_LEAST: Final = 8
"""The fewest characters that a password may have."""
PASSWORD_MOST: Final = 1024
TOKEN_PREFIX: Final = "isolog_"
SESSION_PREFIX: Final = "isologs_"
_N, _R, _P = 1 << 15, 8, 1
_SCRYPT: Final = "scrypt"
_MEMORY: Final = 128 * _N * _R * 2
_ID_BYTES: Final = 8
_TOKEN: Final = re.compile(rf"{TOKEN_PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})_")


def hash_password(password: str) -> str:
    """Hash a password for the store, which takes some 60 ms and 32 MiB of memory.

    Raises:
        InvalidRequest: the password is too short or too long.
    """
    if not PASSWORD_LEAST <= len(password) <= PASSWORD_MOST:
        raise InvalidRequest(
            f"a password has {PASSWORD_LEAST} to {PASSWORD_MOST} characters, not {len(password)}"
        )
    salt = secrets.token_bytes(16)
    return f"{_SCRYPT}${salt.hex()}${_scrypt(password, salt).hex()}"


def is_password(password: str, kept: str) -> bool:
    """Return whether ``kept`` was made of this password, which takes as long as a hash."""
    _, salt, digest = kept.split("$")
    found = _scrypt(password[:PASSWORD_MOST], bytes.fromhex(salt))
    return hmac.compare_digest(found.hex(), digest)


NO_PASSWORD: Final = f"{_SCRYPT}${'00' * 16}${'00' * 32}"
"""The hash of no password. A comparison with it takes as long as with any other."""


def _scrypt(password: str, salt: bytes) -> bytes:
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY, dklen=32)


def new_token() -> tuple[str, str]:
    """Return the id of a new token, and the token."""
    token_id = secrets.token_hex(_ID_BYTES)
    return token_id, f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"


def token_id_of(token: str) -> str:
    """Return the id in a token, or empty if this is not a token."""
    found = _TOKEN.match(token)
    return found[1] if found else ""


def token_digest(token: str) -> str:
    """Return the digest of a token, which the store keeps."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_token(token: str, digest: str) -> bool:
    """Return whether ``digest`` was made of this token."""
    return hmac.compare_digest(token_digest(token), digest)


class _Statement(Struct, frozen=True, array_like=True):
    principal: str
    source: KnownBy
    source_id: str
    grants: tuple[Grant, ...] | None
    expires_ms: int


_SESSIONS: Final = msgspec.json.Decoder(_Statement)


def sign_session(caller: Caller, key: bytes) -> str:
    """Return a session token that states the caller's identity and its expiry.

    ``key``: the cluster's key, which only brokers have.
    """
    assert caller.expires_ms is not None
    stated = msgspec.json.encode(
        _Statement(
            caller.principal, caller.source, caller.source_id, caller.grants, caller.expires_ms
        )
    )
    return f"{SESSION_PREFIX}{_text(stated)}.{_text(_signature(stated, key))}"


def session_of(token: str, key: bytes) -> Caller | None:
    """Return the caller in a session token, or None if no broker of the cluster signed it."""
    stated, dot, signature = token.removeprefix(SESSION_PREFIX).partition(".")
    if not token.startswith(SESSION_PREFIX) or not dot:
        return None
    try:
        data, signed = _bytes(stated), _bytes(signature)
        if not hmac.compare_digest(signed, _signature(data, key)):
            return None
        found = _SESSIONS.decode(data)
    except (ValueError, msgspec.DecodeError):
        return None
    return Caller(
        found.principal,
        found.source,
        found.source_id,
        grants=found.grants,
        expires_ms=found.expires_ms,
        is_session=True,
    )


def _signature(data: bytes, key: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
