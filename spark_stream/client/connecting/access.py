"""How a client's connections are protected: what the caller says, or else the environment.

One process may hold connections of several accesses to the same broker; they share nothing.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from spark_stream.errors import InvalidOption
from spark_stream.transport.tls import TlsFiles, client_context

_FILES: Final = ("ca", "cert", "key")


class Access(Struct, frozen=True):
    """How to connect. ``tls``: the files of TLS; None: without TLS."""

    tls: TlsFiles | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS of a new connection; its files are read each time.

        Raises:
            InvalidOption: a file cannot be used.
        """
        return None if self.tls is None else client_context(self.tls)


OPEN: Final = Access()


def access_of(
    given: Mapping[str, str | bool | None], environment: Mapping[str, str] = os.environ
) -> Access:
    """Return the access of the options ``tls``, ``tls.ca``, ``tls.cert`` and ``tls.key``.

    Those that are missing or None come from ISOLOG_TLS, ISOLOG_TLS_CA and so on. With any file
    there is TLS; ``tls`` alone trusts the authorities of the system.

    Raises:
        InvalidOption: an option has a value that it does not take.
    """

    def value(name: str) -> str | bool | None:
        found = given.get(name)
        if found is None:
            found = environment.get(f"ISOLOG_{name.upper().replace('.', '_')}") or None
        return found

    ca, cert, key = (_path(f"tls.{name}", value(f"tls.{name}")) for name in _FILES)
    files = TlsFiles(cert, key, ca)
    wanted = _flag("tls", value("tls"))
    if wanted is False and files.paths:
        raise InvalidOption("tls is false, and a file of TLS is given", option="tls")
    return Access(files) if wanted or files.paths else OPEN


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
