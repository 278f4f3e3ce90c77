"""A client's credential and TLS settings, from options, environment variables or a profile.

One process may connect to the same broker with several accesses. Their connections are separate.

A profile is a TOML file whose keys are names of options::

    bootstrap = "broker.example.org:9092"
    tls.ca = "/etc/isolog/ca.pem"
    user = "etl"
    password = "…"
"""

from __future__ import annotations

import os
import ssl
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from spark_stream.errors import InvalidOption
from spark_stream.schema.schemas import meant
from spark_stream.transport.tls import TlsFiles, client_context
from spark_stream.wire.access_messages import Authenticate

_FILES: Final = ("ca", "cert", "key")
_CREDENTIAL: Final = ("user", "password", "token", "tokenFile")
_READS: Final = 5
_PAUSE_S: Final = 0.2
_VARIABLES: Final = {"tokenFile": "ISOLOG_TOKEN_FILE"}
_PROFILE_OPTIONS: Final = (
    "bootstrap",
    "tls",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "user",
    "password",
    "token",
    "tokenFile",
)
_TABLE: Final = "tls"


class Access(Struct, frozen=True):
    """A credential and TLS files. ``tls`` is None for connections without TLS.

    The credential is ``user`` and ``password``, ``token``, ``token_file`` or ``profile``. Files are
    read again for each connection. Without a credential the client certificate identifies the
    caller.
    """

    tls: TlsFiles | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    token_file: str | None = None
    profile: str | None = None

    def __repr__(self) -> str:
        who = self.user or ("a token" if self.has_credential else "nobody")
        return f"Access({who}, tls={self.tls is not None})"

    @property
    def has_credential(self) -> bool:
        """Whether a credential is given."""
        return any((self.user, self.token, self.token_file, self.profile))

    def without_credential(self) -> Access:
        """Return the same TLS settings without a credential."""
        return structs.replace(
            self, user=None, password=None, token=None, token_file=None, profile=None
        )

    def credential(self) -> Authenticate | None:
        """Return the credential, or None.

        A file that cannot be used is read several times within a second, because another process
        may be writing it.

        Raises:
            InvalidOption: The profile or the token file cannot be read.
        """
        for _ in range(_READS - 1):
            try:
                return self._credential()
            except InvalidOption:
                time.sleep(_PAUSE_S)
        return self._credential()

    def _credential(self) -> Authenticate | None:
        if self.profile is not None:
            found = _resolve({}, {}, read_profile(self.profile))._credential()
            if found is None:
                raise InvalidOption(f"profile: {self.profile} has no credential", option="profile")
            return found
        if self.token_file is not None:
            try:
                token = Path(self.token_file).read_text("utf-8-sig").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidOption(
                    f"tokenFile: {self.token_file}: {getattr(error, 'strerror', None) or error}",
                    option="tokenFile",
                ) from None
            if not token:
                raise InvalidOption(f"tokenFile: {self.token_file} is empty", option="tokenFile")
            return Authenticate(token=token)
        if self.token is not None:
            return Authenticate(token=self.token.strip())
        if self.user is not None:
            return Authenticate(user=self.user, password=self.password)
        return None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a new connection, or None. Read its files again.

        Raises:
            InvalidOption: A file cannot be used.
        """
        return None if self.tls is None else client_context(self.tls)


OPEN: Final = Access()


def access_of(
    given: Mapping[str, str | bool | None], environment: Mapping[str, str] = os.environ
) -> Access:
    """Return the access that these options describe.

    The options are ``tls``, ``tls.ca``, ``tls.cert``, ``tls.key``, ``user``, ``password``,
    ``token``, ``tokenFile`` and ``profile``. Missing ones come from ISOLOG_TLS, ISOLOG_TLS_CA,
    ISOLOG_TOKEN_FILE and so on, or else from the profile. A credential comes as a whole from one of
    the three places. Any TLS file turns TLS on. ``tls`` alone trusts the certificate authorities of
    the system.

    Raises:
        InvalidOption: An option has an invalid value.
    """

    path = profile_of(given, environment)
    profile = {} if path is None else read_profile(path)
    found = _resolve(given, environment, profile)
    if path is not None and found.has_credential and _is_of_profile(given, environment):
        return Access(found.tls, profile=path)
    return found


def profile_of(
    given: Mapping[str, str | bool | None], environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the path of the profile that the options or the environment name."""
    named = given.get("profile")
    return _path("profile", environment.get("ISOLOG_PROFILE") or None if named is None else named)


