"""JSON Web Tokens of one issuer: another system authenticates the callers.

The issuer's keys are fetched when a token needs them, by one thread at a time. A token of a key
that was fetched is checked without a wait, even if the issuer does not answer. For a while after a
fetch, even a failed one, no other fetch is made: tokens of unknown keys are refused without a wait.
"""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import BaseModel, ConfigDict

from spark_stream.access.callers import Caller, KnownBy
from spark_stream.environment import Clock, SystemClock
from spark_stream.errors import InvalidConfig, Unauthenticated
from spark_stream.extras import install_hint
from spark_stream.loggers import logger_of

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logger_of(__name__)

_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
"""Those of public keys. With a shared secret, each checker of tokens could make tokens."""
_FETCH_S: Final = 5
_KEPT_S: Final = 300.0
"""Keys are fetched again after this time: the issuer may have withdrawn one."""
_AGAIN_S: Final = 5.0
"""The pause between fetches: unauthenticated callers choose the keys that their tokens name."""
_CLOCKS_DIFFER_S: Final = 30
_MOMENT_MAX: Final = 1 << 43
"""In seconds. Its milliseconds fit into an answer."""
_PARTS: Final = 3
_BAD_TOKEN: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""Raised by PyJWT, besides its own errors, for claims and headers of other types than usual."""


class JwtSettings(BaseModel):
    """An issuer of accepted tokens. ``keys``: its JWKS, a file or an https address.

    ``audience``: the intended recipient of the tokens. ``claim``: the claim with the principal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str
    audience: str
    keys: str
    claim: str = "sub"

    def absolute(self) -> Self:
        """Return the same settings, with the absolute path of a file of keys."""
        if self.keys.startswith("https://"):
            return self
        return self.model_copy(update={"keys": str(Path(self.keys).absolute())})


