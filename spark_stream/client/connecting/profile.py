"""A profile: a file that says where a log is, how to connect to it, and who calls.

It is TOML, and its keys are names of options::

    bootstrap = "broker.example.org:9092"
    tls.ca = "/etc/isolog/ca.pem"
    user = "etl"
    password = "…"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Final

from spark_stream.errors import InvalidOption
from spark_stream.schema.schemas import meant

NAMES: Final = (
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


def read_profile(path: str) -> Mapping[str, str | bool]:
    """Return the options in a profile.

    Raises:
        InvalidOption: it cannot be read, is not TOML, or has an unknown option. The error shows
            none of its values.
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
        if name not in NAMES:
            raise InvalidOption(
                f"profile: {path}: there is no option {name!r}{meant(name, NAMES)}",
                option="profile",
            )
        if not isinstance(value, str) and not (name == _TABLE and isinstance(value, bool)):
            raise InvalidOption(f"profile: {path}: {name} takes a text", option="profile")
    return found
