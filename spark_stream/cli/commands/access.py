"""``isolog user``, ``token``, ``acl`` and ``quota``: credentials, permissions and limits.

A password is never an argument, because arguments appear in the list of processes and in the
shell's history.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from spark_stream.cli.options import (
    Bootstrap,
    BrokerConf,
    Listing,
    LogPath,
    Output,
    Yes,
    ask_password,
    confirm,
    connection,
    metadata_backend,
    note,
)
from spark_stream.cli.output.texts import ago, as_json, cell, console, duration, visible, wall_ms
from spark_stream.errors import InvalidOption, UserExists

if TYPE_CHECKING:
    from spark_stream.client.administration import AccessClient
    from spark_stream.cluster.stores.backends import Backend
    from spark_stream.wire.access_messages import RuleText

users = typer.Typer(no_args_is_help=True, help="Add, list and remove users.")
tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens.")
quotas = typer.Typer(no_args_is_help=True, help="Limit the load of principals on each broker.")
acl = typer.Typer(no_args_is_help=True, help="Allow and deny operations, and check permissions.")

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIFETIME: Final = re.compile(r"([0-9]+)([smhd])")
_RATE: Final = re.compile(r"([0-9]{1,20})\s*([KMG]iB|B)(?:/s)?")
_UNITS_BYTES: Final = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_VARIABLE: Final = "ISOLOG_NEW_PASSWORD"

UserName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the password in its first line, - for standard input. Default: the variable"
        f" {_VARIABLE}, or a prompt.",
        show_default=False,
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        metavar="STORE",
        help="Metadata store: a file or etcd://HOST:PORT,…/NAME. For the first user, who is added"
        " without a connection to a broker.",
        show_default=False,
    ),
]
Principal = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="User, name in a client certificate, or * for everybody.",
        show_default=False,
    ),
]
Operation = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION",
        help="read, write, create, alter, delete, describe, admin, or all.",
        show_default=False,
    ),
]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NAME, consumer:NAME, transaction:NAME, lake:NAME, or cluster."
        " NAME* is a prefix.",
        show_default=False,
    ),
]


@contextmanager
def _client(bootstrap: str | None, path: Path | None) -> Iterator[AccessClient]:
    from spark_stream.client.administration import AccessClient

    with connection(bootstrap, path) as opened:
        yield AccessClient(opened)


def _password(file: Path | None, name: str) -> str:
    """Read a new password for a user from the file, the environment, or a prompt.

    Raises:
        InvalidOption: none of these is available, or the password is not readable or not UTF-8.
    """
    from spark_stream.client.connecting.access import checked_text

    if file is not None:
        try:
            data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
            text = data.decode("utf-8-sig")
        except OSError as error:
            raise InvalidOption(f"--password-file: {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidOption(f"--password-file: {file} is not valid UTF-8") from None
        return text.partition("\n")[0].rstrip("\r")
    if found := os.environ.get(_VARIABLE):
        return checked_text(_VARIABLE, found)
    if not sys.stdin.isatty():
        raise InvalidOption(
            "the password prompt needs a terminal",
            hint=f"Give --password-file FILE, or set {_VARIABLE}.",
        )
    ask_password()  # first the password of the caller
    typed: str = typer.prompt(
        f"New password for {name}", hide_input=True, confirmation_prompt=True, err=True
    )
    return typed


@users.command("add")
def add_user(
    name: UserName,
    password_file: PasswordFile = None,
    metadata: Metadata = None,
    conf: BrokerConf = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
    if_not_exists: Annotated[
        bool,
        typer.Option(
            "--if-not-exists", help="Do not fail if the user exists, and keep the password."
        ),
    ] = False,
) -> None:
    """Add a user. Grant permissions with `isolog acl allow`, or by the setting `super_users`.

    \b
    isolog user add alice --bootstrap localhost:9092
    isolog user add admin --metadata isolog-data/metadata.sqlite
    """
    password = _password(password_file, name)
    try:
        if metadata is None:
            with _client(bootstrap, path) as client:
                client.add_user(name, password)
        else:
            _add_to_store(metadata_backend(metadata, conf), name, password)
    except UserExists:
        if not if_not_exists:
            raise
        note(f"user {visible(name)} exists")
        return
    note(f"added user {visible(name)}")


def _add_to_store(metadata: Backend, name: str, password: str) -> None:
    from spark_stream.access.callers import hash_password
    from spark_stream.cluster.access import USERS, User, encode

    if not metadata.exists():
        raise InvalidOption(
            f"there is no metadata store {metadata}",
            hint="A broker creates it at its first start: metadata.sqlite in its directory, or the"
            " file of its setting `metadata`.",
            option="--metadata",
        )
    made = encode(User(name, hash_password(password), secrets.token_hex(8)))
    with closing(metadata.open_store()) as store:
        if store.put(USERS + name, made, 0) is None:
            raise UserExists(f"user {name!r} exists already")


@users.command()
def passwd(
    name: UserName,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Change a user's password. Connections with the old password lose access immediately."""
    password = _password(password_file, name)
    with _client(bootstrap, path) as client:
        client.change_password(name, password)
    note(f"changed the password of user {visible(name)}")


