"""``isolog``: the list of its commands, and the reporting of errors.

An :class:`IsologError` is printed as one line on standard error, never as a traceback. A closed
pipe (``| head``) is not an error, because its reader needs no more output.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

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
from spark_stream.errors import InvalidOption, IsologError

COMMANDS: Final = {
    "produce": (
        "commands.produce:produce",
        "Write records to a topic from lines, CSV, JSON lines, Parquet or Arrow.",
    ),
    "consume": (
        "commands.consume:consume",
        "Print the records of a topic that are visible at the isolation level.",
    ),
    "sql": (
        "commands.sql:sql",
        "Run a statement of DuckDB's SQL in which topics are tables.",
    ),
    "bench": (
        "operating.bench:bench",
        "Write to a topic and read from it. Print the throughput and percentiles of the latencies.",
    ),
    "top": (
        "operating.top:top",
        "Show brokers, topics by rate, problems, open transactions, and readers with their lag.",
    ),
    "console": (
        "commands.console:console",
        "Serve a web page with live partitions, records, transactions and consumers of the"
        " cluster.",
    ),
    "kafka-gateway": (
        "commands.kafka_gateway:kafka_gateway",
        "Serve Kafka's protocol, for Kafka's producers, consumers and tools.",
    ),
    "prepare-spark": (
        "operating.setup:prepare_spark",
        "Reduce the start time of Spark's Python workers. Run it once per installation of PySpark.",
    ),
    "broker": ("commands.broker:app", "Start, stop and inspect a broker."),
    "certs": ("commands.certs:app", "Create certificates for TLS."),
    "user": ("commands.access:users", "Add, list and remove users."),
    "token": ("commands.access:tokens", "Create, list and revoke tokens."),
    "acl": ("commands.access:acl", "Allow and deny operations, and check permissions."),
    "quota": ("commands.access:quotas", "Limit the load of principals on each broker."),
    "cluster": (
        "commands.cluster:app",
        "Inspect a cluster, remove brokers, and back up its metadata.",
    ),
    "consumers": ("commands.consumers:app", "List, describe, reset and delete consumers."),
    "config": ("operating.setup:app", "Print or copy example configurations."),
    "lake": ("commands.lake:app", "Copy topics into Delta tables."),
    "log": ("operating.stored_logs:app", "Inspect the files of a log, without a broker."),
    "sinks": ("commands.transactions:sinks", "List and delete the sinks of queries."),
    "topic": ("commands.topic:app", "Create, list, describe, alter, trim and delete topics."),
    "transactions": ("commands.transactions:app", "List, describe and abort transactions."),
}
"""The place of each command below ``spark_stream.cli``, and the first sentences of its help."""


@cache
def loaded(name: str) -> Any:
    """Import a command's module, and return the command."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"spark_stream.cli.{module}"), attribute)
    parent = typer.Typer(rich_markup_mode="rich")
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
    return typer.main.get_group(parent).commands[name]


class _Commands(TyperGroup):
    """The group of all commands.

    Help and completion need only names and sentences. The module of a command is imported when the
    command runs: all modules together take longer than most commands.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, text) in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=text))

    def resolve_command(self, context: Any, arguments: list[str]) -> Any:
        """Return the name, the command and its arguments."""
        name, command, rest = super().resolve_command(context, arguments)
        return name, None if command is None else loaded(str(command.name)), rest

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


def _version(requested: bool) -> None:
    if requested:
        from spark_stream.environment import VERSION

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
