"""Options of several commands, and the connection to the log that they name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_stream.consistency.isolation import CONSUMER_LEVELS
from spark_stream.directories import local_directory
from spark_stream.errors import InvalidOption, UnknownLog

if TYPE_CHECKING:
    import socket

    from spark_stream.client.connecting.access import Access
    from spark_stream.client.connecting.connection import ClusterConnection
    from spark_stream.client.log import Log
    from spark_stream.client.topics import Place
    from spark_stream.cluster.stores.backends import Backend
    from spark_stream.wire.topic_messages import TopicDescription

BOOTSTRAP_VARIABLE: Final = "ISOLOG_BOOTSTRAP"
PATH_VARIABLE: Final = "ISOLOG_PATH"
_COMPLETION_S: Final = 3.0
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

_AGO: Final = re.compile(rf"([0-9]+)([{''.join(_UNITS)}])")
ACCESS_OPTIONS: Final = {
    "profile": "profile",
    "user": "user",
    "token_file": "tokenFile",
    "tls": "tls",
    "tls_ca": "tls.ca",
    "tls_cert": "tls.cert",
    "tls_key": "tls.key",
}
"""The options before a command, with their names in the client."""
_PANEL: Final = "Location of the log (one of these)"


def named_directory(text: str) -> Path:
    """Return the directory in the value of an option."""
    return local_directory(text, "--path (or --dir)", "--bootstrap")


Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"Addresses of brokers, separated by commas. Variable: {BOOTSTRAP_VARIABLE}.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
LogPath = Annotated[
    Path | None,
    typer.Option(
        "--path",
        "--dir",
        metavar="DIR",
        parser=named_directory,
        help=f"Directory of the log. Starts a broker if none runs. Variable: {PATH_VARIABLE}.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
BrokerConf = Annotated[
    Path | None,
    typer.Option(
        "--conf",
        metavar="FILE",
        help="Configuration file of a broker, with the certificates and the password for etcd.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
_PROTECTED: Final = "Security of the connection"
Tls = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        help="Connect with TLS. Without --tls-ca the system's certificate authorities are trusted.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Certificate authority of the brokers. Variable: ISOLOG_TLS_CA.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Client certificate. Variable: ISOLOG_TLS_CERT.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="User name. The password is read from ISOLOG_PASSWORD, or prompted for."
        " Variable: ISOLOG_USER.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File with a token. Variables: ISOLOG_TOKEN_FILE, ISOLOG_TOKEN.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File with bootstrap, a credential and tls.* (see docs/security.md)."
        " Variable: ISOLOG_PROFILE.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Private key of --tls-cert. Variable: ISOLOG_TLS_KEY.",
        rich_help_panel=_PROTECTED,
        show_default=False,
    ),
]


def completed(names: Callable[[Log], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return a function that completes a name in a shell. ``names`` reads the names from the log.

    On failure it returns no names, because an error in the middle of a command line disturbs more
    than a missing completion. It starts no broker, and prompts for no password.
    """

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        set_access({name: ctx.find_root().params.get(key) for key, name in ACCESS_OPTIONS.items()})
        with suppress(Exception):
            bootstrap, path = where(ctx.params.get("bootstrap"), _found(ctx.params.get("path")))

            from spark_stream.client.connecting.connection import ClusterConnection
            from spark_stream.client.connecting.embedded import lock_held
            from spark_stream.client.log import Log

            with_password = _ACCESS["user"] is None or os.environ.get("ISOLOG_PASSWORD")
            if not with_password or (path is not None and not lock_held(path)):
                return []
            absolute = None if path is None else path.absolute()
            opened = ClusterConnection(
                bootstrap, absolute, _COMPLETION_S, create=False, access=access()
            )
            with Log(opened) as log:
                opened.connect()  # fails immediately if no broker listens, a request would retry
                return sorted(each for each in names(log) if each.startswith(incomplete))
        return []

    return complete