class JwtIssuer:
    """The checker of an issuer's tokens, for any thread."""

    def __init__(self, settings: JwtSettings, clock: Clock | None = None) -> None:
        """Create the checker. Check that a file of keys can be read.

        Raises:
            InvalidConfig: The package is missing, or the file has no keys.
        """
        try:
            import jwt
        except ImportError:
            raise InvalidConfig(
                "the setting jwt needs the package PyJWT",
                hint=install_hint("jwt"),
                setting="jwt",
            ) from None
        self._settings = settings
        self._jwt = jwt
        self._clock = clock or SystemClock()
        self._client: Any = None
        self._fetching = threading.Lock()  # guards the next, which are read without it
        self._fetched: list[PyJWK] = []
        self._kept_until = -math.inf
        self._again_at = -math.inf
        if settings.keys.startswith("https://"):
            self._client = jwt.PyJWKClient(settings.keys, cache_jwk_set=False, timeout=_FETCH_S)
        else:
            self._keys_of_file()

    def _keys_of_file(self) -> Any:
        path = self._settings.keys
        try:
            return self._jwt.PyJWKSet.from_dict(json.loads(Path(path).read_text("utf-8")))
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            problem = getattr(error, "strerror", None) or "it has no keys in JWKS format"
            raise InvalidConfig(f"jwt.keys: {path}: {problem}", setting="jwt.keys") from None

    @staticmethod
    def is_jwt(token: str) -> bool:
        """Return whether the text has the form of such a token."""
        return token.count(".") == _PARTS - 1 and token.startswith("ey")

    def needs_keys(self, token: str) -> bool:
        """Return whether :meth:`caller_of` would wait for the issuer. This call does not wait."""
        if self._client is None or self._clock.monotonic() < self._again_at:
            return False
        try:
            return not self._fitting(self._kept(), token)
        except (self._jwt.PyJWTError, *_BAD_TOKEN):
            return False  # it is refused with any keys

    def fetch_keys(self, token: str) -> None:
        """Fetch the issuer's keys, if the token still needs that. May wait for the issuer."""
        if not self._fetching.acquire(timeout=_FETCH_S):
            return
        try:
            if self.needs_keys(token):
                self._fetch()
        finally:
            self._fetching.release()

    def _fetch(self) -> None:
        try:
            found = self._jwt.PyJWKSet.from_dict(self._client.fetch_data()).keys
        except Exception as error:  # for any answer of the issuer
            logger.warning("cannot fetch the keys of %s: %s", self._settings.issuer, error)
        else:
            self._fetched = [each for each in found if each.public_key_use in ("sig", None)]
            self._kept_until = self._clock.monotonic() + _KEPT_S
        self._again_at = self._clock.monotonic() + _AGAIN_S

    def _kept(self) -> list[PyJWK]:
        """Return the keys that were fetched and may still be used."""
        return self._fetched if self._clock.monotonic() < self._kept_until else []

    def caller_of(self, token: str) -> Caller:
        """Return the caller, with the end of the token's life.

        If :meth:`needs_keys`, it waits for the issuer.

        Raises:
            Unauthenticated: The token is not one of this issuer, not for this audience, has
                expired, or has no principal. Or the issuer's keys cannot be fetched.
        """
        settings = self._settings
        try:
            key = self._key_of(token)
        except InvalidConfig as error:
            logger.error("cannot read the keys of the JWT issuer: %s", error.message)
            raise Unauthenticated(
                "the broker cannot read the keys of the JWT issuer at the moment"
            ) from None
        except (self._jwt.PyJWTError, *_BAD_TOKEN) as error:
            raise self._refusal(error) from None
        try:
            if key.algorithm_name not in _ALGORITHMS:
                raise self._jwt.InvalidKeyError(
                    f"the key is for {key.algorithm_name}, which is not accepted"
                )
            claims = self._jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],  # the token's header may name another
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=_CLOCKS_DIFFER_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            expires_ms = self._expires_ms(claims["exp"])
        except (self._jwt.PyJWTError, *_BAD_TOKEN) as error:
            raise self._refusal(error) from None
        name = claims.get(settings.claim)
        if not isinstance(name, str) or not name:
            raise Unauthenticated(
                f"the JWT has no text in the claim {settings.claim!r}",
                hint="The setting jwt.claim names the claim with the principal.",
            )
        return Caller(name, KnownBy.JWT, expires_ms=expires_ms)

    @staticmethod
    def _expires_ms(moment: Any) -> int:
        """Return the end of a token's life. PyJWT also accepts a text of digits."""
        if isinstance(moment, bool) or not isinstance(moment, int | float):
            raise ValueError("exp is not a number")
        if not 0 <= moment < _MOMENT_MAX:
            raise ValueError("exp is out of range")
        return int((moment + _CLOCKS_DIFFER_S) * 1000)

    def _refusal(self, error: Exception) -> Unauthenticated:
        settings = self._settings
        return Unauthenticated(
            f"the JWT is refused: {error}",
            hint=f"Get one from {settings.issuer} for the audience {settings.audience}.",
        )

    def _key_of(self, token: str) -> PyJWK:
        """Return the key that the token's header names, or the issuer's only one."""
        if self._client is None:
            keys = self._keys_of_file().keys
        else:
            if self.needs_keys(token):
                self.fetch_keys(token)
            keys = self._kept()
            if not keys:
                raise self._jwt.InvalidKeyError(
                    "the broker cannot fetch the issuer's keys at the moment"
                )
        fitting = self._fitting(keys, token)
        if not fitting:
            named = self._jwt.get_unverified_header(token).get("kid")
            raise self._jwt.InvalidKeyError(f"the issuer has no key {named!r}")
        return fitting[0]

    def _fitting(self, keys: list[PyJWK], token: str) -> list[PyJWK]:
        """Return the keys with which the token may be signed, by its header."""
        named = self._jwt.get_unverified_header(token).get("kid")
        return [each for each in keys if each.key_id == named or (named is None and len(keys) == 1)]
