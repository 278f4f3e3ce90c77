"""The directory that a path names. The rule is the same for clients, Spark, brokers and commands.

A log is in a local directory. Without this rule the address of a bucket or of a broker, given as
a path, would create a local directory of that name. ``./NAME`` names such a directory anyway. If
the name has a variable, a ``file:`` URI does (``file:///data/%24USER``).
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import unquote, urlsplit

from spark_stream.errors import InvalidOption

_ADDRESS: Final = re.compile(r"(?:[^][/\\:,\s]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}(?=[/,]|\s*$)")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+._-]+):(/?)")
_FILE: Final = re.compile(r"file:(//[^/]*)?", re.IGNORECASE)
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_VARIABLE: Final = re.compile(r"\$(?:\w+|\{[^}]*\})")
_WINDOWS_VARIABLE: Final = re.compile(r"%[A-Za-z_]\w*%")
_OF_BROKERS: Final = re.compile(
    r"https?|isolog|kafka|grpc|tcp|tls|(sasl_)?(plaintext|ssl)", re.IGNORECASE
)
"""The schemes of servers. Other schemes are those of file systems and object stores."""
_OF_STORES: Final = re.compile(
    r"s3[an]?|gs|gcs|hdfs|s?webhdfs|viewfs|abfss?|wasbs?|adl|az|dbfs|oss|cosn?|obs|swift|s?ftp",
    re.IGNORECASE,
)
"""The schemes that are also detected without a slash behind the colon, as in ``s3:bucket``."""

_WITH_CONTAINER: Final = {"abfs", "abfss"}
"""The schemes of addresses such as ``abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/FOLDER``."""
_SAME_STORES: Final = {"s3a": "s3", "abfs": "az", "abfss": "az"}
APART_HINT: Final = "Choose a folder beside it. Each lake removes files in its location."


def local_directory(
    given: str | os.PathLike[str], option: str = "path", bootstrap: str | None = "bootstrap"
) -> Path:
    """Return the directory of a path. A relative path stays relative.

    ``file:`` URIs and ``~`` are resolved. ``option`` is the option of the path, and ``bootstrap``
    the one of a broker's address, if there is one.

    Raises:
        InvalidOption: The path names no local directory. The error names the option to use instead.
        TypeError: The path is no text, for example bytes.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else given
    if not isinstance(text, str):
        kind = type(given).__name__
        raise TypeError(f"{option} must be a str or an os.PathLike of str, not {kind}")
    start = text.lstrip()

    def refused(problem: str, hint: str) -> InvalidOption:
        return InvalidOption(f"{option} {problem}", hint=hint, option=option)

    if not text:
        raise refused("is empty", 'Name a directory: the working directory is ".".')
    file = _FILE.match(start)
    try:
        decoded = text if file is None else unquote(text, errors="strict")
        decoded.encode()
    except UnicodeError:
        raise refused(f"{text!r} is not UTF-8", "Name a directory whose path is UTF-8.") from None
    if "\0" in decoded:
        raise refused("contains a null character", "Name a directory.")
    variable = _VARIABLE.search(text) or (None if file else _WINDOWS_VARIABLE.search(text))
    if variable is not None:
        raise refused(
            f"{text!r} contains the variable {variable[0]}, and variables are not replaced",
            "Write the directory itself (os.path.expandvars replaces variables). A directory of"
            " this name is written as a percent-encoded file: URI.",
        )
    if file is not None:
        if file[1] not in (None, "//", "//localhost"):
            raise refused(
                f"{text!r} is a directory of another host",
                "Write file:///PATH for a directory of this host.",
            )
        path = unquote(start[file.end() :])
        if not path.startswith("/"):
            raise refused(f"{text!r} has no absolute path", "Write file:///PATH.")
        return Path(path)
    address, scheme = _ADDRESS.match(start), _SCHEME.match(start)
    of_brokers = scheme is not None and _OF_BROKERS.fullmatch(scheme[1])
    if address is not None or of_brokers:
        instead = (
            "Name a directory." if bootstrap is None else f"Give {bootstrap} HOST:PORT instead."
        )
        raise refused(
            f"{text!r} is the address of a broker, not a directory",
            f"{instead} A directory of this name is written ./{text}.",
        )
    if scheme is not None and (scheme[2] or _OF_STORES.fullmatch(scheme[1])):
        broker = "" if bootstrap is None else f", or {bootstrap} HOST:PORT of the log's broker"
        raise refused(
            f"{text!r} has the scheme {scheme[1]}, and a log is in a local directory of its"
            " broker's host",
            f"Name a directory of this host{broker}.",
        )
    if _DRIVE.match(start) and os.name != "nt":
        raise refused(
            f"{text!r} names a drive of Windows, and this host does not run Windows",
            f"Name a directory of this host. One of this name is written ./{text}.",
        )
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)
    except RuntimeError:
        raise refused(
            f"{text!r} names a home directory that this host does not have",
            f"Name an absolute directory. One of this name is written ./{text}.",
        ) from None


def overlap(location: str, other: str) -> str | None:
    """Return the relation of two folders or URLs: "is", "contains", "is inside", or None."""
    (account, *mine), (their_account, *theirs) = _parts(location), _parts(other)
    if account and their_account and account != their_account:
        return None
    shared = min(len(mine), len(theirs))
    if mine[:shared] != theirs[:shared]:
        return None
    if len(mine) > len(theirs):
        return "is inside"
    return "is" if mine == theirs else "contains"


def has_keys(location: str) -> bool:
    """Return whether a URL has keys or parameters. An address of Azure has its container."""
    url = urlsplit(location)
    user, at, _ = url.netloc.rpartition("@")
    is_container = url.scheme in _WITH_CONTAINER and not {":", "@"} & {*user}
    return bool(at and not is_container) or bool(url.query)


def _parts(location: str) -> tuple[str, ...]:
    """Return the account, the kind of store, the bucket or container, and the folders.

    The account is "" if the environment has it.
    """
    url = urlsplit(location)
    if url.scheme in ("", "file"):
        path = unquote(url.path) if url.scheme else location
        return "", "", "", *PurePosixPath(posixpath.normpath(path)).parts[1:]
    path = posixpath.normpath(unquote(url.path))  # as obstore does
    parts = [each for each in PurePosixPath(path).parts if each.strip("/.")]
    container, _, host = url.netloc.rpartition("@")
    account, bucket = (host.partition(".")[0], container) if container else ("", host)
    return account, _SAME_STORES.get(url.scheme, url.scheme), bucket, *parts