@users.command("list")
def list_users(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List the users."""
    with _client(bootstrap, path) as client:
        found = client.users()
    print(json.dumps(found) if output is Listing.JSON else "\n".join(map(visible, found)))


@users.command("remove")
def remove_user(
    name: UserName, yes: Yes = False, bootstrap: Bootstrap = None, path: LogPath = None
) -> None:
    """Remove a user and its tokens. Rules for the name remain."""
    confirm(yes, f"Remove user {name}?", "remove the user")
    with _client(bootstrap, path) as client:
        client.remove_user(name)
    note(f"removed user {visible(name)}")


@tokens.command("create")
def create_token(
    principal: Annotated[
        str | None,
        typer.Option("--for", metavar="PRINCIPAL", help="Owner of the token. Default: the caller."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Lifetime, such as 12h or 30d. Default: unlimited."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'OPERATION RESOURCE'",
            help="Limit the token to this permission. Repeatable. Default: all permissions of the"
            " owner.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Create a token and print it. It cannot be printed again later.

    \b
    (umask 077; isolog token create --for etl --expires 30d > etl.token)
    isolog token create --for etl --only 'read topic:flights' --only 'read consumer:etl'
    """
    grants = None if not only else [_grant(each) for each in only]
    with _client(bootstrap, path) as client:
        made = client.create_token(principal, _lifetime_s(expires), grants)
    note(f"created token {made.id} for {visible(made.principal)}")
    print(made.token)


def _grant(text: str) -> tuple[str, str]:
    operation, _, resource = text.strip().partition(" ")
    if not resource:
        raise InvalidOption(f"--only takes an operation and a resource, not {text!r}")
    return operation, resource.strip()


def _lifetime_s(text: str | None) -> float | None:
    from spark_stream.wire.access_messages import LIFETIME_DAYS_MAX

    if text is None:
        return None
    found = _LIFETIME.fullmatch(text)
    lifetime_s = 0.0 if found is None else float(found[1]) * _UNITS_S[found[2]]
    if found is None or not lifetime_s:
        raise InvalidOption(f"--expires takes a time such as 12h or 30d, not {text!r}")
    if lifetime_s > LIFETIME_DAYS_MAX * _UNITS_S["d"]:
        raise InvalidOption(
            f"--expires is at most {LIFETIME_DAYS_MAX}d",
            hint="A token without --expires never expires.",
        )
    return lifetime_s


@tokens.command("list")
def list_tokens(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List the tokens: all tokens, or the caller's tokens without the permission to list others."""
    with _client(bootstrap, path) as client:
        found = client.tokens()
    if output is Listing.JSON:
        print(json.dumps(as_json(found), indent=2))
        return
    now_ms = wall_ms()
    table = Table()
    for column in ("id", "principal", "created", "expires", "only"):
        table.add_column(column, overflow="fold")
    for each in found:
        left_s = None if each.expires_ms is None else (each.expires_ms - now_ms) / 1000
        ends = "never" if left_s is None else f"in {duration(left_s)}" if left_s > 0 else "expired"
        table.add_row(
            each.id,
            cell(each.principal),
            ago(each.created_ms, now_ms),
            ends,
            "" if each.grants is None else cell(", ".join(each.grants)),
        )
    console().print(table)


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the token, from `list`.", show_default=False)
    ],
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Revoke a token. Connections with the token lose access immediately."""
    with _client(bootstrap, path) as client:
        client.revoke_token(token_id)
    note(f"revoked token {visible(token_id)}")


@acl.command()
def allow(
    principal: Principal,
    operation: Operation,
    resource: Resource,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Allow an operation on a resource. Read, write, alter, delete and admin imply describe.

    Rules that deny take precedence. `isolog acl check` shows the result.

    \b
    isolog acl allow alice read 'topic:flights*'
    isolog acl allow etl write transaction:etl-job
    """
    with _client(bootstrap, path) as client:
        client.add_rule("allow", principal, operation, resource)
    _note_rule("allow", principal, operation, resource)


@acl.command()
def deny(
    principal: Principal,
    operation: Operation,
    resource: Resource,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Deny an operation on a resource. The rule takes precedence over all rules that allow it."""
    with _client(bootstrap, path) as client:
        client.add_rule("deny", principal, operation, resource)
    _note_rule("deny", principal, operation, resource)


@acl.command("remove")
def remove_rule(
    effect: Annotated[
        str,
        typer.Argument(
            metavar="allow|deny", help="Effect of the rule, from `list`.", show_default=False
        ),
    ],
    principal: Principal,
    operation: Operation,
    resource: Resource,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Remove a rule."""
    with _client(bootstrap, path) as client:
        client.remove_rule(effect, principal, operation, resource)
    note("removed the rule")


@acl.command("list")
def list_rules(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List all rules."""
    with _client(bootstrap, path) as client:
        found = client.rules()
    if output is Listing.JSON:
        print(json.dumps(as_json(found), indent=2))
        return
    for each in found:
        print(_rule_text(each))


@acl.command()
def check(
    principal: Principal,
    operation: Operation,
    resource: Resource,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Check a permission of a principal, and print the rules that apply. Exit code 1 if denied.

    \b
    isolog acl check alice read topic:flights
    """
    with _client(bootstrap, path) as client:
        found = client.check(principal, operation, resource)
    print("allowed" if found.is_allowed else "denied")
    for each in found.rules:
        print(f"  {_rule_text(each)}")
    if not found.is_allowed:
        raise typer.Exit(1)


def _note_rule(effect: str, principal: str, operation: str, resource: str) -> None:
    """Print the rule, but not its result, which depends on other rules."""
    from spark_stream.wire.access_messages import RuleText

    made = RuleText(effect=effect, principal=principal, operation=operation, resource=resource)
    note(f"rule: {_rule_text(made)}")


def _rule_text(rule: RuleText) -> str:
    return visible(f"{rule.effect} {rule.principal} {rule.operation} {rule.resource}")


Limited = Annotated[
    str,
    typer.Argument(
        metavar="PRINCIPAL",
        help="User, name in a client certificate, or * for all principals without a quota.",
        show_default=False,
    ),
]


def _rate_option(verb: str) -> object:
    help_text = f"Bytes that it may {verb} per second, such as 10MiB/s."
    return typer.Option(metavar="RATE", help=help_text, show_default=False)


@quotas.command("set")
def set_quota(
    principal: Limited,
    write: Annotated[str | None, _rate_option("write")] = None,
    read: Annotated[str | None, _rate_option("read")] = None,
    connections: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of connections.", show_default=False),
    ] = None,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Set the quota of a principal at each broker. Options that are left out mean no limit.

    \b
    isolog quota set etl --write 20MiB/s --connections 50
    isolog quota set '*' --read 100MiB/s
    isolog quota set admin
    """
    rates = _rate("--write", write), _rate("--read", read)
    with _client(bootstrap, path) as client:
        client.set_quota(principal, *rates, connections)
    note(f"set the quota of {visible(principal)}")


def _rate(option: str, text: str | None) -> int | None:
    from spark_stream.access.rules import RATE_MAX, RATE_MIN

    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise InvalidOption(f"{option} takes a rate such as 10MiB/s or 500KiB/s, not {text!r}")
    rate = int(found[1]) * _UNITS_BYTES[found[2]]
    if not RATE_MIN <= rate <= RATE_MAX:
        least, most = _rate_text(RATE_MIN), _rate_text(RATE_MAX)
        raise InvalidOption(f"{option} takes a rate from {least} to {most}, not {text!r}")
    return rate


@quotas.command("list")
def list_quotas(
    bootstrap: Bootstrap = None, path: LogPath = None, output: Output = Listing.TABLE
) -> None:
    """List the quotas. `isolog cluster status` shows the delays that they have caused."""
    with _client(bootstrap, path) as client:
        found = client.quotas()
    if output is Listing.JSON:
        print(json.dumps(as_json(found), indent=2))
        return
    table = Table("principal", "write", "read", "connections")
    for principal, quota in found.items():
        table.add_row(
            cell(principal),
            _rate_text(quota.write_bytes_per_s),
            _rate_text(quota.read_bytes_per_s),
            "-" if quota.connections is None else str(quota.connections),
        )
    console().print(table)


def _rate_text(rate: int | None) -> str:
    """Format the rate like the argument of `set`."""
    if rate is None:
        return "-"
    unit = next(name for name, size in _UNITS_BYTES.items() if rate % size == 0)
    return f"{rate // _UNITS_BYTES[unit]}{unit}/s"


@quotas.command("remove")
def remove_quota(
    principal: Limited,
    bootstrap: Bootstrap = None,
    path: LogPath = None,
) -> None:
    """Remove the quota of a principal. Then the quota of * applies to it, if there is one."""
    with _client(bootstrap, path) as client:
        client.remove_quota(principal)
    note(f"removed the quota of {visible(principal)}")