def bootstrap_of_profile(
    given: Mapping[str, str | bool | None], environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the profile's ``bootstrap``, or None."""
    path = profile_of(given, environment)
    found = None if path is None else read_profile(path).get("bootstrap")
    return found if isinstance(found, str) else None


def _is_of_profile(given: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    return not any(given.get(each) or environment.get(_variable(each)) for each in _CREDENTIAL)


def _resolve(
    given: Mapping[str, str | bool | None],
    environment: Mapping[str, str],
    profile: Mapping[str, str | bool],
) -> Access:
    def value(name: str) -> str | bool | None:
        found = given.get(name)
        if found is None:
            found = environment.get(_variable(name)) or None
        return profile.get(name) if found is None else found

    ca, cert, key = (_path(f"tls.{name}", value(f"tls.{name}")) for name in _FILES)
    files = TlsFiles(cert, key, ca)
    wanted = _flag("tls", value("tls"))
    if wanted is False and files.paths:
        raise InvalidOption("tls is false, but a file of TLS is given", option="tls")
    variables = {name: environment.get(_variable(name)) or None for name in _CREDENTIAL}
    places = {
        "the options have": given,
        "the environment (ISOLOG_…) has": variables,
        "the profile has": profile,
    }
    used = [
        place
        for place, each in places.items()
        if any(each.get(name) is not None for name in _CREDENTIAL)
    ]
    place = used[0] if used else "the options have"
    said = {name: places[place].get(name) for name in _CREDENTIAL}
    user, password, token, token_file = (_text(name, each) for name, each in said.items())
    if sum(each is not None for each in (user, token, token_file)) > 1:
        raise InvalidOption("give user and password, or token, or tokenFile", option="user")
    if (user is None) is not (password is None):
        missing, there = ("user", "password") if user is None else ("password", "user")
        raise InvalidOption(
            f"{missing} is missing: {place} only a {there}, and both have to be in one place",
            option=missing,
        )
    tls = files if wanted or files.paths else None
    return Access(tls, user, password, token, token_file)


def _variable(name: str) -> str:
    return _VARIABLES.get(name) or f"ISOLOG_{name.upper().replace('.', '_')}"


def _text(name: str, value: str | bool | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise InvalidOption(f"{name} takes a text that is not empty", option=name)
    return value if value is None or name == "tokenFile" else checked_text(name, value)


def checked_text(name: str, value: str) -> str:
    """Return the text of an option or a variable if it can be encoded as UTF-8.

    Python decodes invalid bytes in environment variables to surrogates.

    Raises:
        InvalidOption: It cannot be encoded. The error does not show the text, which may be a
            secret.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{name} is not valid UTF-8", option=name) from None
    return value


def _path(name: str, value: str | bool | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise InvalidOption(f"{name} takes the path of a file, not {value!r}", option=name)
    return value


def _flag(name: str, value: str | bool | None) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise InvalidOption(f"{name} is true or false, not {value!r}", option=name)


def read_profile(path: str) -> Mapping[str, str | bool]:
    """Return the options in a profile.

    Raises:
        InvalidOption: The profile cannot be read, is not TOML, or has an unknown option. The error
            shows no value, which may be a secret.
    """
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InvalidOption(f"profile: {path}: {error.strerror}", option="profile") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InvalidOption(f"profile: {path} is not valid TOML", option="profile") from None
    table = found.pop(_TABLE, None)
    if isinstance(table, dict):
        found |= {f"{_TABLE}.{name}": value for name, value in table.items()}
    elif table is not None:
        found[_TABLE] = table
    for name, value in found.items():
        if name not in _PROFILE_OPTIONS:
            raise InvalidOption(
                f"profile: {path}: there is no option {name!r}{meant(name, _PROFILE_OPTIONS)}",
                option="profile",
            )
        if not isinstance(value, str) and not (name == _TABLE and isinstance(value, bool)):
            raise InvalidOption(f"profile: {path}: {name} takes a text", option="profile")
    return found
