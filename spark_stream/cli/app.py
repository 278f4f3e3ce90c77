"""``isolog``: the list of its commands, and the reporting of errors.

An :class:`IsologError` is printed as one line on standard error, never as a traceback. A closed
pipe (``| head``) is not an error, because its reader needs no more output.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from spark_stream.cli.commands import (
    access,
    broker,
    certs,
    cluster,
    console,
    consume,
    consumers,
    produce,
    topic,
    transactions,
)
from spark_stream.cli.operating import bench, setup, stored_logs, top
from spark_stream.cli.options import (
    ACCESS_OPTIONS,
    Profile,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
    User,
    set_access,
)
from spark_stream.cli.terminal import discard_output, open_closed_streams, problem_of
from spark_stream.environment import VERSION
from spark_stream.errors import InvalidOption, IsologError


class _Commands(TyperGroup):
    """The group of all commands."""

    def invoke(self, context: Any) -> Any:
        """Run the command. Rephrase the errors of options that pydantic has validated."""
        try:
            return super().invoke(context)
        except typer.BadParameter as error:
            errors = getattr(error.__cause__, "errors", None)  # pydantic's
            if errors is not None:
                from spark_stream.broker.config import problem_of  # it is slow to import

                error.message = problem_of(errors()[0])
            raise


app = typer.Typer(
    name="isolog",
    no_args_is_help=True,
    cls=_Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(broker.app, name="broker")
app.add_typer(certs.app, name="certs")
app.add_typer(access.users, name="user")
app.add_typer(access.tokens, name="token")
app.add_typer(access.acl, name="acl")
app.add_typer(access.quotas, name="quota")
app.add_typer(cluster.app, name="cluster")
app.add_typer(consumers.app, name="consumers")
app.add_typer(setup.app, name="config")
app.add_typer(stored_logs.app, name="log")
app.add_typer(transactions.sinks, name="sinks")
app.add_typer(topic.app, name="topic")
app.add_typer(transactions.app, name="transactions")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("bench")(bench.bench)
app.command("top")(top.top)
app.command("console")(console.console)
app.command("prepare-spark")(setup.prepare_spark)


def _version(requested: bool) -> None:
    if requested:
        print(f"isolog {VERSION}")
        raise typer.Exit


@app.callback()
def _isolog(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    profile: Profile = None,
    user: User = None,
    token_file: TokenFile = None,
    tls: Tls = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Manage the brokers and topics of a replicated, Arrow-native log, and write and read records.

    \b
    isolog topic create greetings --path data/
    echo hello | isolog produce greetings --path data/
    isolog consume greetings --path data/
    """
    given = (profile, user, token_file, tls, tls_ca, tls_cert, tls_key)
    set_access(dict(zip(ACCESS_OPTIONS.values(), given, strict=True)))


def run() -> NoReturn:
    """Run the command that this process was started for, and end the process."""
    open_closed_streams()
    _end(execute())


def execute(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. The default is the command of this process.

    The context's ``obj`` is true if this process runs only the command.
    """
    try:
        app(arguments, prog_name="isolog", obj=arguments is None)
    except IsologError as error:
        _report(error)
        return 2 if isinstance(error, InvalidOption) else 1
    except OSError as error:
        discard_output()
        print(f"error: {problem_of(error)}", file=sys.stderr)
        return 1
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    return 0


def _report(error: IsologError) -> None:
    message = " ".join(f"{error.message} ({error.hint})".split())
    print(f"error: {message}", file=sys.stderr)


def _end(code: int) -> NoReturn:
    """Flush the output, and end the process without tearing down the interpreter.

    Threads may still run Arrow code, and a teardown under them can crash.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        print(f"error: {problem_of(error)}", file=sys.stderr)
        code = code or 1
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)
