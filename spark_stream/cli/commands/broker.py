"""``isolog broker``: start, stop, status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer
from msgspec.json import encode

from spark_stream.cli.commands import background
from spark_stream.cli.options import (
    PATH_VARIABLE,
    Bootstrap,
    Listing,
    Output,
    access,
    named_directory,
    note,
    where,
)
from spark_stream.cli.output.show import show_status
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.log import Log
from spark_stream.directories import local_directory
from spark_stream.errors import BrokerUnavailable, InvalidConfig, InvalidOption

if TYPE_CHECKING:
    from spark_stream.broker.config import BrokerConfig

DIRECTORY_VARIABLE: Final = "ISOLOG_DIR"  # BrokerConfig reads it too

app = typer.Typer(no_args_is_help=True, help="Start, stop and look at a broker.")

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        "--path",
        metavar="DIR",
        parser=named_directory,
        help=f"The directory of the log. Variable: {DIRECTORY_VARIABLE}, or {PATH_VARIABLE}.",
        show_default=False,
    ),
]


@app.command()
def start(
    context: typer.Context,
    directory: Directory = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen; port 0 takes a free one. Default: 127.0.0.1:9092.",
            show_default=False,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST[:PORT]",
            help="The address that clients and other brokers are given, where it is not the one of"
            " --listen. Required with --listen 0.0.0.0:PORT.",
            show_default=False,
        ),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen for the other brokers of the cluster."
            " Default: a free port of the same host.",
            show_default=False,
        ),
    ] = None,
    flight_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to serve Arrow Flight too, for other languages. Default: nowhere.",
            show_default=False,
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to show metrics and health, to everybody who asks. Default: nowhere.",
            show_default=False,
        ),
    ] = None,
    conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A configuration file (TOML); options win over it.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="The metadata store that the brokers of a cluster share: a file if they are on one"
            " host, or etcd://HOST:PORT,…/NAME. Default: a file in DIR.",
            show_default=False,
        ),
    ] = None,
    broker_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="NAME",
            help="The broker's id, if DIR is new. Default: a unique one.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Its rack: replicas of a partition are put into different racks.",
            show_default=False,
        ),
    ] = None,
    daemon: Annotated[
        bool,
        typer.Option("--daemon", help="Run in the background; return once it serves."),
    ] = False,
    idle_seconds: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.0,
            help="End after this long without a call. Default: 0, which is never.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C. Once it serves, it prints its address.

    \b
    isolog broker start --dir data/
    isolog broker start --dir data/ --listen 127.0.0.1:0 --daemon
    isolog broker start --conf conf/broker.toml --listen 0.0.0.0:9092 --advertise log.example.org
    """
    from spark_stream.broker.config import BrokerConfig

    def load(directory: Path | None) -> BrokerConfig:
        return BrokerConfig.load(
            conf,
            dir=directory,
            id=broker_id,
            rack=rack,
            metadata=metadata,
            listen=listen,
            peer_listen=peer_listen,
            flight_listen=flight_listen,
            metrics_listen=metrics_listen,
            advertise=advertise,
            idle_seconds=idle_seconds,
        )

    try:
        config = load(directory)
    except InvalidConfig as error:
        if directory is not None or error.details.get("setting") != "dir":
            raise
        config = load(_named_directory())
    if not daemon:
        from spark_stream.broker.process import serve
        from spark_stream.broker.serving.memory import bound_memory, keep_pandas_out

        if context.obj:
            bound_memory(config.memory_bytes)
            keep_pandas_out()
        serve(config)
        return
    flags = ["--listen", config.listen]
    flags += ["--advertise", config.advertise] if config.advertise else []
    flags += ["--peer-listen", config.peer_listen] if config.peer_listen else []
    flags += ["--flight-listen", config.flight_listen] if config.flight_listen else []
    flags += ["--metrics-listen", config.metrics_listen] if config.metrics_listen else []
    flags += ["--conf", str(conf.absolute())] if conf is not None else []
    flags += ["--idle-seconds", str(config.idle_seconds)]
    place = config.place
    if isinstance(place, Path):  # as a URL, because the directory may have any name
        flags += ["--metadata", f"sqlite://{quote(str(place.absolute()))}"]
    elif place is not None:
        flags += ["--metadata", str(place)]
    flags += ["--id", config.id] if config.id else []
    flags += ["--rack", config.rack] if config.rack else []
    print(background.start(config.dir, flags, _absolute_files(config)), flush=True)


@app.command()
def stop(
    directory: Directory = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for its end.")
    ] = 30.0,
) -> None:
    """Stop the broker of a directory, and return once it has ended. Nothing acknowledged is lost.

    \b
    isolog broker stop --dir data/
    """
    pid = background.stop(_directory(directory), timeout)
    note(f"isolog broker stopped (process {pid})")


def _absolute_files(config: BrokerConfig) -> dict[str, str]:
    """Return variables that name the broker's files: a daemon has another working directory."""
    found = {
        f"ISOLOG_{name.upper()}": encode(each.absolute()).decode()
        for name, each in (("tls", config.tls), ("peer_tls", config.peer_tls))
        if each.cert is not None
    }
    if config.jwt is not None:
        found["ISOLOG_JWT"] = config.jwt.absolute().model_dump_json()
    return found


@app.command()
def status(
    directory: Directory = None,
    bootstrap: Bootstrap = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait for its answer.")
    ] = 5.0,
    output: Output = Listing.TABLE,
) -> None:
    """Show the status that a broker reports. Exit code 1 if none runs; it never starts one.

    \b
    isolog broker status --dir data/
    isolog broker status --bootstrap localhost:9092 --output json
    """
    if bootstrap is not None and directory is not None:
        raise InvalidOption("--dir and --bootstrap exclude each other", hint="Give one of them.")
    if directory is None and not os.environ.get(DIRECTORY_VARIABLE):
        bootstrap, directory = where(bootstrap, None)
    address = bootstrap or _address(directory)
    connection = ClusterConnection(address, timeout_s=timeout, access=access())
    connection.connect()
    with Log(connection) as log:
        show_status(log.status(), output)


def _address(directory: Path | None) -> str:
    """Return the address at which the directory's broker listens.

    Raises:
        BrokerUnavailable: none runs, or it does not serve yet.
    """
    directory = _directory(directory)
    found = background.running(directory)
    if found is None:
        raise BrokerUnavailable(
            f"no broker serves {directory}", hint="Start one with `isolog broker start`."
        )
    if found.address is None:
        raise BrokerUnavailable(f"the broker of {directory} does not serve yet", hint="Try again.")
    return found.address


def _directory(directory: Path | None) -> Path:
    """Return --dir, or else the directory that a variable names.

    Raises:
        InvalidOption: neither names one.
        BrokerUnavailable: there is no such directory, so no broker serves it.
    """
    if directory is None:
        directory = _named_directory()
    if not directory.is_dir():
        raise BrokerUnavailable(f"there is no directory {directory}", hint="Check --dir.")
    return directory.absolute()


def _named_directory() -> Path:
    """Return the directory in the broker's own variable, or else in that of all commands."""
    for variable in (DIRECTORY_VARIABLE, PATH_VARIABLE):
        if named := os.environ.get(variable):
            return local_directory(named, variable, None)
    raise InvalidOption(
        "which directory?",
        hint=f"Give --dir DIR, or set {DIRECTORY_VARIABLE} or {PATH_VARIABLE}.",
    )