def _found(path: str | Path | None) -> Path | None:
    return None if path is None else local_directory(path)


Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="Name of the topic.",
        show_default=False,
        autocompletion=completed(lambda log: log.topics()),
    ),
]
Isolation = Annotated[
    str,
    typer.Option(
        "--isolation", metavar="LEVEL", help=f"Isolation level: {' | '.join(CONSUMER_LEVELS)}."
    ),
]


class Older(StrEnum):
    """Sources of records that retention has removed from the log."""

    AUTO = "auto"
    NEVER = "never"


FromLake = Annotated[
    Older,
    typer.Option(
        "--lake",
        help="Read removed records from the table of a lake (auto), or skip them (never).",
    ),
]


class Listing(StrEnum):
    """Output formats of descriptions."""

    TABLE = "table"
    JSON = "json"


class Format(StrEnum):
    """Formats of an input."""

    LINES = "lines"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"


TEXT: Final = (Format.LINES, Format.CSV, Format.JSON)


class Shape(StrEnum):
    """Output formats of records."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    RAW = "raw"
    ARROW = "arrow"


Output = Annotated[Listing, typer.Option("--output", "-o", help="Output format.")]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(yes: bool, question: str, action: str) -> None:
    """Ask for confirmation on the terminal, unless ``yes`` is set. End the command if it is denied.

    Raises:
        InvalidOption: standard input is not a terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidOption(
            f"confirmation needs a terminal: {question}",
            hint=f"Give --yes to {action}.",
            option="--yes",
        )
    typer.confirm(question, abort=True, err=True)


def note(message: str) -> None:
    """Print a message to standard error."""
    print(message, file=sys.stderr, flush=True)


def note_warning(made: TopicDescription) -> None:
    """Print the warning that came with a new or altered topic, if there is one."""
    if made.warning is not None:
        note(f"warning: {made.warning}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 record", "2 records"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def where(bootstrap: str | None, path: Path | None) -> tuple[str | None, Path | None]:
    """Return the bootstrap addresses or the directory from the options, else from the variables.

    Raises:
        InvalidOption: none of them is given, or both.
    """
    if bootstrap is None and path is None:
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE) or None
        directory = os.environ.get(PATH_VARIABLE) or None
        if directory is not None:
            path = local_directory(directory, PATH_VARIABLE, BOOTSTRAP_VARIABLE)
        if bootstrap is None and path is None:
            from spark_stream.client.connecting.access import bootstrap_of_profile

            bootstrap = bootstrap_of_profile(_ACCESS)
        if bootstrap is not None and path is not None:
            raise InvalidOption(
                f"{BOOTSTRAP_VARIABLE} and {PATH_VARIABLE} are both set",
                hint="Unset one of them, or give --bootstrap or --path.",
            )
    if bootstrap is not None and path is not None:
        raise InvalidOption("--bootstrap and --path exclude each other", hint="Give one of them.")
    if bootstrap is None and path is None:
        raise InvalidOption(
            "no log is named",
            hint=f"Give --bootstrap HOST:PORT or --path DIR, or set {BOOTSTRAP_VARIABLE} or"
            f" {PATH_VARIABLE}.",
        )
    return bootstrap, path


_ACCESS: Final[dict[str, str | bool | None]] = {}


def set_access(given: Mapping[str, str | bool | None]) -> None:
    """Store the options that were given before the command."""
    _ACCESS.clear()
    _ACCESS.update(given)


def ask_password() -> None:
    """Read the password of the user in the options from the environment, or prompt for it.

    Raises:
        InvalidOption: the environment has none, and standard input is not a terminal.
    """
    user = _ACCESS.get("user")
    if user is None or _ACCESS.get("password"):
        return
    password = os.environ.get("ISOLOG_PASSWORD")
    if not password and not sys.stdin.isatty():
        raise InvalidOption(
            f"the password prompt for {user} needs a terminal", hint="Set ISOLOG_PASSWORD."
        )
    _ACCESS["password"] = password or typer.prompt(f"Password of {user}", hide_input=True, err=True)


