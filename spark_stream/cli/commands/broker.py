"""``isolog broker``: start, stop, status; and the broker process of a directory.

The lock that a broker holds tells whether it runs, never ``broker.json`` alone: that file survives
a ``kill -9``, and its process id may belong to another process by then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import quote

import typer
from msgspec import Struct
from msgspec.json import encode
from rich.table import Table

from spark_stream.cli.options import (
    PATH_VARIABLE,
    Bootstrap,
    Listing,
    Output,
    access,
    counted,
    named_directory,
    note,
    where,
)
from spark_stream.cli.output.texts import as_json, cell, console, size_text
from spark_stream.client.connecting.connection import ClusterConnection
from spark_stream.client.connecting.embedded import (
    broker_command,
    broker_environment,
    check_ours,
    lock_held,
)
from spark_stream.client.log import Log
from spark_stream.directories import local_directory
from spark_stream.errors import (
    BrokerUnavailable,
    InvalidConfig,
    InvalidOption,
    RequestTimeout,
    StorageFailure,
    from_wire,
)
from spark_stream.wire.cluster_messages import BrokerStatus

READY: Final = "isolog broker ready "
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 5.0
_POLL_S: Final = 0.02
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
    print(start_in_background(config.dir, flags, _absolute_files(config)), flush=True)


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
    pid = stop_process(_directory(directory), timeout)
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
    found = running_broker(directory)
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


# -- the process of a directory --------------------------------------------------------------------


class RunningBroker(Struct, frozen=True):
    """A broker that holds a directory; ``address`` is None until it serves."""

    pid: int | None = None
    address: str | None = None


def running_broker(directory: Path) -> RunningBroker | None:
    """Return the broker of the directory; None if none runs."""
    try:
        if not lock_held(directory):
            return None
    except OSError as error:
        raise StorageFailure(f"{directory}: {error.strerror}") from None
    try:
        facts = json.loads((directory / "broker.json").read_text())
        return RunningBroker(int(facts["pid"]), str(facts["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        return RunningBroker()


def start_in_background(directory: Path, flags: list[str], variables: Mapping[str, str]) -> str:
    """Start a broker in a session of its own, and return its ready line.

    The broker is a new interpreter: this process has threads, so it must not fork. The broker's
    output goes to ``broker.log`` in its directory.

    Raises:
        IsologError: the reason why it did not start.
    """
    directory = directory.absolute()
    check_ours(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = os.open(directory / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise StorageFailure(
            f"{directory}: {error.strerror}",
            hint="The broker must be allowed to make the directory, and to write to it.",
        ) from None
    try:
        process = subprocess.Popen(
            broker_command(directory, *flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={**broker_environment(), **variables},
            start_new_session=True,
        )
    finally:
        os.close(log)
    assert process.stdout is not None
    line = ""
    with process.stdout as said:
        if select.select([said], [], [], _START_SECONDS)[0]:
            line = said.readline().decode().strip()
    if line.startswith(READY):
        return line
    _await_end(process)
    with suppress(ValueError, KeyError, TypeError):
        raise from_wire(json.loads(line)["error"])
    raise BrokerUnavailable(
        f"the broker of {directory} did not come up",
        hint=f"Look into {directory / 'broker.log'}.",
    )


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a broker that could not start; kill it if it neither serves nor ends."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def stop_process(directory: Path, timeout_s: float) -> int:
    """End the directory's broker cleanly, wait until it has exited, and return its process id.

    Raises:
        BrokerUnavailable: none runs, or it is out of reach (on another host, in a container).
        RequestTimeout: it did not end in time; it may still do so.
    """
    deadline = time.monotonic() + timeout_s
    found = running_broker(directory)
    while found is not None and found.pid is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # it holds the lock but does not serve yet
        found = running_broker(directory)
    if found is None:
        raise BrokerUnavailable(f"no broker serves {directory}", hint="There is nothing to stop.")
    handle = None if found.pid is None else _handle(found.pid, directory)
    if handle is None or found.pid is None:
        raise BrokerUnavailable(
            f"a broker serves {directory}, but it is not a process that can be signalled from here",
            hint="Stop it on its own host, in its container, or as its user.",
        )
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        left = max(0.0, deadline - time.monotonic())
        if not select.select([handle], [], [], left)[0]:  # readable once the process has ended
            raise RequestTimeout(
                f"the broker of {directory} (process {found.pid}) did not stop in {timeout_s:g} s",
                hint="Allow more --timeout, or end it by `kill -9`: nothing acknowledged is lost.",
            )
    finally:
        os.close(handle)
    return found.pid


def _handle(pid: int, directory: Path) -> int | None:
    """Return a pidfd of the process if it has the directory's lock file open, else None.

    The pidfd comes first: from then on the process id cannot be reused for another process.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        lock = (directory / "broker.lock").stat()
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), lock):
                    return handle
    except OSError:
        pass  # another user's process
    os.close(handle)
    return None


if TYPE_CHECKING:
    from spark_stream.broker.config import BrokerConfig


def show_status(status: BrokerStatus, shape: Listing) -> None:
    """Print the status that a broker reports."""
    facts = as_json(status)
    if shape is Listing.JSON:
        print(json.dumps(facts, indent=2))
        return
    facts["memory"] = size_text(status.memory)
    facts["uptime"] = f"{facts.pop('uptime_s'):.0f} s"
    checked_ms = facts.pop("checked_ms")
    facts["last check of the files"] = (
        "not yet" if checked_ms is None else str(datetime.fromtimestamp(checked_ms // 1000, UTC))
    )
    facts["damaged replicas"] = (
        ", ".join(f"{name} from offset {offset}" for name, offset in facts.pop("damaged").items())
        or "none"
    )
    facts["refused writes"] = (
        ", ".join(f"{name}: {code}" for name, code in facts.pop("refused").items()) or "none"
    )
    facts["principals"] = ", ".join(
        f"{name} {counted(use.connections, 'connection')}"
        for name, use in status.principals.items()
    )
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), cell(str(value)))
    console().print(table)
