"""Passwords and tokens: how they are made, what is kept of them, and how they are compared.

A password is kept as its scrypt hash, a token as its SHA-256 (it has 32 random bytes): the store
reveals neither of them. A session is a signed statement that is not kept: who calls, how the broker
knows that, what the session may be used for, and until when.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec
from msgspec import Struct

from spark_stream.access.callers import Caller, Grant, KnownBy
from spark_stream.errors import InvalidRequest

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
"""The hash of no password; comparing with it takes as long as with any other."""


def _scrypt(password: str, salt: bytes) -> bytes:
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=_N, r=_R, p=_P, maxmem=_MEMORY, dklen=32)


def new_token() -> tuple[str, str]:
    """Return the id of a new token, and the token."""
    token_id = secrets.token_hex(_ID_BYTES)
    return token_id, f"{TOKEN_PREFIX}{token_id}_{secrets.token_urlsafe(32)}"


def token_id_of(token: str) -> str:
    """Return the id in a token; empty if this is not a token."""
    found = _TOKEN.match(token)
    return found[1] if found else ""


def token_digest(token: str) -> str:
    """Return what is kept of a token."""
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
    """Return a token that states who the caller is, and until when.

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
    """Return who the token says the caller is; None if no broker of the cluster has signed it."""
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