def access() -> Access:
    """Return the credential and the TLS settings from the options, else from the environment."""
    from spark_stream.client.connecting.access import access_of

    ask_password()
    return access_of(_ACCESS)


def metadata_backend(metadata: str, conf: Path | None) -> Backend:
    """Return the metadata store at a URL or a path. ``conf``: see :data:`BrokerConf`.

    Raises:
        InvalidConfig: the URL or a setting is invalid.
    """
    from spark_stream.broker.connections import named_backend  # most commands need no broker's code

    return named_backend(metadata, conf)


@contextmanager
def connection(
    bootstrap: str | None, path: Path | None, *, makes: bool = False
) -> Iterator[ClusterConnection]:
    """Connect to the log of the options. ``makes``: create a log in a missing directory.

    Raises:
        InvalidOption: see :func:`where`, or an address is invalid.
        UnknownLog: there is no log in the directory.
        BrokerUnavailable: no broker listens there. There is no retry, unlike in the client.
    """
    from spark_stream.client.connecting.connection import ClusterConnection

    bootstrap, path = where(bootstrap, path)
    opened = ClusterConnection(
        bootstrap, None if path is None else path.absolute(), create=makes, access=access()
    )
    try:
        if path is not None:
            _check_log(opened, path)
        else:
            opened.connect()
        yield opened
    finally:
        opened.close()


def _check_log(opened: ClusterConnection, path: Path) -> None:
    try:
        opened.connect()
    except UnknownLog as error:
        raise UnknownLog(
            error.message,
            hint="Check --path. `isolog topic create` creates a new log.",
            **error.details,
        ) from None


@contextmanager
def log(bootstrap: str | None, path: Path | None, *, makes: bool = False) -> Iterator[Log]:
    """Connect like :func:`connection`, and return the client's public handle."""
    from spark_stream.client.log import Log

    with connection(bootstrap, path, makes=makes) as opened:
        yield Log(opened)


def seconds_of(option: str, text: str | None) -> float | None:
    """Parse a duration, such as ``90s``, ``1h`` or ``30d``. Return None without one."""
    if text is None:
        return None
    if (found := _AGO.fullmatch(text)) is None:
        raise InvalidOption(
            f"{option} takes a duration, not {text!r}",
            hint="Give a number with a unit: 90s, 30m, 12h or 7d.",
            option=option,
        )
    return int(found[1]) * timedelta(**{_UNITS[found[2]]: 1}).total_seconds()


def position_of(
    option: str,
    text: str,
    named: Sequence[str] = ("earliest", "latest"),
    *,
    takes_offsets: bool = True,
) -> Place:
    """Parse a position: one of ``named``, an offset (-N: N before the end) or a time.

    A time is in ISO 8601, in UTC if it has no zone, or an age such as ``90s`` or ``1h``.
    """
    if text in named:
        return text
    if takes_offsets and text.removeprefix("-").isdecimal():
        return int(text)
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moment.astimezone(UTC)  # fails for some times near the years 1 and 9999
        return moment
    except (ValueError, OverflowError):
        accepted = ", ".join([*named, *(["an offset"] if takes_offsets else [])])
        raise InvalidOption(
            f"{option} takes {accepted} or a time, not {text!r}",
            hint="A time is 2024-05-01 or 2024-05-01T12:30:00Z, or an age such as 30m, 1h or 2d.",
            option=option,
        ) from None


def listening_at(address: str, option: str) -> socket.socket:
    """Return a socket that is bound to the HOST:PORT of an option.

    Raises:
        InvalidOption: The text is no HOST:PORT.
        InvalidConfig, PortInUse: The address cannot be used.
    """
    from spark_stream.transport.listening import listening_socket
    from spark_stream.wire.addresses import split_address

    try:
        split_address(address)
    except ValueError as error:
        raise InvalidOption(str(error), hint="Give HOST:PORT.", option=option) from None
    return listening_socket(address, option)
